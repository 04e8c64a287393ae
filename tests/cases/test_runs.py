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


def swept(metric: str, ends: np.ndarray, loss: np.ndarray | None = None, **grid: list[float]) -> dsgd.Sweep:
    """A sweep whose metric has these values at its points, with one seed and one record."""
    loss = np.zeros_like(ends) if loss is None else loss
    history = {"step": np.arange(1), "loss": loss[..., None, None], metric: ends[..., None, None]}
    return dsgd.Sweep({name: np.asarray(values) for name, values in grid.items()}, history, dsgd.State(jnp.zeros((), jnp.int32)), ())


@pytest.mark.parametrize(
    ("metric", "options", "index"),
    [
        ("test_accuracy", {}, 2),
        ("accuracy", {}, 2),
        ("test_accuracy", {"largest": False}, 1),
        ("grad_sqnorm", {}, 1),
        ("bits", {}, 1),
        ("clock", {}, 1),
        ("test_error", {}, 1),
        ("f1", {"largest": True}, 2),
        ("f1", {"largest": False}, 1),
    ],
)
def test_the_best_point_is_in_the_metric_s_direction(metric, options, index):
    found = swept(metric, np.array([0.5, 0.1, 0.9, 0.6]), rate=[1.0, 2.0, 3.0, 4.0])
    assert found.best(metric, **options) == (index,)


def test_a_metric_of_unknown_direction_needs_it():
    with pytest.raises(ValueError, match=r"best: metric = 'f1' .*; pass largest=False or largest=True"):
        swept("f1", np.array([0.5, 0.1, 0.9, 0.6]), rate=[1.0, 2.0, 3.0, 4.0]).best("f1")


def test_points_that_diverged_are_not_best_in_any_metric():
    loss = np.array([np.nan, 1.0, 1.0, 1.0, np.inf])
    found = swept("test_accuracy", np.array([1.0, 0.1, 0.4, 0.2, 1.0]), loss, rate=[1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.best("test_accuracy") == (2,)
    assert swept("bits", np.array([1.0, 6.0, 4.0, 5.0, 1.0]), loss, rate=[1.0, 2.0, 3.0, 4.0, 5.0]).best("bits") == (2,)


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ([1.0, 2.0, 3.0], "best: rate = 3 has the best loss and is the largest of its grid; a larger one"),
        ([3.0, 2.0, 1.0], "best: rate = 1 has the best loss and is the smallest of its grid; a smaller one"),
    ],
)
def test_a_best_value_at_the_edge_of_its_grid_is_warned_of(rates, told):
    ends = np.array([[9.0, 8.0], [3.0, 2.0], [2.0, 1.0]])
    with pytest.warns(UserWarning, match=told) as caught:
        assert swept("loss", ends, ends, rate=rates, of_two=[0.0, 1.0]).best() == (2, 1)
    assert len(caught) == 1  # both values of a grid of two are at its edge
    assert swept("loss", ends[[0, 2, 1]], ends[[0, 2, 1]], rate=[1.0, 2.0, 3.0], of_two=[0.0, 1.0]).best() == (1, 1)


def test_a_sweep_of_a_real_problem_finds_the_best_accuracy():
    problem = problems.logistic_regression("breast-cancer", workers=4)
    found = dsgd.sweep(lambda rate: minibatch_sgd(optax.sgd(rate)), problem, steps=20, key=KEY, mesh=1, rate=[1e-6, 0.1])
    ends = dsgd.tail_mean(found.history["test_accuracy"]).mean(axis=-1)
    assert found.best("test_accuracy") == (int(np.argmax(ends)),)
    assert ends[0] != ends[1]


USES = {
    "if": lambda factor: minibatch_sgd(optax.sgd(0.1 if factor > 1 else 0.2)),
    "flag": lambda factor: minibatch_sgd(optax.sgd(0.1, momentum=0.9, nesterov=factor)),
    "loop": lambda factor: minibatch_sgd(optax.chain(*[optax.scale(0.5) for _ in range(factor)], optax.sgd(0.1))),
    "int": lambda factor: minibatch_sgd(optax.sgd(0.1 * int(factor))),
    "shape": lambda factor: minibatch_sgd(optax.sgd(jnp.sum(jnp.ones(factor)))),
    "key of a dictionary": lambda factor: minibatch_sgd(optax.sgd({0: 0.1, 1: 0.2}[factor])),
    "our own refusal": lambda factor: minibatch_sgd(optax.sgd(0.1 * checks.natural("factor", factor))),
}


@pytest.mark.parametrize("use", USES)
def test_a_hyperparameter_that_is_used_as_a_python_value_is_named(use):
    with pytest.raises(ValueError, match=r"sweep: factor is used as a Python value.*one sweep for each value of factor"):
        dsgd.sweep(
            lambda scale, factor: scaled(USES[use](factor), scale), linear(), steps=1, key=KEY, mesh=1, scale=[1.0, 2.0], factor=[0, 1]
        )


def scaled(method: dsgd.Algorithm, scale) -> dsgd.Algorithm:
    def update(key, state, gradients, round):
        return method.update(key, state, jax.tree.map(lambda leaf: scale * leaf, gradients), round)

    return method._replace(update=update)


def test_a_mistake_that_is_not_a_hyperparameter_s_stays_as_it_is():
    def factory(rate):
        method = minibatch_sgd(optax.sgd(rate))
        return method._replace(update=lambda key, state, gradients, round: len(3))

    with pytest.raises(TypeError, match="has no len"):
        dsgd.sweep(factory, linear(), steps=1, key=KEY, mesh=1, rate=[0.1, 0.2])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([True, False], "need numbers, or one sweep for each value of rate"),
        ([1, 3_000_000_000], "3000000000 does not fit int32"),
        ([1.0, 1e300], "does not fit float32"),
        ([1.0, 1e-300], "does not fit float32"),
    ],
)
def test_values_of_a_grid_that_would_be_changed_are_refused(values, told):
    with pytest.raises(ValueError, match=f"grid rate = .*{told}"):
        dsgd.sweep(lambda rate: minibatch_sgd(optax.sgd(rate)), linear(), steps=1, key=KEY, mesh=1, rate=values)
