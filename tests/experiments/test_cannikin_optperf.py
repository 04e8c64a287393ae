"""Gains of OptPerf: a small run of the command, its clusters, and the systems without training."""

from __future__ import annotations

import numpy as np
import pytest
import scripts

from experiments import cannikin_optperf as script
from experiments.cannikin import devices, driving
from experiments.cannikin.driving import Noise

SMALL = {
    "epochs": 8,
    "iterations": 5,
    "first_noises": (0.05, 1.0),
    "totals": 3,
    "worker_counts": (3,),
    "ratios": (1.0, 10.0),
    "seeds": 2,
}
FEW = ("ResNet-50", "BERT")


def test_cannikin_settles_first_and_at_optperf_and_the_others_above_it(tmp_path, monkeypatch, long):
    """Two workloads, in epochs with the times of the model."""
    monkeypatch.setattr(devices, "WORKLOADS", {name: devices.WORKLOADS[name] for name in FEW})
    lines = scripts.ran(
        script.main, script.Args(out=tmp_path, repeats=1, progress=False, cache="off", **SMALL)
    )
    assert scripts.figures(tmp_path) == {"epochs", "batch_time", "studies", "overhead"}
    cells = scripts.cells(lines)
    assert [row[1] for row in cells if row[0] in ("than LB-BSP", "than DDP")] == [
        "-",
        "-",
        "18",
        "53",
        "-",
        "-",
    ]
    model = devices.make_model("A", "ResNet-50")
    times = {}
    for row in scripts.rows(tmp_path / "epochs.csv"):
        times.setdefault((row["system"], row["seed"]), []).append(float(row["seconds"]))
    optperf = model.optperf_integer(script.TOTAL).seconds
    for seed in "01":
        equal = float(model.batch_time([43, 43, 42]))
        np.testing.assert_allclose(times["DDP", seed], equal, rtol=1e-4)
        assert times["Cannikin", seed][0] == times["LB-BSP", seed][0] == times["DDP", seed][0]
        np.testing.assert_allclose(
            times["LB-BSP", seed][1], float(model.batch_time([48, 43, 37])), rtol=1e-4
        )
        assert times["Cannikin", seed][3] < 1.02 * optperf < times["LB-BSP", seed][3]
        assert times["LB-BSP", seed][6] < 1.02 * optperf
    rows = scripts.rows(tmp_path / "batch_time.csv")
    assert {(row["cluster"], row["workload"]) for row in rows} == {
        (cluster, name) for cluster in "ABC" for name in FEW
    }
    for row in rows:
        seconds = {
            name: float(row[name])
            for name in ("optperf", "cannikin", "ddp", "lb_bsp", "adapted", "together")
        }
        assert seconds["cannikin"] == seconds.pop("optperf"), row
        assert all(
            other >= seconds["cannikin"] for other in seconds.values() if not np.isnan(other)
        ), row
    first = next(row for row in rows if row["cluster"] == "B" and row["workload"] == "ResNet-50")
    batches = np.full(16, 6) + (np.arange(16) < 4)
    assert float(first["ddp"]) == pytest.approx(
        float(devices.make_model("B", "ResNet-50").batch_time(batches)), rel=1e-5
    )


def test_devices_are_those_of_the_paper():
    kinds = [gpu.name for gpu in devices.CLUSTERS["B"]]
    assert [kinds.count(kind) for kind in ("A100", "V100", "RTX 6000")] == [4, 4, 8]
    model = devices.make_model("B", "ResNet-50")
    fast, middle, slow = model.q[0], model.q[4], model.q[-1]
    assert slow / fast == pytest.approx(3.42)
    assert middle / fast == pytest.approx(77.97 / 31.4)
    np.testing.assert_allclose(model.k, 2 * np.asarray(model.q))
    assert model.t_overlap + model.t_last == pytest.approx(2 * 15 / 16 * 32 * 25.6e6 / 1e10)
    shared = devices.make_model("C", "ResNet-50")
    np.testing.assert_allclose(shared.q[0] / np.asarray(shared.q), np.linspace(1, 0.25, 16))
    for cluster in devices.CLUSTERS:
        for name, workload in devices.WORKLOADS.items():
            assert workload.buckets.sum() == pytest.approx(4 * workload.parameters)
            totals, limits = (
                devices.batches(cluster, name, 5),
                np.asarray(devices.make_model(cluster, name).limits),
            )
            assert (-(-totals // len(limits)) <= limits.min()).all()
            assert 2 * len(limits) <= totals[0] >= workload.first_batch


def test_exact_times_predict_exactly_and_inverse_variances_help_with_a_noisy_node():
    model, workload = devices.make_model("A", "ResNet-18"), devices.WORKLOADS["ResNet-18"]
    assert max(driving.prediction_errors(model, workload, Noise(), 0, 4).values()) < 1e-9
    noise = Noise(0.02, np.array([0.02, 0.02, 1.0]))
    errors = [driving.prediction_errors(model, workload, noise, seed, 6) for seed in range(5)]
    assert all(error["inverse-variance"] < 0.01 < error["plain"] for error in errors)
