"""The commands on decentralized methods, with tiny budgets: their files, their tables, and their
results.
"""

from __future__ import annotations

import math

import pytest
import scripts

import algorithms
import topologies
from experiments import heterogeneity, topology
from experiments.shared import graph_methods


@pytest.fixture(scope="module")
def topology_run(tmp_path_factory, long):
    """Three of the graphs, so that few programs are compiled; also the printed lines."""
    out = tmp_path_factory.mktemp("topology")
    args = topology.Args(
        workers=(8,), steps=60, seeds=1, learning_rates=(0.3, 1.0), out=out, progress=False
    )
    chosen = [topologies.random_matchings(8), topologies.ring(8), topologies.complete(8)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topology, "graphs", lambda N, seed: chosen)
        patch.setattr(topology, "RINGS", (8, 16))
        scripts.ran(topology.main, args)
    return args


def test_topologys_tables_have_the_graphs_and_their_costs(topology_run):
    args = topology_run
    graphs = {row["graph"]: row for row in scripts.rows(args.out / "graphs-8.csv")}
    assert (graphs["ring"]["degree"], graphs["ring"]["edges"], graphs["ring"]["rho"]) == (
        "2",
        "8",
        f"{(1 + math.sqrt(2)) / 3:.5f}",
    )
    for partition in topology.PARTITIONS:
        cost = {row["graph"]: row for row in scripts.rows(args.out / f"costs-8-{partition}.csv")}[
            "complete"
        ]
        assert "-" not in cost.values(), "the target is one that the complete graph reaches"
        assert cost["step size"].strip("*") in ("0.3", "1")
        assert float(cost["seconds"]) > 0
    computed, measured, right, printed = (
        float(cell) for cell in list(scripts.rows(args.out / "rings.csv")[-1].values())[1:]
    )
    assert measured == pytest.approx(computed, rel=1e-2)
    assert right == pytest.approx(computed, rel=0.05)
    assert printed == pytest.approx(4 * right, rel=1e-3)


@pytest.mark.parametrize(
    "graph",
    [topologies.random_matchings(6, 3, 1), topologies.chain(6), topologies.exponential(6)],
    ids=str,
)
def test_the_measured_decay_is_rho(graph):
    assert topology.decay(graph, seed=0) == pytest.approx(topology.mean_rho(graph), abs=2e-4)


@pytest.fixture(scope="module")
def heterogeneity_run(tmp_path_factory, long):
    out = tmp_path_factory.mktemp("heterogeneity")
    args = heterogeneity.Args(
        workers=4,
        alphas=(0.1,),
        steps=20,
        exact_steps=1_000,
        exact_learning_rate=0.5,
        seeds=2,
        learning_rates=(0.3, 1.0),
        families=("local steps",),
        out=out,
        progress=False,
    )
    family = {name: graph_methods.METHODS[name] for name in ("local_sgd", "local_exact_diffusion")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(graph_methods.FAMILIES, "local steps", family)
        patch.setitem(heterogeneity.SHOWN, "local steps", ("local_sgd", "local_exact_diffusion"))
        patch.setattr(heterogeneity, "METHODS", ("decentralized_sgd", "exact_diffusion"))
        scripts.ran(heterogeneity.main, args)
    return args


def test_without_noise_only_decentralized_sgd_stalls(heterogeneity_run):
    args = heterogeneity_run
    slopes = {
        row["method"]: float(row["grad_sqnorm"]) for row in scripts.rows(args.out / "exact.csv")
    }
    assert slopes["decentralized_sgd, 0.1"] > 1e3 * slopes["exact_diffusion, 0.1"]
    tuned = {row["method"] for row in scripts.rows(args.out / "history.csv")}
    assert {name for name in slopes if not name.startswith("local steps")} == tuned
    for name in ("losses", "slopes"):
        rows = scripts.rows(args.out / f"{name}.csv")
        assert [row["alpha"] for row in rows] == ["decentralized_sgd", "exact_diffusion"]
        assert all(float(row["0.1"]) > 0 for row in rows)


def test_the_methods_of_a_family_are_compared(heterogeneity_run):
    args = heterogeneity_run
    assert scripts.figures(args.out) == {"figure", "families"}
    heading, reference, local, corrected = scripts.rows(args.out / "families.csv")
    assert heading["method"] == "local steps"
    assert [row["method"] for row in (reference, local, corrected)] == [
        "decentralized_sgd",
        "local_sgd",
        "local_exact_diffusion",
    ]
    assert float(reference["Mbit"]) == pytest.approx(4 * float(local["Mbit"]), abs=4)
    final = [float(row["|f'(mean x)|^2"]) for row in (reference, local, corrected)]
    assert final[1] > final[0] > 1e3 * final[2]


def test_the_properties_of_methods_are_computed(heterogeneity_run):
    """LED needs eigenvalues above -1/3; with equal Hessians it is stable up to 2 / L."""
    *_, led = scripts.rows(heterogeneity_run.out / "methods.csv")
    assert list(led.values()) == [
        "local_exact_diffusion",
        "lazy",
        "no",
        "no",
        "3",
        "0.25",
        "exact",
        "2.00",
    ]
    saga = graph_methods.measure("gt_saga")
    assert (saga.lost, saga.memory, saga.sent, saga.step) == (False, 9, 2.0, None)
    assert graph_methods.cells("gt_saga", saga)[:2] == ["doubly", "yes"]
    assert graph_methods.cells("gt_saga", saga)[-2:] == ["exact*", "-"]


def test_the_table_of_methods_has_those_of_the_registry():
    assert set(graph_methods.METHODS) - {"decentralized_sgd, momentum", "gt_saga"} <= set(
        algorithms.ALGORITHMS
    )
    shown = {name for family in heterogeneity.SHOWN.values() for name in family}
    assert shown <= set(graph_methods.METHODS)
