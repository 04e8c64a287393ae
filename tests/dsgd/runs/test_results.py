"""Results carry their settings."""

from __future__ import annotations

import json
import platform

import jax
import optax
import pytest

import algorithms
import dsgd
from dsgd import clusters, problems

PROBLEM = problems.random_quadratic(4, 3, noise=0.3)
OPTIONS = {
    "record_every": 2,
    "evaluate_every": 3,
    "mesh": 1,
    "cluster": clusters.Cluster(clusters.constant(0.5)),
}


@pytest.fixture(scope="module")
def swept() -> dsgd.Sweep:
    return dsgd.sweep(
        lambda learning_rate: algorithms.minibatch_sgd(optax.sgd(learning_rate)),
        PROBLEM,
        steps=5,
        key=jax.random.key(7),
        seeds=2,
        learning_rate=[0.1, 0.25, 0.5],
        **OPTIONS,
    )


def test_settings_are_those_of_the_call(swept):
    method = algorithms.minibatch_sgd(optax.sgd(0.1))
    first = dsgd.run(method, PROBLEM, steps=3, key=jax.random.key(5), mesh=1)
    second = dsgd.run(method, PROBLEM, steps=4, key=jax.random.key(5), mesh=1, start=first)
    assert second.settings == {**first.settings, "steps": 4, "start": 3}
    assert first.settings["seeds"] is None
    assert first.settings["cluster"] is None
    expected = {
        "method": method.name,
        "problem": repr(PROBLEM),
        "workers": 4,
        "steps": 5,
        "seeds": 2,
        "key": [0, 7],
        "record_every": 2,
        "evaluate_every": 3,
        "train_loss": False,
        "taped": False,
        "cluster": OPTIONS["cluster"].name,
        "batches": None,
        "start": 0,
        "devices": 1,
        "platform": "cpu",
        "float64": False,
        "dsgd": dsgd.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "grid": {"learning_rate": [0.1, 0.25, 0.5]},
    }
    assert swept.settings == expected
    assert swept.result((1,)).settings == {**expected, "hyperparameters": {"learning_rate": 0.25}}
    assert json.loads(json.dumps(expected)) == expected


def test_results_of_different_settings_are_compared_leaf_by_leaf(swept):
    one, other = swept.result((1,)), swept.result((2,))
    same = jax.tree.map(lambda a, b: (a == b).all(), one, other)
    assert same.history["step"]
    assert not same.history["loss"]
    assert same.settings == {}
