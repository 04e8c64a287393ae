"""Arrays that are computed once, before they are used."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd.barriers import stored


def as_bits(x: jax.Array) -> np.ndarray:
    return np.asarray(x).view(np.uint8)


@pytest.mark.parametrize("edge", [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, np.float32(1e-45)])
def test_all_bits_stay_as_they_are(edge):
    """Whatever comes first: the loop that never turns looks at it."""
    tree = {"a": jnp.array([edge, 1.0], jnp.float32), "b": jnp.arange(3)}
    out = jax.jit(stored)(tree)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(as_bits(x), as_bits(y)), out, tree)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "uint8", "uint32", "int32", "complex64"])
def test_numbers_of_all_types(dtype):
    with jax.enable_x64(dtype == "float64"):
        x = jnp.array([255, 3, 7]).astype(dtype)
        out = jax.jit(stored)(x)
        assert out.dtype == x.dtype
        np.testing.assert_array_equal(as_bits(out), as_bits(x))


def test_mapped_over_it_is_one_loop_and_what_is_not_mapped_stays_so():
    def both(x, y):
        return stored((x, y))

    x, y = jnp.arange(6.0).reshape(2, 3), jnp.arange(4.0)
    mapped = jax.jit(jax.vmap(jax.vmap(both, (0, None), (0, None)), (0, None), (0, None)))
    out = mapped(x, y)
    np.testing.assert_array_equal(out[0], x)
    np.testing.assert_array_equal(out[1], y)
    assert mapped.lower(x, y).as_text().count("stablehlo.while") == 1


def test_it_is_the_identity_for_derivatives_and_of_nothing():
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(stored(x) ** 2))(x), 2 * x)
    assert stored((None, ())) == (None, ())
    assert [x.shape for x in stored((jnp.ones((0, 3)), jnp.ones(2)))] == [(0, 3), (2,)]
    assert stored(jnp.ones((0, 3))).shape == (0, 3)


def roughly(x: jax.Array) -> jax.Array:
    return jnp.sin(x) * jnp.cos(x) + 1


@pytest.mark.parametrize("kept", [stored, lambda x: x], ids=["stored", "plain"])
def test_what_makes_it_is_not_fused_with_its_uses(kept):
    """Without it XLA needs no memory for what lies between. If XLA saw that the loop never turns, neither did this need any."""
    x = jnp.linspace(0, 1, 1 << 16)
    program = jax.jit(lambda x: jnp.roll(kept(roughly(x)), 1) + 1).lower(x).compile()
    between = program.memory_analysis().temp_size_in_bytes
    assert (between >= x.nbytes) == (kept is stored)


@pytest.mark.parametrize(("platform", "loops"), [("cpu", 1), ("cuda", 0), ("tpu", 0)])
def test_only_on_cpus(platform, loops):
    text = jax.jit(stored).trace(jnp.ones(3)).lower(lowering_platforms=(platform,)).as_text()
    assert text.count("stablehlo.while") == loops
