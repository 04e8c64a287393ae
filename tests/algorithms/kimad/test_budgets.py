"""Equation 2: what fills a round, to the bit; the budgets of a round and the windows of its
messages, next to a computation in numpy.
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
from dsgd import Measured, Now, Round, clusters
from tests.algorithms.kimad.networks import Sinusoids

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
    assert alone == [float(bits.up)] * 2, (
        "without a bandwidth of its own, the downlink's message is as long: the paper's"
    )


def test_no_time_is_no_bits_and_what_nobody_knows_is_all():
    late = kimad.budget(jnp.array([8.0, np.inf]), 1.0, computation=2.0)
    np.testing.assert_array_equal(late.up, 0)
    np.testing.assert_array_equal(
        kimad.budget(np.inf, 1.0, congestion=0.0, down=np.inf), (np.inf, 0)
    )
    most = 2**32 - 256
    np.testing.assert_array_equal(
        whole_bits(jnp.array([0.0, 7.9, 2.0**31 + 256, 1e20, np.inf, np.nan])),
        [0, 7, 2**31 + 256, *[most] * 3],
    )


def test_what_is_no_time_or_bandwidth_is_refused():
    for arguments, message in (
        ({"up": [1.0, -1.0]}, "kimad.budget: up = -1; expected bits per second >= 0"),
        ({"down": -2.0}, "down = -2"),
        ({"computation": -0.5}, "computation = -0.5; expected seconds >= 0"),
        ({"round_time": [1.0, np.inf]}, "round_time = inf; expected seconds > 0, finite"),
        ({"congestion": -1.0}, "congestion = -1; expected a finite number >= 0"),
        (
            {"up": [1.0, 2.0], "computation": [0.1] * 3},
            r"up \[2\], computation \[3\]; expected numbers, or arrays whose shapes",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            kimad.budget(**{"up": 1.0, "round_time": 1.0} | arguments)


N, LATENCY, CLOCK, TIME, CONGESTION = 3, 0.4, 1.7, 2.5, 0.5
UP = Sinusoids((1.0, 0.5, 2.0), 900.0, 0.9, 250.0)
DOWN = Sinusoids((1.0, 3.0, 0.7), 4000.0, 0.5, 600.0)
COMPUTING = np.array([0.25, 0.75, 0.125])
CLUSTER = clusters.Cluster(
    clusters.constant(COMPUTING), UP.quantity, DOWN.quantity, latency=LATENCY
)
NOWHERE = budgets.Memory((), ())


def a_round(cluster: clusters.Cluster | None = CLUSTER, measured: Measured | None = None) -> Round:
    now = None if cluster is None else Now(cluster, jnp.float32(CLOCK), measured)
    return Round(jnp.int32(3), N, jax.random.key(0), now)


def measured(**values: np.ndarray) -> Measured:
    """Of two micro-batches, where nothing else is given."""
    ones = np.ones(N, np.float32)
    given = {
        "compute": np.full((N, 2), np.nan),
        "up": ones,
        "down": ones,
        "bits_up": ones,
        "bits_down": ones,
        **values,
    }
    return Measured(**{name: jnp.asarray(value, jnp.float32) for name, value in given.items()})


@pytest.mark.parametrize("period", [1, 3])
def test_the_server_answers_two_latencies_after_the_last_message_began(period):
    """Of the T_comp of H gradients, this round computes the last one: the others were computed in
    rounds before it.
    """
    plan = budgets.of_round(kimad.oracle, NOWHERE, a_round(), TIME, COMPUTING, CONGESTION, period)
    begin = COMPUTING - (period - 1) / period * COMPUTING.max()
    up_seconds = (TIME - COMPUTING) / (1 + CONGESTION)
    down_seconds = CONGESTION * (TIME - COMPUTING.max()) / (1 + CONGESTION)
    answered = (begin + up_seconds).max() + 2 * LATENCY
    up = np.array([UP.mean(n, CLOCK + begin[n], up_seconds[n]) for n in range(N)])
    down = np.array([DOWN.mean(n, CLOCK + answered, down_seconds) for n in range(N)])
    expected = {
        "estimated_up": up,
        "estimated_down": down,
        "bandwidth_up": up,
        "bandwidth_down": down,
    }
    assert plan.shown.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(plan.shown[name], values, rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(plan.up, up * up_seconds, rtol=1e-4)
    np.testing.assert_allclose(plan.down, down.min() * down_seconds, rtol=1e-4)


def test_estimates_are_of_each_direction_and_the_slowest_downlink_counts():
    up, down = np.array([10.0, 20.0, 30.0]), np.array([70.0, 50.0, 60.0])
    memory = budgets.Memory(jnp.float32(up), jnp.float32(down))
    plan = budgets.of_round(kimad.last, memory, a_round(), TIME, COMPUTING, CONGESTION, 1)
    np.testing.assert_allclose(plan.up, up * (TIME - COMPUTING) / 1.5, rtol=1e-6)
    np.testing.assert_allclose(plan.down, 50.0 * 0.5 * (TIME - 0.75) / 1.5, rtol=1e-6)
    np.testing.assert_array_equal(plan.shown["estimated_up"], up)
    np.testing.assert_array_equal(plan.shown["estimated_down"], down)


def test_a_downlink_whose_time_is_neglected_has_no_budget():
    plan = budgets.of_round(
        kimad.last, budgets.Memory(jnp.ones(N), jnp.ones(N)), a_round(), TIME, COMPUTING, 0.0, 1
    )
    assert plan.down == np.inf
    np.testing.assert_allclose(plan.up, TIME - COMPUTING, rtol=1e-6)


def test_without_a_cluster_everything_fits_and_nothing_is_shown():
    plan = budgets.of_round(kimad.oracle, NOWHERE, a_round(None), TIME, COMPUTING, CONGESTION, 1)
    np.testing.assert_array_equal(plan.up, np.inf)
    assert plan.down == np.inf
    assert plan.shown == {}


def test_computation_is_measured_over_all_micro_batches_and_gradients():
    """What was not computed took no time; before the first round nothing is known."""
    each = np.array([[0.125, 0.25], [0.5, np.nan], [np.nan, np.nan]])
    rates = budgets.Memory(jnp.ones(N), jnp.ones(N))
    for period in (1, 2):
        plan = budgets.of_round(
            kimad.last, rates, a_round(measured=measured(compute=each)), TIME, None, 1.0, period
        )
        np.testing.assert_allclose(
            plan.up, (TIME - period * np.array([0.375, 0.5, 0.0])) / 2, rtol=1e-6
        )
        np.testing.assert_allclose(plan.down, (TIME - period * 0.5) / 2, rtol=1e-6)
    np.testing.assert_allclose(
        budgets.of_round(kimad.last, rates, a_round(), TIME, None, 1.0, 2).up, TIME / 2, rtol=1e-6
    )
    np.testing.assert_allclose(
        budgets.of_round(kimad.last, rates, a_round(), TIME, np.array(0.5), 1.0, 1).up,
        (TIME - 0.5) / 2,
        rtol=1e-6,
    )


def test_rates_are_bits_over_seconds_of_each_direction():
    """A link over which nothing went keeps its estimate, one bit is a message."""
    seen = measured(
        up=[2.0, 4.0, 0.0],
        down=[8.0, 0.5, 1.0],
        bits_up=[100.0, 0.0, 0.0],
        bits_down=[0.0, 1.0, 64.0],
    )
    before = budgets.Memory(jnp.array([1.0, 2.0, 3.0]), jnp.array([4.0, 5.0, 6.0]))
    after = budgets.observed(kimad.last, before, seen)
    np.testing.assert_array_equal(after.up, [50.0, 2.0, 3.0])
    np.testing.assert_array_equal(after.down, [4.0, 2.0, 64.0])
    assert budgets.observed(kimad.last, before, None) is before
    start = budgets.first_memory(kimad.last, N)
    assert np.isnan(start.up).all()
    assert np.isnan(start.down).all()
