"""In every exchange, all workers receive the same key, and each its number."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import topologies
from dsgd import communication, workers
from dsgd.compressors.sizes import fixed_size
from tests.dsgd.communication.test_communicator import N, run_calls

ROWS, EVERYWHERE = P(workers.AXIS), P()
RING = topologies.ring(N)


def spy(key, x, common=None):
    """Sends the sender's number, N and 16 bits of the common key in place of the vector."""
    assert common is not None
    drawn = jax.random.bits(common.key, (2,), jnp.uint16)
    seen = jnp.stack([common.worker, common.workers, *drawn]).astype(x.dtype)
    return jnp.resize(seen, x.shape)


SPY = fixed_size(spy, lambda message, d: message, "spy")


def zeros():
    """Returns two leaves of 32 elements, 4 for each server."""
    rows = workers.local_block(jnp.zeros((N, 32)), N)
    return {"a": rows, "b": rows}


EXCHANGES = {
    "all_gather": (lambda round, x: round.all_gather(zeros(), SPY).received, EVERYWHERE),
    "to_neighbours": (lambda round, x: round.to_neighbours(SPY, zeros(), RING).decoded, ROWS),
    "to_server": (lambda round, x: round.to_server(SPY, zeros()).decoded, ROWS),
    "to_servers": (
        lambda round, x: round.to_servers(SPY, communication.shards(zeros(), N, SPY)).decoded,
        ROWS,
    ),
}


@cache
def exchange_results():
    return run_calls(2, *EXCHANGES.values()).results


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_senders_of_an_exchange_share_a_key_and_know_their_numbers(name):
    """Leaves, and the shards of a leaf, have different keys."""
    leaves = exchange_results()[list(EXCHANGES).index(name)]
    parts = np.concatenate([np.reshape(leaf, (N, -1, 4)) for leaf in leaves.values()], axis=1)
    np.testing.assert_array_equal(parts[:, :, 0], np.arange(N)[:, None].repeat(16, axis=1))
    np.testing.assert_array_equal(parts[:, :, 1], N)
    np.testing.assert_array_equal(parts[:, :, 2:], parts[:1, :, 2:].repeat(N, axis=0))
    different = {tuple(key) for key in parts[0, :, 2:]}
    assert len(different) == (2 * N if name == "to_servers" else 2)
