"""Very unequal workers share a pool, with the same results as padded arrays."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import problems
from dsgd.engine import pooled
from dsgd.problems.examples import Minibatch, pad

KEY = jax.random.key(0)
SIZES = [3, 5, 2, 4000, 7, 1, 10, 6]
CUTS = np.cumsum(SIZES)[:-1]
ROWS = np.random.default_rng(0).normal(size=(sum(SIZES), 100)).astype(np.float32)
VALUES = (ROWS[:, :9] @ np.ones(9) + np.arange(len(ROWS)) % 7).astype(np.float32)
PARTS = np.split(np.random.default_rng(1).permutation(len(ROWS)), CUTS)
MODEL = problems.Model(lambda key: jnp.zeros(100), lambda params, inputs: inputs @ params)
MB = algorithms.minibatch_sgd(optax.sgd(0.01))


@cache
def unequal(**options: Any) -> Any:
    options, data = {"batch_size": 4, **options}, (ROWS, VALUES)
    return problems.finite_sum(MODEL, optax.squared_error, data, 8, PARTS, **options)


@cache
def padded(**options: Any) -> Any:
    """Returns the same problem with arrays `[N, longest, ...]`."""
    order = np.concatenate(PARTS)
    data = pad(ROWS[order], VALUES[order], np.split(np.arange(len(ROWS)), CUTS))
    return unequal(**options)._replace(data=data)


def test_memory_is_that_of_the_samples():
    samples = ROWS.nbytes + VALUES.nbytes
    own = problems.ByWorker(lambda n: (ROWS[: SIZES[n]], VALUES[: SIZES[n]]))
    by_worker = problems.finite_sum(MODEL, optax.squared_error, own, 8)
    for problem, low, high in (
        (unequal(), 1, 1.01),
        (by_worker, 1, 1.01),
        (padded(), 7, 9),
    ):
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.data))
        assert low * samples <= size < high * samples


def test_samples_are_copied_once():
    """The only copy is the memory of the problem's data."""
    images = np.arange(20_000 * 300, dtype=np.float32).reshape(20_000, 300) % 7
    parts = np.split(np.arange(20_000), [3, 9, 9000, 9003, 9010, 9020, 9030])
    model = problems.Model(lambda key: jnp.zeros(300), lambda params, inputs: inputs @ params)
    tracemalloc.start()
    data = problems.finite_sum(model, optax.squared_error, (images, images[:, 0]), 8, parts).data
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(data, pooled.Pooled)
    assert images.nbytes < kept <= most < 1.2 * images.nbytes


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_each_device_has_at_most_the_rows_of_the_one_with_the_most(devices):
    data, n = pooled.lay_out(unequal().data, devices), 8 // devices
    assert data.inputs.shape[1] == -(-np.reshape(SIZES, (devices, n)).sum(axis=1).max() // n)


GOSSIP = algorithms.decentralized_sgd(optax.sgd(0.01), topologies.ring(8))
HALF = dsgd.work.micro_batches(np.arange(24).reshape(8, 3) % 2 == 0)
RUNS = {
    "without replacement": (algorithms.local_sgd(optax.sgd(0.01), 2), {"replacement": False}),
    "epochs": (MB, {"replacement": "epoch"}),
    "exact": (algorithms.gradient_descent(optax.sgd(0.01)), {"weights": "samples", "l2": 0.1}),
    "exact at local models": (
        GOSSIP._replace(query=lambda state, round: GOSSIP.query(state, round)._replace(exact=True)),
        {"chunk": 64},
    ),
    "one worker": (algorithms.sgd(optax.sgd(0.01)), {"weights": "samples"}),
    "micro-batches": (algorithms.with_local_work(MB, HALF), {}),
}
SHORT = {"exact at local models", "micro-batches"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else pytest.mark.long) for name in RUNS]
)
def test_runs_are_those_of_padded_arrays(name):
    method, options = RUNS[name]
    train_loss = name.startswith("exact")
    one, other = (
        dsgd.run(method, problem(**options), steps=3, key=KEY, mesh=devices, train_loss=train_loss)
        for problem, devices in ((unequal, 4), (padded, 1))
    )
    np.testing.assert_allclose(one.params, other.params, rtol=2e-5, atol=1e-6)
    for scalar in ("loss", "grad_sqnorm", *["train_loss"] * train_loss):
        np.testing.assert_allclose(one.history[scalar], other.history[scalar], rtol=2e-5)


def test_a_pool_laid_out_for_other_devices_is_refused():
    wrong = unequal()._replace(data=pooled.lay_out(unequal().data, 2))
    with pytest.raises(ValueError, match="laid out for 2 devices"):
        dsgd.run(MB, wrong, steps=1, key=KEY, mesh=1)


def last(method: dsgd.Algorithm, problem: dsgd.Problem, mesh: Any) -> np.ndarray:
    return np.asarray(dsgd.run(method, problem, steps=3, key=KEY, mesh=mesh).params)


@pytest.mark.parametrize(("replacement", "devices"), [(False, 1), ("epoch", 2)])
@pytest.mark.parametrize("make", [unequal, padded])
def test_batches_of_all_samples_are_not_drawn(make, replacement, devices, monkeypatch):
    """Their gradients are the means over the samples in place, and equal those of the samples in a
    random order. Smaller batches, and parts of batches, are drawn.
    """
    problem = make(batch_size=4000, replacement=replacement)

    def draw(*arguments):
        return problem.sampler.draw(*arguments)

    shuffled = problem._replace(sample=replace(problem.sampler, draw=draw))
    methods = MB, algorithms.decentralized_sgd(optax.sgd(0.02), topologies.ring(8))
    expected = [last(method, shuffled, devices) for method in methods]

    def refuse(*arguments):
        raise ValueError("a batch is drawn")

    monkeypatch.setattr(Minibatch, "__call__", refuse)
    for method, found in zip(methods, expected, strict=True):
        assert np.abs(found).max() > 0.01
        np.testing.assert_allclose(last(method, problem, devices), found, rtol=1e-4, atol=1e-6)
    work = dsgd.LocalWork(np.ones((8, 1), int), np.full((8, 1), 0.5))
    for method, other in (
        (MB, make(batch_size=3999, replacement=replacement)),
        (MB, make(batch_size=4000, replacement=True)),
        (algorithms.with_local_work(MB, work), problem),
    ):
        with pytest.raises(ValueError, match=r"a batch is drawn"):
            last(method, other, devices)
