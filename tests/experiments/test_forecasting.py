"""`python -m experiments.plan --forecast` for a small model, compared with formulas."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest
import scripts

from dsgd import clusters, records
from experiments.planning import forecasting as command

SHAPES = {"kernel": [30, 7], "bias": [7]}
ELEMENTS, N, BATCH, H = 217, 4, 5, 3
LATENCY, RATE, COMPUTE, PRICE, TOKENS, TARGET = 0.02, 2e5, 0.1, 3.0, 11, 0.5
EXCHANGE = 2 * (N - 1) * (LATENCY + 32 * ELEMENTS / N / RATE)


def record_runs(path):
    """Writes a pilot: minibatch_sgd reaches the target after 20 and 22 rounds, local_sgd never."""
    curves = {("minibatch_sgd", ""): (20, 22), ("local_sgd", H): (10**6, 10**6)}
    rows = [
        (method, period, ELEMENTS, seed, step, 1.0 if step < at else 0.4)
        for (method, period), arrivals in curves.items()
        for seed, at in enumerate(arrivals)
        for step in range(0, 40, 2)
    ]
    records.write_rows(path, ("method", "H", "elements", "seed", "step", "loss"), rows)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("forecast")
    (found / "shapes.json").write_text(json.dumps(SHAPES))
    record_runs(found / "pilot.csv")
    return found


@pytest.fixture(scope="module")
def args(folder):
    return command.Args(
        model_shapes=folder / "shapes.json",
        workers=N,
        batch_size=BATCH,
        compute=COMPUTE,
        latency=LATENCY,
        bandwidth=RATE,
        tokens=TOKENS,
        methods=("minibatch_sgd", "local_sgd"),
        periods=(H,),
        progress=False,
        out=folder / "out",
    )


def test_costs_are_those_of_the_model_and_rounds_those_of_the_pilot(args, folder):
    paid = dataclasses.replace(
        args,
        pilot=folder / "pilot.csv",
        target=TARGET,
        price=PRICE,
        between_failures=5000.0,
    )
    lines = " ".join(scripts.ran(command.main, paid))
    assert "shapes.json, 217 elements in float32, on 4 workers" in lines
    assert "Rounds to loss 0.5 of a pilot with 217 elements" in lines
    first, second = scripts.rows(paid.out / "methods.csv")
    assert (first["method"], second["method"]) == ("minibatch_sgd", "local_sgd, H = 3")
    for row, seconds in ((first, EXCHANGE), (second, EXCHANGE / H)):
        each = BATCH * COMPUTE + seconds
        assert float(row["seconds"]) == pytest.approx(each, rel=1e-4)
        assert float(row["speed"]) == pytest.approx(N * BATCH * TOKENS / each, rel=1e-4)
    rounds, hours, price = (float(first[name]) for name in ("rounds", "hours", "price"))
    assert 18 < rounds <= 22
    slower = command.slowdown(paid)
    assert 1.1 < slower < 1.3
    np.testing.assert_allclose(
        hours, rounds * (BATCH * COMPUTE + EXCHANGE) * slower / 3600, rtol=1e-4
    )
    np.testing.assert_allclose(price, PRICE * N * hours, rtol=1e-4)
    assert second["rounds"] == second["hours"] == "inf"


def test_flags_describe_the_network_and_the_type(args):
    given = dataclasses.replace(
        args, dtype="bfloat16", node_size=2, bucket=0.0, backward=0.5, delay=0.01
    )
    assert given.model_shapes is not None
    shapes = command.read_shapes(given.model_shapes, given.dtype)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(shapes)} == {"bfloat16"}
    cluster = command.make_cluster(given, ELEMENTS)
    assert cluster.nodes == clusters.Nodes(2, given.node_bandwidth, given.node_latency)
    assert cluster.bucket == 0
    assert cluster.overlap is not None
    assert cluster.overlap.first == 0


def test_price_and_memory_are_those_of_the_cluster_file(args, folder):
    path = folder / "cluster.json"
    small = 4.0 * ELEMENTS  # less than any method needs
    hardware = clusters.Hardware(
        LATENCY, RATE, COMPUTE, price=6.0, memory=small, memory_bandwidth=1e9
    )
    clusters.save(path, hardware)
    plain = dataclasses.replace(args, cluster=path, out=folder / "hardware")
    found = command.add_hardware(plain, hardware)
    assert (found.price, found.memory_bandwidth) == (6.0, 1e9)
    given = dataclasses.replace(plain, price=2.0, memory_bandwidth=3e9)
    assert command.add_hardware(given, hardware) == given
    lines = " ".join(scripts.ran(command.main, plain))
    assert "More than the memory of a worker's device: minibatch_sgd, local_sgd, H = 3." in (
        lines.replace("local_sgd, H = 3, minibatch_sgd", "minibatch_sgd, local_sgd, H = 3")
    )


def test_shapes_are_those_of_a_python_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import numpy\nshapes = {'kernel': numpy.ones((3, 5), 'float32')}")
    found = command.read_shapes(path)
    assert found == {"kernel": jax.ShapeDtypeStruct((3, 5), np.float32)}
    path.write_text("other = 1")
    with pytest.raises(ValueError, match="it defines no `shapes`"):
        command.read_shapes(path)


def test_what_does_not_fit_is_refused_in_one_line(args, folder):
    pilot = folder / "pilot.csv"
    without = folder / "without.csv"
    without.write_text("method,elements,seed,step\nlocal_sgd,7,0,1\n")
    for flags, words in (
        ({"model_shapes": None}, "--forecast: expected --model-shapes FILE"),
        ({"pilot": pilot}, "--target None: expected both"),
        ({"target": TARGET}, "--pilot None and --target 0.5"),
        ({"pilot": pilot, "target": 0.01}, "target = 0.01 is reached by no curve"),
        ({"pilot": without, "target": TARGET}, "loss"),
        ({"backward": 0.5}, "--backward 0.5 without buckets"),
        ({"node_size": 3}, "--node-size 3: expected a divisor of --workers 4"),
        ({"methods": ("adagrad",)}, "--methods adagrad: expected some of minibatch_sgd"),
        ({"methods": ("lag",)}, "depend on the gradients"),
        (
            {"methods": ("streaming_diloco",), "periods": (5,)},
            "H = 5 .*fragments = 4, but the model has 2 layers",
        ),
    ):
        with pytest.raises(ValueError, match=words) as refused:
            command.main(dataclasses.replace(args, **{"out": folder / "other", **flags}))
        assert "\n" not in str(refused.value)
