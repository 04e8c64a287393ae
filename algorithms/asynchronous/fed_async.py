"""FedAsync: the server's model moves towards each client's model that arrives."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from algorithms.asynchronous.asynchronous_server import Counted, LocalRuns, asynchronous_server
from algorithms.facts import method
from dsgd import Algorithm, checks
from dsgd.extend import Real


@method(
    sends="the model after H local steps to the server, its model back",
    needs=("all workers",),
    paper="Xie et al., 2019, algorithm 1",
    page="how_to/clusters/asynchronous.md",
    settings={"steps": 2},
)
@checks.arguments
def fed_async(
    optimizer: optax.GradientTransformation,
    steps: int | Sequence[int],
    mixing: Real = 0.6,
    *,
    exponent: Real = 0.5,
    hinge: tuple[Real, Real] | None = None,
    penalty: Real = 0.005,
) -> Algorithm:
    r"""FedAsync: the server averages its model with each client's model that arrives, with a
    smaller weight if the client began at an earlier model.

    $$ x_{k+1} = x_k + \alpha\, s(\delta_k) (y - x_k), \qquad s(\delta) = (1 + \delta)^{-a} $$

    y is a client's model after H local steps on $f_n(y) + \frac\rho2 |y - x_{k - \delta_k}|^2$ from
    $x_{k - \delta_k}$. It is compared with the current model and not with the one that was read, so
    that old models pull the server back. Clients with different data contribute in proportion to
    their speed, so that the limit is biased. A round is one gradient of one client; the history has
    `server_steps`, and the `delay` $\delta$ of the last gradient.

    Args:
        optimizer: each client's step; its state is new in each local run.
        steps: H, an integer, or one for each client.
        mixing: $\alpha$, in (0, 1]; the paper has 0.6 and 0.9.
        exponent: a, at least 0 ("FedAsync+Poly"; 0: "FedAsync+Const").
        hinge: (a, b), a > 0 and b >= 0, for $s(\delta) = 1$ if $\delta \le b$, else
            $1 / (a (\delta - b) + 1)$, in place of the power ("FedAsync+Hinge"; the paper has
            (10, 4)); None: the power.
        penalty: $\rho$, at least 0.

    Raises:
        ValueError: if steps are less than 1 or not one for each worker, or a number is out of
            range.

    Source: Xie, Koyejo and Gupta, "Asynchronous federated optimization", 2019, algorithm 1.
    """
    checks.number("fed_async: mixing", mixing, "(0, 1]")
    checks.number("fed_async: exponent", exponent, "[0, inf)")
    checks.number("fed_async: penalty", penalty, "[0, inf)")
    slope, most = (1.0, 0.0) if hinge is None else hinge
    checks.number("fed_async: hinge[0]", slope, "(0, inf)")
    checks.number("fed_async: hinge[1]", most, "[0, inf)")

    def start(model, N):
        return Counted(model.params, model.optimizer, jnp.int32(0))

    def step(model, change, arrival, read):
        weight = (1.0 + arrival.delay) ** -exponent
        if hinge is not None:
            weight = 1 / (slope * jnp.maximum(0, arrival.delay - most) + 1)

        def mix(x, read, change):
            return x + (mixing * weight).astype(x.dtype) * (read - change - x)

        params = jax.tree.map(mix, model.params, read, change)
        return Counted(params, model.optimizer, model.steps + 1)

    local = LocalRuns(optimizer, steps, penalty)
    return asynchronous_server("fed_async", optax.sgd(1.0), step, start=start, local=local)
