"""Plans of constructed runs: which settings the finalists have, their estimates, and refusals.

Nothing is trained: each run reaches the loss 0 in a given round, and has the loss 1 before.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import algorithms
import dsgd
from dsgd import Candidate, clusters, problems
from dsgd.planning import finals, halving, training

N, STEPS, SECONDS, BITS = 2, 40, 3.0, 7.0  # seconds and bits of a round
KEY = jax.random.key(0)
NEVER = np.inf
Arrivals = Callable[[str, dict[str, float], int, bool], Any]


def candidate(name: str, **options: Any) -> Candidate:
    return Candidate(name, algorithms.asynchronous_sgd, **options)


def runs(arrivals: Arrivals, stop_at: int = -1, **metrics: Callable[[np.ndarray], np.ndarray]):
    """Returns a function in place of `training.train`.

    Args:
        arrivals: (name of the candidate, point, number of seeds, whether they are fresh) -> the
            rounds in which the runs arrive.
        stop_at: number of the call that is interrupted.
        metrics: the loss -> another metric, or the loss itself, by name.
    """
    calls = iter(range(1000))

    def train(setting: training.Setting, contender: training.Contender, rounds: int, name: str):
        if next(calls) == stop_at:
            raise KeyboardInterrupt
        is_fresh, method = name.startswith("finalists"), contender.candidate.name
        first = np.stack(
            [
                np.broadcast_to(arrivals(method, point, setting.seeds, is_fresh), setting.seeds)
                for point in contender.points
            ]
        )
        record = np.arange(rounds + 1)
        loss = np.where(record >= first[..., None], 0.0, 1.0)
        at = {"clock": np.broadcast_to(SECONDS * record, loss.shape)}
        at |= {"loss": loss, "bits": np.broadcast_to(BITS * record, loss.shape)}
        at |= {name: of(loss) for name, of in metrics.items()}
        history = {"step": N * record, **at}
        sweep: Any = SimpleNamespace(history=history)
        return training.Trained(contender, history, sweep, N)

    return train


@pytest.fixture
def make_plan(monkeypatch):
    def call(candidates, arrivals, *, metrics=None, stop_at=-1, **options) -> dsgd.Plan:
        train = runs(arrivals, stop_at, **(metrics or {}))
        monkeypatch.setattr(halving, "train", train)
        monkeypatch.setattr(finals, "train", train)
        given = {"key": KEY, "steps": STEPS, "seeds": 3, "learning_rates": (0.1, 0.5, 2.0)}
        if not options.keys() & {"seconds", "bits"}:
            given["target"] = 0.5
        problem, cluster = problems.random_quadratic(N, 3), clusters.Cluster(clusters.constant(1.0))
        return dsgd.plan(candidates, problem, cluster, **given | options)

    return call


def some_never(name, point, seeds, is_fresh):
    """At the largest step size, one of fifteen fresh seeds never arrives; at the next all do."""
    rate = point["learning_rate"]
    found = np.full(seeds, {0.1: 9.0, 0.5: 8.0, 2.0: 5.0}[rate])
    if is_fresh and rate == 2.0:
        found[::15] = NEVER
    return found


def test_a_step_size_at_which_a_fresh_seed_never_arrives_is_replaced_by_the_next(make_plan):
    (row,) = make_plan([candidate("one")], some_never).rows
    assert row.values == {"learning_rate": 0.5}
    assert row.seconds.value == 8 * SECONDS
    # all equal: Student's interval of a uniform distribution over a round, of logarithms
    width = np.exp(2.0452296 / 8 / np.sqrt(12) / np.sqrt(30))
    np.testing.assert_allclose(row.seconds, 8 * SECONDS * np.array([1, 1 / width, width]), 1e-6)
    assert (row.rounds, row.bits) == (8, 8 * BITS)
    # Clopper and Pearson for 30 of 30
    np.testing.assert_allclose(row.reached, [1, 0.025 ** (1 / 30), 1], 1e-6)
    assert row.elsewhere[0] == row.seconds.value


def test_a_target_that_no_run_reaches_is_warned_about_or_refused(make_plan):
    with pytest.warns(
        UserWarning, match=r"no candidate reaches loss = -0.01 .* loss = 1; expected"
    ):
        make_plan([candidate("one")], lambda *of: NEVER, target=-0.01)
    with pytest.raises(ValueError, match=r"plan: target = -9 is below the minimum -0.* of quadrat"):
        make_plan([candidate("one")], lambda *of: NEVER, target=-9.0)


def test_rows_whose_difference_is_within_error_are_tied(make_plan):
    """Differences in rounds over 30 seeds: the second from the first 0.2 +- 0.28, the third from
    the second 0.2 +- 0.37, and from the first 0.4 +- 0.19.
    """
    more = {
        "third": [0, 0, 0, 0, 0, 0, 1, 1, 1, 1],
        "second": [1, 1, 1, 1, -1, -1, 0, 0, 0, 0],
        "first": [0],
        "never": [NEVER],
    }
    found = make_plan(
        [candidate(name) for name in more],
        lambda name, point, seeds, is_fresh: 9 + np.resize(more[name], seeds),
    )
    assert [(row.method, row.tied) for row in found.rows] == [
        ("first", (1,)),
        ("second", (0, 2)),
        ("third", (1,)),
        ("never", ()),
    ]


@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_an_interrupted_plan_has_the_ranking_so_far(make_plan, stop_at):
    """In the first rung, where one candidate has run; in the second; and with fresh seeds."""
    names = ("slow", "fast")

    def arrivals(name, point, seeds, is_fresh):
        return {"slow": 9, "fast": 4}[name] + (point["learning_rate"] != 0.5)

    with pytest.raises(dsgd.Interrupted) as caught:
        make_plan([candidate(name) for name in names], arrivals, stop_at=stop_at)
    lines = str(caught.value).splitlines()
    assert lines[0] == "plan: interrupted"
    rounds = {1: 10, 3: 10, 5: 40}[stop_at]
    ranked = ["1. slow (learning_rate = 0.5): loss 0 after 27 s"]
    if stop_at > 1:
        ranked = [ranked[0].replace("1.", "2.")]
        ranked.insert(0, "1. fast (learning_rate = 0.5): loss 0 after 12 s")
    assert lines[1:] == [f"ranking after {rounds} rounds:", *ranked]


def arrivals_by_rate(rates_and_rounds):
    return lambda name, point, seeds, is_fresh: rates_and_rounds[point["learning_rate"]]


def test_the_largest_accuracy_is_best_within_a_budget(make_plan):
    """In nine of ten runs, the second candidate arrives within the budget at the smallest step
    size; the first never does.
    """
    late = candidate("late")

    def arrivals(name, point, seeds, is_fresh):
        if name == "late":
            return NEVER
        return np.where(np.arange(seeds) % 10 < 9, 6 + 9 * point["learning_rate"] // 1, NEVER)

    options = {"metric": "mine", "largest": True, "metrics": {"mine": lambda loss: 1 - loss / 2}}
    found = make_plan([late, candidate("early")], arrivals, seconds=8 * SECONDS, **options)
    early, never = found.rows
    assert (early.method, early.values["learning_rate"], early.at_edge) == ("early", 0.1, True)
    np.testing.assert_allclose([early.metric.value, never.metric.value], [0.95, 0.5])
    half = 2.0452296 * 0.5 * np.sqrt(0.09 / 29)
    np.testing.assert_allclose(early.metric, [0.95, 0.95 - half, 0.95 + half], 1e-6)
    np.testing.assert_allclose(early.elsewhere[0], 0.95)
    assert early.seconds.value == 8 * SECONDS
    assert early.reached.value == 1


@pytest.mark.parametrize(
    ("best", "edge"),
    [(0.1, True), (0.5, False), (2.0, True)],
    ids=["smallest", "inside", "largest"],
)
def test_a_step_size_at_an_edge_is_marked(make_plan, best, edge):
    found = make_plan([candidate("one")], arrivals_by_rate({0.1: 7, 0.5: 7, 2.0: 7} | {best: 3}))
    assert (found.rows[0].values["learning_rate"], found.rows[0].at_edge) == (best, edge)


def test_runs_with_losses_that_are_not_numbers_do_not_win(make_plan):
    """At the largest step size the metric is the smallest and the loss NaN."""

    def arrivals(name, point, seeds, is_fresh):
        return {"wrong": 2, "right": 6}[name]

    def of(value):
        def train(loss):
            # the loss of `wrong` is 0 already after two rounds
            return np.where((loss[..., 2:3] == 0), value, loss)

        return train

    metrics = {"mine": lambda loss: loss.copy(), "loss": of(np.nan)}
    found = make_plan(
        [candidate("wrong"), candidate("right")],
        arrivals,
        metric="mine",
        largest=False,
        metrics=metrics,
        seconds=20 * SECONDS,
    )
    assert [row.method for row in found.rows] == ["right", "wrong"]
    words = "plan: metric = 'mine' is NaN or infinite at the end of every run, but the loss is"
    with pytest.raises(ValueError, match=words):
        make_plan(
            [candidate("one")],
            arrivals=lambda *of: 6,
            metric="mine",
            largest=False,
            metrics={"mine": lambda loss: np.nan * loss},
        )


@pytest.mark.parametrize(
    ("budget", "rounds"),
    [
        ({"seconds": SECONDS}, 1),
        ({"bits": BITS}, 1),
        ({"seconds": 0.99 * SECONDS}, 0),
        ({"bits": 0.99 * BITS}, 0),
    ],
)
def test_a_budget_is_at_least_a_round(make_plan, budget, rounds):
    of = [candidate("one")], lambda *of: 1
    if rounds:
        assert make_plan(*of, **budget).rows[0].rounds == rounds
        return
    with pytest.raises(ValueError, match=r"plan: \w+ = .* is less than the first .* at least [37]"):
        make_plan(*of, **budget)
