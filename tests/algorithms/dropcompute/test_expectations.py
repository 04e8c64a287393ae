"""The normal model, compared with closed forms, draws, and measurements."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from algorithms import dropcompute
from theory_checks.statements.dropcompute_speedup import equation_4, equation_11

STOPS = pytest.mark.parametrize("stop", ["preempt", "between"])
MEAN, STD, M, N = 1.0, 0.25, 5, 6
TAUS = np.array([0.5, 1.0, 2.6, 4.0, 4.5, 5.0, 5.5, 6.5])


def largest(workers):
    """Returns the mean of the maximum of N standard normal variables."""
    return dropcompute.expected_effect(1.0, 1.0, 1, workers, np.inf).without - 1


@pytest.fixture(scope="module")
def end_times() -> np.ndarray:
    """Returns the end times of micro-batches, `[draws, N, M]`."""
    return np.random.default_rng(0).normal(MEAN, STD, (100_000, N, M)).cumsum(axis=-1)


def stop_workers(ends: np.ndarray, stop: str, tau: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of micro-batches that each worker computes, `[draws, N]`, and the time at
    which it stops, worker by worker.
    """
    if stop == "preempt":
        return (ends < tau).sum(axis=-1), np.minimum(ends[..., -1], tau)
    count = 1 + (ends[..., :-1] <= tau).sum(axis=-1)
    return count, np.take_along_axis(ends, count[..., None] - 1, axis=-1)[..., 0]


def test_the_largest_of_few():
    tangent = np.arctan(np.sqrt(2)) / np.pi**1.5
    known = [
        0,
        1 / np.sqrt(np.pi),
        1.5 / np.sqrt(np.pi),
        6 * tangent,
        15 * tangent - 2.5 / np.sqrt(np.pi),
    ]
    np.testing.assert_allclose(largest(np.arange(1, 6)), known, atol=1e-12)
    assert largest(10) == pytest.approx(1.5387527308, abs=1e-10), "tables of order statistics"


def test_the_largest_of_very_many():
    """The other integral, of the density, by equidistant sums, which are exact up to rounding for
    functions this smooth.
    """
    z = np.arange(-12, 14, 0.02)
    for workers in (7, 10**3, 10**6, 10**12):
        density = np.exp(np.log(workers) + (workers - 1) * log_ndtr(z) - z**2 / 2) / np.sqrt(
            2 * np.pi
        )
        assert largest(workers) == pytest.approx(0.02 * np.sum(z * density), abs=1e-9)


def test_equation_4_has_the_stated_error():
    workers = np.array([2, 5, 6, 7, 8, 80, 81, 112, 10**6])
    off = (equation_4(1.0, 1.0, 1, workers) - 1) / largest(workers) - 1
    np.testing.assert_allclose(off[:5], [-0.079, 0.025, 0.026, 0.026, 0.025], atol=5e-4)
    assert off[5] > 0.01 > off[6] > off[7] > 0.008 > off[8] > 0
    quantile, share = NormalDist().inv_cdf, np.euler_gamma
    by_hand = 24 + np.sqrt(12) * 0.5 * (
        (1 - share) * quantile(1 - 1 / 112) + share * quantile(1 - 1 / (112 * np.e))
    )
    assert equation_4(2.0, 0.5, 12, 112) == pytest.approx(by_hand, rel=1e-12)


@STOPS
def test_step_times_agree_with_draws(end_times, stop):
    effect = dropcompute.expected_effect(MEAN, STD, M, N, TAUS, stop=stop)
    expected, micro_batches = effect.step_time, M * (1 - effect.drop_rate)
    for i, tau in enumerate(TAUS):
        count, seconds = stop_workers(end_times, stop, tau)
        for draws, mean in (
            (seconds.max(axis=1), expected[i]),
            (count.mean(axis=1), micro_batches[i]),
        ):
            assert abs(draws.mean() - mean) < 4 * draws.std() / np.sqrt(len(end_times)) + 1e-6, (
                tau,
                draws.mean(),
                mean,
            )


@STOPS
def test_ends_of_the_scale(stop):
    """Without a threshold it is E T; at 0, a check between micro-batches lets each worker compute
    one micro-batch. With a single worker it never stops.
    """

    def step(micro_batches, tau):
        return dropcompute.expected_effect(
            2.0, 0.1, micro_batches, [1, 50], tau, stop=stop
        ).step_time

    np.testing.assert_allclose(
        step(12, np.inf), 24 + np.sqrt(12) * 0.1 * largest([1, 50]), rtol=1e-12
    )
    np.testing.assert_allclose(step(12, 40.0), step(12, np.inf), rtol=1e-12)
    np.testing.assert_allclose(
        step(12, 0.0),
        2 + 0.1 * largest([1, 50]) if stop == "between" else 0,
        rtol=1e-11,
        atol=1e-12,
    )
    if stop == "between":
        for tau in (1.8, 2.0, 2.1):
            np.testing.assert_allclose(step(1, tau), step(1, np.inf), rtol=1e-11)


@STOPS
def test_equation_11_uses_the_given_step_time(stop):
    taus = np.array([9.0, 11.0, 13.0, 20.0, np.inf])
    model = (1.0, 0.3, 12, 64)
    between, preempted = (
        dropcompute.expected_effect(*model, taus, stop=how) for how in ("between", "preempt")
    )
    share = 1 - (between if stop == "between" else preempted).drop_rate
    longer = between.step_time - preempted.step_time if stop == "between" else 0.0
    approximate = equation_4(1.0, 0.3, 12, 64)
    for given, arguments in ((approximate, {}), (12.7, {"step_time": 12.7})):
        found = equation_11(1.0, 0.3, 12, 64, taus, 0.5, stop, **arguments)
        np.testing.assert_allclose(
            found, share * (given + 0.5) / (np.minimum(taus + longer, given) + 0.5), rtol=1e-10
        )
        assert found[-1] == 1
    assert dropcompute.expected_effect(1.0, 0.1, 12, 64, 0.0).speedup == 0


@pytest.mark.parametrize(
    ("mean", "std", "M", "communication"),
    [
        (1.0, 0.3, 4, 0.5),
        (1.0, 0.3, 4, 2.0),
        (0.45, 0.1, 3, 0.05),
        (1.0, 0.05, 2, 3.0),
        (1.0, 1e-5, 8, 0.3),
        (1.0, 2.0, 8, 0.0),
    ],
)
def test_the_planned_threshold_is_that_of_a_finer_search(mean, std, M, communication):
    """The optimum may be on either side of the best of the planner's points; with large noise it is
    half of the mean time of all micro-batches.
    """

    def rate(tau):
        m = np.arange(1, M + 1)[:, None]
        return ndtr((tau - m * mean) / (np.sqrt(m) * std)).sum(axis=0) / (tau + communication)

    near = (np.arange(1, M + 1)[:, None] * mean + std * np.linspace(-8, 9, 400)).ravel()
    taus = np.unique(
        np.append(
            np.maximum(near, M * mean / 2),
            np.linspace(M * mean / 2, M * mean + 10 * np.sqrt(M) * std, 2001),
        )
    )
    for _ in range(8):
        best = int(np.argmax(rate(taus)))
        taus = np.linspace(taus[max(best - 1, 0)], taus[min(best + 1, len(taus) - 1)], 2001)
    found = dropcompute.expected_threshold(mean, std, M, communication)
    assert rate(np.array([found])) >= rate(taus).max() * (1 - 1e-13)
    assert found == pytest.approx(taus[1000], abs=1e-5 * std if std > 1e-3 else 0.01 * std), (
        "where the tail is flat, to less"
    )


@STOPS
def test_the_speedup_of_bounded_latencies_is_bounded(stop):
    r"""For latencies in [a, b], $S \le \frac{M b + T^c}{M a + T^c}$ in each iteration, for any N
    and tau.

    In a step of R < M b seconds a worker computes at most R / a micro-batches, so that S is at most
    $\min(1, \frac{R}{M a}) \frac{M b + T^c}{R + T^c}$, which is largest at R = M a. One slow worker
    among very many nearly attains it.
    """
    a, b, M, T_c = 1.0, 3.0, 12, 2.0
    bound = (M * b + T_c) / (M * a + T_c)

    def reach(latencies):
        tau = dropcompute.threshold(latencies, T_c, stop)
        return dropcompute.measured_effect(latencies, tau, T_c, stop).speedup

    single = np.full((1, 512, M), a)
    single[0, 0] = b
    few, many = (reach(np.random.default_rng(0).uniform(a, b, (2, n, M))) for n in (64, 512))
    assert many < min(bound, 1.1 * few)
    assert 0.9 * bound < reach(single) < bound


GIVEN = {"thresholds": 5.0, "mean": 1.0, "std": 0.3, "micro_batches": 12, "workers": 4}
REFUSED = [
    ({"mean": np.inf}, "mean"),
    ({"std": 0.0}, "std"),
    ({"std": 1e-7}, "std of at least 1e-6"),
    ({"std": 1e7}, "std of at most 1e6"),
    ({"workers": [4, 0]}, "workers"),
    ({"workers": 2.5}, "workers"),
    ({"thresholds": [1.0, np.nan]}, "thresholds"),
    ({"thresholds": [1.0, 2.0], "workers": [2, 3, 4]}, "shapes that broadcast"),
    ({"communication": -1.0}, "communication"),
    ({"stop": "between", "std": 1e-5, "micro_batches": 2000}, "takes minutes"),
]


def test_arguments_outside_the_model_are_refused():
    for arguments, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            dropcompute.expected_effect(**GIVEN | arguments)
