"""Results carry their settings, and files have the same histories, models and settings."""

from __future__ import annotations

import json
import platform
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import clusters, problems
from dsgd.runs.results import Settings

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


def test_a_repr_has_the_shape_and_the_columns_of_the_history(swept):
    columns = "step, .*loss"
    assert re.fullmatch(
        rf"Sweep\(learning_rate \[3\]; minibatch_sgd, history \[3, 2, 4\]: {columns}.*\)",
        repr(swept),
    )
    one = repr(swept.result((1,)))
    assert re.fullmatch(rf"Result\(minibatch_sgd, history \[2, 4\]: {columns}.*\)", one)
    assert repr(jax.tree.map(lambda _: None, swept.result((1,))))


def test_results_of_different_settings_are_compared_leaf_by_leaf(swept):
    one, other = swept.result((1,)), swept.result((2,))
    same = jax.tree.map(lambda a, b: (a == b).all(), one, other)
    assert same.history["step"]
    assert not same.history["loss"]
    assert same.settings == {}


class Layer(NamedTuple):
    weight: jax.Array
    bias: jax.Array


def test_a_file_has_the_history_the_model_and_the_settings(tmp_path):
    """Also types that numpy does not have, and one array for each of two seeds."""
    layers = [Layer(jnp.full((2, 3), 0.5, jnp.bfloat16), jnp.arange(2.0)) for _ in range(11)]
    params = {"layers": layers, "1": (jnp.int32(7),)}
    history = {
        "step": np.array([3, 5]),
        "loss": np.array([[1.5, np.nan], [0.1, np.inf]], np.float32),
        "evaluated": np.array([[True, False]] * 2),
    }
    settings = Settings(method="mine", steps=2, seeds=None, key=[0, 9])
    given = dsgd.Result(dsgd.State(step=np.int32(5)), history, params, settings=settings)
    given.save(tmp_path / "folder" / "run.npz")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["run.npz"]
    found = dsgd.load_result(tmp_path / "folder" / "run.npz")
    assert isinstance(found, dsgd.Result)
    assert found.settings == settings
    assert found.state.step.tolist() == [5, 5]
    expected = {"layers": [each._asdict() for each in layers], "1": [params["1"][0]]}
    for one, other in ((found.history, history), (found.params, expected)):
        jax.tree.map(np.testing.assert_array_equal, one, other)
        assert jax.tree.leaves(jax.tree.map(lambda a, b: a.dtype == b.dtype, one, other))
    assert found.params["layers"][10]["weight"].dtype == jnp.bfloat16


def test_a_file_of_a_sweep_has_its_best_point(swept, tmp_path):
    swept.save(tmp_path / "sweep.npz")
    found = dsgd.load_result(tmp_path / "sweep.npz")
    assert isinstance(found, dsgd.Sweep)
    jax.tree.map(np.testing.assert_array_equal, found.grid, swept.grid)
    jax.tree.map(np.testing.assert_array_equal, found.history, swept.history)
    np.testing.assert_array_equal(found.params, swept.params)
    assert found.settings == swept.settings
    assert found.result((1,)).settings["hyperparameters"] == {"learning_rate": 0.25}
    with pytest.raises(ValueError, match="start: the state has no arrays"):
        dsgd.run(
            algorithms.minibatch_sgd(optax.sgd(0.1)),
            PROBLEM,
            steps=1,
            key=jax.random.key(0),
            mesh=1,
            start=dsgd.Result(found.state, {}, ()),
        )


@pytest.mark.parametrize("content", [b"", b"text", None])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "run.npz"
    if content is None:
        np.savez(path, loss=np.ones(3))
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"load_result: path = .*run.npz' is not the file of a"):
        dsgd.load_result(path)
    with pytest.raises(ValueError, match=r"absent.npz' .*No such file"):
        dsgd.load_result(tmp_path / "absent.npz")
    with pytest.raises(ValueError, match="is a folder; expected a file"):
        dsgd.Result(dsgd.State(), {}, ()).save(tmp_path)
