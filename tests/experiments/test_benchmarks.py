"""The benchmarks: their versions compute the same, and impossible timings are refused."""

from __future__ import annotations

import re
from functools import partial

import jax
import numpy as np
import optax
import pytest
import scripts

import algorithms
import dsgd
import topologies
from dsgd import compressors, problems
from dsgd.workers import routes
from experiments.benchmark import (
    by_hand,
    clients,
    events,
    mixing,
    peers,
    rounds,
    start,
    tokens,
)
from experiments.benchmark import compression as copies
from experiments.benchmark.jobs import clients as federated
from experiments.benchmark.jobs import peers as jobs
from experiments.slow_links import Size


@pytest.fixture
def data(tmp_path):
    peers.write_data(tmp_path, 5, 7)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("method", "versions"),
    [("decentralized_sgd", ("dsgd", "scan", "numpy")), ("minibatch_sgd", ("dsgd", "scan"))],
)
def test_versions_make_the_same_iterates(method, versions, data):
    what = jobs.Job(data, rounds=12, method=method)
    with jax.enable_x64(True):
        first, *others = (np.asarray(jobs.VERSIONS[name].build(what)(12)) for name in versions)
    for models in others:
        assert models.dtype == np.float64
        np.testing.assert_allclose(models, first, rtol=0, atol=peers.AGREE * np.abs(first).max())
    assert first.shape == ((5, 7) if method == "decentralized_sgd" else (7,))


def test_hand_written_compressed_sgd_reaches_the_same_loss(mesh, key):
    """Random numbers differ: means over the last rounds agree up to their spread. (Parts of two
    elements would have no noise.)
    """
    problem = problems.random_quadratic(4, 24, diagonal=True, seed=2)
    method = algorithms.make("compressed_sgd", optax.sgd(by_hand.LEARNING_RATE), 4)
    ours = dsgd.run(method, problem, steps=2_000, key=key, mesh=mesh).history["grad_sqnorm"][
        -1_500:
    ]
    theirs = np.asarray(by_hand.scan("compressed_sgd", problem)(2_000)[1][1])[-1_500:]
    batches = np.array([ours.reshape(15, 100).mean(axis=1), theirs.reshape(15, 100).mean(axis=1)])
    error = np.sqrt(batches.var(axis=1, ddof=1).sum() / 15)
    assert abs(np.diff(batches.mean(axis=1))[0]) < 4 * error


@pytest.mark.parametrize("rows", [True, False])
def test_the_benchmark_of_mixing_times_the_given_rounds_of_dsgd(rows):
    graph, rounds = topologies.random_regular(16, 4), 4
    A, b, x = np.random.default_rng(1).uniform(size=(3, 16, 3)).astype(np.float32)
    many = jax.jit(
        mixing.repeat_rounds(
            partial(mixing.step_and_mix, routes.routes_of(graph, 1, rows), A, b), rounds
        )
    )(x)
    for _ in range(rounds):
        x = mixing.dense(graph)(x - by_hand.LEARNING_RATE * (A * x - b))
    np.testing.assert_allclose(many, x, atol=1e-6)


def test_the_benchmark_of_clients_makes_the_given_local_steps(tmp_path):
    """All clients participate, each with one batch: the server takes the mean of models after H
    steps of gradient descent.
    """
    clients.write_data(tmp_path, "logistic", np.full(3, 4), 5)
    job = federated.Job(str(tmp_path), "fed_avg", 3, 2, 4, 3, 0.02, "")
    seconds, (weights, bias) = federated.dsgd_run(job)(job.rounds)
    assert seconds > 0
    given, (w, b) = job.load(), job.start()
    for _ in range(job.rounds):
        ends = []
        for n in range(3):
            images, labels = given.samples(n)
            x, v, c = images.reshape(4, -1) / 255, w.astype(float), b.astype(float)
            for _ in range(job.local_steps):
                odds = np.exp(x @ v + c)
                error = (odds / odds.sum(axis=1, keepdims=True) - np.eye(5)[labels]) / 4
                v, c = v - 0.02 * x.T @ error, c - 0.02 * error.sum(axis=0)
            ends.append((v, c))
        w, b = (np.mean(leaves, axis=0) for leaves in zip(*ends, strict=True))
    np.testing.assert_allclose(weights, w, atol=1e-6)
    np.testing.assert_allclose(bias, b, atol=1e-6)


def test_parameters_keep_their_meaning_in_the_layout_of_pytorch():
    rng = np.random.default_rng(0)
    params = clients.start(rng, "cnn", 7)
    kernel, *_, dense = (federated.to_torch(params)[i] for i in (2, 4))
    assert kernel[5, 3, 1, 2] == params[2][1, 2, 3, 5]
    assert dense[9, 3 * 144 + 2 * 12 + 7] == params[4][(2 * 12 + 7) * 64 + 3, 9]
    for leaf, back in zip(params, federated.from_torch(federated.to_torch(params)), strict=True):
        np.testing.assert_array_equal(leaf, back)


def test_the_two_convolutions_are_equal():
    rng = np.random.default_rng(0)
    x, kernel = rng.standard_normal((2, 7, 6, 3)), rng.standard_normal((3, 3, 3, 4))
    mine = federated.convolve_by_product(x.astype(np.float32), kernel.astype(np.float32))
    theirs = federated.convolve(x.astype(np.float32), kernel.astype(np.float32))
    np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_clients_are_timed_with_all_methods(tmp_path, long):
    args = clients.Args(("logistic",), versions=("dsgd",), rounds=2, quick=True, out=tmp_path)
    scripts.ran(clients.main, args)
    rows = scripts.rows(tmp_path / "clients.csv")
    assert [(row["clients"], row["method"]) for row in rows] == [
        (N, method) for N in ("4", "12") for method in ("fed_avg", "scaffold", "ef21")
    ]
    assert all(float(row["seconds"]) > 0 and float(row["memory"]) > 0 for row in rows)
    assert all(np.isfinite(float(row["loss"])) for row in rows)


FEW = ("sign", "random_k(0.01)", "random_sparsification(0.01)", "low_rank(4)")
TIMED = [  # the benchmark, its arguments, its CSV file, rows, and columns of positive numbers
    (
        rounds,
        {"methods": ("minibatch_sgd",), "workers": (4,), "dimensions": (5,), "seconds": 1e-3},
        "rounds",
        1,
        rounds.Row._fields[3:],
    ),
    (start, {}, "start", 2, ("imports", "problem", "rounds", "wall", "cpu", "ratio")),
    (copies, {"dimensions": (4096,)}, "copies", 4 + len(FEW), ("encode_copies", "decode_copies")),
    (
        mixing,
        {"workers": 8, "dimension": 5, "dimensions": (3, mixing.MOST)},
        "mixing",
        3,
        ("seconds", "dense", "times faster", "of copy"),
    ),
]


@pytest.mark.parametrize(
    ("benchmark", "arguments", "file", "count", "columns"),
    [
        pytest.param(*row, id=row[2], marks=[pytest.mark.long] if row[0] is not rounds else [])
        for row in TIMED
    ],
)
def test_a_benchmark_times_all_versions(
    benchmark, arguments, file, count, columns, tmp_path, monkeypatch
):
    """With few compressors, which require all of the other programs together, two graphs, and numpy
    instead of the other versions of the start.
    """
    some = [each for each in copies.CANDIDATES if each.name in FEW]
    graphs = [topologies.ring(8), topologies.random_regular(12, 9)]
    numpy = start.make_versions(tmp_path / "numpy")["numpy"]
    monkeypatch.setattr(copies, "CANDIDATES", some)
    monkeypatch.setattr(mixing, "graphs_of_all_degrees", lambda: graphs)
    monkeypatch.setattr(start, "make_versions", lambda _: dict.fromkeys(("scan", "numpy"), numpy))
    scripts.ran(benchmark.main, benchmark.Args(**arguments, repeats=1, out=tmp_path / "out"))
    rows = scripts.rows(tmp_path / f"out/{file}.csv")
    assert len(rows) == count
    assert all(float(row[name]) > 0 for row in rows[-len(FEW) :] for name in columns)
    if benchmark is mixing:
        few, larger = scripts.rows(tmp_path / "out/sums.csv")
        assert (few["chosen"], larger["chosen"]) == ("rows", "product")
        assert min(float(few["3"]), float(larger["3"])) > 0
        assert few[str(mixing.MOST)] == "nan", "so many elements are too many"


def test_the_benchmark_of_events_times_equal_simulations(tmp_path):
    setting = events.make_setting(5, 3, threshold=2, sigma=0.0)
    ends = {name: run(60) for name, run in events.versions(setting).items()}
    for name, end in ends.items():
        np.testing.assert_allclose(end, ends["heap"], atol=1e-6, err_msg=name)
    assert np.abs(ends["heap"]).max() > 0.05
    args = events.Args(workers=5, dimension=3, seconds=1e-3, repeats=1, out=tmp_path)
    scripts.ran(events.main, args)
    rows = scripts.rows(tmp_path / "events.csv")
    assert [row["version"] for row in rows] == list(ends)
    assert all(float(row["per_minute"]) > 0 for row in rows)


def test_all_public_compressors_are_timed():
    """In a combination, if they have no messages of their own."""
    parts = {part for each in copies.CANDIDATES for part in re.findall(r"\w+", each.name)}
    functions = {"LinearCode", "apply", "check", "encode", "fixed_size", "mean_bits"}
    same_messages = {"whole_model"}
    assert set(compressors.__all__) - functions - same_messages - parts == set()


@pytest.mark.parametrize("name", [name for name in by_hand.SCANS if name != "compressed_sgd"])
def test_the_benchmarks_versions_compute_the_same(name, mesh, key):
    """After the same rounds, f, |f'|^2 and the consensus distance are equal; parts have different
    lengths.
    """
    problem = problems.random_quadratic(8, 12, diagonal=True, seed=2)
    method = algorithms.make(name, optax.sgd(by_hand.LEARNING_RATE), 8)
    ours = dsgd.run(method, problem, steps=20, key=key, mesh=mesh).history
    histories = [
        jax.device_get(by_hand.scan(name, problem, mean)(20))[1] for mean in rounds.FORMS.values()
    ]
    loop = by_hand.loop(name, problem)
    histories += [np.array(loop(20)[1]).T] if loop else []
    for theirs in histories:
        for recorded, history in zip(("loss", "grad_sqnorm", "consensus"), theirs, strict=True):
            np.testing.assert_allclose(ours[recorded][1:], history, rtol=1e-3, atol=1e-6)


def test_a_job_that_fails_is_reported(capfd):
    with pytest.raises(RuntimeError, match=r"jobs\.start nonsense ended with status 1"):
        start.time_version(start.Version("nonsense", {}))
    assert "KeyError: 'nonsense'" in capfd.readouterr().err


def test_tokens_per_second_are_those_of_all_versions(tmp_path, monkeypatch, long):
    monkeypatch.setitem(tokens.MODELS, "small", Size(4, 4, 1, 1, 4))
    args = tokens.Args(workers=2, period=2, seconds=1e-3, repeats=1, out=tmp_path, progress=False)
    scripts.ran(tokens.main, args)
    rows = scripts.rows(tmp_path / "tokens.csv")
    assert [row["version"] for row in rows] == [
        "plain JAX loop",
        "synchronous AdamW",
        "local AdamW",
        "DiLoCo",
    ]
    assert float(rows[0]["of_plain"]) == 1
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)
