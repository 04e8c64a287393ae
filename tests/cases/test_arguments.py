"""Which function and which argument a refusal names."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms import cannikin, three_points
from algorithms.mechanisms import memories
from dsgd import compressors, problems

SGD = optax.sgd(0.1)
SIGN = compressors.sign
UP, DOWN = memories.Up(SIGN, error=0.7), memories.Down(SIGN)
CODE = compressors.random_places(0.5, unbiased=False)
DELEGATED = {
    "lag: threshold": lambda: algorithms.lag(SGD, -1),
    "proximal_gradient: step_size": lambda: algorithms.proximal_gradient(-1),
    "drive: rounds": lambda: compressors.drive(rounds=-1),
    "random_quantization: bucket": lambda: compressors.random_quantization(4, -1),
    "sketched_sgd: rows": lambda: algorithms.sketched_sgd(SGD, 0.5, 8, rows=-1),
    "random_quadratic: noise": lambda: problems.random_quadratic(4, 2, noise=-1),
    "goodput: noise_scale": lambda: cannikin.goodput(1.0, 8, -1, 8),
}


@pytest.mark.parametrize("where", DELEGATED)
def test_a_refusal_names_the_function_that_was_called(where):
    """Also if it passes the argument on to another public function."""
    with pytest.raises(ValueError, match=rf"^{where} = -1"):
        DELEGATED[where]()


def adacomm(**options):
    return algorithms.adacomm(SGD, 4, 3, **options)


REFUSED = {
    r"error_feedback: error of up = -1.0; expected a number in \[0, inf\)": lambda: (
        algorithms.error_feedback(SGD, UP._replace(error=-1.0))
    ),
    "error_feedback: compressor of up = 'sign'; .*compressor": lambda: algorithms.error_feedback(
        SGD, UP._replace(compressor="sign")
    ),
    "error_feedback: compressor of down = None; .*compressor": lambda: algorithms.error_feedback(
        SGD, UP, DOWN._replace(compressor=None)
    ),
    r"error_feedback: memory of down = array\(.*'error'": lambda: algorithms.error_feedback(
        SGD, UP, DOWN._replace(memory=np.arange(4.0))
    ),
    r"error_feedback: over of up = array\(.*'arrived'": lambda: algorithms.error_feedback(
        SGD, UP._replace(over=np.arange(4.0))
    ),
    "error_feedback: vector = gradient: step = 3; .*function": lambda: algorithms.error_feedback(
        SGD, UP, vector=memories.gradient._replace(name="gradient", step=3)
    ),
    "three_point: point = ef21: apply = 3; .*function": lambda: algorithms.three_point(
        SGD, three_points.ef21(SIGN)._replace(name="ef21", apply=3)
    ),
    "with_seed: code = mine: encode = None; .*function": lambda: compressors.with_seed(
        CODE._replace(name="mine", encode=None)
    ),
    **{
        rf"{name}: epsilon = {re.escape(repr(tau))}; .*1e-18": partial(
            getattr(algorithms, name), SGD, 2, 0.1, epsilon=tau
        )
        for name in ("fed_adam", "fed_yogi", "fed_adagrad")
        for tau in (0.0, 1e-45, 1e300)
    },
    r"adacomm: schedule\(0\) = .*number above 0": lambda: adacomm(schedule=optax.sgd),
    r"adacomm: schedule\(0\) = -0.1; .*number above 0": lambda: adacomm(schedule=lambda t: -0.1),
    r"adacomm: schedule: RuntimeError: no": lambda: adacomm(schedule=_fails),
    r"adacomm: minimum = Array\(\[0.5\].*number": lambda: adacomm(minimum=jnp.array([0.5])),
    "adacomm: minimum = -inf; .*number": lambda: adacomm(minimum=-np.inf),
}


def _fails(t):
    raise RuntimeError("no")


@pytest.mark.parametrize("words", REFUSED)
def test_it_is_refused_where_it_is_passed(words):
    with pytest.raises(ValueError, match=rf"^{words}"):
        REFUSED[words]()


def test_a_schedule_that_becomes_negative_ends_the_run():
    method = adacomm(schedule=lambda t: 0.3 - 0.1 * t, minimum=-5.0)
    problem = problems.random_quadratic(2, 3)
    with pytest.raises(ValueError, match=r"adacomm: the schedule returns -0\.09999"):
        dsgd.run(method, problem, steps=6, key=jax.random.key(0), mesh=1)


@pytest.mark.parametrize(("tau", "dtype"), [(1e-18, jnp.float16), (1e18, jnp.float32)])
def test_the_degrees_of_adaptivity_at_both_ends_are_finite(tau, dtype):
    """Also where all gradients are 0."""
    model = problems.Model(lambda key: jnp.zeros(2, dtype), lambda x, a: a @ x)
    data = np.eye(2, dtype=dtype)[[0, 0]], np.ones(2, dtype)
    problem = problems.finite_sum(model, optax.squared_error, data, 2, batch_size=None)
    method = algorithms.fed_adam(SGD, 2, 0.1, epsilon=tau)
    x = dsgd.run(method, problem, steps=4, key=jax.random.key(0), mesh=1).params
    assert x[1] == 0
    assert np.isfinite(x).all()
    assert (x[0] > 0.01) == (tau < 1)
