"""One message: its length, its header, and its error. `theory_checks` compares the rounds with the
recursion.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.kimad.choices import CompressorSet
from algorithms.kimad.exchange import compress, header_bits

KEY = jax.random.key(0)
# Sizes of a toy set: choice j keeps the first elements, 1 of them or all.
SIZES, HEADER = np.array([[5, 96], [5, 64]]), 8
UNBOUNDED = jnp.float32(jnp.inf), jnp.bool_(False)
LAYERS = [jnp.array([3.0, 1.0, 2.0]), jnp.array([5.0, 4.0])]


def toy(sizes=lambda d, dtype: [5, 32 * d]) -> CompressorSet:
    def apply(x, found, choice):
        return jnp.where((jnp.arange(x.shape[0]) < 1) | (choice == 1), x, 0)

    def profile(key, x):
        return jnp.stack([jnp.sum(x[1:] ** 2), jnp.zeros(())]), ()

    return CompressorSet(sizes, profile, apply, lambda d: None, 2, "toy")


def take_all(errors, sizes, budget):
    """A rule that compresses nothing."""
    return jnp.ones(len(sizes), jnp.int32)


def compress_layers(budget: float, chosen: list[int], everything: bool = False) -> tuple[Any, int]:
    """Returns the message, and the budget that the rule received."""
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
    [(1000.0, 1000 - HEADER), (10 + HEADER, 10), (10 + HEADER - 1, 10), (0.0, 10)],
)
def test_the_header_is_reserved_and_a_budget_that_is_too_small_sends_the_smallest(
    budget, for_layers
):
    assert compress_layers(budget, [0, 0])[1] == for_layers


@pytest.mark.parametrize(
    ("chosen", "everything", "bits", "error"),
    [
        ([0, 0], False, 10 + HEADER, 21.0),
        ([1, 0], False, 101 + HEADER, 16.0),
        ([0, 1], False, 69 + HEADER, 5.0),
        # the uncompressed vector, without a header; nothing is missing
        ([0, 0], True, 32 * 5, 0.0),
    ],
)
def test_bits_and_errors_are_those_of_the_choice_of_each_layer(chosen, everything, bits, error):
    for budget, missing in ((bits, 0), (bits - 1.0, 1), (3.0, bits - 3)):
        message, _ = compress_layers(budget, chosen, everything)
        assert (message.bits, message.error) == (bits, error)
        assert message.missing == (0 if everything else missing)
    for seen, x, choice in zip(message.seen, LAYERS, chosen, strict=True):
        np.testing.assert_array_equal(seen, x if choice or everything else x.at[1:].set(0))


@pytest.mark.parametrize(
    ("layers", "choices", "bits"), [(1, 1, 0), (9, 2, 16), (2, 5, 8), (8, 5, 24), (1, 257, 16)]
)
def test_the_header_has_the_width_that_takes_fewest_bits(layers, choices, bits):
    """Codes of 3 bits are planes of 2 and 1 bits, each in bytes: for two layers a plane of 4 bits
    is smaller. A set of one compressor has no header.
    """
    assert header_bits(layers, choices) == bits


@pytest.mark.parametrize(
    ("d", "largest", "refused"),
    [
        ((1 << 27) - 1, 7, False),
        (1 << 27, 7, True),
        (3, (1 << 32) - 1 - HEADER, False),
        (3, (1 << 32) - HEADER, True),
    ],
)
def test_messages_of_2_to_the_32_bits_are_refused(d, largest, refused):
    x, choices = jax.ShapeDtypeStruct((d,), jnp.float32), toy(lambda d, dtype: [5, largest])
    with pytest.raises(ValueError, match=r"less than 2\^32") if refused else nullcontext():
        jax.eval_shape(lambda x: compress(choices, take_all, KEY, [x], *UNBOUNDED).bits, x)


def test_layers_of_equal_shapes_are_not_mixed_up():
    """They are compressed together; each is decoded at its own position."""
    layers = {f"{i}": jnp.arange(d) + 10.0 * i for i, d in enumerate((3, 4, 3, 4))}
    message = jax.jit(lambda x: compress(toy(), take_all, KEY, x, *UNBOUNDED))(layers)
    for name, x in layers.items():
        np.testing.assert_array_equal(message.seen[name], x)
