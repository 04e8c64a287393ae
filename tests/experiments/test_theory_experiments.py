"""Convergence rates and the table of complexities, with tiny budgets: their slopes, files and
tables.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import scripts

import topologies
from dsgd import compressors, network
from experiments import complexity_table, convergence_rates, worst_case
from experiments.survey import complexity_communication as communication
from experiments.survey import convergence_terms, theorems
from experiments.survey.convergence_terms import Budget, make_bowl

BUDGET = Budget(
    steps=(64, 128, 256, 511),
    longest_run=256,
    workers=(1, 4),
    run_workers=(1, 4),
    staleness=(0, 3, 7, 15),
    fixed_steps=511,
    seeds=16,
    seed=0,
)


@pytest.fixture(scope="module")
def slopes(tmp_path_factory, long):
    """One measurement of each kind."""
    args = convergence_rates.Args(
        **BUDGET._asdict(), out=tmp_path_factory.mktemp("rates"), progress=False
    )

    def some(budget):
        ring, quiet = topologies.ring(4), make_bowl(4, 0.0)
        return [
            lambda: convergence_terms.measure_steps(
                "inverse", theorems.gradient_descent(quiet), budget
            ),
            lambda: convergence_terms.measure_steps(
                "inverse", theorems.ef21(make_bowl(1, 0.0), compressors.top_k(0.25)), budget
            ),
            lambda: convergence_terms.measure_steps(
                "root", theorems.minibatch_sgd(make_bowl(4, 4.0)), budget
            ),
            lambda: convergence_terms.measure_steps(
                "two_thirds",
                theorems.decentralized_sgd(convergence_terms.make_opposed(4), ring),
                budget,
            ),
            lambda: convergence_terms.measure_workers(theorems.minibatch_sgd, budget),
            lambda: convergence_terms.measure_staleness(budget),
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convergence_rates, "list_measures", some)
        scripts.ran(convergence_rates.main, args)
    rows = scripts.rows(args.out / "slopes.csv")
    return args, {(row["panel"], row["method"]): row for row in rows}


# From T = 256 on, except for terms that decrease faster: with noise gamma L T > 10, and LD / T is 2
# % of the noise's share. For DSGD the bound itself is 0.05 steeper, because (1 + rho) / (1 - rho) =
# 2 is not far below the other terms of 1 / gamma. With staleness gamma (tau + 1) L = 1/2, up to
# O(1).
SLOPES = [
    ("inverse", "GD", -1, 1e-6),
    ("inverse", "EF21", -1, 1e-6),
    ("root", "mb-SGD", -1 / 2, 0.03),
    ("workers", "mb-SGD", -1 / 2, 0.03),
    ("two_thirds", "DSGD", -2 / 3, 0.08),
    ("staleness", "ASGD", 1, 0.1),
]


@pytest.mark.parametrize(("panel", "method", "slope", "error"), SLOPES)
def test_averages_fall_with_the_power_of_the_theorem(slopes, panel, method, slope, error):
    row = slopes[1][panel, method]
    assert float(row["exact"]) == pytest.approx(slope, abs=error)
    assert float(row["worst"]) <= 1 + 1e-9
    if method in ("GD", "mb-SGD"):
        assert float(row["worst"]) > 0.9, "the bound is reached on |x|^2 / 2"
    if panel == "workers":
        assert float(row["low"]) <= float(row["exact"]) <= float(row["high"])


def test_an_interval_covers_the_slope_that_seeds_have():
    rng, x = np.random.default_rng(0), np.array([1.0, 2.0, 4.0, 8.0])
    values = x**-0.5 * np.exp(0.05 * rng.normal(size=(40, 4)))
    slope, low, high = convergence_rates.interval(x, values, 0)
    assert low < slope < high
    assert low < -0.5 < high
    # The mean of log y over 40 seeds has standard deviation 0.05 / sqrt(40), the slope this over
    # |log x - mean| = 1.55.
    assert high - low == pytest.approx(2 * 1.96 * 0.05 / math.sqrt(40) / 1.55, rel=0.4)


@pytest.fixture(scope="module")
def table(tmp_path_factory, long):
    """Three of the methods."""
    args = complexity_table.Args(
        epsilons=(0.1, 0.05), dimension=256, out=tmp_path_factory.mktemp("table"), progress=False
    )
    chosen = ("GD", "CSGD", "DSGD")
    methods = [method for method in complexity_table.make_methods() if method.name in chosen]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(complexity_table, "make_methods", lambda: methods)
        patch.setattr(
            complexity_table, "SURVEY", {name: complexity_table.SURVEY[name] for name in chosen}
        )
        patch.setattr(
            communication, "REGISTERED", {name: communication.REGISTERED[name] for name in chosen}
        )
        scripts.ran(complexity_table.main, args, wide="…/ε^(2/3)")
    return args


def test_fewer_iterations_are_needed_than_predicted(table):
    args = table
    rows = {
        (row["method"], float(row["epsilon"])): row
        for row in scripts.rows(args.out / "iterations.csv")
    }
    assert len(rows) == 6
    assert all(0 < int(row["measured"]) <= int(row["predicted"]) for row in rows.values())
    # On |x|^2 / 2 the first step of GD reaches the minimum: 1 / T is attained exactly.
    assert [int(rows["GD", epsilon]["measured"]) for epsilon in args.epsilons] == [10, 20]
    assert float(rows["CSGD", 0.05]["ratio"]) < 1.5, "the bound is nearly reached"


def test_communication_is_the_cost_of_the_patterns(table):
    args = table
    rows = {row["method"]: row for row in scripts.rows(args.out / "communication.csv")}
    assert float(rows["DSGD"]["bits"]) == 2 * 2 * 32 * 256, "two neighbours, both ways"
    assert float(rows["DSGD"]["seconds"]) == pytest.approx(
        2 * (args.latency + 32 * 256 / args.bandwidth)
    )
    assert (
        rows["GD"]["transfers"]
        == str(network.cost(network.ring_all_reduce, 4, 0.0, 1.0).as_integer_ratio()[0]) + "/2"
    )
    assert float(rows["CSGD"]["bits"]) < float(rows["GD"]["bits"]) / 4


@pytest.mark.long
def test_worst_cases_are_drawn_next_to_the_theorems(tmp_path):
    args = worst_case.Args(
        workers=3, steps=2, rates=(0.2, 1.0), rounds=(1, 2), out=tmp_path, progress=False
    )
    scripts.ran(worst_case.main, args)
    points = np.genfromtxt(tmp_path / "steps.csv", delimiter=",", names=True, dtype=None)
    assert len(points) == len(worst_case.METHODS) * len(args.rates)
    rounds = np.genfromtxt(tmp_path / "rounds.csv", delimiter=",", names=True)
    assert (rounds["worst"] <= rounds["bound"] * (1 + 1e-6)).all()
    assert (tmp_path / "figure.png").exists()


def test_iterations_are_the_least(table):
    method = next(method for method in complexity_table.make_methods() if method.name == "CSGD")
    (least,) = complexity_table.least_steps(method, [0.1])
    before, there = method.averages([least - 1, least])
    assert there <= 0.1 < before
