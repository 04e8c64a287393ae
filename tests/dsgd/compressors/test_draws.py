"""A few random numbers more do not change the first ones, and they are of 32 bits whatever JAX's default."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd.compressors import draws
from tests.dsgd.compressors.shared import UNOPTIMIZED


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    ("draw", "sampler"),
    [(draws.uniform, partial(jax.random.uniform, dtype=jnp.float32)), (draws.words, partial(jax.random.bits, dtype=jnp.uint32))],
    ids=["uniform", "words"],
)
def test_a_draw_is_the_samplers_whatever_the_length(key, draw, sampler, double):
    with jax.enable_x64(double):

        @partial(jax.jit, compiler_options=UNOPTIMIZED)
        def both(key):
            return [(draw(key, d), sampler(key, (d,))) for d in (1, 33, 1024, 1025, 1039)]

        for drawn, expected in both(key):
            assert drawn.dtype == expected.dtype
            np.testing.assert_array_equal(drawn, expected)
