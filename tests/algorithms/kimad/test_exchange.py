"""Messages of a round next to the same in numpy: those of all workers and the answer; and the
length of one message.
"""

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
from algorithms.kimad import budgets
from algorithms.kimad import exchange as rounds
from algorithms.kimad.choices import Choices
from algorithms.kimad.exchange import compress, header_bits
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
    """(bits per second of each uplink, of each downlink, what was missing before, round) -> what
    comes of the round.
    """

    def one(rates_up, rates_down, missing, step):
        choices = kimad.top_k(up), kimad.any_of([compressors.top_k(ratio) for ratio in down])
        sgd, shares = optax.sgd(STEP), WEIGHTS if weighted else None
        terms = rounds.Terms(
            sgd,
            *choices,
            kimad.one_for_all,
            kimad.last,
            TIME,
            np.zeros(()),
            1.0,
            shares,
            2,
            warm_up,
        )
        model = optimizers.start(sgd, jnp.asarray(X))
        server = rounds.Server(
            model,
            jnp.asarray(TOTAL),
            jnp.asarray(X_HAT),
            budgets.Memory(rates_up, rates_down),
            missing,
        )

        def update(state, gradients, round):
            return State(*rounds.exchange(terms, state.server, state.workers, gradients, round))

        method, state = (
            Algorithm("exchange", unused, unused, update, unused),
            State(server, jnp.asarray(KNOWN)),
        )
        now = Round(step, N, jax.random.key(0))
        after, record = communication.communicate(
            method, state, jnp.asarray(OWN), now, jax.random.key(1)
        )
        return after.server, after.workers, record.statistics(N)

    return jax.jit(jax.shard_map(one, mesh=workers.mesh(1), in_specs=P(), out_specs=P()))


def exchanged(
    rates_up, rates_down, missing=0.0, step=0, *, up=RATIOS, down=RATIOS, weighted=True, warm_up=0
):
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
    server, known, found = exchanged(
        [size(0), size(1), size(2)], [1e6, size(1), 1e7], weighted=weighted
    )
    sent = np.array([largest(OWN[n] - KNOWN[n], n) for n in range(N)])
    shares = WEIGHTS if weighted else np.full(N, 1 / N)
    total = TOTAL + shares @ sent
    x = X - STEP * total
    answer = largest(x - X_HAT, 1)
    for values, expected in (
        (known, KNOWN + sent),
        (server.updates, total),
        (server.model.params, x),
        (server.estimate, X_HAT + answer),
    ):
        np.testing.assert_allclose(values, expected, atol=1e-6)
    np.testing.assert_array_equal(
        counts.to_int(np.asarray(found.bits.up)), [size(0), size(1), size(2)]
    )
    np.testing.assert_array_equal(counts.to_int(np.asarray(found.bits.down)), [size(1)] * N)
    np.testing.assert_array_equal(found.metrics["message_up"], [size(0), size(1), size(2)])
    assert found.metrics["message_down"] == size(1)
    np.testing.assert_allclose(
        found.metrics["error_up"], ((OWN - KNOWN - sent) ** 2).sum(axis=1), atol=1e-5
    )
    np.testing.assert_allclose(
        found.metrics["error_down"], ((x - X_HAT - answer) ** 2).sum(), rtol=1e-5
    )
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
        np.testing.assert_array_equal(
            found.metrics["message_up"], 32 * D if everything else size(0)
        )
        assert found.metrics["message_down"] == (32 * D if everything else size(0))


KEY = jax.random.key(0)
# Sizes of a toy set: choice j keeps the first elements, 1 of them or all.
SIZES, HEADER = np.array([[5, 96], [5, 64]]), 8
LAYERS = [jnp.array([3.0, 1.0, 2.0]), jnp.array([5.0, 4.0])]


def toy(sizes=lambda d, dtype: [5, 32 * d]) -> Choices:
    def send(x, found, choice):
        return jnp.where((jnp.arange(x.shape[0]) < 1) | (choice == 1), x, 0)

    def look(key, x):
        return jnp.stack([jnp.sum(x[1:] ** 2), jnp.zeros(())]), ()

    return Choices(sizes, look, send, lambda d: None, 2, "toy")


def compressed(budget: float, chosen: list[int], everything: bool = False) -> tuple[Any, int]:
    """The message, and the budget that the rule was given."""
    given = []

    def rule(errors, sizes, budget):
        np.testing.assert_array_equal(sizes, SIZES)
        np.testing.assert_array_equal(errors, [[5.0, 0.0], [16.0, 0.0]])
        given.append(int(budget))
        return jnp.array(chosen)

    message = compress(toy(), rule, KEY, LAYERS, jnp.float32(budget), jnp.bool_(everything))
    return message, given[0]


@pytest.mark.parametrize(
    ("budget", "for_layers"),
    [
        (1000.0, 1000 - HEADER),
        (10 + HEADER + 1, 11),
        (10 + HEADER, 10),
        (10 + HEADER - 1, 10),
        (9.0, 10),
        (0.0, 10),
    ],
)
def test_the_header_is_reserved_and_what_is_too_little_is_the_smallest(budget, for_layers):
    assert compressed(budget, [0, 0])[1] == for_layers


@pytest.mark.parametrize(
    ("chosen", "layers", "error"),
    [([0, 0], 10, 21.0), ([1, 0], 101, 16.0), ([0, 1], 69, 5.0), ([1, 1], 160, 0.0)],
)
def test_bits_and_errors_are_those_of_the_choice_of_each_layer(chosen, layers, error):
    bits = layers + HEADER
    for budget, missing in ((bits + 1.0, 0), (bits, 0), (bits - 1.0, 1), (3.0, bits - 3)):
        message, _ = compressed(budget, chosen)
        assert (message.bits, message.error, message.missing) == (bits, error, missing)
    kept = [x if choice else x.at[1:].set(0) for x, choice in zip(LAYERS, chosen, strict=True)]
    for seen, expected in zip(message.seen, kept, strict=True):
        np.testing.assert_array_equal(seen, expected)


def test_everything_is_sent_as_it_is_without_a_header_and_misses_nothing():
    message, _ = compressed(3.0, [0, 0], everything=True)
    assert (message.bits, message.error, message.missing) == (32 * 5, 0, 0)
    for seen, x in zip(message.seen, LAYERS, strict=True):
        np.testing.assert_array_equal(seen, x)


@pytest.mark.parametrize(
    ("layers", "choices", "bits"),
    [
        (1, 1, 0),
        (1, 2, 8),
        (9, 2, 16),
        (4, 3, 8),
        (5, 3, 16),
        (2, 5, 8),
        (8, 5, 24),
        (1, 257, 16),
    ],
)
def test_the_header_has_the_width_that_takes_fewest_bits(layers, choices, bits):
    """Codes of 3 bits are planes of 2 and 1, in bytes each: of two layers a plane of 4 is smaller.
    One set of one compressor needs none.
    """
    assert header_bits(layers, choices) == bits


def test_messages_of_2_to_the_32_bits_are_refused():
    def shapes(d, sizes):
        rule = lambda errors, sizes, budget: jnp.zeros(1, jnp.int32)  # noqa: E731
        vector = [jax.ShapeDtypeStruct((d,), jnp.float32)]
        return jax.eval_shape(
            lambda x: compress(toy(sizes), rule, KEY, x, jnp.float32(1), jnp.bool_(True)).bits,
            vector,
        )

    most = 1 << 27  # elements of 32 bits
    shapes(most - 1, lambda d, dtype: [5, 7])
    with pytest.raises(ValueError, match="a message has 4,294,967,296 bits uncompressed"):
        shapes(most, lambda d, dtype: [5, 7])
    shapes(3, lambda d, dtype: [5, (1 << 32) - 1 - HEADER])
    with pytest.raises(ValueError, match="expected less than 2"):
        shapes(3, lambda d, dtype: [5, (1 << 32) - HEADER])


def test_layers_of_equal_shapes_are_not_mixed_up():
    """They are compressed together; each comes back as its own."""
    layers = {
        "a": jnp.arange(3.0),
        "b": jnp.arange(4.0) + 10,
        "c": jnp.arange(3.0) - 5,
        "d": jnp.arange(4.0) * 2,
    }

    def sending(layers):
        return compress(
            toy(),
            lambda *_: jnp.ones(4, jnp.int32),
            KEY,
            layers,
            jnp.float32(jnp.inf),
            jnp.bool_(False),
        )

    message = jax.jit(sending)(layers)
    for name, x in layers.items():
        np.testing.assert_array_equal(message.seen[name], x)
