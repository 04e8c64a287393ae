"""The threshold from measured times, compared with Algorithm 2 as printed, and with a loop over
workers.
"""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from algorithms import dropcompute

STOPS = pytest.mark.parametrize("stop", ["preempt", "between"])
SIDES = st.tuples(*[st.integers(1, 4)] * 3)


def algorithm_2(latencies, communication, tau) -> np.ndarray:
    """Returns speedup, dropped share and seconds of a step, by the paper's loops."""
    (I, N, M), total = latencies.shape, np.zeros(3)
    for t, t_c in zip(latencies, communication, strict=True):
        computed = T = 0.0
        for n in range(N):
            T_n = 0.0
            for m in range(M):
                T_n += t[n, m]
                computed += T_n < tau
            T = max(T, T_n)
        total += outcome(computed / (N * M), T, min(tau, T), t_c)
    return total / I


def worker_loop(latencies, communication, tau) -> np.ndarray:
    """Returns the same for workers that read their clock after each micro-batch."""
    (I, N, M), total = latencies.shape, np.zeros(3)
    for t, t_c in zip(latencies, communication, strict=True):
        computed, step = 0, 0.0
        for n in range(N):
            clock, m = 0.0, 0
            while m < M and clock <= tau:
                clock, m = clock + t[n, m], m + 1
            computed, step = computed + m, max(step, clock)
        total += outcome(computed / (N * M), t.sum(axis=1).max(), step, t_c)
    return total / I


def outcome(share: float, T: float, step: float, t_c: float) -> np.ndarray:
    return np.array([share * ((T + t_c) / (step + t_c) if step + t_c else 1), 1 - share, step])


ORACLES = {"preempt": algorithm_2, "between": worker_loop}


@st.composite
def whole_times(draw, least: int = 0):
    """Returns latencies and communication in whole seconds, so that sums are exact and many of them
    equal.
    """
    I, N, M = draw(SIDES)
    t = draw(arrays.arrays(float, (I, N, M), elements=st.integers(least, 6)))
    return t, draw(arrays.arrays(float, I, elements=st.integers(0, 4)))


def lognormal(seed: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.lognormal(size=shape), rng.uniform(0, 2, shape[0])


@STOPS
@given(whole_times())
def test_the_speedup_is_that_of_algorithm_2(stop, times):
    latencies, communication = times
    taus = np.append(np.arange(0, 25, 0.5), np.inf)
    wanted = np.array([ORACLES[stop](latencies, communication, tau) for tau in taus]).T
    effect = dropcompute.measured_effect(latencies, taus, communication, stop)
    np.testing.assert_allclose(effect.speedup, wanted[0], rtol=1e-13)
    np.testing.assert_allclose(effect.drop_rate, wanted[1], atol=1e-15)
    np.testing.assert_allclose(effect.step_time, wanted[2], rtol=1e-15)
    np.testing.assert_allclose(effect.without, wanted[2][-1], rtol=1e-15)
    np.testing.assert_array_equal(effect.threshold, taus)


@STOPS
@given(whole_times(least=1))
def test_no_threshold_is_better(stop, times):
    """Compared with a fine grid, and with thresholds just after and just before each event."""
    best = dropcompute.threshold(*times, stop)
    ends = np.unique(np.cumsum(times[0], axis=-1))
    others = np.concatenate(
        [
            np.arange(0, 25, 0.125),
            np.nextafter(ends, np.inf),
            np.nextafter(ends, 0),
            ends * (1 + 1e-6),
            ends * (1 - 1e-6),
        ]
    )
    latencies, communication = times
    found, reached = (
        dropcompute.measured_effect(latencies, taus, communication, stop) for taus in (others, best)
    )
    assert reached.speedup >= found.speedup.max() * (1 - 2e-6)
    equal = found.speedup >= reached.speedup
    assert (found.drop_rate[equal] >= reached.drop_rate).all(), "of equals it drops least"


@STOPS
@pytest.mark.parametrize("shape", [(1, 2, 3), (6, 5, 4), (3, 40, 12)])
def test_pruning_does_not_change_the_result(stop, shape):
    """Compared with an evaluation of all events, for shapes with fewer and with many more events
    than the pruning threshold.
    """
    latencies, communication = lognormal(0, *shape)
    ends = np.cumsum(latencies, axis=-1)
    events = (
        ends
        if stop == "preempt"
        else np.concatenate([np.zeros_like(ends[..., :1]), ends[..., :-1]], axis=-1)
    )
    all_of_them = np.append(np.unique(events) * (1 + 1e-6), np.inf)
    speedups = dropcompute.measured_effect(latencies, all_of_them, communication, stop).speedup
    best = all_of_them[speedups * (1 + 1e-6) >= speedups.max()].max()
    assert dropcompute.threshold(latencies, communication, stop) == best
    assert speedups.max() > 1.01, "there is something to gain"


def plan(latencies, communication, taus, stop):
    effect = dropcompute.measured_effect(latencies, taus, communication, stop)
    return {
        "best": dropcompute.threshold(latencies, communication, stop),
        **effect._asdict(),
    }


@STOPS
def test_inside_a_program_it_equals_numpy(stop):
    """Also over seeds."""
    drawn = [lognormal(seed, 3, 20, 6) for seed in range(4)]
    times, communication = (np.float32(np.stack(each)) for each in zip(*drawn, strict=True))
    taus = np.array([0.0, 1.5, 6.0, 9.5, np.inf], np.float32)
    program = jax.jit(jax.vmap(partial(plan, taus=taus, stop=stop)))
    found = program(times, communication)
    for i in range(4):
        for name, wanted in plan(times[i], communication[i], taus, stop).items():
            np.testing.assert_allclose(found[name][i], wanted, rtol=1e-6, atol=1e-6, err_msg=name)


def test_edges():
    """Of equally good thresholds the one that drops least is chosen; dropping nothing wins a
    tie.
    """
    equal, free = np.array([[[1.0, 1.0, 4.0]]]), np.array([[[0.0, 2.0], [3.5, 4.0]]])
    for stop, tau in (("preempt", 2.0), ("between", 1.0)):
        assert dropcompute.threshold(equal, 0.0, stop) == pytest.approx(tau, rel=1.1e-6)
        assert dropcompute.threshold(np.full((3, 4, 5), 0.1), 1.0, stop) == np.inf
        assert dropcompute.threshold(np.zeros((3, 4, 5)), 0.0, stop) == np.inf
    assert dropcompute.threshold(free, 0.0) == pytest.approx(2, rel=1.1e-6)
    # Half of the workers take no time, one a second, all others a hundred: the search must not end
    # at 0.
    most = np.concatenate([np.zeros(31), [1.0], 100 + np.arange(32.0)])[None, :, None]
    assert dropcompute.threshold(most, 0.0) == pytest.approx(1, rel=1.1e-6)


ONES = np.ones((2, 3, 4))
REFUSED = [
    ({"latencies": np.ones((2, 3))}, "latencies"),
    ({"latencies": np.ones((0, 3, 4)), "communication": []}, "latencies .* at least one of each"),
    ({"latencies": -ONES}, "latencies"),
    ({"latencies": np.inf * ONES}, "latencies"),
    ({"communication": [1.0, 1.0, 1.0]}, r"communication \[3\] for latencies \[2, 3, 4\]"),
    ({"communication": [1.0, -2.0]}, "communication"),
    ({"thresholds": [1.0, np.nan]}, "thresholds"),
]


@pytest.mark.parametrize("name", ["measured_effect", "threshold"])
def test_invalid_measurements_are_refused(name):
    good = {"latencies": ONES, "communication": [1.0, 1.0], "thresholds": [1.0]}
    function = getattr(dropcompute, name)
    takes = function.__annotations__.keys() & good.keys()
    for arguments, words in REFUSED:
        if takes >= arguments.keys():
            with pytest.raises(ValueError, match=f"{name}: {words}"):
                function(**{each: {**good, **arguments}[each] for each in takes})
