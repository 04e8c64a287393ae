"""Random bits on CPUs: those of jax.random, in unrolled code."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir

from dsgd import xla
from dsgd.xla import forms, threefry

KNOWN = {  # known answers of Random123: counters and keys, and the words
    ((0, 0), (0, 0)): (0x6B200159, 0x99BA4EFE),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF)): (0x1CB996FC, 0xBB002BE7),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344)): (0xC4923A9C, 0x483DF7A0),
}
LOOP = "known_trip_count"  # marks JAX's own rounds in compiled programs


def draws(keys: jax.Array) -> tuple[jax.Array, ...]:
    """Returns draws of one key, of many and of none, of several widths and shapes: counters and
    keys broadcast in all ways.
    """
    key = keys[0]
    many = jax.random.split(jax.random.fold_in(key, 7), (5, 3))
    each = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (7,))))(many)
    bits = [
        jax.random.bits(key, shape, dtype)
        for shape, dtype in [((), jnp.uint8), ((1,), jnp.uint16), ((129,), jnp.uint32)]
    ]
    none = jax.vmap(jax.random.bits)(many[:0, 0])
    return none, jax.random.key_data(many), each, jax.vmap(jax.random.bits)(keys), *bits


def words(key: jax.Array) -> jax.Array:
    return jax.random.bits(jax.random.fold_in(jax.random.fold_in(key, 7), 8), (5,))


def traced(function=words):
    return jax.jit(function).trace(jax.random.key(0))


@pytest.mark.parametrize(("given", "words"), KNOWN.items())
def test_it_is_threefry(given, words):
    counters, keys = (map(jnp.uint32, pair) for pair in given)
    assert tuple(map(int, threefry.threefry2x32(*keys, *counters))) == words


@pytest.mark.usefixtures("optimised")
def test_draws_are_those_of_jax_to_the_bit():
    keys = jax.vmap(jax.random.key)(jnp.array([0, 2**31], jnp.uint32))
    ours = xla.lower(jax.jit(draws).trace(keys), "cpu").compile()(keys)
    for one, other in zip(ours, jax.jit(draws)(keys), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("optimised")
def test_a_key_is_stored_before_its_words():
    """In a loop that XLA does not unroll: if fused, code for keys of keys takes forever to compile
    (`--long` has such a program).
    """
    text = xla.lower(traced(), "cpu").compile().as_text()
    assert text.count(" while(") == 3
    assert LOOP not in text
    assert LOOP in traced().lower().compile().as_text()


class Older:
    """A traced function of a version of JAX whose `lower` has no private argument."""

    def __init__(self, trace):
        self.trace = trace

    def lower(self):
        return self.trace.lower()


@pytest.mark.usefixtures("optimised")
def test_without_private_names_of_jax_the_plain_form_runs(monkeypatch):
    plain = traced().lower().as_text()
    assert xla.lower(traced(), "cpu").as_text() != plain
    assert xla.lower(Older(traced()), "cpu").as_text() == plain
    monkeypatch.delattr(mlir, "LoweringParameters")
    assert xla.lower(traced(), "cpu").as_text() == plain


def test_other_platforms_and_fast_compilation_use_the_lowering_of_jax(optimised, monkeypatch):
    plain = traced().lower().as_text()
    assert xla.lower(traced(), "tpu").as_text() == plain
    jax.config.update("jax_disable_most_optimizations", True)  # the fixture restores it
    assert xla.lower(traced(), "cpu").as_text() == plain
    jax.config.update("jax_disable_most_optimizations", False)
    monkeypatch.setattr(forms, "ENABLED", False)
    assert xla.lower(traced(), "cpu").as_text() == plain
