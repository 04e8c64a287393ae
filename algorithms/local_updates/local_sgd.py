"""Local SGD: the models are averaged once per period."""

from __future__ import annotations

from functools import partial

import optax

from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, Topology, checks, network
from dsgd.extend import Period


@method(
    sends="models every H-th round, by an all-reduce, through a server, or to neighbours",
    paper="Stich, 2019; Koloskova et al., 2020",
    page="explanation/theory.md",
    settings={"period": 4},
    candidates={"any problem": [{}], "language models": [{}]},
)
@checks.arguments
def local_sgd(
    optimizer: optax.GradientTransformation,
    period: Period,
    topology: Topology | None = None,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""Local SGD, or periodic averaging: each worker makes H local steps, then the models are
    averaged.

    $$ x_{t+1}^{(n)} = \begin{cases}
       \sum_m W_{nm} \big(x_t^{(m)} - \gamma g_m(x_t^{(m)})\big) & H \mid t + 1 \\
       x_t^{(n)} - \gamma g_n(x_t^{(n)}) & \text{otherwise} \end{cases} $$

    A round is one gradient per worker; only every H-th round sends messages. A worker that computes
    nothing in a round (`Query.work`) makes no step in it. A worker that does not participate when
    the models are averaged adopts the average when it returns; if the clients are drawn once per
    averaging period, this is FedAvg.

    On problems with weights, the mean over all workers is $\sum_n w_n x^{(n)} / \sum_n w_n$ over
    the participating workers, as in FedAvg, and local steps have the same length as without
    weights. With a topology, W is unchanged, and worker n steps along $w_n g_n$.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. The states of momentum
            and Adam stay local.
        period: H. With H = 1 the method is model averaging, or decentralized SGD if a topology is
            given. It may be swept.
        topology: W, doubly stochastic; None: the mean over all workers. With a schedule, each
            averaging uses the next matrix.
        via: communication pattern of the mean over all workers: all-reduce, or clients of a server
            (`network.star`, a link for each client; `network.parameter_server`, one port for all).

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1, or the topology is not
            doubly stochastic.

    Source: Stich, "Local SGD converges fast and communicates little", 2019; on graphs, Koloskova et
    al., "A unified theory of decentralized SGD with changing topology and local updates", 2020.
    """
    period = checks.period("local_sgd: period", period)
    if topology is not None:
        gossip.require_topology("local_sgd", topology)

    def update(y, gradients, round):
        y = optimizers.local_step(optimizer, y, gradients, round)
        average = (
            partial(round.average, via=via)
            if topology is None
            else partial(round.mix, topology=topology)
        )
        return y._replace(params=round.every(period, average, y.params))

    name = f"local_sgd({period}{'' if topology is None else f', {topology.name}'})"
    return methods.local_models(
        name, optimizer, update, topology=topology, absent=methods.gets_average
    )
