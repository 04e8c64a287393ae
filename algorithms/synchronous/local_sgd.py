"""Local SGD: averaging every few rounds."""

from __future__ import annotations

from functools import partial

import optax

from algorithms import gossip, methods, optimizers
from dsgd import Algorithm, Topology, checks
from dsgd.base import Period


@checks.arguments
def local_sgd(
    optimizer: optax.GradientTransformation, period: Period, topology: Topology | None = None
) -> Algorithm:
    r"""Local SGD, or periodic averaging: everybody makes H steps of its own, then models are
    averaged.

    $$ x_{t+1}^{(n)} = \begin{cases} \sum_m W_{nm} \big(x_t^{(m)} - \gamma g_m(x_t^{(m)})\big) & H \mid t + 1 \\
       x_t^{(n)} - \gamma g_n(x_t^{(n)}) & \text{otherwise} \end{cases} $$

    A round is one gradient; nothing is sent in the others. A worker that computes nothing in a
    round (`Query.work`) makes no step in it. A worker that does not participate when models are
    averaged gets the average when it comes back: with clients that are drawn once for every
    averaging it is FedAvg.

    On problems with weights the mean over all is $\sum_n w_n x^{(n)} / \sum_n w_n$ over those that
    take part, as in FedAvg, and local steps are as long as without. On a topology W stays as it is,
    and worker n steps along $w_n g_n$.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation. Momentum and Adam keep
            their memories locally.
        period: H. With 1 it is model averaging, or decentralized SGD. It may be swept.
        topology: W, doubly stochastic; None: the mean over all, by an all-reduce. The averagings go
            through a schedule one by one.

    Raises:
        ValueError: a period < 1 or above 2^31 - 1, not a topology, or not a doubly stochastic one.

    Source: Stich, "Local SGD converges fast and communicates little", 2019; on graphs, Koloskova et
    al., "A unified theory of decentralized SGD with changing topology and local updates", 2020.
    """
    period = checks.period("local_sgd: period", period)
    if topology is not None:
        gossip.need("local_sgd", topology)

    def update(y, gradients, round):
        y = optimizers.local_step(optimizer, y, gradients, round)
        average = round.average if topology is None else partial(round.mix, topology=topology)
        return y._replace(params=round.every(period, average, y.params))

    name = f"local_sgd({period}{'' if topology is None else f', {topology.name}'})"
    return methods.local_models(
        name, optimizer, update, topology=topology, absent=methods.gets_average
    )
