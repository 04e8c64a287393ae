"""RelaySGD: exact uniform averages of delayed models along a tree."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import topologies
from algorithms import gossip, methods, optimizers, weights
from algorithms.facts import method
from dsgd import Algorithm, Topology, checks
from dsgd.extend import PyTree


class Relayed(NamedTuple):
    """State of a worker.

    Args:
        params: x, its model.
        optimizer: state of its optimizer.
        messages: the last sum of models that each neighbour sent to it, leaves `[n, K, ...]`; 0 for
            neighbours that do not exist, and before the first message.
        counts: the number of models in these sums, int32 `[n, K]`.
    """

    params: Any
    optimizer: Any
    messages: Any
    counts: jax.Array


@method(
    sends="sums of models and counts, a different sum to each neighbour",
    exact="any data",
    needs=("tree",),
    paper="RelaySGD: Vogels et al., 2021",
    page="reference/topologies.md",
    graph=topologies.chain,
)
@checks.arguments
def relay_sgd(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""RelaySGD: after its own step, each worker takes the uniform average of all workers' models,
    which neighbours on a tree relay to each other; distant models are older.

    $$ y_n = x_n - \gamma g_n(x_n), \qquad
    m_{n \to j} = y_n + \sum_{k \in \mathcal N_n \setminus j} m_{k \to n}^{old}, \qquad
    c_{n \to j} = 1 + \sum_{k \in \mathcal N_n \setminus j} c_{k \to n}^{old} $$
    $$ x_n \leftarrow \frac1N \Big(y_n + \sum_{j \in \mathcal N_n} m_{j \to n} + (N - N_n)\, x_0
    \Big), \qquad N_n = 1 + \sum_{j \in \mathcal N_n} c_{j \to n} $$

    In each round each worker sends a model and a count to each neighbour, different ones to each,
    and it keeps one model for each neighbour. All messages and counts start at 0. After as many
    rounds as the tree's diameter $N_n = N$, and the model is the uniform average
    $\frac1N \sum_j y_j^{t - \max(0, \mathrm{dist}(n, j) - 1)}$, in which models of neighbours are
    not delayed. Weights play no role. With exact gradients the limit is the optimum.

    If a message does not arrive, or the neighbour does not participate, the last message of this
    neighbour is used again, with its count. When all messages arrive again, the counts and the
    delays recover in as many rounds as the diameter.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation.
        topology: a tree, such as `topologies.chain(N)`, `topologies.star(N)` or
            `topologies.spanning_tree(topology)` of any undirected graph. Its weights are not used.

    Raises:
        ValueError: if the topology is not a tree: if it is not symmetric, is a schedule, or has
            cycles.

    Source: Vogels, He, Koloskova, Lin, Karimireddy, Stich and Jaggi, "RelaySum for decentralized
    deep learning on heterogeneous data", 2021, which replaces missing models by $x_0$.
    """
    gossip.require_topology("relay_sgd", topology, symmetric=True, fixed=True)
    topology.require_one_exchange("relay_sgd")
    if len(topology.edges) != topology.n - 1:
        raise ValueError(
            f"relay_sgd: {topology.name} has {topology.n} workers and {len(topology.edges)} edges; "
            f"expected a tree, with {topology.n - 1} edges, since a model would be counted twice "
            "on a cycle: pass topologies.spanning_tree(topology)"
        )
    N, K = topology.n, topology.degree

    def start(x: optimizers.Model):
        messages = jax.tree.map(lambda x: jnp.zeros((N, K, *x.shape[1:]), x.dtype), x.params)
        return Relayed(*x, messages, jnp.zeros((N, K), jnp.int32))

    def update(x0, state: Relayed, gradients, round):
        y = optimizers.local_step(optimizer, state, gradients, round)
        m, c = state.messages, state.counts
        known, number = _add_neighbours(y.params, m, c)
        sent = jax.tree.map(
            lambda known, m: (known[:, None] - m).astype(m.dtype), (known, number), (m, c)
        )
        m, c = round.to_each_neighbour(sent, (m, c), topology)
        known, number = _add_neighbours(y.params, m, c)

        def average(known, x0):
            missing = jnp.multiply.outer((N - number).astype(known.dtype), x0)
            return ((known + missing) / N).astype(x0.dtype)

        x = jax.tree.map(average, known, x0)
        return x0, Relayed(x, y.optimizer, m, c)

    name = f"relay_sgd({topology.name})"
    method = methods.with_server(
        name,
        optimizer,
        update,
        server=lambda params: params,
        start=start,
        topology=topology,
        common_start=False,
    )

    def query(state, round):
        weights.warn_if_cancelled(name, optimizer, round)
        return method.query(state, round)

    return method._replace(query=query)


def _add_neighbours(models: PyTree, messages: PyTree, counts: jax.Array) -> tuple[PyTree, Any]:
    """Returns the sums of a worker's model and its messages, leaves `[n, ...]`, and the number of
    models in them, `[n]`; half precision is summed in float32.
    """

    def total(x, m):
        wide = jnp.promote_types(x.dtype, jnp.float32)
        return x.astype(wide) + jnp.sum(m, axis=1, dtype=wide)

    number = 1 + jnp.sum(counts, axis=1, dtype=counts.dtype)
    return jax.tree.map(total, models, messages), number
