"""Losses and metrics by client, compared with loops over clients in numpy."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import plots, problems
from dsgd.engine import accumulate
from dsgd.engine.pooled import Pooled, worker_data

N, L2 = 24, 0.3
RNG = np.random.default_rng(0)
SIZES = RNG.integers(2, 30, N)
WEIGHTS = np.where(np.arange(N) == 5, 0, RNG.uniform(0.2, 3, N))
X = {"w": RNG.normal(size=7).astype(np.float32), "b": np.float32(0.4)}
STACKED = {"w": RNG.normal(size=(N, 7)).astype(np.float32), "b": X["b"]}
METHOD = algorithms.minibatch_sgd(optax.sgd(0.0))


def near(outputs: Any, targets: Any) -> Any:
    return abs(outputs - targets) < 1.5


@cache
def make(pooled: bool = False, weighted: bool = True) -> dsgd.Problem:
    """Returns ridge regression on clients of different sizes; in a pool, one is much larger."""
    sizes = np.where((np.arange(N) == 3) & pooled, 9000, SIZES)
    inputs = RNG.normal(size=(sizes.sum(), 7 if not pooled else 7 + 30)).astype(np.float32)
    targets = RNG.normal(size=len(inputs)).astype(np.float32)
    problem = problems.finite_sum(
        problems.Model(
            lambda key: jax.tree.map(jnp.asarray, X),
            lambda x, inputs: inputs[:, :7] @ x["w"] + x["b"],
        ),
        optax.squared_error,
        (inputs, targets),
        N,
        np.split(np.arange(len(inputs)), np.cumsum(sizes)[:-1]),
        l2=L2,
        weights=WEIGHTS if weighted else "equal",
        test=(inputs[:9], targets[:9]),
        metrics={"test_near": near},
        chunk=100,
    )
    assert isinstance(problem.data, Pooled) == pooled
    return problem


def values_of(problem: dsgd.Problem, x: Any = X) -> dict[str, np.ndarray]:
    """Returns f_n and the metric of each client."""
    found: dict[str, list] = {"loss": [], "near": []}
    for n, size in enumerate(problem.local_samples or ()):
        data = worker_data(problem.data, n)
        w, b = (leaf[n] if np.ndim(leaf) > np.ndim(X[k]) else leaf for k, leaf in x.items())
        errors = data.inputs[:size, :7].astype(float) @ w + b - data.targets[:size]
        found["loss"].append(np.mean(errors**2) + L2 / 2 * (w @ w + b**2))
        found["near"].append(np.mean(abs(errors) < 1.5))
    return jax.tree.map(np.array, found, is_leaf=lambda node: isinstance(node, list))


def columns_of(values: np.ndarray, weights: np.ndarray, name: str) -> dict[str, float]:
    """Returns the columns of some clients."""
    ordered, tenth = sorted(values), int(np.ceil(len(values) / 10))
    return {
        f"client_{name}": np.average(values, weights=weights),
        f"client_{name}_std": np.sqrt(np.mean((values - values.mean()) ** 2)),
        f"client_{name}_lowest_decile": sum(ordered[:tenth]) / tenth,
        f"client_{name}_highest_decile": sum(ordered[len(ordered) - tenth :]) / tenth,
    }


def first_record(problem: dsgd.Problem, devices: int = 1) -> dict[str, float]:
    history = dsgd.run(METHOD, problem, steps=1, key=jax.random.key(0), mesh=devices).history
    return {name: each[0] for name, each in history.items()}


@pytest.mark.parametrize("pooled", [False, True], ids=["padded", "pooled"])
@pytest.mark.parametrize("clients", [None, 13])
@pytest.mark.parametrize("devices", [1, 4])
def test_statistics_of_the_clients_are_those_of_a_loop(devices, clients, pooled):
    given = make(pooled)
    problem = problems.with_client_metrics(given, clients, seed=3)
    chosen = np.array(problem.evaluation.function.chosen)
    assert 5 not in chosen
    assert len(set(chosen)) == (clients or N - 1)
    record, values, weights = first_record(problem, devices), values_of(given), WEIGHTS[chosen]
    expected = {}
    for name in ("loss", "near"):
        expected |= columns_of(values[name][chosen], weights, name)
    for name, value in expected.items():
        np.testing.assert_allclose(record[name], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(record["loss"], expected["client_loss"], rtol=1e-5)
    assert np.isnan(record["grad_sqnorm"]) == (clients is not None)


def test_a_sample_of_clients_reads_no_rows_of_the_others():
    given = make(weighted=False)
    problem = problems.with_client_metrics(given, 4)
    others = np.delete(np.arange(N), problem.evaluation.function.chosen)
    other_data = given.data._replace(inputs=given.data.inputs.at[others].mul(1000))
    one, other = first_record(problem), first_record(problem._replace(data=other_data))
    names = [name for name in one if name.startswith("client_")]
    assert len(names) == 8
    assert [one[name] for name in names] == [other[name] for name in names]
    again = problems.with_client_metrics(given, 4, seed=7).evaluation.function.chosen
    assert again != problem.evaluation.function.chosen


@pytest.mark.parametrize("pooled", [False, True], ids=["padded", "pooled"])
def test_held_out_samples_are_the_clients_own(pooled):
    given = make(pooled)
    training, held_out = problems.hold_out(given, 0.3, seed=2)
    for n, size in enumerate(given.local_samples):
        parts = [
            worker_data(each.data, n).targets[: each.local_samples[n]]
            for each in (training, held_out)
        ]
        assert len(parts[1]) == max(1, round(0.3 * size))
        whole = worker_data(given.data, n).targets[:size]
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.sort(whole))
    assert training.sampler.batch_sizes is None  # drawn with replacement
    for clients in (None, 8):
        problem = problems.with_client_metrics(training, clients, held_out=held_out)
        chosen = np.array(problem.evaluation.function.chosen)
        record = first_record(problem, 4)
        for name, values in values_of(held_out).items():
            for column, value in columns_of(values[chosen], WEIGHTS[chosen], name).items():
                np.testing.assert_allclose(record[column], value, rtol=1e-5, err_msg=column)
        loss = np.average(values_of(training)["loss"][chosen], weights=WEIGHTS[chosen])
        np.testing.assert_allclose(record["loss"], loss, rtol=1e-5)
    assert "test_samples=9" in repr(problem)


@pytest.mark.parametrize("pooled", [False, True], ids=["padded", "pooled"])
@pytest.mark.parametrize("params", [X, STACKED], ids=["one model", "a model of each client"])
def test_clients_are_evaluated_at_one_model_or_at_their_own(params, pooled, monkeypatch):
    monkeypatch.setattr(accumulate, "BUDGET", 7 * 32)  # seven models of eight numbers
    problem = make(pooled)
    measured, values = problems.client_metrics(problem, params), values_of(problem, params)
    assert list(measured.values) == ["loss", "near"]
    for name, expected in values.items():
        np.testing.assert_allclose(measured.values[name], expected, rtol=1e-5)
    np.testing.assert_array_equal(measured.samples, problem.local_samples)
    counted = WEIGHTS > 0
    expected = columns_of(values["loss"][counted], WEIGHTS[counted], "loss").values()
    np.testing.assert_allclose(list(measured.statistics["loss"].values()), list(expected), 1e-5)


def test_the_table_and_the_figure_have_the_distribution():
    losses = np.array([0.5, 3.0, 2.0, 100.0])
    weights = np.array([2.0, 1.0, 1.0, 0.0])
    measured = problems.ClientMetrics({"loss": losses}, np.array([4, 2, 2, 1]), weights)
    lines = [line.split() for line in str(measured).splitlines()]
    assert lines[0] == ["4", "clients", "loss"]
    assert [line[-1] for line in lines[1:4]] == ["1.5", "1.027", "0.5"]
    assert lines[8] == ["decile", "50%", "2"]
    assert lines[-1][-1] == "3"
    histogram, shares = plots.clients({"fed_avg": measured}, "loss").axes
    assert histogram.patches[0].get_data().values.sum() == 3
    np.testing.assert_allclose(shares.lines[0].get_ydata(), [0.5, 2, 3])
    np.testing.assert_allclose(shares.lines[0].get_xdata(), [1 / 3, 2 / 3, 1])
    words = [text.get_text() for text in shares.get_legend().get_texts()]
    assert words == ["mean of the lowest tenth"]
    for given, words in (({}, "measured = {}"), (measured, "metric = 'accuracy'; expected one of")):
        with pytest.raises(ValueError, match=f"clients: {words}"):
            plots.clients(given)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: problems.with_client_metrics(p, 24), "clients = 24; expected .* the 23 clients"),
        (lambda p: problems.with_client_metrics(p, 0), "clients = 0"),
        (
            lambda p: problems.with_client_metrics(problems.random_quadratic(2, 3)),
            "problem = quadratic",
        ),
        (
            lambda p: problems.with_client_metrics(p, held_out=make(True)),
            "held_out: inputs of a sample",
        ),
        (
            lambda p: problems.with_client_metrics(p, metrics={"loss": near}),
            r"metrics\['loss'\]",
        ),
        (
            lambda p: problems.with_client_metrics(p, metrics={"one": lambda o, t: jnp.mean(o)}),
            "one returned float32",
        ),
        (lambda p: problems.client_metrics(p, X["w"]), "params is"),
        (
            lambda p: problems.client_metrics(p, X | {"w": np.ones((3, 7))}),
            r"params has a leaf of shape \(3, 7\); expected \(7,\), or \(24, 7\)",
        ),
        (lambda p: problems.hold_out(p, 1.0), "share = 1.0"),
        (lambda p: problems.hold_out(p, 0.9), r"client \d+ has \d samples, of which \d would be"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call, words):
    with pytest.raises(
        ValueError, match=f"^(with_client_metrics|client_metrics|hold_out): {words}"
    ):
        call(make())


@pytest.mark.parametrize("pooled", [False, True], ids=["padded", "pooled"])
def test_few_samples_of_padding_are_evaluated(pooled):
    problem = problems.with_client_metrics(make(pooled, weighted=False))
    of, sizes = problem.evaluation.function.of_data, np.sort(problem.local_samples)
    groups = np.pad(sizes, (-N % of.clients, 0), mode="edge").reshape(-1, of.clients)
    evaluated = np.sum(-(-groups.max(axis=1) // of.rows)) * of.rows * of.clients
    assert sizes.sum() <= evaluated < 1.5 * sizes.sum()
