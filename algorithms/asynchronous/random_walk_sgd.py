"""Random-walk SGD: one model that walks on a graph."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.arrivals import NO_ROUNDS, with_cluster
from algorithms.mechanisms.pairs import Neighbours, neighbours_of
from dsgd import Algorithm, Query, Round, State, Topology, checks, communication, network, workers
from dsgd.extend import Params, PyTree

_WALK = network.Asynchronous(
    "walk",
    lambda N, latency, transfer, convention: (latency + transfer) * (N > 1),
    lambda N: 1 / N * (N > 1),
)


class Token(NamedTuple):
    """The model that walks, and where it is.

    Args:
        params: x.
        optimizer: the state of its optimizer.
        at: the worker that has it, int32 scalar.
    """

    params: Params
    optimizer: PyTree
    at: jax.Array


@method(
    sends="one model and its optimizer's state, from worker to worker",
    needs=("symmetric W", "one W", "all workers"),
    paper="Johansson et al., 2009; Metropolis-Hastings steps",
    page="how_to/clusters/asynchronous.md",
    aliases=("random_walk",),
    graph=topologies.ring,
)
@checks.arguments
def random_walk_sgd(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Random-walk SGD: one model walks on the graph and makes a step with a gradient of each
    worker that it visits.

    $$ x_{t+1} = x_t - \gamma\, g_{i_t}(x_t), \qquad
       P(i_{t+1} = j \mid i_t = i) = \min\Big(\frac1{d_i}, \frac1{d_j}\Big)
       \text{ for neighbours } j $$

    $d_i$ is the number of i's neighbours; otherwise the model stays for another step. With these
    Metropolis-Hastings probabilities the model is everywhere equally often, while a walk to a
    uniformly drawn neighbour visits workers in proportion to $d_i$. The first worker is drawn
    uniformly. If the data of workers differ, the model fluctuates around the optimum, unless the
    step size decreases.

    A round is one step. On a cluster it takes the seconds of the worker's gradient and, if the
    model moves, the latency and the time of the model with the state of its optimizer at the
    slower of the two ports. Workers without the model compute nothing.

    Args:
        optimizer: the model's step; `optax.sgd(gamma)` gives the equation.
        topology: determines the neighbours; its weights are not used.

    Raises:
        ValueError: if the topology is a schedule or a directed graph.

    Source: Johansson, Rabi and Johansson, "A randomized incremental subgradient method for
    distributed optimization in networked systems", 2009.
    """
    name = f"random_walk_sgd({topology.name})"
    optimizers.require_descent(optimizer)
    gossip.require_topology("random_walk_sgd", topology, symmetric=True, fixed=True)
    topology.require_one_exchange("random_walk_sgd")
    neighbours = neighbours_of(topology)

    def init(params, N):
        topology.require_workers(name, N)
        return State(Token(*optimizers.init(optimizer, params), jnp.int32(0)))

    def where(state: State, round: Round) -> jax.Array:
        """Returns the worker that has the model."""
        key = jax.random.fold_in(round.key, 1)
        first = jax.random.randint(key, (), 0, round.workers, jnp.int32)
        return jnp.where(round.step == 0, first, state.server.at)

    def query(state, round):
        return Query(state.server.params, workers=where(state, round)[None])

    def update(state, gradients, round):
        round.require_all(NO_ROUNDS)
        placed, here = with_cluster(round), where(state, round)
        model = optimizers.Model(state.server.params, state.server.optimizer)
        model = optimizers.step(optimizer, model, methods.first(gradients))
        to = _next_worker(neighbours, here, jax.random.fold_in(round.key, 2))
        rows = workers.replicate(model, round.workers)
        bits, latency = communication.bits.row_bits(rows), jnp.float32(placed.cluster.latency)
        computed = placed.cluster.seconds(placed, here[None])
        sending = placed.cluster.sending(placed, here[None], bits, computed)
        receiving = placed.cluster.receiving(placed, to[None], bits, computed + latency)
        link = latency + jnp.maximum(sending, receiving)
        elapsed = (computed + jnp.where(here == to, 0, link))[0]
        moves = jnp.where(here == to, -1, jnp.stack([here, to])[None])
        round.event(workers.local_block(rows, round.workers), moves, elapsed, _WALK)
        round.log(worker=here)
        return State(Token(*model, to))

    return Algorithm(name, init, query, update, lambda state: state.server.params)


def _next_worker(neighbours: Neighbours, here: jax.Array, key: jax.Array) -> jax.Array:
    """Draws where the model goes: to a uniformly drawn neighbour j of i with probability
    min(1, d_i / d_j); otherwise it stays.
    """
    degrees = jnp.asarray(neighbours.degrees)
    to = neighbours.draw(jax.random.fold_in(key, 1), here[None])[0]
    accepted = jax.random.uniform(key) * degrees[to] < degrees[here]
    return jnp.where(accepted, to, here)
