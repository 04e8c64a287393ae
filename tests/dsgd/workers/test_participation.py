"""Collectives in rounds with partial participation and lost messages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import topologies
from dsgd import workers
from dsgd.communication import transports
from dsgd.wire import counts

N, D = 8, 3
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, D)).astype(np.float32)
HERE = np.array([True, True, False, True, True, True, False, True])
COUNTED = HERE & (np.arange(N) != 4)
DOWN = {(0, 1), (3, 5), (4, 5), (1, 7)}
GRAPHS = {
    "ring": topologies.ring(N),
    "complete": topologies.complete(N),  # computed by a product
    "exponential": topologies.exponential(N),
    "one peer": topologies.one_peer_exponential(N),
    "star, lazy": topologies.star(N, topologies.lazy),
}
UP = np.array([[(min(i, j), max(i, j)) not in DOWN for j in range(N)] for i in range(N)])
SOME = workers.Participation(
    jnp.asarray(HERE),
    jnp.asarray(COUNTED),
    lambda i, j: jnp.asarray(UP & HERE & HERE[:, None])[i, j],
)


ROWS, ONE = P("workers"), P()


def spread(function, devices: int, *arguments: Any, out: Any = ROWS) -> Any:
    """Returns the function's result on blocks of the arguments."""
    mesh = workers.mesh(devices)
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=ROWS, out_specs=out, check_vma=False)
    )(*arguments)


def mixing(graph: str, step: int, columns: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns W', whose rows (or columns) sum to 1, and the delivered messages, `[receiver,
    sender]`.
    """
    topology = GRAPHS[graph]
    W = topology.matrices[step % topology.period].toarray()
    sent = (W != 0) & ~np.eye(N, dtype=bool) & HERE & HERE[:, None]
    W = np.where(sent & UP, W, 0)
    return W + np.diag(1 - W.sum(axis=0 if columns else 1)), sent


@pytest.mark.parametrize("devices", [1, 4])
def test_gossip_uses_the_links_between_participating_workers(devices):
    step = 1

    def function(x):
        with workers.with_participation(SOME):
            return {
                name: (
                    workers.mix(x, graph, jnp.int32(step)),
                    workers.laplacian(x, graph, jnp.int32(step)),
                    workers.mix(x, graph, jnp.int32(step), keep_sums=True),
                )
                for name, graph in GRAPHS.items()
            }

    for name, (mixed, pulled, kept) in spread(function, devices, X).items():
        rows, columns = (mixing(name, step, columns)[0] for columns in (False, True))
        if GRAPHS[name].doubly_stochastic:
            np.testing.assert_allclose(mixed, rows @ X, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(pulled, rows @ X - X, rtol=1e-5, atol=2e-6)
            np.testing.assert_array_equal(np.asarray(mixed)[~HERE], X[~HERE])
        np.testing.assert_allclose(kept, columns @ X, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            np.asarray(kept).sum(axis=0), X.sum(axis=0), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(("devices", "lengths"), [(1, "one for all"), (4, "by sender")])
def test_a_lost_message_is_sent_and_not_received(devices, lengths):
    step, each = jnp.int32(1), np.full(N, 96) if lengths == "one for all" else np.arange(5, 5 + N)

    def function(x):
        def of(graph):
            if lengths == "one for all":
                return transports.to_neighbours(graph, step).bits(96, 96)
            own = workers.local_block(jnp.asarray(each, jnp.uint32), N)
            transport = transports.to_neighbours(graph, step)
            return transport.bits(own, transport.move(own))

        with workers.with_participation(SOME):
            return {name: of(graph) for name, graph in GRAPHS.items()}

    for name, found in spread(function, devices, X).items():
        sent = mixing(name, 1, False)[1]
        up, down, lost = (counts.to_int(np.asarray(part)) for part in found[:3])
        np.testing.assert_array_equal(up, sent.sum(axis=0) * each)
        np.testing.assert_array_equal(down, (sent & UP) @ each)
        np.testing.assert_array_equal(lost, (sent & ~UP) @ each)
        np.testing.assert_array_equal(
            found.messages, np.stack([sent.sum(axis=0), (sent & UP).sum(axis=1)], axis=1)
        )
