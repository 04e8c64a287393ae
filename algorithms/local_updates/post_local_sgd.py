"""Post-local SGD: synchronization in every round first, local steps later."""

from __future__ import annotations

import optax

from algorithms.facts import method
from algorithms.mechanisms.outer import Outer, local_updates
from dsgd import Algorithm, Communicator, checks, network
from dsgd.extend import Period


@method(
    sends="models, in every round first, then every H-th, by an all-reduce",
    paper="Lin et al., 2020",
    settings={"switch": 4, "period": 4},
)
@checks.arguments
def post_local_sgd(
    optimizer: optax.GradientTransformation,
    switch: Period,
    period: Period = 16,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""Post-local SGD: mini-batch SGD for $t'$ rounds, then local SGD with H local steps.

    $$ H_t = \begin{cases} 1 & t < t' \\ H & t \ge t' \end{cases} $$

    A round is one gradient per worker. The models are averaged in the first $t'$ rounds, then in
    rounds $t' + H - 1$, $t' + 2H - 1$ and so on (by PyTorch's averager in rounds $t'$, $t' + H$ and
    so on); all else is as in `local_sgd`. The workers' optimizers are local also in the first
    rounds: for SGD with or without momentum, averaging models and averaging gradients give the same
    models.

    Args:
        optimizer: each worker's step.
        switch: $t'$, the number of the first local round, at least 0; in the paper, the round in
            which the step size decays for the first time. With $t' = 0$ the method is `local_sgd`.
            It may be swept.
        period: H. It may be swept.
        via: as in `local_sgd`.

    Raises:
        ValueError: if $t'$ is negative, the period is less than 1, or either is more than 2^31 - 1.

    Source: Lin et al., "Don't use large mini-batches, use local SGD", 2020.
    """
    switch = checks.period("post_local_sgd: switch", switch, least=0)
    period = checks.period("post_local_sgd: period", period)

    def synchronizes(x: Outer, round: Communicator):
        return (round.step < switch) | ((round.step + 1 - switch) % period == 0)

    name = f"post_local_sgd({switch}, {period})"
    return local_updates(name, optimizer, optax.sgd(1.0), synchronizes, via=via)
