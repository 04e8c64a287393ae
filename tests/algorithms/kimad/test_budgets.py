"""Equation 2: messages that fill a round to the bit; the budgets of a round and the windows of its
messages, compared with numpy.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms import kimad
from algorithms.kimad import budgets
from algorithms.kimad.budgets import whole_bits
from dsgd import Now, Round, clusters
from tests.algorithms.kimad.networks import Sinusoids

POSITIVE = st.floats(0.01, 1e6)


@given(POSITIVE, POSITIVE, st.floats(0.01, 100), st.floats(0, 0.99), st.floats(0, 10))
def test_both_messages_fill_the_time_that_computation_leaves(up, down, time, share, congestion):
    computation = share * time
    with jax.enable_x64(True):
        bits = kimad.budget(up, time, computation, congestion, down)
        alone = [float(each) for each in kimad.budget(up, time, computation, congestion)]
        seconds = float(bits.up) / up, float(bits.down) / down
    assert sum(seconds) == pytest.approx(time - computation, rel=1e-9)
    assert seconds[1] == pytest.approx(congestion * seconds[0], rel=1e-9)
    assert alone == [float(bits.up)] * 2, (
        "without a bandwidth of its own, the downlink's message is as long: the paper's"
    )


def test_no_time_means_no_bits_and_an_unknown_bandwidth_means_all():
    late = kimad.budget(jnp.array([8.0, np.inf]), 1.0, computation=2.0)
    np.testing.assert_array_equal(late.up, 0)
    np.testing.assert_array_equal(
        kimad.budget(np.inf, 1.0, congestion=0.0, down=np.inf), (np.inf, 0)
    )
    most = 2**32 - 256
    np.testing.assert_array_equal(
        whole_bits(jnp.array([7.9, 2.0**31 + 256, 1e20, np.nan])), [7, 2**31 + 256, most, most]
    )


def test_invalid_times_and_bandwidths_are_refused():
    for arguments in (
        {"up": [1.0, -1.0]},
        {"down": -2.0},
        {"computation": -0.5},
        {"round_time": [1.0, np.inf]},
        {"congestion": -1.0},
        {"up": [1.0, 2.0], "computation": [0.1] * 3},
    ):
        with pytest.raises(ValueError, match=f"kimad.budget: .*{[*arguments][-1]}"):
            kimad.budget(**{"up": 1.0, "round_time": 1.0} | arguments)


N, LATENCY, CLOCK, TIME = 3, 0.4, 1.7, 2.5
UP = Sinusoids((1.0, 0.5, 2.0), 900.0, 0.9, 250.0)
DOWN = Sinusoids((1.0, 3.0, 0.7), 4000.0, 0.5, 600.0)
COMPUTING = np.array([0.25, 0.75, 0.125])
CLUSTER = clusters.Cluster(
    clusters.constant(COMPUTING), UP.quantity, DOWN.quantity, latency=LATENCY
)


@pytest.mark.parametrize(("period", "congestion"), [(1, 0.0), (1, 0.5), (3, 0.5)])
def test_the_server_answers_two_latencies_after_the_last_message_began(period, congestion):
    """Of the T_comp of H gradients, only the last is computed in this round; the others were
    computed in previous rounds. A downlink whose time is neglected has no budget.
    """
    this = Round(jnp.int32(3), N, jax.random.key(0), Now(CLUSTER, jnp.float32(CLOCK)))
    plan = budgets.budget_of_round(
        kimad.oracle, budgets.Memory((), ()), this, TIME, COMPUTING, congestion, period
    )
    begin = COMPUTING - (period - 1) / period * COMPUTING.max()
    up_seconds = (TIME - COMPUTING) / (1 + congestion)
    down_seconds = congestion * (TIME - COMPUTING.max()) / (1 + congestion)
    answered = (begin + up_seconds).max() + 2 * LATENCY
    up = np.array([UP.mean(n, CLOCK + begin[n], up_seconds[n]) for n in range(N)])
    shown = {"estimated_up": up, "bandwidth_up": up}
    np.testing.assert_allclose(plan.up, up * up_seconds, rtol=1e-4)
    if congestion:
        down = np.array([DOWN.mean(n, CLOCK + answered, down_seconds) for n in range(N)])
        shown |= {"estimated_down": down, "bandwidth_down": down}
        np.testing.assert_allclose(plan.down, down.min() * down_seconds, rtol=1e-4)
    else:
        assert plan.down == np.inf
    for name, values in shown.items():
        np.testing.assert_allclose(plan.shown[name], values, rtol=1e-4, err_msg=name)
