"""Equation 2: what fills a round, to the bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms import kimad
from algorithms.kimad.budgets import whole_bits

POSITIVE = st.floats(0.01, 1e6)


@given(POSITIVE, POSITIVE, st.floats(0.01, 100), st.floats(0, 0.99), st.floats(0, 10))
def test_both_messages_fill_what_computation_leaves(up, down, time, share, congestion):
    computation = share * time
    with jax.enable_x64(True):
        bits = kimad.budget(up, time, computation, congestion, down)
        alone = [float(each) for each in kimad.budget(up, time, computation, congestion)]
        seconds = float(bits.up) / up, float(bits.down) / down
    assert sum(seconds) == pytest.approx(time - computation, rel=1e-9)
    assert seconds[1] == pytest.approx(congestion * seconds[0], rel=1e-9)
    assert alone == [float(bits.up)] * 2, "without a bandwidth of its own, the downlink's message is as long: the paper's"


def test_no_time_is_no_bits_and_what_nobody_knows_is_all():
    late = kimad.budget(jnp.array([8.0, np.inf]), 1.0, computation=2.0)
    np.testing.assert_array_equal(late.up, 0)
    np.testing.assert_array_equal(kimad.budget(np.inf, 1.0, congestion=0.0, down=np.inf), (np.inf, 0))
    most = 2**32 - 256
    np.testing.assert_array_equal(whole_bits(jnp.array([0.0, 7.9, 2.0**31 + 256, 1e20, np.inf, np.nan])), [0, 7, 2**31 + 256, *[most] * 3])


def test_what_is_no_time_or_bandwidth_is_refused():
    for arguments, message in (
        ({"up": [1.0, -1.0]}, "kimad.budget: up = -1; need bits per second >= 0"),
        ({"down": -2.0}, "down = -2"),
        ({"computation": -0.5}, "computation = -0.5; need seconds >= 0"),
        ({"round_time": [1.0, np.inf]}, "round_time = inf; need seconds > 0, finite"),
        ({"congestion": -1.0}, "congestion = -1; need a finite number >= 0"),
        ({"up": [1.0, 2.0], "computation": [0.1] * 3}, r"up \[2\], computation \[3\]: need numbers, or arrays whose shapes"),
    ):
        with pytest.raises(ValueError, match=message):
            kimad.budget(**{"up": 1.0, "round_time": 1.0} | arguments)
