"""Arrays of the host on a device of one process: results do not change if the arrays are changed
later.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import clusters, problems, work
from dsgd.machines import arrays
from tests.dsgd.by_hand import KEY, run

N = 3
SGD = algorithms.minibatch_sgd(optax.sgd(1.0))


def align(values: np.ndarray) -> np.ndarray:
    """Returns memory that XLA would use without a copy."""
    room = np.empty(values.nbytes + 64, np.uint8)
    begin = -room.ctypes.data % 64
    there = room[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    there[...] = values
    return there


def test_arrays_are_copies_of_their_own_or_the_given_type():
    values = align(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    there = jax.sharding.SingleDeviceSharding(jax.devices()[-1])
    put = arrays.put({"x": values}, there)["x"]
    same, short = arrays.from_host(values), arrays.from_host(values, jnp.bfloat16)
    values += 1
    assert put.sharding == there
    for found, kind in ((same, jnp.float32), (short, jnp.bfloat16), (put, jnp.float32)):
        assert (found.dtype, found.weak_type) == (kind, False)
        np.testing.assert_array_equal(found, np.arange(6.0).reshape(2, 3))


def linear(rows) -> dsgd.Problem:
    """Returns a problem whose gradient is the mean of the worker's data."""
    return dsgd.Problem(lambda key: jnp.zeros(8), lambda x, batch: batch @ x, rows, lambda _, x: x)


def working(*given: np.ndarray) -> dsgd.Algorithm:
    """Returns a method whose workers compute the given samples, with these weights."""
    return algorithms.with_local_work(
        SGD, dsgd.LocalWork(*given) if len(given) > 1 else work.weighted(*given)
    )


def one_round(method: dsgd.Algorithm) -> jax.Array:
    return run(method, linear(np.ones((N, 8))), 1).params


def regression(inputs, targets) -> dsgd.Problem:
    model = problems.Model(lambda key: jnp.zeros(8), lambda params, inputs: inputs @ params)
    options = {"test": (inputs, targets), "metrics": {"test_loss": optax.l2_loss}}
    return problems.finite_sum(model, optax.l2_loss, (inputs, targets), N, batch_size=1, **options)


def data(problem: dsgd.Problem):
    return problem.data, problem.evaluation.replicated


def sample(quantity: clusters.Quantity) -> jax.Array:
    return quantity.sample(KEY, jnp.float32(0), 0)


INTEGERS = np.arange(N)[:, None] + 1
MADE = {
    "constant": (clusters.constant, sample, [np.float64(2)]),
    "constants": (clusters.constant, sample, [np.arange(3.0)]),
    "measured": (clusters.measured, sample, [np.ones((N, 2))]),
    "trace": (lambda values: clusters.trace(values, 1.0), sample, [np.ones((N, 2))]),
    "weights": (working, one_round, [np.float64(INTEGERS)]),
    "work": (working, one_round, [INTEGERS // INTEGERS, np.float64(INTEGERS)]),
    "quadratic": (problems.quadratic, data, [np.ones((N, 8)), np.ones((N, 8))]),
    "finite sum": (regression, data, [np.ones((6, 8)), np.ones(6)]),
}


@pytest.mark.parametrize("what", MADE)
def test_problems_do_not_see_later_changes_of_their_arrays(what):
    make, read, given = MADE[what]
    with jax.enable_x64(True):
        taken = [*map(align, map(np.asarray, given))]
        made, expected = make(*taken), read(make(*given))
        for array in taken:
            array[...] = 7
        jax.tree.map(np.testing.assert_array_equal, read(made), expected)


def test_a_generator_may_refill_the_array_that_it_yielded():
    rows = align(np.zeros((N, 8), np.float32))

    def refill():
        for t in range(5):
            rows[:] = t
            yield rows
            rows[:] = np.nan

    result = run(SGD, linear(np.zeros((N, 8), np.float32)), 5, batches=refill())
    np.testing.assert_array_equal(result.params, np.full(8, -sum(range(5))))
