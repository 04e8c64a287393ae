"""Predicted and measured seconds of real processes: the prediction in closed form, the comparison,
and a point of two processes.
"""

from __future__ import annotations

import jax
import pytest
import scripts

from dsgd import clusters, problems
from dsgd.machines import links
from experiments.planning import verification
from experiments.planning.verification import Measured, Point, Round
from experiments.survey import calibrate_switch as switch
from experiments.survey.calibrate_switch import Estimate, Line

N = 4


def _why_not() -> str:
    try:
        links.require_allowed()
    except ValueError as error:
        return str(error)
    return ""


allowed = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "it is allowed")


def line(alpha, beta):
    return Line(Estimate(alpha, alpha, alpha), Estimate(beta, beta, beta))


@pytest.fixture(scope="module")
def training_runs():
    args = verification.Args(
        processes=N,
        methods=("local_sgd", "error_compensated_sgd"),
        period=4,
        width=4,
        rounds=8,
        steps=64,
        learning_rates=(0.3,),
        progress=False,
    )
    problem = problems.neural_network(problems.MLP(10, (4,)), workers=N, batch_size=16)
    return args, problem, verification.train(args, problem)[1]


def test_predictions_are_computations_and_collectives(training_runs):
    """Predicted seconds are the sum of those of the collectives, each with its own latency and
    bandwidth, and of the computations; measured ones are those of a run of three times as many
    rounds but for one. The plan of a file with the same lines differs by the computations alone.
    """
    args, problem, chosen = training_runs
    lines = {
        "all-reduce": line(1e-2, 1e-6),
        "all-to-all": line(2e-3, 3e-6),
        "all-gather": line(4e-3, 1e-6),
    }
    common = line(5e-3, 2e-6)
    factors = switch.compare({**lines, "collective-permute": common}, common)
    hardware = clusters.Hardware(5e-3, 8 / 2e-6, 0.5, bucket=0.0, collectives=factors)
    counts = {
        "minibatch_sgd": {"all-reduce": 4},
        "local_sgd": {"all-reduce": 4},
        "error_compensated_sgd": {"all-to-all": 2, "all-gather": 2},
    }
    d = sum(leaf.size for leaf in jax.tree.leaves(problem.init(jax.random.key(0))))
    for each in chosen:
        method, rounds = each.candidate.name, int(each.rounds[0])
        row = verification.predict(
            args,
            Point(1e6, 0.0),
            problem,
            lines,
            hardware,
            each,
            Round(0.25, counts[method]),
            Measured(6.0, 3, 0.0),
        )
        exchanges = rounds // 4 if method == "local_sgd" else rounds
        bits = each.result.history["bits"][0]
        sent = bits[rounds] / 2 / 8 / exchanges  # bytes of a worker in an exchange
        expected = {
            "minibatch_sgd": 6 * (4 * 1e-2 + d * 1e-6),
            "local_sgd": 6 * (4 * 1e-2 + d * 1e-6),
            "error_compensated_sgd": 2 * 3 * 2e-3 + 2 * 3 * 4e-3 + sent * 2e-6,
        }[method]
        seconds = rounds * 0.25 + exchanges * expected
        assert row.predicted == pytest.approx(seconds, rel=1e-3), method
        first = 0.25 if method == "local_sgd" else seconds / rounds
        assert row.measured == pytest.approx(6 / (3 - first / seconds), rel=1e-3)
        assert row.rounds == rounds
        assert row.arrays == {"error_compensated_sgd": 2}.get(method, 4)
        assert row.planned == pytest.approx(seconds + rounds * (0.5 - 0.25), rel=1e-3)
        if method == "minibatch_sgd":  # one switch, a latency for each exchange
            assert row.switched == pytest.approx(rounds * (0.5 + 6 * (5e-3 + d * 2e-6)), rel=1e-3)


@pytest.mark.long
@allowed
def test_a_point_of_two_processes(tmp_path):
    args = verification.Args(
        processes=2,
        rates=(20e6,),
        latencies=(0.0,),
        methods=("local_sgd",),
        period=4,
        width=4,
        rounds=8,
        steps=64,
        learning_rates=(0.3,),
        sizes=(1024, 8192),
        longest=0.1,
        out=tmp_path,
        progress=False,
    )
    scripts.ran(verification.main, args)
    rows = scripts.rows(tmp_path / "verification.csv")
    assert [row["method"] for row in rows] == ["minibatch_sgd", "local_sgd"]
    for row in rows:
        assert float(row["measured"]) > 0
        assert float(row["predicted"]) > 0
        assert float(row["loss"]) == pytest.approx(float(row["simulated_loss"]), rel=1e-3)
    names = {path.name for path in tmp_path.glob("*.json")}
    assert names >= {"20mbit-0ms.json", "20mbit-0ms-cluster.json", "rounds.json"}
    assert clusters.load(tmp_path / "20mbit-0ms-cluster.json").bucket == 0
