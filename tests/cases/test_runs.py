"""Runs and sweeps: callers' buffers, keys, exceptions in other processes, what the history reports, paths."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dsgd
from algorithms import ef21, minibatch_sgd, unequal_work
from dsgd import checks, clusters, compressors, problems, work

N, D, T = 4, 3, 5
KEY = jax.random.key(0)


def linear(data=None) -> dsgd.Problem:
    """The gradient is the mean of the batch, or of the worker's data."""
    rows = np.zeros((N, 2, D), np.float32) if data is None else data
    return dsgd.Problem(
        init=lambda key: jnp.zeros(D), loss=lambda x, batch: jnp.mean(batch @ x), data=rows, sample=lambda key, own: own, name="linear"
    )


def buffer(shape, dtype=np.float32) -> np.ndarray:
    """Zeros at an address that JAX uses without a copy on CPUs."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + size].view(dtype).reshape(shape)


def drawn(t) -> np.ndarray:
    return np.random.default_rng(t).normal(size=(N, 2, D)).astype(np.float32)


@pytest.mark.parametrize("as_given", [lambda array: array, jnp.asarray, lambda array: {"rows": [array]}], ids=["numpy", "jax", "tree"])
def test_a_generator_may_refill_the_array_that_it_yielded(as_given):
    def refilled():
        rows = buffer((N, 2, D))
        for t in range(T):
            rows[:] = drawn(t)
            yield as_given(rows)
            rows[:] = np.nan

    problem = linear()
    problem = problem._replace(loss=lambda x, batch: jnp.mean(jax.tree.leaves(batch)[0] @ x), sample=lambda key, own: as_given(own))
    result = dsgd.run(minibatch_sgd(optax.sgd(1.0)), problem, steps=T, key=KEY, mesh=1, batches=refilled())
    np.testing.assert_allclose(result.params, -sum(drawn(t).mean(axis=(0, 1)) for t in range(T)), rtol=1e-5, atol=1e-6)


def test_a_sweep_s_batches_may_be_refilled():
    def refilled():
        rows = buffer((N, 2, D))
        for t in range(T):
            rows[:] = drawn(t)
            yield rows

    found = dsgd.sweep(lambda rate: minibatch_sgd(optax.sgd(rate)), linear(), steps=T, key=KEY, mesh=1, batches=refilled(), rate=[1.0, 2.0])
    expected = -sum(drawn(t).mean(axis=(0, 1)) for t in range(T))
    np.testing.assert_allclose(np.asarray(found.params)[:, 0], [expected, 2 * expected], rtol=1e-5, atol=1e-6)


def test_a_load_function_may_refill_one_array():
    inputs, targets = buffer((5, D)), buffer((5,))

    def load(worker):
        inputs[:] = worker + 1
        targets[:] = 10 * worker
        return inputs, targets

    problem = problems.finite_sum(problems.Model(lambda key: jnp.zeros(D), lambda x, rows: rows @ x), lambda out, y: (out - y) ** 2,
                                  problems.ByWorker(load), workers=N, batch_size=2)  # fmt: skip
    np.testing.assert_array_equal(problem.data.inputs[:, 0, 0], 1 + np.arange(N))
    np.testing.assert_array_equal(problem.data.targets[:, 0], 10 * np.arange(N))


def test_a_problem_s_arrays_may_be_changed_while_a_run_uses_them():
    rows = buffer((N, 2, D))
    rows[:] = 1

    def until(history):
        rows[:] = np.nan
        return False

    result = dsgd.run(minibatch_sgd(optax.sgd(1.0)), linear(rows), steps=T, key=KEY, mesh=1, until=until)
    np.testing.assert_array_equal(result.params, np.full(D, -T))


def filled(shape, value, dtype=np.float32):
    array = buffer(shape, dtype)
    array[...] = value
    return array


@pytest.mark.parametrize("shape", [(), (N,), (N, 3)])
def test_a_quantity_keeps_the_numbers_that_it_was_made_of(shape):
    array = filled(shape, 2)
    made = [clusters.constant(array)] if len(shape) < 2 else [clusters.measured(array), clusters.trace(array, 1.0)]
    array[...] = 7
    assert [float(quantity.sample(KEY, jnp.float32(0), 0)) for quantity in made] == [2] * len(made)


def test_numbers_in_arrays_without_axes_may_be_changed_afterwards():
    mean = np.array(2.0)
    made = [clusters.normal(mean, 0.0), clusters.slow(clusters.constant(1.0), [0], mean)]
    mean[...] = 7
    assert [float(quantity.sample(KEY, jnp.float32(0), 0)) for quantity in made] == [2, 2]


def test_work_keeps_the_numbers_that_it_was_made_of():
    weights, given = filled((N, 1), 2), dsgd.Work(filled((N, 1), 1, np.int32), filled((N, 1), 2))
    methods = [unequal_work(minibatch_sgd(optax.sgd(1.0)), each) for each in (work.weighted(weights), given)]
    for array in (weights, *given):
        array[...] = 0
    for method in methods:
        result = dsgd.run(method, linear(filled((N, 2, D), 1)), steps=1, key=KEY, mesh=1)
        np.testing.assert_array_equal(result.params, np.full(D, -2))


def test_a_sweep_keeps_its_grid():
    rates = np.array([0.1, 0.2])
    found = dsgd.sweep(lambda rate: minibatch_sgd(optax.sgd(rate)), linear(), steps=1, key=KEY, mesh=1, rate=rates)
    rates[:] = 7
    assert found.grid["rate"].tolist() == [0.1, 0.2]


@pytest.mark.parametrize("raw", [jax.random.PRNGKey, lambda seed: np.asarray(jax.random.PRNGKey(seed))], ids=["jax", "numpy"])
def test_raw_keys_draw_what_typed_keys_draw(raw):
    method, problem = ef21(optax.sgd(0.1), compressors.top_k(0.5), compressors.identity), linear(filled((N, 2, D), 1))
    problem = problem._replace(sample=lambda key, own: own + jax.random.normal(key, own.shape))
    options = {"steps": 3, "seeds": 2, "mesh": 1}
    expected = dsgd.run(method, problem, key=jax.random.key(5), **options)
    found = dsgd.run(method, problem, key=raw(5), **options)
    np.testing.assert_array_equal(found.params, expected.params)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (jax.random.split(KEY, 3), r"run: key = key<fry>\[3\]: expected one key, .*; pass one of these keys, keys\[0\]"),
        (jax.random.split(jax.random.PRNGKey(0), 3), r"uint32\[3, 2\]: expected one key, .*; pass one of these keys"),
        (jnp.zeros(3, jnp.uint32), r"uint32\[3\]: expected one key"),
        (jnp.zeros((), jnp.uint32), r"uint32\[\]: expected one key"),
        (jax.random.key(0, impl="rbg"), "run: key is of implementation 'rbg'.*number of devices; .*pass jax.random.key"),
        (jax.random.key(0, impl="unsafe_rbg"), "'unsafe_rbg'"),
        (jax.random.PRNGKey(0, impl="rbg"), "'rbg'"),
        (0, "need one key of JAX"),
    ],
)
def test_keys_that_are_not_one_key_or_depend_on_the_devices_are_refused(key, told):
    with pytest.raises(ValueError, match=told):
        dsgd.run(minibatch_sgd(optax.sgd(0.1)), linear(), steps=1, key=key)


def test_rbg_as_jax_s_default_is_refused_and_our_own_keys_are_not_of_it():
    with jax.default_prng_impl("rbg"):
        with pytest.raises(ValueError, match=r"'rbg'.*impl='threefry2x32'"):
            dsgd.run(minibatch_sgd(optax.sgd(0.1)), linear(), steps=1, key=jax.random.key(0))
        assert compressors.check(compressors.sign, 8).holds
        assert str(jax.random.key_impl(checks.default_key())) == "threefry2x32"
