"""One message: what of the budget is left for the layers, how long the message is, and what it leaves out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.kimad.choices import Choices
from algorithms.kimad.messages import compress, header_bits

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
    [(1000.0, 1000 - HEADER), (10 + HEADER + 1, 11), (10 + HEADER, 10), (10 + HEADER - 1, 10), (9.0, 10), (0.0, 10)],
)
def test_the_header_is_reserved_and_what_is_too_little_is_the_smallest(budget, for_layers):
    assert compressed(budget, [0, 0])[1] == for_layers


@pytest.mark.parametrize(("chosen", "layers", "error"), [([0, 0], 10, 21.0), ([1, 0], 101, 16.0), ([0, 1], 69, 5.0), ([1, 1], 160, 0.0)])
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
    """Codes of 3 bits are planes of 2 and 1, in bytes each: of two layers a plane of 4 is smaller. One set of one compressor needs none."""
    assert header_bits(layers, choices) == bits


def test_messages_of_2_to_the_32_bits_are_refused():
    def shapes(d, sizes):
        rule = lambda errors, sizes, budget: jnp.zeros(1, jnp.int32)  # noqa: E731
        vector = [jax.ShapeDtypeStruct((d,), jnp.float32)]
        return jax.eval_shape(lambda x: compress(toy(sizes), rule, KEY, x, jnp.float32(1), jnp.bool_(True)).bits, vector)

    most = 1 << 27  # elements of 32 bits
    shapes(most - 1, lambda d, dtype: [5, 7])
    with pytest.raises(ValueError, match="a message of 4,294,967,296 bits uncompressed"):
        shapes(most, lambda d, dtype: [5, 7])
    shapes(3, lambda d, dtype: [5, (1 << 32) - 1 - HEADER])
    with pytest.raises(ValueError, match="need fewer than 2"):
        shapes(3, lambda d, dtype: [5, (1 << 32) - HEADER])


def test_layers_of_equal_shapes_are_not_mixed_up():
    """They are compressed together; each comes back as its own."""
    layers = {"a": jnp.arange(3.0), "b": jnp.arange(4.0) + 10, "c": jnp.arange(3.0) - 5, "d": jnp.arange(4.0) * 2}

    def sending(layers):
        return compress(toy(), lambda *_: jnp.ones(4, jnp.int32), KEY, layers, jnp.float32(jnp.inf), jnp.bool_(False))

    message = jax.jit(sending)(layers)
    for name, x in layers.items():
        np.testing.assert_array_equal(message.seen[name], x)
