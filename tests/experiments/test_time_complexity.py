"""`python -m experiments.time_complexity`: clusters, costs, theorems, and a small run."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scripts
from scipy import integrate

from experiments import time_complexity
from experiments.time_complexity import Args, Profile


@pytest.mark.parametrize(
    "profile", [Profile(0.5), Profile(1.5, slow=0.4), Profile(0.0, slow=0.6, delay=0.2)]
)
def test_a_cluster_has_the_seconds_of_its_profile(profile):
    args = Args(workers=5, factor=7.0)
    compute = time_complexity.make_cluster(args, profile).compute
    seconds = [float(compute.sample(jax.random.key(0), 0.0, n)) for n in range(5)]
    slow = {0.0: 0, 0.4: 2, 0.6: 3}[profile.slow]
    expected = [(i + 1) ** profile.spread * (7 if i >= 5 - slow else 1) for i in range(5)]
    np.testing.assert_allclose(seconds, expected, rtol=1e-5)
    np.testing.assert_allclose(time_complexity.seconds_of(args, profile), expected)


def test_the_work_of_changing_speeds_is_their_integral():
    power = time_complexity.make_cluster(Args(workers=3), Profile(swing=0.8)).power
    assert power is not None
    assert power.integral is not None
    key = jax.random.key(0)
    for worker, begin, seconds in ((0, 1.5, 4.0), (2, 11.0, 0.7)):
        found = power.integral(key, np.float32(begin), np.float32(seconds), worker)
        speed = [float(power.sample(key, np.float32(t), worker)) for t in (begin, begin + 2.5)]
        angle = 2 * np.pi * (np.array([begin, begin + 2.5]) / 10 + worker / 3)
        np.testing.assert_allclose(speed, 1 + 0.8 * np.sin(angle), atol=1e-5)
        expected, _ = integrate.quad(
            lambda t, n=worker: 1 + 0.8 * np.sin(2 * np.pi * (t / 10 + n / 3)),
            begin,
            begin + seconds,
        )
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_cost_is_when_the_mean_over_seeds_crosses_epsilon():
    clock = np.broadcast_to(np.array([0.0, 1, 2, 4]), (3, 4))
    norms = np.array([[10.0, 6, 1, 0.5], [10, 8, 2, 0.7], [10, 4, 3, 0.1]])

    def crossing(means):  # of 3
        after = np.flatnonzero(means <= 3)[0]
        share = (means[after - 1] - 3) / (means[after - 1] - means[after])
        return clock[0, after - 1] + share * (clock[0, after] - clock[0, after - 1])

    found = time_complexity.cost(0.3, {"clock": clock, "grad_sqnorm": norms})
    assert found.seconds == pytest.approx(crossing(norms.mean(axis=0)))
    others = np.array([crossing(np.delete(norms, seed, axis=0).mean(axis=0)) for seed in range(3)])
    expected = np.sqrt(2 / 3 * np.sum((others - others.mean()) ** 2))
    assert found.error == pytest.approx(expected)
    never = time_complexity.cost(0.01, {"clock": clock, "grad_sqnorm": norms})
    assert never.seconds == np.inf
    assert np.isnan(never.error)


def test_a_quadratic_has_the_noise_for_which_b_is_recommended():
    args = Args(workers=4, dimension=3, batch=6, accuracy=0.2)
    for different in (False, True):
        problem = time_complexity.make_quadratic(args, different)
        data = problem.data
        start = np.sum(np.mean(np.asarray(data.b, float), axis=0) ** 2)
        assert problem.constants is not None
        assert problem.constants.noise == pytest.approx(np.sqrt(6 * 0.2 * start), rel=1e-5)


def test_all_methods_are_faster_than_their_theorems(tmp_path, monkeypatch):
    monkeypatch.setattr(time_complexity, "make_problems", lambda args: {})
    args = Args(
        workers=4,
        dimension=3,
        batch=3,
        accuracy=0.2,
        gradients=600,
        learning_rates=(0.3,),
        spreads=(0.5, 1.2),
        slows=(),
        delays=(),
        swings=(),
        methods=("minibatch_sgd", "malenia_sgd"),
        seeds=2,
        out=tmp_path,
        progress=False,
    )
    scripts.ran(time_complexity.main, args)
    rows = scripts.rows(tmp_path / "seconds.csv")
    assert [(row["cluster"], row["value"], row["method"]) for row in rows] == [
        (panel, value, method)
        for panel, methods in (("spread", args.methods[:1]), ("different", args.methods))
        for value in ("0.5", "1.2")
        for method in methods
    ]
    for row in rows:
        problem = time_complexity.make_quadratic(args, row["cluster"] == "different")
        profile = Profile(float(row["value"]))
        bound = time_complexity.theorem(args, row["method"], profile, problem)
        assert 0 < float(row["seconds"]) < bound
    table = scripts.rows(tmp_path / "table.csv")
    fastest = {row["cluster"]: row["fastest"] for row in table}
    best = min(rows[2:4], key=lambda row: float(row["seconds"]))
    assert fastest["different 0.5"] == best["method"].removesuffix("_sgd")
