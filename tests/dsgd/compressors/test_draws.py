"""A few random numbers more do not change the first ones."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

from dsgd.compressors.draws import draw
from tests.dsgd.compressors.shared import UNOPTIMIZED


@pytest.mark.parametrize("sampler", [jax.random.uniform, jax.random.bits])
def test_a_draw_is_the_samplers_whatever_the_length(key, sampler):
    @partial(jax.jit, compiler_options=UNOPTIMIZED)
    def both(key):
        return [(draw(sampler, key, d), sampler(key, (d,))) for d in (1, 33, 1024, 1025, 1039)]

    for drawn, expected in both(key):
        np.testing.assert_array_equal(drawn, expected)
