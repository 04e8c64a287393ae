"""Constants, draws, types and zeros of compressors and compressed methods, at values at which the
formulas differ from simpler ones.
"""

from __future__ import annotations

import math
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse

import algorithms
import dsgd
from algorithms import three_points
from dsgd import compressors, problems
from dsgd.base import Common
from dsgd.compressors.members import constant_at
from dsgd.wire import codecs

KEY = jax.random.key(0)
TWO, THREE, ONE_OF = (compressors.top_k(k=2), compressors.top_k(k=3), compressors.random_k(k=1))


def matrix_problem(shape: tuple[int, int]) -> dsgd.Problem:
    """Returns the problem of two workers whose gradients are constant."""
    return dsgd.Problem(
        init=lambda key: jnp.zeros(shape),
        loss=jnp.vdot,
        data=np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32),
        sample=lambda key, data: data,
        name="linear",
    )


# --- Constants.


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (three_points.v1(TWO), (1, 3 / 5)),
        (three_points.v2(TWO, ONE_OF), (2 / 5, 3 / 5 * 4)),
        (three_points.v3(TWO, three_points.lag(3.0)), (1, 3 / 5 * 3)),
        (three_points.v4(TWO, THREE), (1 - math.sqrt(6 / 25), 6 / 25 / (1 - math.sqrt(6 / 25)))),
        (three_points.v5(ONE_OF, 0.3), (0.3, 0.7 * 4)),
        (three_points.ef21(TWO), (1 - math.sqrt(3 / 5), 3 / 5 / (1 - math.sqrt(3 / 5)))),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_constants_of_three_point_compressors(point, expected):
    """For 5 elements: delta = 2/5 and 3/5, omega = 4."""
    assert point.constants(5) == pytest.approx(expected)


@pytest.mark.parametrize(("d", "fraction", "sample"), [(6, 0.5, 0.5), (5, 0.6, 0.6), (7, 0.4, 0.4)])
def test_the_contraction_of_sampled_top_k_counts_all_samples(d, fraction, sample):
    """The threshold is the r-th largest of s drawn elements, whose rank is R: with E min(k, R) by
    enumeration, for r = 2, 2 and 2.
    """
    k, s = math.ceil(fraction * d), math.ceil(sample * d)
    r = math.ceil(s * k / d)
    ranks = [sorted(drawn)[r - 1] + 1 for drawn in product(range(d), repeat=s)]
    expected = np.minimum(k, ranks).mean() / d
    assert r == 2
    delta = compressors.sampled_top_k(fraction, sample).delta
    assert constant_at(delta, d) == pytest.approx(expected)


@pytest.mark.parametrize(("fraction", "rank"), [(0.07, 7), (0.071, 8), (0.29, 29), (0.0001, 1)])
def test_the_rank_of_dion_is_rounded_up_once(fraction, rank):
    """Although 0.07 * 100 = 7.000000000000001."""
    method = algorithms.dion(optax.sgd(0.1), fraction)
    state = jax.eval_shape(lambda: method.init({"w": jnp.zeros((100, 120))}, 2))
    assert state.server.Q[0].shape[1] == rank


@pytest.mark.parametrize("shape", [(2, 5), (5, 2), (3, 4)])
def test_a_rank_above_a_side_of_a_matrix_is_that_side(shape):
    """PowerSGD then sends the gradient without error, as r (a + b) numbers."""
    problem = matrix_problem(shape)
    compressed, exact = (
        dsgd.run(method, problem, steps=2, key=KEY, mesh=1)
        for method in (
            algorithms.powersgd(optax.sgd(0.5), 4),
            algorithms.minibatch_sgd(optax.sgd(0.5)),
        )
    )
    np.testing.assert_allclose(compressed.params, exact.params, rtol=1e-5, atol=1e-6)
    numbers = min(shape) * sum(shape)
    assert compressed.history["bits"][-1] / exact.history["bits"][-1] == pytest.approx(
        numbers / math.prod(shape)
    )


# --- Types and purity.


def test_dion_makes_steps_along_large_gradients_in_half_precision():
    """The square of the factor's norm, 300^2 times 12, is out of the range of float16."""
    problem = matrix_problem((3, 4))._replace(
        init=lambda key: jnp.zeros((3, 4), jnp.float16), data=np.full((2, 3, 4), 300, np.float16)
    )
    method = algorithms.dion(optax.sgd(0.5), 0.25)
    x = dsgd.run(method, problem, steps=1, key=KEY, mesh=1).params
    # The direction is the matrix of rank 1 with norm 1, scaled by the root of the shape's ratio.
    np.testing.assert_allclose(
        np.abs(np.asarray(x, float)), 0.5 / math.sqrt(12) * math.sqrt(4 / 3), rtol=0.01
    )


def test_the_momentum_of_demo_does_not_have_half_precision():
    method = algorithms.demo(optax.sgd(0.1), 0.9, 1, 4)
    state = method.init({"w": jnp.zeros(8, jnp.bfloat16)}, 2)
    assert state.workers["w"].dtype == jnp.float32
    assert state.workers["w"].shape == (2, 8)


def test_a_sparse_matrix_that_is_passed_is_not_changed():
    """With entries to add, a stored zero and columns that are not sorted."""
    matrix = scipy.sparse.csr_array(
        (np.array([1.0, 2.0, 0.0, 4.0, 5.0]), np.array([2, 2, 1, 3, 0]), np.array([0, 3, 5])),
        shape=(2, 4),
    )
    before = [part.copy() for part in (matrix.data, matrix.indices, matrix.indptr)]
    rows = problems.sparse_rows(matrix)
    for part, same in zip((matrix.data, matrix.indices, matrix.indptr), before, strict=True):
        np.testing.assert_array_equal(part, same)
    assert float(np.sum(rows.values)) == 12


# --- Draws and zeros.


@pytest.mark.parametrize("name", ["induced", "repeated"])
def test_the_messages_of_one_vector_have_different_common_draws(name):
    """Otherwise the second one would contain the elements that the first has sent."""
    drawn = compressors.shared_random_k(k=3)
    once = compressors.contraction(drawn)  # sends three elements unscaled
    both = {
        "induced": compressors.induced(once, drawn),
        "repeated": compressors.repeated(once, 2),
    }[name]
    x = jnp.arange(1.0, 13)

    def send(key):
        common = Common(key, jnp.int32(0), 2)
        return compressors.encode(both, KEY, x, common=common).decoded

    decoded = np.asarray(jax.vmap(send)(jax.random.split(KEY, 40)))
    numbers = np.count_nonzero(decoded, axis=1)
    assert numbers.max() == 6
    # One of 220 pairs of triples is equal, and 84 are disjoint.
    assert numbers.mean() == pytest.approx(6 - 9 / 12, abs=0.4)


@pytest.mark.parametrize("value", [0.0, -3.25])
def test_a_constant_vector_is_in_the_bin_of_its_mean(value):
    message = compressors.encode(compressors.two_bit, KEY, jnp.full(7, value)).message
    np.testing.assert_array_equal(codecs.unpack(message.codes, 2, 7), 2)
    np.testing.assert_allclose(message.table, [0, 0, value, 0], rtol=1e-6)


@pytest.mark.parametrize(
    "compressor",
    [
        compressors.threshold(0.5),
        *(compressors.sidco(0.3, stages) for stages in (1, 2, 3)),
    ],
    ids=lambda each: each.name,
)
def test_zeros_are_not_sent(compressor):
    message = compressors.encode(compressor, KEY, jnp.zeros(7)).message
    assert compressor.bits(message) == 32  # the number of elements


@pytest.mark.parametrize("stages", [1, 2])
def test_if_no_element_reaches_the_threshold_none_is_sent(stages):
    compressor = compressors.sidco(0.05, stages)
    message, decoded = compressors.encode(compressor, KEY, jnp.full(9, -2.0))
    assert compressor.bits(message) == 32
    np.testing.assert_array_equal(decoded, 0)
