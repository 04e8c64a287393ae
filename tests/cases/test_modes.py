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

N = 4
KEY = jax.random.key(0)
PROBLEM = problems.random_quadratic(N, 3, noise=0.3, seed=0)
SGD = algorithms.minibatch_sgd(optax.sgd(0.1))
CLUSTER = clusters.Cluster(clusters.exponential(1e-3), up=clusters.constant(1e6))
# its rounds are measured: NaN before the first
KIMAD = algorithms.kimad_sgd(optax.sgd(0.1), algorithms.kimad.top_k((0.1, 0.3)), 1e-3)


def run(algorithm=SGD, problem=PROBLEM, **options):
    return dsgd.run(algorithm, problem, **{"steps": 3, "key": KEY, "mesh": 1} | options)


CASES = {
    "losses": partial(run, train_loss=True, evaluate_every=2),
    "measured": partial(run, KIMAD, cluster=CLUSTER),
    "staleness": partial(run, algorithms.asynchronous_sgd(optax.adam(0.1))),
}


@contextmanager
def strictly():
    """All flags at once that make JAX refuse more."""
    with (
        jax.numpy_dtype_promotion("strict"),
        jax.transfer_guard("disallow"),
        jax.transfer_guard_host_to_device("disallow_explicit"),
        jax.debug_nans(True),
        jax.debug_infs(True),
    ):
        yield


def same_history(one: dsgd.Result, other: dsgd.Result) -> None:
    for name, values in other.history.items():
        np.testing.assert_array_equal(one.history[name], values)


@pytest.mark.parametrize("case", CASES)
def test_a_healthy_run_is_the_same_under_strict_flags(case):
    expected = CASES[case]()
    with strictly():
        same_history(CASES[case](), expected)


@pytest.mark.long
def test_a_healthy_run_is_the_same_if_leaks_are_checked():
    with jax.checking_leaks():
        checked = run()
    same_history(checked, run())


def test_flags_are_the_users_again_after_a_run():
    with jax.debug_nans(True), jax.transfer_guard("disallow"):
        run()
        with pytest.raises(FloatingPointError):
            jax.jit(lambda x: x / x)(jax.device_put(np.float32(0)))
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
            jax.jit(lambda x: x + 1)(np.ones(3))


@pytest.mark.parametrize("flag", [jax.debug_nans, jax.debug_infs])
def test_a_diverging_run_is_said_to_diverge(flag):
    with flag(True), pytest.raises(dsgd.Diverged, match=r"the loss is (nan|inf|-inf) after round"):
        run(algorithms.minibatch_sgd(optax.sgd(1e30)))


def test_a_clock_with_workers_that_do_not_participate_stays_single_precision_with_x64():
    away = clusters.Cluster(clusters.constant(1e-3), present=clusters.sampled(2, N), present_for=2)
    with jax.enable_x64(True):
        seconds = run(algorithms.local_sgd(optax.sgd(0.1), 2), cluster=away).history["clock"]
    assert np.isfinite(seconds).all()
    assert seconds[-1] > 0


def test_precision_changes_from_run_to_run_in_one_process():
    single, kind = run(), np.float32
    with jax.enable_x64(True):
        problem = problems.random_quadratic(N, 3, noise=0.3, seed=0)
        double = run(problem=problem)
        assert double.params.dtype == np.float64
    again = run()
    assert again.params.dtype == kind
    same_history(again, single)


def test_without_jit_a_run_warns_and_is_the_same():
    expected = run()
    with (
        jax.disable_jit(),
        pytest.warns(UserWarning, match=r"run: jax_disable_jit does not apply") as told,
    ):
        same_history(run(), expected)
    assert told[0].filename == __file__


def meshes() -> dict[str, Mesh]:
    devices = jax.devices()[:2]
    types = {"explicit": AxisType.Explicit, "automatic": AxisType.Auto}
    return {
        name: jax.make_mesh((2,), ("workers",), axis_types=(kind,), devices=devices)
        for name, kind in types.items()
    }


@pytest.mark.parametrize("name", meshes())
def test_a_mesh_of_any_type_of_axis_is_the_mesh_of_its_devices(name):
    expected, result = run(mesh=2), run(mesh=meshes()[name])
    same_history(result, expected)
    assert result.params.sharding == expected.params.sharding


@pytest.mark.parametrize(("shape", "names"), [((2,), ("x",)), ((2, 1), ("workers", "model"))])
def test_a_mesh_of_other_axes_is_refused(shape, names):
    mesh = jax.make_mesh(shape, names, devices=jax.devices()[:2])
    with pytest.raises(
        ValueError, match=r"expected one axis 'workers'; pass dsgd.workers.mesh\(2\)"
    ):
        run(mesh=mesh)


def test_a_run_does_not_see_the_mesh_of_set_mesh():
    expected = run(mesh=2)
    with jax.set_mesh(
        jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])
    ):
        same_history(run(mesh=2, key=jax.random.key(0)), expected)
        assert jax.sharding.get_abstract_mesh().axis_names == ("x",)


def final(**options) -> jax.Array:
    return run(**options).params


TRACED = {
    "key": (r"run: key is traced", lambda: jax.jit(lambda key: final(key=key))(KEY)),
    "data": (
        r"run: problem\.data\.A is traced",
        lambda: jax.jit(lambda data: final(problem=PROBLEM._replace(data=data)))(PROBLEM.data),
    ),
    "steps": (r"run: steps is traced", lambda: jax.jit(lambda steps: final(steps=steps))(3)),
    "start": (
        r"run: start\.server.* is traced",
        lambda: jax.grad(lambda x: final(start=dsgd.State(x)).sum())(jnp.ones(3)),
    ),
    "step size": (
        r"run: a value that the method or the problem uses is traced",
        lambda: jax.grad(
            lambda rate: final(algorithm=algorithms.minibatch_sgd(optax.sgd(rate))).sum()
        )(0.1),
    ),
    "sweep": (
        r"sweep: rate is traced",
        lambda: jax.vmap(
            lambda rate: dsgd.sweep(lambda rate: SGD, PROBLEM, steps=1, key=KEY, rate=rate).history[
                "loss"
            ]
        )(jnp.ones((2, 1))),
    ),
    "round": (
        r"compile_round: the call is traced",
        lambda: jax.eval_shape(lambda: dsgd.compile_round(SGD, PROBLEM) and 0.0),
    ),
}


@pytest.mark.parametrize("what", TRACED)
def test_a_transformed_run_is_refused(what):
    match, call = TRACED[what]
    with pytest.raises(ValueError, match=match):
        call()


def last_line(call) -> str:
    """Of what Python prints of the error."""
    with pytest.raises(Exception) as caught:
        call()
    return "".join(traceback.format_exception(caught.value)).rstrip().splitlines()[-1]


def mine(**members) -> dsgd.Algorithm:
    return SGD._replace(name="mine", **members)


def branching(x):
    return x if x[0] > 0 else -x


SIGN = compressors.sign._replace(name="my sign")
BRANCH = "raised TracerBoolConversionError: a traced value in if"
ROWS = np.ones((20, 3), np.float32), np.zeros(20, np.float32)
WRONG = {
    "query": (
        lambda: run(mine(query=lambda state, round: dsgd.Query(state.params))),
        "query of mine raised AttributeError.*; State has server, workers, step, fixed",
    ),
    "update": (
        lambda: run(mine(update=lambda state, gradients, round: branching(jnp.ravel(gradients)))),
        f"update of mine {BRANCH}",
    ),
    "optimizer": (
        lambda: run(
            algorithms.minibatch_sgd(optax.sgd(lambda step: branching(jnp.ravel(step))[0]))
        ),
        r"optimizer chain.* fails on these parameters \(TracerBoolConversionError: a traced value "
        r"in if",
    ),
    "loss": (
        lambda: run(problem=PROBLEM._replace(loss=lambda params, batch: params.w)),
        "loss of quadratic.* raised AttributeError",
    ),
    "evaluate": (
        lambda: run(problem=PROBLEM._replace(evaluate=lambda *_: 1 / 0)),
        "evaluate of quadratic.* raised ZeroDivisionError: division by zero",
    ),
    "compress": (
        lambda: run(
            algorithms.choco_sgd(
                optax.sgd(0.1),
                topologies.ring(N),
                SIGN._replace(compress=lambda key, x: branching(x)),
                0.1,
            )
        ),
        f"compress of my sign {BRANCH}",
    ),
    "quantity": (
        lambda: run(
            cluster=clusters.Cluster(
                clusters.Quantity(
                    lambda key, clock, worker: jnp.ones(()) if clock > 1 else jnp.zeros(()),
                    "mine",
                    True,
                )
            )
        ),
        "quantity 'mine': sample: TracerBoolConversionError: a traced value in if",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_last_line_of_an_error_names_the_function_and_the_cause(what):
    call, expected = WRONG[what]
    line = last_line(call)
    assert re.search(expected, line), line
