"""Searches of hyperparameters, on quadratics whose best step sizes are known in closed form."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import problems

MU, L = 0.5, 2.0


def problem(**options) -> dsgd.Problem:
    return problems.random_quadratic(3, 4, smoothness=L, strong_convexity=MU, **options)


def narrow() -> dsgd.Problem:
    """Two eigenvalues, so that gradient descent is fastest at 2 / (mu + L)."""
    return problems.quadratic(np.array([[MU, L]]), np.array([[3.0, 4.0]]))


def descent(learning_rate):
    return algorithms.gradient_descent(optax.sgd(learning_rate))


def rounds(rate: float, target: float) -> int:
    """Returns the rounds of gradient descent until the gap of `narrow` is at most the target."""
    A, b = np.array([MU, L]), np.array([3.0, 4.0])
    x, t = np.zeros(2), 0
    while np.sum(A * (x - b / A) ** 2) / 2 > target:
        x, t = x - rate * (A * x - b), t + 1
    return t


def heavy_ball(learning_rate: float, momentum: float) -> float:
    """Returns the mean gap of `narrow` in the last 3 of the records 0 to 30."""
    A, b = np.array([MU, L]), np.array([3.0, 4.0])
    x, v, gaps = np.zeros(2), np.zeros(2), []
    for _ in range(31):
        gaps.append(np.sum(A * (x - b / A) ** 2) / 2)
        v = momentum * v + A * x - b
        x = x - learning_rate * v
    return np.mean(gaps[-3:])


def test_the_grid_is_extended_to_the_best_step_size_and_refined_around_it():
    for first in ([1e-3, 2e-3, 4e-3], [20.0, 40.0, 80.0]):
        with jax.enable_x64(True):
            found = dsgd.tune(
                descent, narrow(), steps=12, key=0, metric="gap", refinements=5, learning_rate=first
            )
        rate = found.values["learning_rate"]
        best = 2 / (MU + L)
        assert best / 2 ** (2**-4) < rate < best * 2 ** (2**-4)
        rates = np.sort(found.tried["learning_rate"])
        at = np.flatnonzero(rates == rate)[0]
        assert 0 < at < len(rates) - 1
        assert found.cost == found.tried["cost"].min()
        assert set(first) <= set(rates.tolist())


def test_the_fewest_rounds_to_a_target():
    rates, target = np.geomspace(0.05, 0.9, 8), 1e-7
    options = {"steps": 200, "key": 0, "learning_rate": rates}
    with jax.enable_x64(True):
        found = dsgd.sweep(descent, narrow(), **options)
        expected = [rounds(rate, target) for rate in rates]
        assert 0 < np.argmin(expected) < 7
        best = found.best("gap", until=target)
        assert expected[best[0]] == min(expected)
        tuned = dsgd.tune(descent, narrow(), metric="gap", until=target, refinements=3, **options)
    for rate, cost in zip(tuned.tried["learning_rate"], tuned.tried["cost"], strict=True):
        needed = rounds(rate, target)
        assert cost == (needed if needed <= 200 else np.inf)
    assert tuned.cost < min(expected)
    assert np.flatnonzero(tuned.history["gap"][0] <= target)[0] == tuned.cost
    with pytest.raises(ValueError, match=r"no point .* reaches gap = -1 .* in 200 rounds"):
        found.best("gap", until=-1.0)


def test_a_cost_of_the_history_rejects_points():
    """The largest step sizes below a limit, at which the cost jumps to infinity."""

    def cost(history):
        assert history["loss"].shape == (2, 6)
        first = history["grad_sqnorm"][:, 1]
        return np.where(first > 9.0, np.inf, -first)

    found = dsgd.tune(
        descent, narrow(), steps=5, key=0, seeds=2, cost=cost, learning_rate=[0.9, 1.2, 1.6]
    )
    rates = {
        rate: np.sum((np.array([3.0, 4.0]) * (1 - rate * np.array([MU, L]))) ** 2)
        for rate in found.tried["learning_rate"]
    }
    allowed = {rate: size for rate, size in rates.items() if size <= 9.0}
    best = max(allowed, key=allowed.__getitem__)
    assert found.values["learning_rate"] == best
    assert found.cost == pytest.approx(-allowed[best], rel=1e-5)


def test_several_hyperparameters_are_searched_together():
    """Heavy-ball momentum: the neighbours of both are tried, of the best only."""

    def build(learning_rate, momentum):
        return algorithms.gradient_descent(optax.sgd(learning_rate, momentum))

    grid = {"learning_rate": [0.02, 0.06], "momentum": [0.05, 0.1]}
    with jax.enable_x64(True):
        found = dsgd.tune(
            build,
            narrow(),
            steps=30,
            key=0,
            metric="gap",
            over=["learning_rate", "momentum"],
            **grid,
        )
        fixed = dsgd.tune(build, narrow(), steps=30, key=0, **grid)
    assert found.cost == pytest.approx(heavy_ball(**found.values), rel=1e-9)
    for name, ratio in (("learning_rate", 3.0), ("momentum", 2.0)):
        for factor in (1 / ratio, ratio):
            near = found.values | {name: found.values[name] * factor}
            assert not heavy_ball(**near) < found.cost
            tried = [np.isclose(found.tried[key], value) for key, value in near.items()]
            assert np.any(tried[0] & tried[1])
    assert set(fixed.tried["momentum"]) == {0.05, 0.1}
    assert fixed.tried["learning_rate"].max() > 0.06


def test_an_unfinished_search_warns():
    with pytest.warns(UserWarning, match=r"tune: the best point is at an edge .* learning_rate = "):
        found = dsgd.tune(
            descent, problem(), steps=20, key=0, extensions=1, learning_rate=[1e-4, 3e-4]
        )
    assert found.values["learning_rate"] == pytest.approx(27e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": [0.1]}, "at least two positive numbers"),
        ({"learning_rate": [0.0, 0.1]}, "at least two positive numbers"),
        ({"rate": [0.1, 0.2]}, "no grid of 'learning_rate' in over"),
        ({"learning_rate": [0.1, 0.2], "until": 0.1, "cost": np.min}, "expected one of them"),
        ({"learning_rate": [1e3, 2e3], "extensions": 1}, "diverged; expected at least one finite"),
        ({"learning_rate": [0.1, 0.2], "metric": "los"}, "'los'"),
    ],
)
@pytest.mark.filterwarnings("ignore:tune")
def test_invalid_searches_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        dsgd.tune(descent, problem(), steps=40, key=0, **options)
