"""Runs under JAX's flags, contexts and transformations, and errors of users' functions."""

from __future__ import annotations

import re
import traceback
from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh

import algorithms
import dsgd
import topologies
from dsgd import clusters, compressors, problems
from tests.dsgd import by_hand

N = 4
PROBLEM = problems.random_quadratic(N, 3, noise=0.3, seed=0)
SGD = algorithms.minibatch_sgd(optax.sgd(0.1))
CLUSTER = clusters.Cluster(clusters.exponential(1e-3), up=clusters.constant(1e6))
# its rounds are measured: NaN before the first
KIMAD = algorithms.kimad_sgd(optax.sgd(0.1), algorithms.kimad.top_k((0.1, 0.3)), 1e-3)


def run(method=SGD, problem=PROBLEM, **options):
    return by_hand.run(method, problem, **{"steps": 3} | options)


def assert_same(one: dsgd.Result, other: dsgd.Result) -> None:
    np.testing.assert_equal(one.history, other.history)


@contextmanager
def strictly():
    """Sets all flags with which JAX is stricter."""
    with (
        jax.numpy_dtype_promotion("strict"),
        jax.transfer_guard("disallow"),
        jax.transfer_guard_host_to_device("disallow_explicit"),
        jax.debug_nans(True),
        jax.debug_infs(True),
    ):
        yield


@contextmanager
def without_jit():
    with (
        jax.disable_jit(),
        pytest.warns(UserWarning, match="run: jax_disable_jit has no effect") as caught,
    ):
        yield
    assert caught[0].filename == __file__


@contextmanager
def set_mesh():
    explicit = {"axis_types": (AxisType.Explicit,), "devices": jax.devices()[:4]}
    with jax.set_mesh(jax.make_mesh((4,), ("x",), **explicit)):
        yield
        assert jax.sharding.get_abstract_mesh().axis_names == ("x",)


CASES = {
    "losses": (partial(run, train_loss=True, evaluate_every=2), strictly),
    "measured": (partial(run, KIMAD, cluster=CLUSTER), strictly),
    "staleness": (partial(run, algorithms.asynchronous_sgd(optax.adam(0.1))), strictly),
    "leaks": (run, jax.checking_leaks),
    "without jit": (run, without_jit),
    "another mesh": (lambda: run(mesh=2, key=jax.random.key(0)), set_mesh),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.long if case == "leaks" else ()) for case in CASES],
)
def test_a_healthy_run_is_the_same_in_any_mode_of_jax(case):
    call, mode = CASES[case]
    with mode():
        found = call()
    assert_same(found, call())


def test_flags_are_the_users_again_after_a_run():
    with jax.debug_nans(True), jax.transfer_guard("disallow"):
        run()
        with pytest.raises(FloatingPointError):
            jax.jit(lambda x: x / x)(jax.device_put(np.float32(0)))
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
            jax.jit(lambda x: x + 1)(np.ones(3))


@pytest.mark.parametrize("flag", [jax.debug_nans, jax.debug_infs])
def test_a_diverging_run_is_reported(flag):
    with flag(True), pytest.raises(dsgd.Diverged, match=r"the loss is (nan|inf|-inf) after round"):
        run(algorithms.minibatch_sgd(optax.sgd(1e30)))


def mesh(kind: AxisType, *names: str) -> Mesh:
    shape = 2, *[1] * (len(names) - 1)
    types = (kind,) * len(names)
    return jax.make_mesh(shape, names, axis_types=types, devices=jax.devices()[:2])


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_a_mesh_of_any_type_of_axis_is_the_mesh_of_its_devices(kind):
    expected, result = run(mesh=2), run(mesh=mesh(kind, "workers"))
    assert_same(result, expected)
    assert result.params.sharding == expected.params.sharding


@pytest.mark.parametrize("names", [("x",), ("workers", "model")])
def test_a_mesh_of_other_axes_is_refused(names):
    with pytest.raises(ValueError, match="expected one axis 'workers'"):
        run(mesh=mesh(AxisType.Auto, *names))


def final(**options) -> jax.Array:
    return run(**options).params


def sweep_rate(rate):
    return dsgd.sweep(lambda rate: SGD, PROBLEM, steps=1, key=jax.random.key(0), rate=rate).params


TRACED = {
    "run: key is": lambda: jax.jit(lambda key: final(key=key))(jax.random.key(0)),
    r"run: problem\.data\.A is": lambda: jax.jit(
        lambda data: final(problem=PROBLEM._replace(data=data))
    )(PROBLEM.data),
    "run: steps is": lambda: jax.jit(lambda steps: final(steps=steps))(3),
    r"run: start\.server.* is": lambda: jax.grad(lambda x: final(start=dsgd.State(x)).sum())(
        jnp.ones(3)
    ),
    "run: a value that the method or the problem uses is": lambda: jax.grad(
        lambda rate: final(method=algorithms.minibatch_sgd(optax.sgd(rate))).sum()
    )(0.1),
    "sweep: rate is": lambda: jax.vmap(sweep_rate)(jnp.ones((2, 1))),
    "compile_round: the call is": lambda: jax.eval_shape(
        lambda: dsgd.compile_round(SGD, PROBLEM) and 0.0
    ),
}


@pytest.mark.parametrize("what", TRACED)
def test_a_transformed_run_is_refused(what):
    with pytest.raises(ValueError, match=f"{what} traced"):
        TRACED[what]()


def branching(x):
    return x if x[0] > 0 else -x


def change(**members) -> dsgd.Algorithm:
    return SGD._replace(name="mine", **members)


SIGN = compressors.sign._replace(name="my sign", compress=lambda key, x: branching(x))
COMPRESSED = algorithms.choco_sgd(optax.sgd(0.1), topologies.ring(N), SIGN, 0.1)
SCHEDULED = optax.sgd(lambda step: branching(jnp.ravel(step))[0])
QUANTITY = clusters.Quantity(
    lambda key, clock, worker: branching(jnp.ravel(clock))[0], "mine", positive=True
)
WRONG = {
    "query of mine raised AttributeError.*; State has server, workers, step, fixed": {
        "method": change(query=lambda state, round: dsgd.Query(state.params))
    },
    "update of mine raised TracerBoolConversionError: a traced value in if": {
        "method": change(update=lambda state, gradients, round: branching(jnp.ravel(gradients)))
    },
    r"optimizer chain.* \(TracerBoolConversionError": {
        "method": algorithms.minibatch_sgd(SCHEDULED)
    },
    "loss of quadratic.* raised AttributeError": {
        "problem": PROBLEM._replace(loss=lambda params, batch: params.w)
    },
    "evaluate of quadratic.* raised ZeroDivisionError: division by zero": {
        "problem": PROBLEM._replace(evaluate=lambda *_: 1 / 0)
    },
    "compress of my sign raised TracerBoolConversionError": {"method": COMPRESSED},
    "quantity 'mine': sample: TracerBoolConversionError": {"cluster": clusters.Cluster(QUANTITY)},
}


@pytest.mark.parametrize("line", WRONG)
def test_the_last_line_of_an_error_names_the_function_and_the_cause(line):
    with pytest.raises(Exception) as caught:
        run(**WRONG[line])
    last = "".join(traceback.format_exception(caught.value)).rstrip().splitlines()[-1]
    assert re.search(line, last), last
