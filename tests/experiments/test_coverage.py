"""`python -m experiments.plan --coverage`: its shares for runs with known seconds, and a run with a
tiny budget.
"""

from __future__ import annotations

import numpy as np
import pytest
import scripts

import algorithms
from dsgd import Candidate, State, problems
from dsgd.planning.training import Contender, Trained
from dsgd.runs.sweeps import Sweep
from experiments.planning import coverage

LAST, END = 0.125, 50.0  # seconds between two records, and of runs that do not arrive


def arriving(name: str, seconds: np.ndarray) -> Trained:
    """Returns runs of a method that reach the target after these seconds, `[runs]`."""
    arrives = np.isfinite(seconds)
    last = np.where(arrives, seconds, END)
    clock = np.stack([np.zeros_like(last), last - LAST, last], axis=-1)[None]
    loss = np.where(arrives[:, None], [1.0, 0.9, 0.3], 1.0)[None]
    steps = {"step": np.arange(3)}
    sweep = Sweep({}, {**steps, "clock": clock, "bits": np.zeros_like(clock)}, State({}, {}), None)
    candidate = Candidate(name, algorithms.minibatch_sgd)
    contender = Contender(candidate, ({"learning_rate": 0.5},), (1,), on_cluster=True)
    return Trained(contender, {**steps, "loss": loss}, sweep, coverage.WORKERS)


@pytest.fixture
def repeat():
    """Returns a function from the seconds by method, `[plans, runs]`, to the rows and the pairs of
    the plans, by their goal.
    """
    task = coverage.Task("given", problems.random_quadratic(coverage.WORKERS, 3), 0.5)

    def call(**seconds: np.ndarray):
        repeats, runs = next(iter(seconds.values())).shape
        args = coverage.Args(repeats=repeats, seeds=runs // 10)
        trained = [arriving(name, each.ravel()) for name, each in seconds.items()]
        found = list(coverage.plans(args, task, 0, trained))
        return [
            tuple(map(list, zip(*half, strict=True)))
            for half in np.split(np.array(found, dtype=object), 2)
        ]

    return call


@pytest.mark.parametrize("repeats", [2, 20])
def test_intervals_of_normal_seconds_contain_the_mean_of_the_others_in_95_of_100_plans(
    repeat, repeats
):
    """Exactly, however few others there are: with one other plan, an interval of 20 runs contains
    the mean of these alone in 0.83 of the plans.
    """
    rng, covers = np.random.default_rng(0), []
    for _ in range(600 // repeats):
        (rows, _), _ = repeat(one=rng.normal(40, 3, (repeats, 20)))
        covers += [row.covers(repeats) for some in rows for row in some]
    assert np.mean(covers) == pytest.approx(0.95, abs=4 * np.sqrt(0.95 * 0.05 / 600))
    assert coverage.share(covers).startswith(f"{100 * np.mean(covers):.1f} ± ")


def test_a_row_has_the_results_of_the_runs_of_all_other_plans(repeat):
    """A run that does not arrive ends after 50 s, and is followed by another one."""
    seconds = np.random.default_rng(1).normal(40, 3, (3, 10))
    seconds[0, 4] = np.inf
    (rows, _), (of_losses, _) = repeat(one=seconds)
    (row,) = rows[1]
    others = seconds[[0, 2]]
    expected = (others[np.isfinite(others)].sum() + END) / 19
    assert (row.plan, row.rank, row.runs, row.reached) == (1, 1, 20, 0.95)
    np.testing.assert_allclose([row.value, row.others], [seconds[1].mean(), expected])
    assert row.low < row.value < row.high
    budget = (seconds[np.isfinite(seconds)].sum() + END) / 29  # as long as mini-batch SGD needs
    (loss,) = of_losses[1]
    reached = np.where(seconds <= budget, 0.3, np.where(seconds - LAST <= budget, 0.9, 1.0))
    np.testing.assert_allclose(loss.value, reached[1].mean())
    np.testing.assert_allclose(loss.others, reached[[0, 2]].mean())


def test_equal_results_are_contained_in_spite_of_rounding(repeat):
    """No run arrives within the budget in time for a second record."""
    seconds = {"one": np.full((3, 10), 40.0), "late": np.full((3, 10), 70.0)}
    _, (of_losses, _) = repeat(**seconds)
    late = next(row for row in of_losses[0] if row.method == "late")
    assert late.low == late.high == late.others
    assert late._replace(others=late.others * (1 + 1e-7)).covers(3)
    assert not late._replace(others=late.others * (1 + 1e-4)).covers(3)


def test_groups_are_in_order_and_tied_as_the_other_plans_say(repeat):
    """In the first plan, the second method is faster than the others, in the other plans slower by
    25 %; the first and the third are equally fast.
    """
    noise = np.random.default_rng(2).normal(0, 0.5, (3, 10))
    second = np.array([[36.0], [50.0], [50.0]]) + noise[::-1]
    (_, pairs), _ = repeat(first=40 + noise, second=second, third=40 - noise)

    def declared(some):
        return {(x.one.method, x.other.method): x for x in some}

    wrong = [x for name, x in declared(pairs[0]).items() if name[0] == "second"]
    assert len(wrong) == 2
    for each in wrong:
        assert (each.is_tied, each.in_order) == (False, False)
        assert each.gap == pytest.approx(0.25, abs=0.02)
    # the rows of the second group are tied, and those of the first group of the next plan
    for some in pairs[:2]:
        (tied,) = [x for x in some if x.is_tied]
        assert {tied.one.method, tied.other.method} == {"first", "third"}
        assert tied.gap < 0.02
    (right,) = [x for x in pairs[1] if not x.is_tied]
    assert (right.other.method, right.in_order) == ("second", True)
    table = coverage.tabulate_order([x for some in pairs for x in some])
    counts = [[*column.cells] for column in table.columns if column.header in ("different", "tied")]
    assert [count[2] for count in counts] == ["4", "3"]


@pytest.mark.long
def test_plans_of_three_problems(tmp_path, monkeypatch):
    monkeypatch.setattr(coverage, "NETWORKS", coverage.NETWORKS[[0, -1]])
    args = coverage.Args(
        methods=("local_sgd", "ringmaster_sgd"),
        repeats=2,
        steps=24,
        seeds=2,
        learning_rates=(0.3, 1.0),
        out=tmp_path,
        progress=False,
    )
    scripts.ran(coverage.main, args)
    rows = scripts.rows(tmp_path / "coverage.csv")
    assert {row["problem"] for row in rows} == {"convex, iid", "convex, by label", "network, iid"}
    assert {row["method"] for row in rows} == {"minibatch_sgd", "local_sgd", "ringmaster_sgd"}
    assert {row["runs"] for row in rows} == {"20"}
    assert {path.name for path in tmp_path.glob("*.csv")} == {
        "coverage.csv",
        "intervals.csv",
        "order.csv",
    }
