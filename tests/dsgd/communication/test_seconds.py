"""A round's exchanges on the clock, one after the other, in some rounds only, and joint; against
the event simulation.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

import dsgd
import topologies
from dsgd import network
from tests.dsgd.engine import clocks
from tests.dsgd.engine.clocks import (
    CLUSTERS,
    COMPUTE,
    VECTOR,
    N,
    among_all,
    through_server,
    to_neighbours,
)

RING, SCHEDULE = topologies.ring(N), topologies.one_peer_exponential(N)
LINKS = RING.links[0]
STEPS = 12


def local(send: Callable) -> dsgd.Algorithm:
    """A step of each worker, and then what `send(round, x)` makes of its models."""

    def init(params, workers):
        return dsgd.State(workers=dsgd.workers.stack(params, workers))

    def update(state, gradients, round):
        return dsgd.State(workers=send(round, state.workers - 0.05 * gradients))

    return dsgd.Algorithm(
        "mine",
        init,
        lambda state, round: dsgd.Query(state.workers),
        update,
        lambda state: state.workers,
    )


def server(round, x):
    return jnp.broadcast_to(round.mean(x, network.parameter_server), x.shape)


def joint(round, x):
    with round.joint():
        return round.mix(x, RING) + round.laplacian(2 * x, RING)


def nested(round, x):
    return round.every(
        2, lambda x: round.mix(round.every(3, round.average, round.mix(x, RING)), RING), x
    )


def from_rounds(t, done, cluster):
    """Round 5 of every 6 has three exchanges, rounds 1 and 3 have two."""
    if t % 2:
        done = to_neighbours(done, cluster, LINKS)
        done = among_all(done, cluster) if t % 6 == 5 else done
        done = to_neighbours(done, cluster, LINKS)
    return done


def on_turns(round, x):
    """A schedule takes its turns exchange by exchange: every third round, the next one."""
    return round.every(3, lambda x: round.mix(x, SCHEDULE), server(round, x))


def of_turns(t, ready, cluster):
    done = through_server(ready, cluster)
    return to_neighbours(done, cluster, SCHEDULE.links[t // 3 % 2]) if t % 3 == 2 else done


METHODS: dict[str, tuple[Callable, str, Callable]] = {
    # What a round sends; on which cluster; (round, when each worker is ready, cluster) -> when it
    # is done.
    "server, then ring": (
        lambda round, x: round.mix(server(round, x), RING),
        "unequal",
        lambda t, ready, cluster: to_neighbours(through_server(ready, cluster), cluster, LINKS),
    ),
    "joint": (
        joint,
        "unequal, blocking",
        lambda t, ready, cluster: to_neighbours(ready, cluster, LINKS, 2 * VECTOR),
    ),
    "server in three of four rounds": (
        lambda round, x: round.when(round.step % 4 != 1, lambda x: server(round, x), x),
        "unequal, blocking",
        lambda t, ready, cluster: through_server(ready, cluster) if t % 4 != 1 else ready,
    ),
    "nested": (nested, "unequal", from_rounds),
    "a schedule every third round": (on_turns, "unequal", of_turns),
}
BITS = {"server, then ring": 6, "joint": 8}  # up and down, in vectors a round


@pytest.mark.parametrize("name", METHODS)
def test_exchanges_take_their_seconds_one_after_the_other(name, problem):
    """Each worker begins the next exchange when it is done with the one before."""
    send, of, after = METHODS[name]
    history = clocks.run(local(send), problem, CLUSTERS[of], steps=STEPS).history
    done, expected = np.zeros(N), [0.0]
    for t in range(STEPS):
        done = after(t, done + COMPUTE[of], CLUSTERS[of])
        expected.append(done.max())
    np.testing.assert_allclose(history["clock"], expected, rtol=2e-6)
    if name in BITS:
        np.testing.assert_array_equal(history["bits"], np.arange(STEPS + 1) * BITS[name] * VECTOR)
