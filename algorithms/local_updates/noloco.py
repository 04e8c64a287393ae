"""NoLoCo: local steps, then slow momentum that pairs of workers average."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, Topology, checks
from dsgd.extend import Period, Real


class Slow(NamedTuple):
    """State of a worker.

    Args:
        params: y, its model.
        optimizer: state of its optimizer.
        slow: phi, its model after its last exchange.
        momentum: v.
    """

    params: Any
    optimizer: Any
    slow: Any
    momentum: Any


@method(
    sends="changes and slow models every H-th round, to one random partner",
    paper="NoLoCo: Kolehmainen et al., 2025",
    page="reference/topologies.md",
    graph=partial(topologies.random_matchings, period=3),
    settings={"period": 4},
    candidates={"language models": [{"graph": topologies.random_matchings}]},
)
@checks.arguments
def noloco(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    period: Period = 50,
    *,
    outer_step: Real = 0.7,
    consensus_step: Real = 0.7,
    momentum: Real = 0.5,
) -> Algorithm:
    r"""NoLoCo: H local steps from a slow model, then a step of the slow model with momentum on the
    change and on the difference to the slow model of a random partner. There is no all-reduce.

    $$ D^{(n)} = y_H^{(n)} - \phi^{(n)}, \qquad
       v^{(n)} \leftarrow \alpha v^{(n)} + \eta \sum_m W_{nm} D^{(m)}
       + \eta_c \sum_m W_{nm} \big(\phi^{(m)} - \phi^{(n)}\big), \qquad
       \phi^{(n)} \leftarrow \phi^{(n)} + v^{(n)}, \qquad y^{(n)} \leftarrow \phi^{(n)} $$

    A round is one gradient per worker. In every H-th round a worker sends two vectors to its
    partner. The mean of the slow models moves by heavy-ball momentum on the mean of D. With $\alpha
    = 0$ and $\eta = \eta_c = 1$ the method is `local_sgd` on the topology. With random pairs and a
    constant inner step size there is no fixed point: the mean differs from the optimum by $O(\gamma
    H)$, and the models from each other by $O(\gamma H)$, if the workers' data differ. A worker that
    does not participate keeps its state. W is not changed by the problem's weights: worker n steps
    along $w_n g_n$.

    Args:
        optimizer: each worker's inner step; its state is kept.
        topology: W, doubly stochastic. `topologies.random_matchings(N)` is the paper's choice: a
            schedule of random pairs that all workers know and that advances with each exchange.
        period: H. It may be swept.
        outer_step: $\eta$, positive.
        consensus_step: $\eta_c$, positive.
        momentum: $\alpha$, in [0, 1).

    Raises:
        ValueError: if the period is less than 1, the topology is not doubly stochastic, a step is
            not positive, or $\alpha$ is not in [0, 1).

    Source: Kolehmainen et al., "NoLoCo: no-all-reduce low communication training method for large
    models", 2025. The paper calls the momentum Nesterov; neither its equation nor its code looks
    ahead.
    """
    period = checks.period("noloco: period", period)
    gossip.require_topology("noloco", topology)
    checks.number("noloco: outer_step", outer_step, "(0, inf)")
    checks.number("noloco: consensus_step", consensus_step, "(0, inf)")
    checks.number("noloco: momentum", momentum, "[0, 1)")

    def update(y: Slow, gradients, round):
        y = optimizers.local_step(optimizer, y, gradients, round)

        def exchange(y: Slow):
            change = optax.tree.sub(y.params, y.slow)
            slow, change = round.mix((y.slow, change), topology)
            v = jax.tree.map(
                lambda v, change, mixed, slow: (
                    momentum * v + outer_step * change + consensus_step * (mixed - slow)
                ).astype(v.dtype),
                *(y.momentum, change, slow, y.slow),
            )
            x = optax.tree.add(y.slow, v)
            return Slow(x, y.optimizer, x, v)

        return round.every(period, exchange, y)

    return methods.local_models(
        f"noloco({period}, {topology.name})",
        optimizer,
        update,
        start=lambda y: Slow(y.params, y.optimizer, y.params, optax.tree.zeros_like(y.params)),
        topology=topology,
    )
