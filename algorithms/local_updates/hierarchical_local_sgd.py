"""Hierarchical local SGD: models are averaged within blocks often, and over all workers rarely."""

from __future__ import annotations

from functools import partial

import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, checks
from dsgd.extend import Period


def blocks_of_at_most_eight(workers: int) -> int:
    """Returns the largest block of at most eight workers, the GPUs of a machine."""
    return next(size for size in range(8, 0, -1) if workers % size == 0)


@method(
    sends="models every H-th round, by an all-reduce within blocks or over all workers",
    paper="Lin et al., 2020",
    needs=("all workers",),
    settings={"block": 2, "period": 2, "blocks_period": 3},
    candidates={
        "language models": [
            {"block": blocks_of_at_most_eight, "period": (5, 10, 50), "blocks_period": (2, 10)}
        ]
    },
)
@checks.arguments
def hierarchical_local_sgd(
    optimizer: optax.GradientTransformation,
    block: int,
    period: Period,
    blocks_period: Period,
) -> Algorithm:
    r"""Hierarchical local SGD: the models of each block of workers are averaged every H rounds, and
    those of all workers every $H H_b$ rounds.

    $$ x_{t+1}^{(n)} = \begin{cases}
       \frac1N \sum_m \big(x_t^{(m)} - \gamma g_m(x_t^{(m)})\big) & H H_b \mid t + 1 \\
       \frac1k \sum_{m \in B(n)} \big(x_t^{(m)} - \gamma g_m(x_t^{(m)})\big)
       & H \mid t + 1 \text{ otherwise} \\
       x_t^{(n)} - \gamma g_n(x_t^{(n)}) & \text{otherwise} \end{cases} $$

    A round is one gradient per worker. A block B(n) has k consecutive workers, such as the GPUs of
    a machine: with `clusters.Nodes(k, ...)`, averages within blocks do not use the machines'
    network cards. With $H_b = 1$, or one block, the method is `local_sgd` with period H; with
    blocks of one worker, `local_sgd` with period $H H_b$. On problems with weights, means are
    $\sum_n w_n x^{(n)} / \sum_n w_n$. All workers must participate.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. The states of momentum
            and Adam stay local.
        block: k, which divides the number of workers.
        period: H. It may be swept.
        blocks_period: $H_b$, the number of averages after which one is over all workers. It may be
            swept.

    Raises:
        ValueError: if an argument is less than 1, $H H_b$ is more than 2^31 - 1, or the number of
            workers is not a multiple of k.

    Source: Lin, Stich, Patel and Jaggi, "Don't use large mini-batches, use local SGD", 2020.
    """
    checks.positive_int("hierarchical_local_sgd: block", block)
    period = checks.period("hierarchical_local_sgd: period", period)
    blocks_period = checks.period("hierarchical_local_sgd: blocks_period", blocks_period)
    long = checks.period("hierarchical_local_sgd: period * blocks_period", period * blocks_period)

    def update(y, gradients, round):
        if round.workers % block:
            raise ValueError(
                f"hierarchical_local_sgd: block = {block} but the problem has {round.workers} "
                f"workers; expected a divisor of {round.workers}"
            )
        y = optimizers.local_step(optimizer, y, gradients, round)
        over_all = (round.step + 1) % long == 0
        models = y.params

        def average_blocks(x):
            return round.when(~over_all, partial(round.average_blocks, size=block), x)

        if 1 < block < round.workers:
            models = round.every(period, average_blocks, models)
        every = period if block == round.workers else long
        return y._replace(params=round.every(every, round.average, models))

    name = f"hierarchical_local_sgd({block}, {period}, {blocks_period})"
    return methods.local_models(name, optimizer, update)
