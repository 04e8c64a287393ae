"""`python -m experiments.plan` with a tiny budget: its ranking, its sentences and its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import jax
import optax
import pytest
import scripts

import algorithms
import dsgd
from dsgd import clusters, network, problems
from experiments import plan as command
from experiments.shared import commands

OWN = """
import optax
import algorithms
from dsgd import Candidate, problems

problem = problems.random_quadratic(4, 8, noise=0.1)
candidates = [
    Candidate("SGD", algorithms.minibatch_sgd),
    Candidate("signs", algorithms.majority_vote),
]

def optimizer(step):
    return optax.sgd(step, momentum=0.5)
"""
ARGS = command.Args(
    workers=4, steps=40, seeds=2, learning_rates=(0.3, 1.0, 3.0), bandwidth=1e6, progress=False
)


def join(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.fixture(scope="module")
def plan_run(tmp_path_factory, long):
    args = dataclasses.replace(
        ARGS,
        methods=("minibatch_sgd", "local_sgd", "error_compensated_sgd", "asynchronous_sgd"),
        periods=(2, 4),
        compressors=("sign",),
        out=tmp_path_factory.mktemp("plan"),
    )
    return args, scripts.ran(command.main, args)


def test_it_writes_the_ranking_and_what_would_change_it(plan_run):
    args, lines = plan_run
    assert scripts.figures(args.out) == {"methods", "networks"}
    rows = scripts.rows(args.out / "plan.csv")
    assert {row["method"] for row in rows} == set(args.methods)
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    assert f"- To copy: {rows[0]['expression']}" in join(lines)
    changes = scripts.rows(args.out / "changes.csv")
    assert changes
    for change in changes:
        assert change["axis"] in {"bandwidth", "latency"}
        assert float(change["result"]) <= float(change["before"])


def test_a_file_defines_problem_optimizer_and_candidates(tmp_path, long):
    """Bits of a model that is a hundred times as large take a hundred times the seconds."""
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    budgets = dataclasses.replace(ARGS, workers=16, problem=path, megabits=0.02, latency=0.0)
    args = dataclasses.replace(budgets, out=tmp_path / "small")
    lines = scripts.ran(command.main, args)
    rows = scripts.rows(args.out / "plan.csv")
    assert {row["method"] for row in rows} == {"SGD", "signs"}
    assert all("mine.optimizer(" in row["expression"] for row in rows)
    assert scripts.figures(args.out) == {"methods"}
    assert not any("latency" in line for line in lines)
    assert "Ended after --steps 40 rounds, before the budget was used: signs" in join(lines)
    large = dataclasses.replace(args, size=800.0, megabits=2.0, out=tmp_path / "large")
    scripts.ran(command.main, large)
    for one, other in zip(rows, scripts.rows(large.out / "plan.csv"), strict=True):
        assert one["expression"] == other["expression"]
        assert float(other["bits"]) == pytest.approx(100 * float(one["bits"]))
        assert one["loss"] == other["loss"]


def test_seconds_of_a_gradient_are_those_of_its_samples(tmp_path):
    """Of a problem in batches of 5, with the flags or with a measured cluster."""
    problem = problems.logistic_regression("digits", workers=4, batch_size=5)
    given = dataclasses.replace(ARGS, compute=0.01)
    assert command.make_cluster(given, problem, 1.0)[1] == pytest.approx(0.05)
    path = tmp_path / "cluster.json"
    clusters.save(path, clusters.Hardware(1e-3, 1e7, compute=0.2, per_sample=0.02))
    measured = commands.apply_cluster(command.Args(cluster=path))
    cluster, gradient = command.make_cluster(measured, problem, 0.5)
    assert gradient == pytest.approx(0.3)
    method = algorithms.minibatch_sgd(optax.sgd(0.1))
    run = {"steps": 1, "key": jax.random.key(0), "mesh": 1}
    clock = dsgd.run(method, problem, cluster=cluster, **run).history["clock"]
    exchange = network.cost(network.ring_all_reduce, 4, 1e-3, 32 * 650 / 5e6)
    assert clock[-1] == pytest.approx(0.3 + exchange, rel=1e-4)


def test_registered_methods_are_candidates_with_their_default_settings():
    args = dataclasses.replace(ARGS, methods=("k-gt", "gt_svrg"), topologies=("complete",))
    found = {each.name: each for each in command.make_task(args).candidates}
    assert (
        found["k_gt"].expression("opt", 4, {"H": 5})
        == "algorithms.k_gt(opt, topologies.complete(4), 5)"
    )
    assert found["gt_svrg"].swept == {"H": (4, 16, 64)}


def test_candidates_for_large_models_are_found_by_name_and_changed_by_flags():
    flags = {"methods": ("demo", "sparse-loco"), "periods": (2, 6), "compressors": ("sign",)}
    args = dataclasses.replace(ARGS, **flags)
    demo, sparse_loco = command.make_task(args).candidates
    assert (demo.optimizer, demo.learning_rates) == (optax.sgd, None)
    assert (str(sparse_loco), sparse_loco.swept) == ("sparse_loco, sign", {"H": (2, 6)})
    usual = dataclasses.replace(args, learning_rates=command.Args.learning_rates)
    assert {each.learning_rates for each in command.make_task(usual).candidates} == {
        (3e-4, 1e-3, 3e-3, 1e-2)
    }


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"methods": ("adagrad",)}, "--methods adagrad: expected some of minibatch_sgd"),
        ({"methods": ("nids",)}, "nids takes step_sizes in place of an optimizer"),
        ({"methods": ("saga",)}, "saga has no default instance"),
        ({"compressors": ("gzip",)}, "--compressors gzip: expected some of identity"),
        ({"topologies": ("mesh",)}, "--topologies mesh: expected some of chain"),
        ({"metric": "test_accuracy"}, "--metric test_accuracy: expected --target, --seconds"),
    ],
)
def test_unknown_names_are_refused(flags, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        command.main(dataclasses.replace(ARGS, out=tmp_path, **flags))
