"""One round's messages of all workers and the server's answer, next to the same in numpy."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from algorithms import kimad, optimizers
from algorithms.kimad import exchange as rounds
from algorithms.kimad import plans
from dsgd import Algorithm, Round, State, communication, compressors, counts, workers

N, D, STEP, TIME = 3, 8, 0.5, 2.0
RATIOS = (0.25, 0.5, 1.0)
RNG = np.random.default_rng(0)
X, X_HAT, TOTAL = (RNG.normal(size=D).astype(np.float32) for _ in range(3))
KNOWN, OWN = (RNG.normal(size=(N, D)).astype(np.float32) for _ in range(2))
WEIGHTS = np.array([0.5, 0.25, 2.0])


def size(choice: int) -> int:
    """Bits of such a message, with its header."""
    k = round(RATIOS[choice] * D)
    return min(32 * k + 8 * -(-(2 * k) // 8) + 8 * -(-k // 8), 32 * D) + 8


def unused(*arguments: Any) -> Any:
    raise AssertionError("only the update is called")


@cache
def program(up: tuple[float, ...], down: tuple[float, ...], weighted: bool, warm_up: int) -> Any:
    """(bits per second of each uplink, of each downlink, what was missing before, round) -> what comes of the round."""

    def one(rates_up, rates_down, missing, step):
        choices = kimad.top_k(up), kimad.any_of([compressors.top_k(ratio) for ratio in down])
        sgd, shares = optax.sgd(STEP), WEIGHTS if weighted else None
        terms = rounds.Terms(sgd, *choices, kimad.one_for_all, kimad.last, TIME, np.zeros(()), 1.0, shares, 2, warm_up)
        model = optimizers.start(sgd, jnp.asarray(X))
        server = rounds.Server(model, jnp.asarray(TOTAL), jnp.asarray(X_HAT), plans.Memory(rates_up, rates_down), missing)

        def update(state, gradients, round):
            return State(*rounds.exchange(terms, state.server, state.workers, gradients, round))

        method, state = Algorithm("exchange", unused, unused, update, unused), State(server, jnp.asarray(KNOWN))
        now = Round(step, N, jax.random.key(0))
        after, record = communication.communicate(method, state, jnp.asarray(OWN), now, jax.random.key(1))
        return after.server, after.workers, record.statistics(N)

    return jax.jit(jax.shard_map(one, mesh=workers.mesh(1), in_specs=P(), out_specs=P()))


def exchanged(rates_up, rates_down, missing=0.0, step=0, *, up=RATIOS, down=RATIOS, weighted=True, warm_up=0):
    given = (jnp.asarray(each, jnp.float32) for each in (rates_up, rates_down, missing))
    return program(up, down, weighted, warm_up)(*given, jnp.int32(step))


def largest(x: np.ndarray, choice: int) -> np.ndarray:
    kept = np.zeros_like(x)
    places = np.argsort(-np.abs(x), kind="stable")[: round(RATIOS[choice] * D)]
    kept[places] = x[places]
    return kept


@pytest.mark.parametrize("weighted", [True, False])
def test_a_round_is_the_algorithms(weighted):
    """Budgets are of one second of each worker's uplink, and of the slowest downlink."""
    server, known, found = exchanged([size(0), size(1), size(2)], [1e6, size(1), 1e7], weighted=weighted)
    sent = np.array([largest(OWN[n] - KNOWN[n], n) for n in range(N)])
    shares = WEIGHTS if weighted else np.full(N, 1 / N)
    total = TOTAL + shares @ sent
    x = X - STEP * total
    answer = largest(x - X_HAT, 1)
    for values, expected in ((known, KNOWN + sent), (server.updates, total), (server.model.params, x), (server.estimate, X_HAT + answer)):
        np.testing.assert_allclose(values, expected, atol=1e-6)
    np.testing.assert_array_equal(counts.to_int(np.asarray(found.bits.up)), [size(0), size(1), size(2)])
    np.testing.assert_array_equal(counts.to_int(np.asarray(found.bits.down)), [size(1)] * N)
    np.testing.assert_array_equal(found.metrics["message_up"], [size(0), size(1), size(2)])
    assert found.metrics["message_down"] == size(1)
    np.testing.assert_allclose(found.metrics["error_up"], ((OWN - KNOWN - sent) ** 2).sum(axis=1), atol=1e-5)
    np.testing.assert_allclose(found.metrics["error_down"], ((x - X_HAT - answer) ** 2).sum(), rtol=1e-5)
    assert server.missing == 0


@pytest.mark.parametrize(
    ("up", "down", "before", "missing"),
    [
        ((0, 0, 0), (0, 0, 9), 0, 9),  # the server's answer alone is too long, for the slowest link
        ((0, 7, 3), (0, 0, 0), 0, 7),  # one worker's
        ((0, 7, 3), (4, 0, 2), 0, 7),  # the longest of both counts
        ((5, 0, 0), (0, 11, 2), 0, 11),
        ((5, 0, 0), (0, 6, 2), 20, 20),  # and the most so far
        ((0, 0, 0), (0, 0, 0), 0, 0),
    ],
)
def test_what_exceeds_its_budget_is_the_most_of_all_messages_so_far(up, down, before, missing):
    short_up, short_down = (size(0) - np.array(short) for short in (up, down))
    server, _, _ = exchanged(short_up, short_down, before)
    assert server.missing == missing


def test_the_first_rounds_that_send_send_everything():
    """Of a period of two rounds, so many periods."""
    for step, everything in ((0, True), (3, True), (4, False), (5, False)):
        _, _, found = exchanged([size(0)] * N, [size(0)] * N, step=step, warm_up=2)
        np.testing.assert_array_equal(found.metrics["message_up"], 32 * D if everything else size(0))
        assert found.metrics["message_down"] == (32 * D if everything else size(0))
