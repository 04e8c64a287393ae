"""Clients that are loaded when they are drawn: the same runs as with all samples in memory."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import clusters, problems

N, M, H = 9, 3, 2
SIZES = [3, 11, 5, 2, 7, 4, 13, 6, 8]
RNG = np.random.default_rng(3)
INPUTS = [RNG.normal(size=(m, 4)) for m in SIZES]
TARGETS = [RNG.integers(0, 3, m) for m in SIZES]


def load(n: int) -> tuple[Any, Any]:
    return INPUTS[n], TARGETS[n]


def problem(data: Any = None, **options: Any) -> dsgd.Problem:
    model = problems.Model(
        lambda key: 0.1 * jax.random.normal(key, (4, 3)), lambda x, inputs: inputs @ x
    )
    return problems.finite_sum(
        model,
        optax.softmax_cross_entropy_with_integer_labels,
        problems.clients(SIZES, load, cache=2, **options) if data is None else data,
        N,
        batch_size=4,
        weights="samples",
        l2=0.03,
        replacement="epoch",
    )


def run(problem: dsgd.Problem, method: dsgd.Algorithm | None = None, **options: Any) -> dsgd.Result:
    cluster = clusters.Cluster(
        clusters.constant(0.3), present=clusters.sampled(M, of=N), participation_period=H
    )
    method = method or algorithms.scaffold(optax.sgd(0.2), H)
    given = {"steps": 12, "key": 4, "cluster": cluster, "mesh": 1, "record_every": 3} | options
    return dsgd.run(method, problem, progress=False, **given)


@pytest.mark.filterwarnings("ignore:.*sends messages every")
@pytest.mark.parametrize("devices", [1, 2])
def test_runs_equal_those_with_all_samples_in_memory(devices):
    """Also with two runs at a time and exact gradients of all clients."""
    whole = problem(problems.ByWorker(load))
    for method, options in (
        (None, {"seeds": 2}),
        (algorithms.gradient_descent(optax.sgd(0.3)), {"cluster": None, "steps": 3}),
    ):
        found, expected = (
            run(given, method, mesh=devices if method is None else 1, **options)
            for given in (problem(), whole)
        )
        np.testing.assert_allclose(found.params, expected.params, rtol=2e-5)
        for name, values in expected.history.items():
            np.testing.assert_allclose(found.history[name], values, rtol=2e-4, err_msg=name)


@pytest.mark.filterwarnings("ignore:.*sends messages every")
def test_the_loss_is_that_of_some_clients():
    """Of clients 0, 2, 4 and 6, weighted by their samples, and the regularizer."""
    found = run(problem(evaluated=4))
    x = np.asarray(found.params, float)
    chosen = [0, 2, 4, 6]
    inputs, targets = (np.concatenate([each[n] for n in chosen]) for each in (INPUTS, TARGETS))
    scores = inputs @ x
    each = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(targets)), targets]
    np.testing.assert_allclose(
        found.history["loss"][-1], each.mean() + 0.015 * np.sum(x**2), rtol=1e-5
    )


def test_client_metrics_of_loaded_clients():
    whole, loaded = (
        problems.with_client_metrics(problem(data), clients=4)
        for data in (problems.ByWorker(load), None)
    )
    found, expected = (run(each, steps=4).history for each in (loaded, whole))
    for name in [name for name in expected if name.startswith("client_")]:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, err_msg=name)


@pytest.mark.filterwarnings("ignore:.*sends messages every")
def test_clients_are_loaded_when_they_are_drawn():
    asked = list[int]()

    def load_one(n):
        asked.append(n)
        return load(n)

    data = problems.clients(SIZES, load_one, cache=4, evaluated=1)
    given = problem(data)
    assert set(asked) == {0}
    found = run(given, steps=2 * H, taped=True, record_every=1)
    del found
    assert len(set(asked)) <= 1 + 2 * M
    assert problem(problems.clients(N, load)).sampler.local_samples == tuple(SIZES)


def changed(n: int, change: Any) -> Any:
    return lambda worker: change(*load(worker)) if worker == n else load(worker)


@pytest.mark.filterwarnings("ignore:.*sends messages every")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda x, y: (x[:, :3], y),
            r"the samples of client 5 are .*float32\[3\].*expected the same",
        ),
        (lambda x, y: (x[1:], y[1:]), r"client 5 has 3 samples; expected 4, as in sizes"),
        (lambda x, y: (x, y + 3), r"client 5: .*targets"),
        (lambda x, y: 1 / 0, "division by zero"),
    ],
)
def test_clients_that_differ_are_named(change, words):
    given = problem(problems.clients(SIZES, changed(5, change), evaluated=1))
    with pytest.raises((ValueError, ZeroDivisionError), match=words):
        run(given, steps=60)
    run(problem(), steps=2)  # the error is not that of another run


@pytest.mark.filterwarnings("ignore:.*sends messages every")
def test_checkpoints_need_a_fingerprint(tmp_path):
    with pytest.raises(ValueError, match=r"clients have no fingerprint.*fingerprint="):
        run(problem(), checkpoint=tmp_path)
    named = problem(fingerprint="numbers of seed 3")
    run(named, checkpoint=tmp_path, steps=7)
    found = run(problem(fingerprint="numbers of seed 3"), checkpoint=tmp_path)
    np.testing.assert_allclose(found.params, run(problem()).params, rtol=1e-6)
    with pytest.raises(ValueError, match="another run"):
        run(problem(fingerprint="other numbers"), checkpoint=tmp_path)


def test_invalid_clients_are_refused():
    with pytest.raises(ValueError, match=r"clients: sizes = .*at least 1 for each"):
        problems.clients([3, 0, 2], load)
    with pytest.raises(ValueError, match=r"clients: cache"):
        problems.clients(N, load, cache=0)
    with pytest.raises(ValueError, match="workers = 9, data of 4 clients; pass workers=4"):
        problem(problems.clients(SIZES[:4], load))
