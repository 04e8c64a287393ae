"""A few random numbers more do not change the first ones."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from dsgd.compressors.draws import draw


@pytest.mark.parametrize("sampler", [jax.random.uniform, jax.random.bits])
def test_a_draw_is_the_samplers_whatever_the_length(key, sampler):
    for d in (1, 33, 1023, 1024, 1025, 1039, 1041):
        np.testing.assert_array_equal(draw(sampler, key, d), sampler(key, (d,)))
