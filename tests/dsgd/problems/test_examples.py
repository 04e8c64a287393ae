"""Batches: how they are drawn of a worker's samples."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from dsgd import problems
from dsgd.problems.examples import pad

DRAWS = 20_000
LIMIT = 5  # standard errors


def examples(sizes: list[int]) -> problems.Examples:
    """Workers with so many samples: sample i has the input `[i]` and the target i, and no two
    workers share one.
    """
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    ids = np.arange(sum(sizes))
    return pad(ids[:, None].astype(float), ids, parts)


def draw(sample, mine: problems.Examples, draws: int = DRAWS, seed: int = 0) -> problems.Examples:
    """Many batches of one worker, `[draws, B, ...]`."""
    return jax.jit(jax.vmap(sample, (0, None)))(jax.random.split(jax.random.key(seed), draws), mine)


def worker(data: problems.Examples, n: int) -> problems.Examples:
    return jax.tree.map(lambda leaf: leaf[n], data)


@pytest.mark.parametrize("replacement", [True, False])
def test_pairs_of_a_batch_are_uniform(replacement):
    """All ordered pairs are equally likely, of equal samples only with replacement; padding never
    comes.
    """
    M = 5
    batches = draw(problems.minibatch(2, replacement), worker(examples([M, 9]), 0))
    counts = np.zeros((9, 9), int)
    np.add.at(counts, (batches.targets[:, 0], batches.targets[:, 1]), 1)
    possible = np.zeros((9, 9), bool)
    possible[:M, :M] = True if replacement else ~np.eye(M, dtype=bool)
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible]).pvalue > 1e-4


@pytest.mark.parametrize("replacement", [True, False])
def test_places_in_a_batch_are_uniform(replacement):
    """The marginal distribution of every place in a longer batch."""
    M, B = 7, 6
    batches = draw(problems.minibatch(B, replacement), worker(examples([M, 12]), 0))
    for place in range(B):
        assert stats.chisquare(np.bincount(batches.targets[:, place], minlength=M)).pvalue > 1e-4


@pytest.mark.parametrize("replacement", [True, False])
def test_worker_draws_its_own_samples_with_their_classes(replacement):
    sizes = [3, 11, 6]
    data = examples(sizes)
    sample = problems.minibatch(3, replacement)
    batches = jax.vmap(partial(draw, sample, draws=500))(data)
    first = np.cumsum([0, *sizes])
    for n in range(len(sizes)):
        assert set(batches.targets[n].ravel().tolist()) == set(range(first[n], first[n + 1]))
    np.testing.assert_array_equal(batches.inputs[..., 0], batches.targets)
    np.testing.assert_array_equal(batches.weights, np.ones((3, 500, 3)))
    distinct = np.array([len(set(batch)) for batch in batches.targets.reshape(-1, 3).tolist()])
    assert bool((distinct == 3).all()) == (not replacement)


@pytest.mark.parametrize("sizes", [[2, 5, 3], [4, 4, 4]])
def test_samples_are_those_of_the_worker_with_the_most(sizes):
    """For arrays with a partition and for data by worker."""
    inputs, ends = np.arange(12.0)[:, None], np.cumsum(sizes)
    parts = np.split(np.arange(sum(sizes)), ends[:-1])
    by_worker = problems.ByWorker(lambda n: (inputs[parts[n]], inputs[parts[n], 0]))
    model = problems.Model(lambda key: jnp.zeros(()), lambda x, rows: x * rows[:, 0])
    for given, partition in (((inputs, inputs[:, 0]), parts), (by_worker, "iid")):
        problem = problems.finite_sum(model, optax.squared_error, given, 3, partition, batch_size=2)
        assert (problem.samples, problem.batch_size) == (max(sizes), 2)
