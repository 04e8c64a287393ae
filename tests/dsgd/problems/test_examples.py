"""Batches: draws from a worker's samples, with and without replacement, and in epochs."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import algorithms
import dsgd
from dsgd import clusters, problems
from dsgd.engine import oracle, pooled, run_keys

SIZES = [1, 2, 4, 9]
N, M = len(SIZES), sum(SIZES)
PARTS = np.split(np.arange(M), np.cumsum(SIZES)[:-1])
KEY = jax.random.key(0)
MODEL = problems.Model(
    lambda key: jnp.zeros(()), lambda x, inputs: jnp.broadcast_to(x, (len(inputs),))
)


@cache
def numbered_problem(**options: Any) -> dsgd.Problem:
    """Returns a problem in which worker n's samples are the numbers in `PARTS[n]`; f_n(x) is half
    their mean squared distance from x.
    """
    data, options = (np.arange(M), np.arange(float(M))), {"replacement": False, **options}
    return problems.finite_sum(MODEL, optax.l2_loss, data, N, PARTS, **options)


def worker(problem: dsgd.Problem, n: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[n], problem.data)


def draw(problem: dsgd.Problem, n: int, draws: int, *number: Any) -> problems.Examples:
    """Returns many batches of one worker, `[draws, B, ...]`."""
    sample = jax.jit(jax.vmap(lambda key: problem.sample(key, worker(problem, n), *number)))
    return sample(jax.random.split(KEY, draws))


@pytest.mark.parametrize(
    ("replacement", "batch_size", "outcomes"),
    [(True, 2, 4**2), (False, 2, 4 * 3), (False, 4, 24), ("epoch", 4, 24)],
)
def test_all_ordered_batches_are_equally_likely(replacement, batch_size, outcomes):
    """For a worker with four samples; padding is never drawn."""
    problem = numbered_problem(batch_size=batch_size, replacement=replacement)
    number = [jnp.int32(7)] * (replacement == "epoch")
    batches = np.asarray(draw(problem, 2, outcomes * 400, *number).inputs)
    _, times = np.unique(batches @ (10 ** np.arange(batch_size)), return_counts=True)
    assert len(times) == outcomes
    assert stats.chisquare(times).pvalue > 1e-4


@pytest.mark.parametrize("replacement", [True, False])
def test_workers_draw_their_own_samples_without_replacement(replacement):
    problem = numbered_problem(batch_size=4, replacement=replacement)
    for n, size in enumerate(SIZES):
        batches = draw(problem, n, 300)
        counted = np.asarray(batches.weights) > 0
        assert (counted.sum(axis=1) == (4 if replacement else min(4, size))).all()
        assert set(np.asarray(batches.inputs)[counted]) == set(PARTS[n])
        np.testing.assert_array_equal(batches.inputs, batches.targets)
        each = [len(set(row[of])) for row, of in zip(np.asarray(batches.inputs), counted)]  # noqa: B905
        assert (min(each) == min(4, size)) == (not replacement or size == 1)
        assert problem.sampler.truncate is not None
        for count in (1, 3):
            cut = problem.sampler.truncate(
                jax.tree.map(lambda leaf: leaf[0], batches), jnp.int32(count)
            )
            np.testing.assert_array_equal(cut.weights, counted[0] & (np.arange(4) < count))


# Workers with fewer samples than the batch


# Epochs by reshuffling


@cache
def counting(batch_size: int = 3) -> dsgd.Problem:
    """Returns a problem in which the gradient of a batch is -1/b at the numbers of its samples, so
    that steps count them.
    """
    model = problems.Model(lambda key: jnp.zeros(M), lambda params, inputs: params[inputs])
    options: Any = {"batch_size": batch_size, "replacement": "epoch"}
    data = np.arange(M), ()
    return problems.finite_sum(model, lambda entries, _: -entries, data, N, PARTS, **options)


def visits(params: Any) -> list[np.ndarray]:
    """Returns how often each worker has drawn each of its samples, after steps of size N along the
    mean.
    """
    return [np.asarray(params)[part] * min(3, len(part)) for part in PARTS]


COUNTING = algorithms.minibatch_sgd(optax.sgd(float(N)))
count = partial(dsgd.run, problem=counting(), key=KEY, mesh=1)


@pytest.mark.parametrize("steps", [2, 7, 36])
def test_each_epoch_visits_each_sample_once(steps):
    found = count(COUNTING, steps=steps).params
    for times, size in zip(visits(found), SIZES, strict=True):
        whole, more = divmod(steps * min(3, size), size)
        expected = [whole] * (size - more) + [whole + 1] * more
        np.testing.assert_allclose(np.sort(times), expected, rtol=1e-5)


def test_epochs_do_not_depend_on_devices_chunks_or_interruptions(tmp_path):
    whole = count(COUNTING, steps=7)
    for steps in (2, 5, 7):
        resumed = count(COUNTING, steps=steps, checkpoint=tmp_path)
    staged = count(COUNTING, steps=4, start=count(COUNTING, steps=3))
    for other in (count(COUNTING, steps=7, mesh=4), resumed, staged):
        np.testing.assert_array_equal(other.params, whole.params)


def alternating_work(state, round):
    """In 6 rounds each worker computes 9 batches."""
    counted = jnp.stack([jnp.full(N, round.step % 2 == 1), jnp.ones(N, bool)], axis=1)
    return dsgd.LocalWork(counted, jnp.ones((N, 2)))


THREE = dsgd.LocalWork(np.ones((N, 3), bool), np.ones((N, 3), np.float32))
ABSENT = np.tile([1.0, 0.0, 1.0, 1.0], (N, 1))
AWAY = clusters.Cluster(clusters.constant(1.0), present=clusters.trace(ABSENT, 1.0))


@pytest.mark.parametrize(
    ("method", "stages", "options", "epochs"),
    [
        (algorithms.with_local_work(COUNTING, alternating_work), [6], {}, 3),
        (algorithms.with_local_work(COUNTING, THREE), [1, 1], {}, 2),
        (COUNTING, [4], {"cluster": AWAY}, 1),
    ],
    ids=["micro-batches that are not computed", "stages of several micro-batches", "absence"],
)
def test_samples_that_are_not_computed_are_drawn_in_the_next_round(method, stages, options, epochs):
    """Worker 3 has whole epochs of its 9 samples."""
    start = {}
    for steps in stages:
        found = count(method, steps=steps, **options, **start)
        start = {"start": found}
    np.testing.assert_allclose(visits(found.params)[3], epochs, rtol=1e-5)


def test_a_worker_alone_draws_the_batches_of_the_loop():
    """The third batch of epochs, which is visible from one step along the mean."""
    stage = count(COUNTING, steps=2)
    third = count(COUNTING, steps=1, start=stage)
    seen = np.flatnonzero(np.asarray(third.params - stage.params))
    key = run_keys.split(KEY)[1]
    for n, part in enumerate(PARTS):
        batch = oracle.draw_batch(counting(), key, 2, n, pooled.worker_data(counting().data, n))
        assert set(np.asarray(batch.inputs)[np.asarray(batch.weights) > 0]) == set(seen) & set(part)
