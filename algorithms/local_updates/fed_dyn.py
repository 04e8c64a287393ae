"""FedDyn: local steps with a linear and a quadratic term that let clients agree at the limit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from algorithms.facts import method
from algorithms.mechanisms.outer import Inner, Outer, local_updates, outer_gradient
from dsgd import Algorithm, Communicator, checks, network
from dsgd.extend import Gradients, Period, Real


@method(
    sends="changes of the participating clients every H-th round, the model back, through a server",
    exact="any data",
    paper="FedDyn: Acar et al., 2021, Algorithm 1",
    settings={"period": 4, "penalty": 1.0},
)
@checks.arguments
def fed_dyn(
    optimizer: optax.GradientTransformation,
    period: Period,
    penalty: Real = 0.01,
    *,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""FedDyn: clients make steps on $f_n(y) - \langle g_n, y \rangle + \frac\alpha2 |y - x_t|^2$,
    where $g_n$ estimates the gradient of $f_n$ at the optimum.

    $$ y^{(n)} \leftarrow y^{(n)} - \gamma \big(f_n'(y^{(n)}) - g_n + \alpha (y^{(n)} - x_t)\big)
       \quad H \text{ times from } x_t, \qquad
       g_n \leftarrow g_n - \alpha (y^{(n)} - x_t) $$

    $$ h \leftarrow h - \frac\alpha N \sum_{n \in S_t} (y^{(n)} - x_t), \qquad
       x_{t+1} = \frac{1}{|S_t|} \sum_{n \in S_t} y^{(n)} - \frac1\alpha h $$

    $g_n$ and h start at 0, and h is always the mean of $g_n$ over all clients. A client that does
    not participate keeps $g_n$. A round is one gradient per client; every H-th round sends the
    models, and a number that is 1 for each client in $S_t$. Clients participate as in `fed_avg`. If
    the problem has weights, $\frac1N \sum$ and $\frac{1}{|S_t|} \sum$ are weighted means.

    With exact gradients the limit is exact: the optimum of the mean objective for any data, also
    with few local steps and with sampled clients. With exact minimizers instead of H steps, $g_n =
    f_n'(y^{(n)})$ after client n's first participation.

    Args:
        optimizer: each client's step; `optax.sgd(gamma)` needs $\gamma (L + \alpha) < 2$. Its state
            starts again in each period.
        period: H. It may be swept.
        penalty: $\alpha$, above 0. The paper uses 0.1, 0.01 and 0.001. With few local steps,
            an $\alpha$ much below $1 / (\gamma H)$ makes the step along h long.
        via: communication pattern; by default each client has its own link to the server.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1, or $\alpha$ is not positive.

    Source: Acar et al., "Federated learning based on dynamic regularization", 2021, Algorithm 1.
    The authors' code also divides $\alpha$ by a client's relative number of samples and clips
    gradients.
    """
    period = checks.period("fed_dyn: period", period)
    checks.number("fed_dyn: penalty", penalty, "(0, inf)")

    def direction(gradients: Gradients, x: Outer, y: Inner) -> Gradients:
        return jax.tree.map(
            lambda g, g_n, y, x: g - g_n + jnp.asarray(penalty, g.dtype) * (y - x[None]),
            gradients,
            y.memory,
            y.params,
            x.params,
        )

    def change(x: Outer, y: Inner, round: Communicator, via: network.AllReduce):
        delta = outer_gradient(x, y)
        sent = delta, jnp.ones(jax.tree.leaves(delta)[0].shape[0])
        # Means over all clients of values that are 0 for those that do not participate.
        (mean, share), (delivered, _) = round.aggregate(sent, via=via)
        h, memory = jax.tree.map(
            lambda old, sent: old + jnp.asarray(penalty, old.dtype) * sent,
            (x.memory, y.memory),
            (mean, delivered),
        )
        share = jnp.where(share > 0, share, 1)
        outer = jax.tree.map(lambda mean, h: (mean / share + h / penalty).astype(h.dtype), mean, h)
        return outer, h, memory

    return local_updates(
        f"fed_dyn({period}, {penalty})",
        optimizer,
        optax.sgd(1.0),
        period,
        via=via,
        fresh=True,
        direction=direction,
        change=change,
        shared=optax.tree.zeros_like,
        own=optax.tree.zeros_like,
    )
