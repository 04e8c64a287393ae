"""A run that stops and goes on is the run that did not stop."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import problems
from dsgd.engine import checkpoints

N = 4


@pytest.fixture(scope="module")
def method():
    return algorithms.decentralized_sgd(optax.sgd(0.1, momentum=0.5), topologies.ring(N))


def assert_equal(one: dsgd.Result, other: dsgd.Result) -> None:
    jax.tree.map(np.testing.assert_array_equal, one.state, other.state)
    assert one.history.keys() == other.history.keys()
    jax.tree.map(np.testing.assert_array_equal, one.history, other.history)
    np.testing.assert_array_equal(one.params, other.params)


@pytest.mark.parametrize("seeds", [None, 3])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_finished_run_goes_on_with_more_steps_as_if_it_had_not_stopped(seeds, devices, method, problem, key, tmp_path):
    options = {"key": key, "seeds": seeds, "mesh": dsgd.workers.mesh(devices), "record_every": 2}
    straight = dsgd.run(method, problem, steps=30, **options)
    dsgd.run(method, problem, steps=20, checkpoint=tmp_path / "run", **options)
    assert_equal(dsgd.run(method, problem, steps=30, checkpoint=tmp_path / "run", **options), straight)
    assert_equal(dsgd.run(method, problem, steps=30, checkpoint=tmp_path / "run", **options), straight)


def test_an_interrupted_run_goes_on_from_its_last_checkpoint(method, problem, mesh, key, tmp_path, monkeypatch):
    """Interrupted by its batches, with a checkpoint after every chunk; batches that were used are skipped."""
    monkeypatch.setattr(checkpoints, "_SECONDS", 0.0)
    everybody = jax.tree.map(np.asarray, problem.data._replace(noise=np.zeros((N, 3), np.float32)))

    def batches(stop):
        for t in itertools.count():
            if t == stop:
                raise KeyboardInterrupt
            yield everybody._replace(noise=np.full((N, 3), 0.1 * (t % 7), np.float32))

    options = {"steps": 100, "key": key, "mesh": mesh}
    straight = dsgd.run(method, problem, batches=batches(None), **options)
    with pytest.raises(KeyboardInterrupt):
        dsgd.run(method, problem, batches=batches(60), checkpoint=tmp_path, **options)
    (saved,) = (int(path.name) for path in tmp_path.iterdir())
    assert 0 < saved <= 60
    assert_equal(dsgd.run(method, problem, batches=batches(None), checkpoint=tmp_path, **options), straight)


def test_a_folder_of_another_run_is_refused_by_what_differs(method, problem, mesh, key, tmp_path):
    dsgd.run(method, problem, steps=3, key=key, mesh=mesh, checkpoint=tmp_path)
    other = algorithms.minibatch_sgd(optax.sgd(0.1))
    with pytest.raises(
        ValueError, match=r"holds another run \(method = decentralized_sgd.* there, minibatch_sgd here\); need another folder"
    ):
        dsgd.run(other, problem, steps=3, key=key, mesh=mesh, checkpoint=tmp_path)
    same_name = problems.random_quadratic(N, 3, noise=0.3, seed=9)
    with pytest.raises(ValueError, match="data = "):
        dsgd.run(method, same_name, steps=3, key=key, mesh=mesh, checkpoint=tmp_path)
    plain = algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring(N))
    with pytest.raises(ValueError, match="other leaves than this run's"):
        dsgd.run(plain, problem, steps=3, key=key, mesh=mesh, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="key = "):
        dsgd.run(method, problem, steps=3, key=jax.random.key(7), mesh=mesh, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="steps = 2, but the checkpoint is of round 3"):
        dsgd.run(method, problem, steps=2, key=key, mesh=mesh, checkpoint=tmp_path)


def test_a_run_that_ended_between_records_goes_on_with_the_records_of_a_straight_one(method, problem, mesh, key, tmp_path):
    """Its own last record stays."""
    options = {"key": key, "mesh": mesh, "record_every": 10}
    straight = dsgd.run(method, problem, steps=50, **options)
    dsgd.run(method, problem, steps=25, checkpoint=tmp_path, **options)
    resumed = dsgd.run(method, problem, steps=50, checkpoint=tmp_path, **options)
    np.testing.assert_array_equal(resumed.history["step"], [0, 10, 20, 25, 30, 40, 50])
    for name in ("loss", "bits", "consensus"):
        np.testing.assert_array_equal(np.delete(resumed.history[name], 3), straight.history[name])
    np.testing.assert_array_equal(resumed.params, straight.params)
