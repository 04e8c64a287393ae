"""Forecasts compared with runs of the same model, and with formulas."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters, compressors, planning, problems
from dsgd.planning import forecasts, updates
from dsgd.runs import dry_runs

N, LATENCY, RATE, COMPUTE = 4, 0.03, 3e4, 0.5
CLUSTER = clusters.Cluster(clusters.constant(COMPUTE), clusters.constant(RATE), latency=LATENCY)
RANDOM = clusters.Cluster(
    clusters.constant(0.01) + clusters.exponential(0.002),
    up=clusters.constant(1e5),
    down=clusters.constant(3e4),
    latency=1e-3,
)
MODEL = problems.MLP(10, (7,))
PROBLEM = problems.neural_network(MODEL, workers=N, batch_size=3)
PARAMS = jax.eval_shape(PROBLEM.init, jax.random.key(0))
SIGN = compressors.whole_model(compressors.sign)
ADAM = optax.adamw(0.01)
SIZE = sum(leaf.size for leaf in jax.tree.leaves(PARAMS))


def cast(shapes, dtype):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), shapes)


METHODS = {
    "means": algorithms.diloco(ADAM, 3),
    "servers": algorithms.error_compensated_sgd(optax.sgd(0.1), SIGN, SIGN),
    "neighbours": algorithms.decentralized_sgd(optax.sgd(0.1), topologies.one_peer_exponential(N)),
    "delayed": algorithms.delayed_diloco(ADAM, 4),
    "events": algorithms.asynchronous_sgd(optax.sgd(0.1)),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_dry_run_sends_what_a_run_sends_and_takes_as_long(method):
    steps, key = 11, jax.random.key(3)
    history = dsgd.run(method, PROBLEM, steps=steps, key=key, cluster=RANDOM, mesh=1).history
    model = dry_runs.of_workers(PARAMS, N)
    found = dry_runs.record(method, model, RANDOM, key, steps)
    np.testing.assert_array_equal(np.cumsum(found.up + found.down), history["bits"][1:])
    np.testing.assert_array_equal(found.messages.cumsum(), history["communications"][1:])
    np.testing.assert_array_equal(found.gradients.cumsum(), N * history["gradients"][1:] / 3)
    np.testing.assert_array_equal(found.seconds, history["clock"][1:])


def test_a_forecast_adds_up_the_parts_of_a_round():
    found = dsgd.forecast(algorithms.minibatch_sgd(ADAM), PARAMS, CLUSTER, workers=N, update=0.25)
    latency, transfer = 2 * (N - 1) * LATENCY, 2 * (N - 1) / N * 32 * SIZE / RATE
    np.testing.assert_allclose(
        [found.seconds, found.compute, found.latency, found.transfer],
        [COMPUTE + 0.25 + latency + transfer, COMPUTE + 0.25, latency, transfer],
        rtol=1e-5,
    )
    np.testing.assert_allclose(found.communication, (latency + transfer) / found.seconds, rtol=1e-5)
    assert (found.dominant, found.messages, found.gradients) == ("transfer", 1, N)
    assert found.up == found.down == 2 * (N - 1) / N * 32 * SIZE
    assert [each.pattern.name for each in found.exchanges] == ["ring_all_reduce"]


def test_a_forecast_is_the_mean_over_periods():
    H = 5
    found = dsgd.forecast(algorithms.local_sgd(ADAM, H), PARAMS, CLUSTER, workers=N)
    whole = dsgd.forecast(algorithms.minibatch_sgd(ADAM), PARAMS, CLUSTER, workers=N)
    np.testing.assert_allclose(
        [found.latency, found.transfer, found.up, found.messages],
        np.divide([whole.latency, whole.transfer, whole.up, 1], H),
        rtol=1e-4,
    )
    assert found.dominant == "computation"
    slow = replace(CLUSTER, latency=10.0)
    assert dsgd.forecast(algorithms.local_sgd(ADAM, H), PARAMS, slow, workers=N).dominant == (
        "latency"
    )


def test_memory_is_that_of_the_states_gradients_and_messages():
    moments = 8 * SIZE + 4
    whole = dsgd.forecast(algorithms.minibatch_sgd(ADAM), PARAMS, CLUSTER, workers=N).memory
    assert whole == planning.Memory(0, 4 * SIZE + moments, 4 * SIZE, 6 * SIZE)
    assert whole.total == 22 * SIZE + 4
    local = dsgd.forecast(algorithms.diloco(ADAM, 3), PARAMS, CLUSTER, workers=N).memory
    assert local[:3] == (4 * SIZE + moments, 8 * SIZE, 4 * SIZE)


def test_half_precision_halves_messages_and_memory():
    method = algorithms.minibatch_sgd(optax.sgd(0.1, momentum=0.9))
    full, half = (
        dsgd.forecast(method, cast(PARAMS, dtype), CLUSTER, workers=N)
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    assert full.up == 2 * half.up
    assert full.memory.total == 2 * half.memory.total


def test_models_of_any_size_are_forecast_without_memory():
    shapes = {str(i): jax.ShapeDtypeStruct((30_000, 40_000), jnp.float32) for i in range(3)}
    found = dsgd.forecast(algorithms.powersgd(optax.sgd(0.1), 2), shapes, CLUSTER, workers=512)
    factors = 3 * 32 * 2 * 70_000
    assert found.up == pytest.approx(2 * 511 / 512 * factors, rel=1e-6)
    assert found.memory.own == 3 * 4 * 1_200_000_000  # error memories


def test_methods_with_messages_that_depend_on_gradients_are_refused():
    lag = algorithms.lag(optax.sgd(0.1), 10.0)
    with pytest.raises(ValueError, match=r"lag.*depend on the gradients, and not only"):
        dsgd.forecast(lag, PARAMS, CLUSTER, workers=N)


def test_wrong_shapes_are_refused():
    method = algorithms.minibatch_sgd(ADAM)
    for shapes, words in (
        ({"a": "text"}, "a leaf is 'text'; expected arrays"),
        ({"a": jax.ShapeDtypeStruct((3,), jnp.int32)}, "no leaf has a floating-point type"),
        ({}, "no leaf has a floating-point type"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"forecast: shapes: {words}")):
            dsgd.forecast(method, shapes, CLUSTER, workers=N)


def test_restarts_take_as_long_as_simulated_ones():
    M, C, R, tau = 700.0, 30.0, 45.0, 400.0
    draws, total, count = np.random.default_rng(0), 0.0, 40_000
    for _ in range(count):
        while (failure := draws.exponential(M)) < tau + C:
            total += failure
            while (again := draws.exponential(M)) < R:
                total += again
            total += R
        total += tau + C
    found = planning.Restarts(M, C, R, tau).slowdown
    assert found == pytest.approx(total / count / tau, rel=0.02)
    assert planning.Restarts(M, C, R).slowdown < found  # Young's interval
    assert planning.Restarts(1.0, 900.0).slowdown == np.inf


def test_shapes_are_read_from_files(tmp_path):
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps({"kernel": [3, 5], "bias": [5]}))
    found = dsgd.load_shapes(path)
    assert found == cast({"kernel": np.ones((3, 5)), "bias": np.ones(5)}, jnp.float32)
    for text, words in (
        ("{", "is not JSON"),
        ("[]", "has []; expected shapes by name"),
        ('{"kernel": [3, 0]}', "kernel = [3, 0]; expected a list of positive integers"),
        ('{"kernel": 3}', "kernel = 3; expected a list"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=re.escape(words)):
            dsgd.load_shapes(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        dsgd.load_shapes(tmp_path / "none.json")
    model = {"a": jnp.ones((2, 3), jnp.bfloat16), "b": np.arange(4)}
    dsgd.save_safetensors(model, tmp_path / "model.safetensors")
    read = dsgd.load_shapes(tmp_path / "model.safetensors")
    assert {name: (each.shape, each.dtype) for name, each in read.items()} == {
        name: (each.shape, each.dtype) for name, each in model.items()
    }
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="is damaged"):
        dsgd.load_shapes(tmp_path / "model.safetensors")


def test_updates_are_measured_on_one_leaf_of_each_shape():
    model = [jax.ShapeDtypeStruct((n,), jnp.float32) for n in (5, 5, 7, 7, 100)]
    sizes = [leaf.size for leaf in updates._some_leaves(model, 20)]
    assert sizes == [5, 7]
    assert [leaf.size for leaf in updates._some_leaves(model, 1)] == [5]
    seconds = planning.update_seconds(
        algorithms.local_sgd(ADAM, 3), model, workers=2, elements=20, repeats=1
    )
    assert 0 <= seconds < 10


def test_scaled_clusters_have_other_networks():
    found = forecasts.scale(CLUSTER, 3.0, 0.5)
    assert found.latency == LATENCY / 2
    assert (
        found.name == replace(CLUSTER, up=clusters.constant(RATE) * 3.0, latency=LATENCY / 2).name
    )
