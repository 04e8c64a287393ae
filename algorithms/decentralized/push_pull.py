"""Push-Pull and AB: gradient tracking on directed graphs with two matrices, one for models and one
for trackers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.tracking import Tracking, track
from dsgd import Algorithm, Topology, checks


@method(
    sends="models along the edges of one graph, trackers along those of another",
    exact="any data",
    paper="Pu et al., 2021",
    page="how_to/decentralized.md#directed-graphs",
    graph=topologies.exponential,
)
@checks.arguments
def push_pull(optimizer: optax.GradientTransformation, pull: Topology, push: Topology) -> Algorithm:
    r"""Push-Pull: models are averaged by a matrix R with rows that sum to 1, trackers are summed by
    a matrix P with columns that sum to 1.

    $$ X_{t+1} = (X_t - \gamma Y_t) R_t^T, \qquad Y_{t+1} = Y_t P_t^T + G(X_{t+1}) - G(X_t), \qquad
    Y_0 = G(X_0) $$

    (X has a column for each worker; $R_{ij}$ is the weight that i gives to the model of j, and
    $P_{ij}$ the share of its tracker that j sends to i.) Each worker sends its model after the step
    along the edges of R and its tracker along those of P; if R and P have the same edges, both
    travel in one message. There is no division, as in push-sum.

    The sum of the trackers is the sum of the gradients, and models that agree do not change, so
    that with exact gradients the fixed point is the minimizer of f for any data. If R = P = W, the
    method is `atc_tracking`.

    A receiver keeps its own model in the place of one that is not delivered, a sender keeps the
    share of its tracker that is not, and a worker that does not participate keeps its state, so
    that both properties hold when messages are lost or workers do not participate.

    Args:
        optimizer: each worker's step along its tracker; `optax.sgd(gamma)` gives the equation.
            Momentum and Adam receive y as the gradient.
        pull: R, with rows that sum to 1: a topology with the weights `topologies.pull`, or one that
            is doubly stochastic. With a schedule, round t uses R_t.
        push: P, with columns that sum to 1: a topology for gossip, or one with the weights
            `topologies.push`. The graphs need not be strongly connected: it suffices that one
            worker reaches all others along the edges of R, and that all others reach it along those
            of P. For example, R leads from the root of a tree to the leaves, and P back.

    Raises:
        ValueError: if the rows of R or the columns of P do not sum to 1, or R and P have different
            workers or no such worker in common.

    Source: Pu, Shi, Xu and Nedic, "Push-pull gradient methods for distributed optimization in
    networks", 2021.
    """

    def update(state, gradients, round, exchange):
        y = track(state.tracker, gradients, state.gradient)
        change, memory = optimizers.update_local(optimizer, state, y)
        half = optax.apply_updates(state.params, change)  # X - gamma Y
        with exchange(round):
            x, y = round.pull(half, pull), round.push(y, push)
        return Tracking(x, memory, y, gradients)

    return _push_pull("push_pull", optimizer, pull, push, update)


@method(
    sends="models along the edges of one graph, trackers along those of another, before the step",
    exact="any data",
    paper="AB: Xin and Khan, 2018",
    page="how_to/decentralized.md#directed-graphs",
    graph=topologies.exponential,
)
@checks.arguments
def ab(optimizer: optax.GradientTransformation, pull: Topology, push: Topology) -> Algorithm:
    r"""AB: Push-Pull that combines, then adapts.

    $$ X_{t+1} = X_t R_t^T - \gamma Y_t, \qquad Y_{t+1} = Y_t P_t^T + G(X_{t+1}) - G(X_t), \qquad
    Y_0 = G(X_0) $$

    R is called A in the paper, and P is called B. Messages, missing messages and workers, and the
    fixed point are those of `push_pull`. If R = P = W is the same in all rounds, the method is
    `gradient_tracking`.

    The arguments and errors are those of `push_pull`.

    Source: Xin and Khan, "A linear algorithm for optimization over directed graphs with geometric
    convergence", 2018.
    """

    def update(state, gradients, round, exchange):
        y = track(state.tracker, gradients, state.gradient)
        change, memory = optimizers.update_local(optimizer, state, y)
        with exchange(round):
            x, y = round.pull(state.params, pull), round.push(y, push)
        return Tracking(optax.apply_updates(x, change), memory, y, gradients)

    return _push_pull("ab", optimizer, pull, push, update)


def _push_pull(
    name: str,
    optimizer: optax.GradientTransformation,
    pull: Topology,
    push: Topology,
    update: Callable,
) -> Algorithm:
    """Returns a method with the state `Tracking` and an update (state, gradients, Communicator,
    exchange) -> state. The context `exchange(round)` makes one message of two along the same edges.
    """
    gossip.require_pull_and_push(name, pull, push)
    together = pull.same_links(push)

    def exchange(round):
        return round.joint() if together else nullcontext()

    return methods.local_models(
        f"{name}({pull.name}, {push.name})",
        optimizer,
        lambda state, gradients, round: update(state, gradients, round, exchange),
        start=lambda x: Tracking(*x, *[optax.tree.zeros_like(x.params)] * 2),
        topology=pull,
        tracked=True,
    )
