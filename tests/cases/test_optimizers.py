"""Optimizers as people write them: each works in every method, or is refused in one line that names
it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import algorithms
import dsgd
import topologies
from dsgd import workers

N, D = 16, 4000
KEY = jax.random.key(7)
NOISE = optax.add_noise(1.0, 0.0, KEY)


def flat_problem(d: int = D, n: int = N) -> dsgd.Problem:
    """Its gradients are 0."""
    return dsgd.Problem(
        init=lambda key: jnp.zeros(d),
        loss=lambda params, batch: 0.0 * jnp.sum(params),
        data=jnp.zeros((n, 1)),
        sample=lambda key, data: data,
        name="flat",
    )


def linear_problem(slopes: Any) -> dsgd.Problem:
    """Its gradient is the same everywhere."""
    return dsgd.Problem(
        init=lambda key: jnp.zeros(len(slopes)),
        loss=lambda params, batch: params @ batch,
        data=jnp.asarray([slopes], jnp.float32),
        sample=lambda key, data: data,
        name="linear",
    )


def custom_noise(key: jax.Array, at: str = "state") -> optax.GradientTransformation:
    """Adds N(0, 1) to gradients, from a key in its state; or from one that is not, and counts."""

    def init(params):
        return {"key": key, "count": jnp.int32(0)} if at == "state" else jnp.int32(0)

    def update(updates, state, params=None):
        here = state["key"] if at == "state" else jax.random.fold_in(key, state)
        now, later = jax.random.split(here)
        noisy = jax.tree.map(lambda u: u + jax.random.normal(now, u.shape), updates)
        return noisy, {"key": later, "count": state["count"] + 1} if at == "state" else state + 1

    return optax.GradientTransformation(init, update)


def mean_after(noise: optax.GradientTransformation, *, seed: int = 0, **options: Any) -> np.ndarray:
    """The mean of 16 models after one step of size 1 along noise."""
    method = algorithms.decentralized_sgd(optax.chain(noise, optax.sgd(1.0)), topologies.ring(N))
    options = {"mesh": 1} | options
    return np.asarray(
        dsgd.run(method, flat_problem(), steps=1, key=jax.random.key(seed), **options).params
    )


@pytest.mark.parametrize(
    "noise",
    [
        NOISE,
        optax.masked(custom_noise(jax.random.key(3, impl="rbg")), True),
        optax.inject_hyperparams(lambda eta: optax.add_noise(eta, 0.0, KEY))(eta=1.0),
    ],
    ids=["optax", "masked rbg", "injected"],
)
def test_noise_in_an_optimizer_is_independent_over_workers(noise):
    mean = mean_after(noise)
    assert np.var(mean) == pytest.approx(1 / N, rel=0.12)  # 4,000 elements: 5 standard deviations


def test_noise_in_an_optimizer_is_of_the_run_and_of_the_seed_and_not_of_the_devices():
    one, other = mean_after(NOISE), mean_after(NOISE, seed=1)
    np.testing.assert_array_equal(one, mean_after(NOISE))
    np.testing.assert_allclose(one, mean_after(NOISE, mesh=4), atol=1e-6)
    assert (
        abs(np.corrcoef([one, other, *mean_after(NOISE, seeds=2)])[np.triu_indices(4, 1)]).max()
        < 0.08
    )


def test_the_server_s_noise_is_of_the_run_and_of_the_seed():
    method = algorithms.minibatch_sgd(optax.chain(NOISE, optax.sgd(1.0)))
    params = dsgd.run(method, flat_problem(), steps=1, key=jax.random.key(0), seeds=2).params
    assert np.var(params, axis=1) == pytest.approx(1.0, rel=0.12)
    assert abs(np.corrcoef(params)[0, 1]) < 0.08


def test_random_keys_go_on_where_a_run_goes_on():
    method = algorithms.decentralized_sgd(optax.chain(NOISE, optax.sgd(1.0)), topologies.ring(N))
    problem, key = flat_problem(8), jax.random.key(0)
    half = dsgd.run(method, problem, steps=2, key=key)
    again = dsgd.run(method, problem, steps=2, key=key, start=half.state)
    np.testing.assert_array_equal(again.params, dsgd.run(method, problem, steps=4, key=key).params)


@pytest.mark.parametrize("key", [KEY, jax.random.PRNGKey(0)], ids=["typed", "numbers"])
def test_a_key_that_is_not_in_the_state_is_refused(key):
    method = algorithms.decentralized_sgd(
        optax.chain(custom_noise(key, "closure"), optax.sgd(1.0)), topologies.ring(N)
    )
    with pytest.raises(
        ValueError,
        match=r"optimizer chain\(custom_noise, .*key that is not in its state.*expected the key in the state",
    ):
        dsgd.run(method, flat_problem(4), steps=1, key=KEY)


def noisy_method(start: Any) -> dsgd.Algorithm:
    """A custom method with random keys `[N]` in its state."""

    def init(params, n):
        return dsgd.State(workers=(workers.stack(params, n), start(n)))

    def update(state, gradients, round):
        x, keys = state.workers
        noise = jax.vmap(lambda own: jax.random.normal(own, x.shape[1:]))(keys)
        return dsgd.State(workers=(round.mix(x - gradients + noise, topologies.ring(4)), keys))

    return dsgd.Algorithm(
        "noisy",
        init,
        lambda state, round: dsgd.Query(state.workers[0]),
        update,
        lambda state: state.workers[0],
    )


def constant_key(state, gradients, round):
    x, rest = state.workers
    noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), state.step), x.shape[1:])
    return dsgd.State(
        workers=(lax.cond(state.step >= 0, lambda x: x + noise[None], lambda x: x, x), rest)
    )


SAME_IN_WORKERS = noisy_method(lambda n: jnp.broadcast_to(jax.random.PRNGKey(0), (n, 2)))
SAME_IN_RUNS = noisy_method(lambda n: jax.random.split(jax.random.PRNGKey(0), n))
CONSTANT = noisy_method(lambda n: jnp.zeros((n, 3)))._replace(update=constant_key)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (SAME_IN_WORKERS, "same random key in all workers"),
        pytest.param(SAME_IN_RUNS, "same random key in all runs", marks=pytest.mark.long),
        pytest.param(CONSTANT, "constant key", marks=pytest.mark.long),
    ],
    ids=["workers", "runs", "constant"],
)
def test_check_finds_random_keys_that_are_shared(method, words):
    findings = {
        finding.what: finding for finding in dsgd.check(method, flat_problem(4, 4)).findings
    }
    assert findings["random keys"].holds is False
    assert words in findings["random keys"].found


METHODS = {
    "server": algorithms.minibatch_sgd,
    "pairs": lambda optimizer: algorithms.asynchronous_gossip_sgd(optimizer, topologies.ring(1)),
}


@pytest.mark.parametrize("method", METHODS)
def test_updates_of_another_shape_than_the_parameters_are_refused(method):
    """Per-sample clipping takes the elements of a vector for samples, and its mean would be
    broadcast.
    """
    optimizer = optax.chain(
        optax.contrib.differentially_private_aggregate(1e9, 0.0, KEY), optax.sgd(0.1)
    )
    with pytest.raises(
        ValueError,
        match=r"optimizer chain\(differentially_private_aggregate.*float32\[\].*float32\[6\].*per-sample",
    ):
        dsgd.run(
            METHODS[method](optimizer),
            linear_problem([1.0, 2, 3, 4, 5, 6]),
            steps=1,
            key=KEY,
            mesh=1,
        )


class _Torch:
    """As `torch.optim.SGD` shows itself, in several lines."""

    def __repr__(self):
        return "SGD (\nParameter Group 0\n    lr: 0.1\n)"


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (
            optax.sgd(None),
            r"optimizer chain\(identity, identity\): .* is \+1, an ascent "
            r"step.*optax\.sgd\(0\.1\)",
        ),
        (
            optax.scale_by_adam(),
            r"optimizer scale_by_adam: .*an ascent step.*scale_by_learning_rate",
        ),
        (optax.sgd(float("nan")), r"optimizer chain\(identity, scale\): .* is nan; .*finite"),
        (
            optax.adam(float("inf")),
            r"optimizer chain\(scale_by_adam, scale\): .* is -inf; .*finite",
        ),
        (
            optax.sgd(lambda count: jnp.nan * count),
            r"optimizer chain\(identity, scale_by_schedule\): .* is nan",
        ),
        (optax.lbfgs(), r"optimizer chain\(scale_by_lbfgs, .*needs more than gradients"),
        (optax.polyak_sgd(), r"optimizer chain\(.*scale_by_polyak\).*needs more than gradients"),
        (
            optax.MultiSteps(optax.sgd(0.1), 2),
            r"decentralized_sgd: optimizer = .*MultiSteps.*gradient_transformation\(\)",
        ),
        (tuple(optax.sgd(0.1)), r"decentralized_sgd: optimizer = .*optax\.sgd\(0\.1\)"),
        (
            optax.sgd,
            r"decentralized_sgd: optimizer = the function sgd; expected an optax optimiser, such as "
            r"optax\.sgd\(0\.1\)",
        ),
        (_Torch(), r"decentralized_sgd: optimizer = SGD \( Parameter Group 0.*optax\.sgd\(0\.1\)"),
    ],
    ids=[
        "None",
        "no rate",
        "nan",
        "inf",
        "nan schedule",
        "lbfgs",
        "polyak",
        "MultiSteps",
        "tuple",
        "not called",
        "torch",
    ],
)
def test_an_optimizer_that_cannot_work_is_refused_where_the_method_is_made(optimizer, words):
    with pytest.raises(ValueError, match=words) as refused:
        algorithms.decentralized_sgd(optimizer, topologies.ring(4))
    assert "\n" not in str(refused.value)


def test_a_complex_step_size_is_refused():
    with pytest.raises(
        ValueError,
        match=r"optimizer chain\(identity, scale\): .* is complex64\[\]; expected a real number",
    ):
        algorithms.minibatch_sgd(optax.sgd(1j))


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (optax.masked(optax.sgd(0.1), {"w": True}), "masked fails on these parameters"),
        (optax.partition({"a": optax.sgd(0.1)}, {"w": "a"}), "partition fails on these parameters"),
        (optax.lookahead(optax.sgd(0.1), 5, 0.5), "lookahead fails on these parameters"),
        (
            optax.sgd(lambda count: jnp.ones(2)),
            r"chain\(identity, scale_by_schedule\) fails on these parameters",
        ),
        (optax.sgd("0.1"), r"chain\(identity, scale\) fails on these parameters"),
    ],
    ids=["mask", "labels", "lookahead", "vector schedule", "string"],
)
def test_an_optimizer_that_fails_on_the_parameters_is_named(optimizer, words):
    with pytest.raises(ValueError, match=f"optimizer {words}") as refused:
        dsgd.run(
            algorithms.minibatch_sgd(optimizer),
            linear_problem([1.0, 2, 3]),
            steps=1,
            key=KEY,
            mesh=1,
        )
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (
            optax.contrib.sam(
                optax.sgd(0.5),
                optax.chain(optax.contrib.normalize(), optax.sgd(0.1)),
                sync_period=2,
            ),
            [-0.5, -1.0, -1.5],
        ),
        (optax.MultiSteps(optax.sgd(0.5), 2).gradient_transformation(), [-0.5, -1.0, -1.5]),
        (optax.sgd(np.array([0.5, 0.25, 1.0], np.float32)), [-1.0, -1.0, -6.0]),
        (optax.sgd(lambda count: 0.5 / (1 + count)), [-0.75, -1.5, -2.25]),
        (optax.sgd(-0.5), [1.0, 2.0, 3.0]),
    ],
    ids=["sam", "multi steps", "preconditioner", "schedule", "up on purpose"],
)
def test_unusual_optimizers_make_their_steps(optimizer, expected):
    params = dsgd.run(
        algorithms.minibatch_sgd(optimizer), linear_problem([1.0, 2, 3]), steps=2, key=KEY, mesh=1
    ).params
    np.testing.assert_allclose(params, expected, rtol=1e-6)
