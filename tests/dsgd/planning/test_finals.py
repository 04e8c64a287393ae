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
from scipy import stats

import algorithms
import dsgd
from dsgd import Candidate, clusters, problems
from dsgd.planning import finals, halving, training

N, STEPS, SECONDS, BITS = 2, 40, 3.0, 7.0  # seconds and bits of a round
KEY = jax.random.key(0)
NEVER = np.inf
Arrivals = Callable[[str, dict[str, float], int, str], Any]


def candidate(name: str, **options: Any) -> Candidate:
    return Candidate(name, algorithms.asynchronous_sgd, **options)


def runs(arrivals: Arrivals, stop_at: int = -1, **metrics: Callable[[np.ndarray], np.ndarray]):
    """Returns a function in place of `training.train`.

    Args:
        arrivals: (name of the candidate, point, number of seeds, name of the runs) -> the rounds in
            which the runs arrive.
        stop_at: number of the call that is interrupted.
        metrics: the loss -> another metric, or the loss itself, by name.
    """
    calls = iter(range(1000))

    def train(setting: training.Setting, contender: training.Contender, rounds: int, name: str):
        if next(calls) == stop_at:
            raise KeyboardInterrupt
        method = contender.candidate.name
        first = np.stack(
            [
                np.broadcast_to(arrivals(method, point, setting.seeds, name), setting.seeds)
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
        monkeypatch.setattr(halving, "train_in_blocks", train)
        monkeypatch.setattr(finals, "train_in_blocks", train)
        given = {"key": KEY, "steps": STEPS, "seeds": 3, "learning_rates": (0.1, 0.5, 2.0)}
        if not options.keys() & {"seconds", "bits"}:
            given["target"] = 0.5
        problem, cluster = problems.random_quadratic(N, 3), clusters.Cluster(clusters.constant(1.0))
        return dsgd.plan(candidates, problem, cluster, **given | options)

    return call


def clocked(optimizer, H):
    """Local SGD that reads the clock, so that its runs need no tape."""
    of = algorithms.local_sgd(optimizer, H)

    def update(state, gradients, round):
        return of.update(state, gradients, round) if round.clock is not None else state

    return of._replace(update=update)


def some_never(second: float):
    """At the step size 2, two of thirty fresh seeds never arrive, and three of the next thirty; at
    0.5, all arrive in the given round.
    """

    def arrivals(name, point, seeds, runs):
        rate = point["learning_rate"]
        if name == "slow":
            return 29
        found = np.full(seeds, {0.5: second, 2.0: 5.0}.get(rate, 30.0))
        if rate == 2.0 and runs.startswith("finalists"):
            found[:: 10 if runs.endswith("chosen") else 15] = NEVER
        return found

    return arrivals


def test_seconds_contain_those_of_runs_that_never_arrive(make_plan):
    """Two of thirty fail: (28 * 5 + 2 * 40) / 28 = 7.86 rounds are less than 8, and published are
    those of other seeds, of which three fail.
    """
    row, _ = make_plan([candidate("one"), candidate("slow")], some_never(8.0)).rows
    assert (row.method, row.values) == ("one", {"learning_rate": 2.0})
    share = stats.binomtest(27, 30).proportion_ci()
    np.testing.assert_allclose(row.reached, [0.9, share.low, share.high], 1e-6)
    whole = STEPS * SECONDS
    mean, lost, most, least = 5 * SECONDS, whole / 9, whole / share.low, whole / share.high
    width = np.exp(2.0555294 / 5 / np.sqrt(12) / np.sqrt(27))
    below = np.hypot(mean - mean / width, lost + whole - least)
    above = np.hypot(mean * width - mean, most - whole - lost)
    expected = (27 * 5 + 3 * 40) / 27 * SECONDS + np.array([0, -below, above])
    np.testing.assert_allclose(row.seconds, expected, 1e-6)
    assert row.elsewhere[0] == pytest.approx(row.seconds.value)
    assert row.rounds == pytest.approx(0.9 * 5 + 0.1 * 40)
    assert row.at_edge == ""


def test_a_step_size_at_which_fresh_seeds_never_arrive_is_replaced_by_a_faster_one(make_plan):
    (row,) = make_plan([candidate("one")], some_never(7.0)).rows
    assert row.values == {"learning_rate": 0.5}
    assert row.seconds.value == 7 * SECONDS
    # all equal: Student's interval of a uniform distribution over a round, of logarithms
    width = np.exp(2.0452296 / 7 / np.sqrt(12) / np.sqrt(30))
    np.testing.assert_allclose(row.seconds, 7 * SECONDS * np.array([1, 1 / width, width]), 1e-6)
    assert (row.rounds, row.bits) == (7, 7 * BITS)
    # Clopper and Pearson for 30 of 30
    np.testing.assert_allclose(row.reached, [1, 0.025 ** (1 / 30), 1], 1e-6)


def test_a_target_that_no_run_reaches_is_warned_about_or_refused(make_plan):
    with pytest.warns(
        UserWarning, match=r"no candidate reaches loss = -0.01 .* loss = 1; expected"
    ):
        make_plan([candidate("one")], lambda *of: NEVER, target=-0.01)
    with pytest.raises(ValueError, match=r"plan: target = -9 is below the minimum -0.* of quadrat"):
        make_plan([candidate("one")], lambda *of: NEVER, target=-9.0)


def test_rows_that_do_not_differ_from_the_first_of_their_group_have_its_rank(make_plan):
    """Differences in rounds over 30 seeds: the second from the first 0.2 +- 0.28, the third from
    the second 0.2 +- 0.37, and from the first 0.4 +- 0.19; the noisy one from the first 0.5 +- 1.4.
    """
    more = {
        "noisy": [12, -1, -1, -1, -1, -1, -1, -1, 0, 0],
        "third": [0, 0, 0, 0, 0, 0, 1, 1, 1, 1],
        "second": [1, 1, 1, 1, -1, -1, 0, 0, 0, 0],
        "first": [0],
        "never": [NEVER],
    }
    found = make_plan(
        [candidate(name) for name in more],
        lambda name, point, seeds, runs: 9 + np.resize(more[name], seeds),
    )
    assert [(row.method, row.rank) for row in found.rows] == [
        ("first", 1),
        ("second", 1),
        ("noisy", 1),
        ("third", 4),
        ("never", 5),
    ]


def test_points_with_long_periods_join_when_they_exchange_twice(make_plan):
    """Of rungs with 10 and 40 rounds, H = 8 is on the second only, and its candidate does not leave
    with H = 2.
    """
    seen = []

    def arrivals(name, point, seeds, runs):
        if not runs.startswith("finalists"):
            seen.append((runs.split("-")[0], name, point["H"]))
        return {("long", 8): 16, ("good", 2): 20}.get((name, point["H"]), 24)

    of = [
        Candidate(name, clocked, ("H",), {"H": periods})
        for name, periods in {"good": (2,), "bad": (2,), "long": (2, 8)}.items()
    ]
    found = make_plan(of, arrivals, learning_rates=(0.5,), finalists=1)
    assert sorted(seen) == [
        *(("10", "bad", 2), ("10", "good", 2), ("10", "long", 2)),
        *(("40", "good", 2), ("40", "long", 8)),
    ]
    assert [(row.method, row.values["H"]) for row in found.rows] == [("long", 8), ("good", 2)]
    assert [(each.method, each.rounds) for each in found.eliminated] == [("bad", 10)]
    assert (found.rungs, found.remarks) == ([10, 40], [])


def test_a_plan_with_a_single_rung_says_so(make_plan):
    found = make_plan([candidate("one"), candidate("other")], lambda *of: 4, steps=39)
    assert found.rungs == [39]
    (words,) = found.remarks
    assert words.startswith("No candidate left before the last round, because steps = 39 has one")


@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_an_interrupted_plan_has_the_ranking_so_far(make_plan, stop_at):
    """In the first rung, where one candidate has run; in the second; and with fresh seeds."""
    names = ("slow", "fast")

    def arrivals(name, point, seeds, runs):
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


def test_the_largest_accuracy_is_best_within_a_budget(make_plan):
    """In nine of ten runs, the second candidate arrives within the budget at the smallest step
    size; the first never does.
    """
    late = candidate("late")

    def arrivals(name, point, seeds, runs):
        if name == "late":
            return NEVER
        return np.where(np.arange(seeds) % 10 < 9, 6 + 9 * point["learning_rate"] // 1, NEVER)

    options = {"metric": "mine", "largest": True, "metrics": {"mine": lambda loss: 1 - loss / 2}}
    found = make_plan([late, candidate("early")], arrivals, seconds=8 * SECONDS, **options)
    early, never = found.rows
    assert (early.method, early.values["learning_rate"]) == ("early", 0.1)
    np.testing.assert_allclose([early.metric.value, never.metric.value], [0.95, 0.5])
    half = 2.0452296 * 0.5 * np.sqrt(0.09 / 29)
    np.testing.assert_allclose(early.metric, [0.95, 0.95 - half, 0.95 + half], 1e-6)
    np.testing.assert_allclose(early.elsewhere[0], 0.95)
    assert early.seconds.value == 8 * SECONDS
    assert early.reached.value == 1


def test_what_runs_and_the_ranking_so_far_are_lines_on_stderr(make_plan, monkeypatch, capsys):
    """The first ranking is due after no time, with the first of the candidates."""
    monkeypatch.setattr(halving, "FIRST", 0.0)
    every = {"one": 9, "two": 4}
    candidates = [candidate(name) for name in every]
    make_plan(
        candidates, lambda name, *of: every[name], progress=True, learning_rates=(0.5,), seeds=2
    )
    one, two = (f"{name} (learning_rate = 0.5): loss 0 after" for name in every)
    both = [f"1. {two} 12 s", f"2. {one} 27 s"]

    def running(what):
        return [f"plan: {what}, candidate {i} of 2: {name}" for i, name in enumerate(every, 1)]

    assert capsys.readouterr().err.splitlines() == [
        *running("10 rounds (1 of 3)"),
        *("plan: ranking after 10 rounds, 1 of 2 candidates:", f"1. {one} 27 s"),
        *("plan: ranking after 10 rounds:", *both),
        *running("40 rounds (2 of 3)"),
        *("plan: ranking after 40 rounds:", *both),
        *running("40 rounds with fresh seeds (3 of 3)"),
    ]


@pytest.mark.parametrize(
    ("best", "last"),
    [(0.1, 0.025), (0.5, None), (2.0, 10.0)],
    ids=["smallest", "inside", "largest"],
)
def test_a_grid_is_extended_until_the_best_step_size_is_inside(make_plan, best, last):
    seen = set()

    def arrivals(name, point, seeds, runs):
        seen.add(point["learning_rate"])
        return 3 if point["learning_rate"] == best else 7

    (row,) = make_plan([candidate("one")], arrivals).rows
    assert (row.values["learning_rate"], row.at_edge) == (best, "")
    assert seen == {0.1, 0.5, 2.0} | ({last} if last else set())


def test_an_extension_that_is_refused_is_explained(make_plan):
    """The step size 0.1, 0.5, 2, 10, 40, 200 is the better the larger it is, after three
    extensions; H = 2, 4, 8 can be 1, but neither 0 nor 16.
    """

    def plan_for(of, arrivals, **options):
        return make_plan([of], arrivals, **options).rows[0]

    row = plan_for(
        candidate("one"), lambda name, point, *of: 10 - 3 * np.log10(point["learning_rate"])
    )
    assert row.values == {"learning_rate": 200.0}
    assert row.at_edge == (
        "learning_rate = 200 is the largest value, after 3 extensions of the grid"
    )
    local = Candidate("one", clocked, ("H",), {"H": (4, 2, 8)})
    fixed = {"learning_rates": (0.5,), "steps": 15}
    row = plan_for(local, lambda name, point, *of: point["H"], **fixed)
    assert row.at_edge == "H = 1 is the smallest value, since no positive whole number is smaller"
    row = plan_for(local, lambda name, point, *of: 16 - point["H"], **fixed)
    assert row.at_edge == (
        "H = 8 is the largest value, since with H = 16 it exchanges every 16 rounds, but steps = 15"
    )


def test_runs_with_losses_that_are_not_numbers_do_not_win(make_plan):
    """At the largest step size the metric is the smallest and the loss NaN."""

    def arrivals(name, point, seeds, runs):
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
