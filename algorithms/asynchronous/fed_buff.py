"""FedBuff: steps with buffers of the changes that arrive, fresh or old."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from algorithms.asynchronous.asynchronous_server import LocalRuns, asynchronous_server
from algorithms.asynchronous.rennala_sgd import collection
from algorithms.facts import method
from algorithms.mechanisms.outer import scale
from dsgd import Algorithm, checks
from dsgd.extend import Period, Real


@method(
    sends="the change of H local steps to the server, the model back",
    needs=("all workers",),
    paper="Nguyen et al., 2022, algorithm 1",
    page="how_to/clusters/asynchronous.md",
    settings={"steps": 2, "buffer": 3},
)
@checks.arguments
def fed_buff(
    optimizer: optax.GradientTransformation,
    steps: int | Sequence[int],
    buffer: Period = 10,
    outer: optax.GradientTransformation | None = None,
    *,
    exponent: Real = 0.5,
    concurrency: int | None = None,
) -> Algorithm:
    r"""FedBuff: clients train at their own pace; the server collects K of their changes, and makes
    a step with the mean.

    $$ x_{k+1} = \mathrm{Outer}\Big(x_k, \frac1K \sum_{b=1}^K (1 + \delta_b)^{-a} \Delta_b\Big),
       \qquad \Delta_b = x_{k - \delta_b} - y_b $$

    $y_b$ is a client's model after H local steps from $x_{k - \delta_b}$; K changes count, also if
    all of them are old or from the same client. A client that has sent its change receives the
    current model, unless `concurrency` gives it to another one. Clients with different data
    contribute in proportion to their speed, so that the limit is biased. With K = 1, H = 1 and
    a = 0 the method is asynchronous SGD; with the changes of all clients at the current model it is
    `fed_opt`. A round is one gradient of one client; the history has `server_steps`, and the
    `delay` $\delta$ of the last gradient.

    Args:
        optimizer: each client's step; its state is new in each local run.
        steps: H, an integer, or one for each client.
        buffer: K. It may be swept.
        outer: the server's step; None: `optax.sgd(1)`, which subtracts the mean. The paper has SGD
            with and without momentum.
        exponent: a of the weight of a change that was computed at an earlier model, at least 0;
            0: all changes have equal weights.
        concurrency: M, the number of clients that train at a time. A random one of those that wait
            begins when a change arrives; the first M begin at the start. None: all.

    Raises:
        ValueError: if steps, buffer or concurrency are less than 1, steps are not one for each
            worker, the concurrency is larger than N, or the exponent is negative.

    Source: Nguyen et al., "Federated learning with buffered asynchronous aggregation", 2022. FLSim
    divides the weight by that of an average delay.
    """
    buffer = checks.period("fed_buff: buffer", buffer)
    checks.number("fed_buff: exponent", exponent, "[0, inf)")
    outer = optax.sgd(1.0) if outer is None else outer
    start, collect = collection(outer, buffer)

    def step(model, change, arrival, read):
        weight = (1.0 + arrival.delay) ** -exponent
        return collect(model, scale(weight, change), arrival.worker)

    def draw(model, arrival, jobs, key):
        scores = jnp.where(jobs.waiting, jax.random.uniform(key, jobs.waiting.shape), -1)
        return jnp.where(jnp.arange(len(scores)) == jnp.argmax(scores), jobs.worker, -1)

    return asynchronous_server(
        f"fed_buff({buffer})",
        outer,
        step,
        start=start,
        order=None if concurrency is None else draw,
        local=LocalRuns(optimizer, steps),
        concurrency=concurrency,
    )
