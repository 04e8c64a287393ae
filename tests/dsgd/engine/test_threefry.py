"""Random bits on CPUs: those of jax.random, in straight code."""

from __future__ import annotations

import haste
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd.engine import threefry

KNOWN = {  # of Random123's known answers: counters and keys, and the words
    ((0, 0), (0, 0)): (0x6B200159, 0x99BA4EFE),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF)): (0x1CB996FC, 0xBB002BE7),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344)): (0xC4923A9C, 0x483DF7A0),
}


def draws(key: jax.Array) -> tuple[jax.Array, ...]:
    """Of one key, of many and of none, of several widths and shapes: counters and keys broadcast in all ways."""
    many = jax.random.split(jax.random.fold_in(key, 7), (5, 3))
    each = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (7,))))(many)
    bits = [jax.random.bits(key, shape, dtype) for shape in ((), (1,), (129,), (4, 3)) for dtype in (jnp.uint8, jnp.uint16, jnp.uint32)]
    none = jax.vmap(jax.random.bits)(many[:0, 0])
    return none, jax.random.key_data(many), each, jax.random.normal(key, (1_000,)), jax.random.poisson(key, 3.0, (9,)), *bits


def lowered(platform: str = "cpu"):
    return threefry.lower(jax.jit(draws).trace(jax.random.key(0)), platform)


@pytest.mark.parametrize(("given", "words"), KNOWN.items())
def test_it_is_threefry(given, words):
    counters, keys = (map(jnp.uint32, pair) for pair in given)
    assert tuple(map(int, threefry.threefry2x32(*keys, *counters))) == words


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("seed", [0, 2**31])
def test_draws_are_those_of_jax_to_the_bit(seed):
    key = jax.random.key(seed)
    for ours, theirs in zip(lowered().compile()(key), jax.jit(draws)(key), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.usefixtures("optimised")
def test_a_key_is_known_before_its_words():
    """In a loop that XLA does not see through: fused, keys of keys are code that does not end compiling (`--long` has such a program)."""

    def words(key):
        return jax.random.bits(jax.random.fold_in(jax.random.fold_in(key, 7), 8), (5,))

    text = threefry.lower(jax.jit(words).trace(jax.random.key(0)), "cpu").compile().as_text()
    assert text.count(" while(") == 3
    assert "known_trip_count" not in text
    assert "known_trip_count" in jax.jit(words).lower(jax.random.key(0)).compile().as_text()  # JAX's own loops


def test_who_compiles_in_haste_has_jaxs_loop():
    assert not haste.HASTE or lowered().as_text() == lowered("tpu").as_text()
