from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from scipy import stats

from dsgd import problems
from dsgd.engine import loop, oracle
from dsgd.problems.examples import pad

WORKERS, CLASSES, FEATURES = 8, 3, 5
DRAWS = 20_000
LIMIT = 5  # standard errors


def make_dataset(samples: int = 120) -> problems.Dataset:
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(samples, FEATURES)), rng.integers(0, CLASSES, samples)
    return problems.Dataset("normal", inputs, targets, inputs[:17], targets[::-1][:17], CLASSES)


DATASET = make_dataset()


def examples(sizes: list[int]) -> problems.Examples:
    """Workers with so many samples: sample i has the input `[i]` and the target i, and no two workers share one."""
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
    """All ordered pairs are equally likely, of equal samples only with replacement; padding never comes."""
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


def random_params(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(FEATURES, CLASSES)), rng.normal(size=CLASSES)


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def reference(parts: list[np.ndarray], kernel: np.ndarray, bias: np.ndarray, l2: float) -> tuple[float, np.ndarray, np.ndarray]:
    """f(x) = (1/N) sum_n (mean cross-entropy over part n) + l2/2 |x|^2, and its gradient, worker by worker."""
    loss = l2 / 2 * (np.sum(kernel**2) + np.sum(bias**2))
    kernel_slope, bias_slope = l2 * kernel, l2 * bias
    for part in parts:
        inputs, targets = DATASET.train_inputs[part], DATASET.train_targets[part]
        probabilities = softmax(inputs @ kernel + bias)
        loss -= np.log(probabilities[np.arange(len(part)), targets]).mean() / len(parts)
        error = (probabilities - np.eye(CLASSES)[targets]) / (len(part) * len(parts))
        kernel_slope = kernel_slope + inputs.T @ error
        bias_slope = bias_slope + error.sum(axis=0)
    return loss, kernel_slope, bias_slope


def evaluate(problem, params, mesh):
    measure = partial(oracle.evaluate, problem)
    over_workers = jax.shard_map(measure, mesh=mesh, in_specs=(P(), P("workers"), P()), out_specs=P(), check_vma=False)
    return jax.jit(over_workers)(params, problem.data, problem.shared)


def logistic_regression(partition: str = "dirichlet", **options):
    return problems.logistic_regression(DATASET, WORKERS, partition, alpha=1.0, **{"batch_size": 1, **options})


@pytest.mark.parametrize(("partition", "l2"), [("dirichlet", 0.0), ("dirichlet", 0.3), ("by-label", 0.3)])
def test_objective_is_the_mean_of_the_workers_means(partition, l2, mesh):
    assert_objective(partition, l2, mesh)


def test_objective_does_not_depend_on_the_devices(any_mesh):
    assert_objective("dirichlet", 0.1, any_mesh)


def assert_objective(partition, l2, mesh):
    parts = problems.split(DATASET.train_targets, WORKERS, partition, alpha=1.0)
    assert partition != "dirichlet" or np.ptp([len(part) for part in parts]) > 5
    kernel, bias = random_params()
    loss, kernel_slope, bias_slope = reference(parts, kernel, bias, l2)
    with jax.enable_x64(True):
        problem = logistic_regression(partition, l2=l2)
        params = problem.init(jax.random.key(0))._replace(kernel=jax.numpy.asarray(kernel), bias=jax.numpy.asarray(bias))
        scalars, slope = evaluate(problem, params, mesh)
    np.testing.assert_allclose(scalars["loss"], loss, rtol=1e-12)
    np.testing.assert_allclose(slope.kernel, kernel_slope, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(slope.bias, bias_slope, rtol=1e-10, atol=1e-12)
    right = (DATASET.test_inputs @ kernel + bias).argmax(axis=1) == DATASET.test_targets
    assert 0 < right.mean() < 1
    np.testing.assert_allclose(scalars["test_accuracy"], right.mean(), rtol=1e-12)


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_loss_of_a_batch_is_its_plain_mean(l2, key):
    kernel, bias = random_params()
    problem = logistic_regression(l2=l2, batch_size=4)
    params = problem.init(key)._replace(kernel=jax.numpy.asarray(kernel, float), bias=jax.numpy.asarray(bias, float))
    batch = jax.jit(problem.sample)(key, worker(problem.data, 2))
    probabilities = softmax(np.asarray(batch.inputs, np.float64) @ kernel + bias)
    expected = -np.log(probabilities[np.arange(4), batch.targets]).mean() + l2 / 2 * (np.sum(kernel**2) + np.sum(bias**2))
    np.testing.assert_allclose(jax.jit(problem.loss)(params, batch), expected, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [0, -3])
def test_batch_without_samples_is_refused(batch_size):
    with pytest.raises(ValueError, match=f"batch_size = {batch_size}: need an integer, at least 1"):
        logistic_regression(batch_size=batch_size)


@pytest.mark.parametrize("l2", [-1e-9, float("nan")])
def test_l2_that_is_not_a_weight_is_refused(l2):
    with pytest.raises(ValueError, match=f"l2 = {l2}"):
        logistic_regression(l2=l2)


def test_same_problem_built_twice_is_one_compiled_program():
    first, second = (loop.without_arrays(logistic_regression()) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize("change", [{"l2": 0.5}, {"batch_size": 2}, {"replacement": False}])
def test_problems_that_compute_differently_are_different_programs(change):
    assert loop.without_arrays(logistic_regression()) != loop.without_arrays(logistic_regression(**change))


@pytest.mark.parametrize("sizes", [[2, 5, 3], [5, 2, 3], [2, 3, 5], [4, 4, 4]])
def test_samples_are_those_of_the_worker_with_the_most(sizes):
    """For arrays with a partition and for data by worker."""
    inputs, ends = np.arange(12.0)[:, None], np.cumsum(sizes)
    parts = np.split(np.arange(sum(sizes)), ends[:-1])
    by_worker = problems.ByWorker(lambda n: (inputs[parts[n]], inputs[parts[n], 0]))
    model = problems.Model(lambda key: jnp.zeros(()), lambda x, rows: x * rows[:, 0])
    for given, partition in (((inputs, inputs[:, 0]), parts), (by_worker, "iid")):
        problem = problems.finite_sum(model, optax.squared_error, given, 3, partition, batch_size=2)
        assert (problem.samples, problem.batch_size) == (max(sizes), 2)
