"""What every registered method must hold. Registering a method puts it here."""

from __future__ import annotations

import inspect
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
from dsgd import problems
from dsgd.engine import programs

N, STEPS, SEEDS = 8, 12, 2
NAMES = list(algorithms.ALGORITHMS)
OPTIMIZERS = {"sgd": optax.sgd(0.1), "momentum": optax.sgd(0.05, momentum=0.9), "adam": optax.adam(0.05)}
SGD = list(OPTIMIZERS).index("sgd")


@pytest.fixture(scope="module", params=NAMES)
def name(request) -> str:
    """All tests of a method come one after the other, while its programs are kept."""
    return request.param


@cache
def problem() -> dsgd.Problem:
    return problems.random_quadratic(N, 5, heterogeneity=1.0, noise=0.5, seed=3)


@cache
def method(name: str) -> dsgd.Algorithm:
    return algorithms.make(name, optax.sgd(0.1), N)


def any_of_them(which: jax.Array) -> optax.GradientTransformation:
    """Each of `OPTIMIZERS` keeps its memory, one of them makes the step: a method is compiled once for all."""

    def init(params):
        return {name: optimizer.init(params) for name, optimizer in OPTIMIZERS.items()}

    def update(gradient, memory, params=None):
        each = [optimizer.update(gradient, memory[name], params) for name, optimizer in OPTIMIZERS.items()]
        change = jax.tree.map(lambda *changes: jnp.stack(changes)[which], *(change for change, _ in each))
        return change, dict(zip(OPTIMIZERS, (after for _, after in each), strict=True))

    return optax.GradientTransformation(init, update)


@cache
def factory(name: str):
    """One object for equal names, so that it is traced once."""
    return lambda which: algorithms.make(name, any_of_them(which), N)


def with_every_optimizer(name: str, devices: int, steps: int = STEPS) -> dsgd.engine.sweeps.Sweep:
    mesh, which = dsgd.workers.mesh(devices), np.arange(len(OPTIMIZERS))
    return dsgd.sweep(factory(name), problem(), steps=steps, key=jax.random.key(1), seeds=SEEDS, mesh=mesh, which=which)


@cache
def result(name: str, devices: int) -> dsgd.engine.sweeps.Sweep:
    """Leaves `[optimizers, seeds, ...]`."""
    return with_every_optimizer(name, devices)


def history(name: str) -> dict[str, np.ndarray]:
    """Of plain steps on one device, `[seeds, records]`."""
    return {key: values if key == "step" else values[SGD] for key, values in result(name, 1).history.items()}


def test_members_take_the_protocols_parameters(name):
    algorithm = method(name)
    assert list(inspect.signature(algorithm.query).parameters) == ["state", "round"]
    assert list(inspect.signature(algorithm.update).parameters) == ["key", "state", "gradients", "round"]
    assert list(inspect.signature(algorithm.model).parameters) == ["state"]
    assert len(inspect.signature(algorithm.init).parameters) == 2
    assert algorithm.name.isprintable()
    assert algorithm.workers in (None, N)


def test_update_keeps_the_states_shapes_and_tells_bits_as_counts(name, mesh):
    algorithm = method(name)
    params = problem().init(jax.random.key(0))
    state = jax.eval_shape(lambda: algorithm.init(params, N))

    def one_round(state, data, key):
        this = dsgd.Round(state.step, N, key)
        gradients = dsgd.engine.oracle.gradients(problem(), algorithm.query(state, this), key, data, N)
        return algorithm.update(key, state, gradients, this)

    spec = dsgd.State(P(), P(), P("workers"))
    sharded = jax.shard_map(one_round, mesh=mesh, in_specs=(spec, P("workers"), P()), out_specs=P(), check_vma=False)
    after, info = jax.eval_shape(sharded, state, problem().data, jax.random.key(0))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert jax.tree.leaves(after) == jax.tree.leaves(state)
    for bits in (info.bits_up, info.bits_down):
        assert bits.dtype == np.uint32
        assert bits.shape[-1] == dsgd.counts.DIGITS
    assert all(leaf.shape[0] == N for leaf in jax.tree.leaves(state.workers))


@pytest.mark.parametrize("devices", [2, 8])
def test_iterates_do_not_depend_on_the_number_of_devices(name, devices):
    one, many = result(name, 1), result(name, devices)
    for alone, shared in zip(jax.tree.leaves(one.state), jax.tree.leaves(many.state), strict=True):
        np.testing.assert_allclose(shared, alone, rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(many.history["bits"], one.history["bits"])
    np.testing.assert_allclose(many.history["loss"], one.history["loss"], rtol=2e-4)


def test_the_same_run_twice_gives_the_same_bits_and_compiles_once(name):
    first = result(name, 1)
    compiled = programs.compiled()
    again = with_every_optimizer(name, 1)
    assert programs.compiled() == compiled
    jax.tree.map(np.testing.assert_array_equal, again.state, first.state)
    jax.tree.map(np.testing.assert_array_equal, again.history, first.history)


def test_it_makes_progress_and_counts_its_rounds(name):
    loss = history(name)["loss"]
    assert (loss[:, -1] < loss[:, 0]).all()
    assert all(np.isfinite(values[..., 1:]).all() for values in result(name, 1).history.values())  # own scalars begin with the first round
    np.testing.assert_array_equal(result(name, 1).state.step, STEPS)
    np.testing.assert_array_equal(history(name)["step"], np.arange(STEPS + 1))


def test_two_seeds_draw_differently_unless_the_method_is_exact(name):
    loss = history(name)["loss"]
    assert (loss[0, -1] != loss[1, -1]) == (name != "gd")


PERIOD = {"local-sgd": 4}  # rounds, of which only the last sends; all others send in each


def test_bits_grow_by_the_same_amount_every_period_and_fit_the_pattern(name):
    period = PERIOD.get(name, 1)
    sent = np.diff(result(name, 1).history["bits"], axis=-1).reshape(len(OPTIMIZERS), SEEDS, STEPS // period, period)
    np.testing.assert_array_equal(sent[..., :-1], 0)
    np.testing.assert_array_equal(sent[..., -1], sent[0, 0, 0, -1])
    pattern = method(name).pattern
    assert (sent.sum() == 0) == (pattern.vectors(N) == 0)
    # A message of float32 models; gradient tracking's is two, push's has one number more, and compressed ones are shorter.
    models = sent.mean() / 2 / 32 / 5  # up and down, on average
    compressed = {"csgd", "csgd-ring", "ec-sgd", "ef21", "choco-sgd", "deepsqueeze"}
    if name not in compressed:
        assert models == pytest.approx(pattern.vectors(N) * {"gradient-tracking": 2, "sgp": 6 / 5}.get(name, 1), rel=1e-6)


TOO_FAST = {("asgd", "momentum")}  # steps ten times as long once the memory is full, along gradients of seven updates ago


def test_any_optax_optimiser_works(name):
    """Each holds memories that the method must keep; on one device, by the programs that have been compiled."""
    compiled = programs.compiled()
    loss = with_every_optimizer(name, 1, steps=60).history["loss"]
    assert programs.compiled() == compiled
    progress = dict(zip(OPTIMIZERS, (loss[..., -10:].mean(axis=(1, 2)) < loss[..., 0].mean(axis=1)).tolist(), strict=True))
    assert all(made for optimizer, made in progress.items() if (name, optimizer) not in TOO_FAST), progress


def test_an_unknown_method_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"unknown method 'foo': need one of gd, sgd, .*dsgd"):
        algorithms.make("foo", optax.sgd(0.1), 4)
