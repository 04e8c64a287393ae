"""Arrays that are materialized before they are used."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd.xla import materialize


def bytes_of(x: jax.Array) -> np.ndarray:
    return np.asarray(x).view(np.uint8)


TYPES = ["bfloat16", "float16", "float64", "uint8", "uint32", "int32", "complex64"]
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1e-45]


def test_materialize_changes_no_bit():
    """For all types, and for all numbers that the condition of the loop without iterations reads:
    the first of each tree.
    """
    with jax.enable_x64(True):
        trees = [jnp.array([255, 3, 7]).astype(dtype) for dtype in TYPES]
        trees += [{"a": jnp.array([edge, 1.0], jnp.float32), "b": jnp.arange(3)} for edge in EDGES]
        out = jax.jit(lambda trees: [*map(materialize, trees)])(trees)
        for x, y in zip(jax.tree.leaves(out), jax.tree.leaves(trees), strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(bytes_of(x), bytes_of(y))


def test_under_vmap_it_is_one_loop_and_unmapped_arguments_stay_unmapped():
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.arange(4.0)
    mapped = jax.jit(
        jax.vmap(
            jax.vmap(lambda x, y: materialize((x, y)), (0, None), (0, None)), (0, None), (0, None)
        )
    )
    lowered = mapped.lower(x, y)
    out = lowered.compile()(x, y)
    np.testing.assert_array_equal(out[0], x)
    np.testing.assert_array_equal(out[1], y)
    assert lowered.as_text().count("stablehlo.while") == 1


def test_it_is_the_identity_for_derivatives_and_empty_arrays():
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(materialize(x) ** 2))(x), 2 * x)
    assert materialize((None, ())) == (None, ())
    assert [x.shape for x in materialize((jnp.ones((0, 3)), jnp.ones(2)))] == [(0, 3), (2,)]
    assert materialize(jnp.ones((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("kept", [materialize, lambda x: x], ids=["materialized", "plain"])
def test_producers_are_not_fused_with_consumers(kept):
    """Without it XLA allocates no memory for the array; the same would hold if XLA removed the loop
    without iterations.
    """
    x = jnp.linspace(0, 1, 1 << 16)
    program = (
        jax.jit(lambda x: jnp.roll(kept(jnp.sin(x) * jnp.cos(x) + 1), 1) + 1).lower(x).compile()
    )
    between = program.memory_analysis().temp_size_in_bytes
    assert (between >= x.nbytes) == (kept is materialize)
