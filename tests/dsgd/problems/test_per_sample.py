"""Gradients of single samples, transformed before their mean is computed. Their noise is tested
with dropout.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import algorithms
import dsgd
from dsgd import problems
from dsgd.engine import accumulate
from dsgd.problems import averages

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
Y = X @ np.array([1, 2, 3], np.float32)
W, C, L2 = np.array([1.0, 0, -1]), 0.7, 0.3
MODEL = problems.Model(lambda key: {"w": jnp.asarray(W)}, lambda params, x: x @ params["w"])
SGD, GD = algorithms.minibatch_sgd(optax.sgd(0.1)), algorithms.gradient_descent(optax.sgd(0.1))


def least_squares(model: Any = MODEL, **options: Any) -> Any:
    options = {"workers": 3, "batch_size": 8, "replacement": False, "l2": L2, **options}
    return problems.finite_sum(model, optax.squared_error, (X, Y), **options)


def clipped_mean(x, y):
    slopes = 2 * (x @ W - y)[:, None] * x
    norms = np.linalg.norm(slopes, axis=1, keepdims=True)
    return np.mean(slopes / np.maximum(1, norms / C), axis=0) + L2 * W


def test_gradients_are_clipped_sample_by_sample_before_their_mean(mesh, key):
    problem = problems.per_sample(least_squares(), problems.clipped(C))
    own = [clipped_mean(*map(np.asarray, each)) for each in zip(*problem.data[:2], strict=True)]
    for method in (SGD, GD):
        found: Any = dsgd.run(method, problem, steps=1, key=key, mesh=mesh).params
        np.testing.assert_allclose(found["w"], W - 0.1 * np.mean(own, axis=0), rtol=1e-5)


@pytest.mark.parametrize("budget", [1 << 28, 200])
def test_clipping_in_pieces_equals_clipping_of_the_whole_batch(monkeypatch, budget):
    monkeypatch.setattr(accumulate, "BUDGET", budget)
    problem = problems.per_sample(least_squares(), problems.clipped(C))
    slope: Any = problem.gradient
    assert (slope.chunk_size < 8) == (budget == 200)
    batch: Any = jax.tree.map(lambda leaf: leaf[0], problem.data)
    few = jax.jit(slope)(
        problem.init(jax.random.key(0)), problem.sampler.truncate(batch, jnp.int32(3))
    )["w"]
    np.testing.assert_allclose(few, clipped_mean(batch.inputs[:3], batch.targets[:3]), rtol=1e-5)


def test_each_leaf_has_noise_of_its_own_that_no_sample_draws():
    pair = problems.Model(
        lambda key: (jnp.zeros(3), jnp.zeros(3)), lambda params, x: x @ (params[0] + params[1])
    )
    exact = least_squares(pair)
    noisy = problems.per_sample(exact, lambda slope: slope, noise=2.5)
    key = jax.random.key(3)
    batch: Any = jax.tree.map(lambda leaf: leaf[0], exact.data)._replace(key=key)
    slopes: Any = [
        problem.gradient(pair.init(key), batch)
        for problem in (noisy, problems.per_sample(exact, lambda slope: slope))
    ]
    noise = [np.asarray(a - b) * 8 / 2.5 for a, b in zip(*slopes, strict=True)]
    samples = [np.asarray(jax.random.normal(each, 3)) for each in jax.random.split(key, 8)]
    few = [np.asarray(jax.random.normal(each, 3)) for each in jax.random.split(key, 2)]
    drawn = [*noise, *samples, *few, np.asarray(jax.random.normal(key, 3))]
    for i, own in enumerate(noise):
        assert np.abs(own).max() > 0.01
        assert all(np.abs(own - other).max() > 0.01 for other in [*drawn[:i], *drawn[i + 1 :]])


def test_padding_in_batch_statistics_repeats_samples():
    """Means over the rows are those of samples, each as often as the others, or once more."""
    rows = averages.counted_rows(
        problems.Examples(jnp.arange(10.0).reshape(5, 2), (), jnp.array([1.5, 0.5, 2, 0, 0]))
    )
    np.testing.assert_array_equal(rows[:, 0], [0, 2, 4, 0, 2])


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.BatchNorm(use_running_average=not train)(x)[:, 0]


def test_problems_without_per_sample_gradients_are_refused(key):
    for problem, words in (
        (problems.random_quadratic(2, 2), "custom gradient|draws batches of type"),
        (least_squares(Normalised()), "batch norm"),
    ):
        with pytest.raises(ValueError, match=f"per_sample: .*({words})"):
            problems.per_sample(problem, problems.clipped(C))
    noisy = problems.per_sample(least_squares(), problems.clipped(C), noise=1.0)
    with pytest.raises(ValueError, match=r"exact gradients .*noise"):
        dsgd.run(GD, noisy, steps=1, key=key, mesh=1)
    with pytest.raises(ValueError, match=r"clipped: norm = 0"):
        problems.clipped(0)
