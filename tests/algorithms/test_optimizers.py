"""Optimizers as users write them: each works in every method, or is refused in one line that names
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

N = 16
KEY = jax.random.key(7)
NOISE = optax.add_noise(1.0, 0.0, KEY)


def problem(slopes: Any, n: int = 1) -> dsgd.Problem:
    """Returns a problem with a constant gradient."""
    slopes = jnp.asarray(slopes, jnp.float32)
    return dsgd.Problem(
        init=lambda key: jnp.zeros(len(slopes)),
        loss=lambda params, batch: params @ batch,
        data=jnp.tile(slopes, (n, 1)),
        sample=lambda key, data: data,
        name="linear",
    )


def custom_noise(key: jax.Array, in_state: bool) -> optax.GradientTransformation:
    """Adds N(0, 1) to gradients, from a key in its state; or, incorrectly, from a key outside the
    state, with a counter.
    """

    def init(params):
        return key if in_state else jnp.int32(0)

    def update(updates, state, params=None):
        now, later = jax.random.split(state if in_state else jax.random.fold_in(key, state))
        noisy = jax.tree.map(lambda u: u + jax.random.normal(now, u.shape), updates)
        return noisy, later if in_state else state + 1

    return optax.GradientTransformation(init, update)


def gossip(noise: optax.GradientTransformation) -> dsgd.Algorithm:
    return algorithms.decentralized_sgd(optax.chain(noise, optax.sgd(1.0)), topologies.ring(N))


def mean_after(noise: Any = NOISE, *, seed: int = 0, **options: Any) -> np.ndarray:
    """Returns the mean of 16 models after one step of size 1 along noise."""
    options = {"mesh": 1, "steps": 1, "key": jax.random.key(seed), **options}
    return np.asarray(dsgd.run(gossip(noise), problem(np.zeros(4000), N), **options).params)


@pytest.mark.parametrize(
    "noise",
    [
        NOISE,
        optax.masked(custom_noise(jax.random.key(3, impl="rbg"), in_state=True), True),
        optax.inject_hyperparams(lambda eta: optax.add_noise(eta, 0.0, KEY))(eta=1.0),
    ],
    ids=["optax", "masked rbg", "injected"],
)
def test_noise_in_an_optimizer_is_independent_over_workers(noise):
    # 4,000 elements: 5 standard deviations
    assert np.var(mean_after(noise)) == pytest.approx(1 / N, rel=0.12)


def test_noise_in_an_optimizer_depends_on_the_run_and_the_seed_but_not_on_the_devices():
    one, other = mean_after(), mean_after(seed=1)
    np.testing.assert_array_equal(one, mean_after())
    np.testing.assert_allclose(one, mean_after(mesh=4), atol=1e-6)
    correlations = np.corrcoef([one, other, *mean_after(seeds=2)])[np.triu_indices(4, 1)]
    assert abs(correlations).max() < 0.08


def test_the_server_s_noise_depends_on_the_run_and_the_seed():
    method = algorithms.minibatch_sgd(optax.chain(NOISE, optax.sgd(1.0)))
    params = dsgd.run(method, problem(np.zeros(4000)), steps=1, key=KEY, mesh=1, seeds=2).params
    assert np.var(params, axis=1) == pytest.approx(1.0, rel=0.12)
    assert abs(np.corrcoef(params)[0, 1]) < 0.08


def test_random_keys_continue_when_a_run_continues():
    options = {"key": KEY, "steps": 2}
    half = dsgd.run(gossip(NOISE), problem(np.zeros(8), N), **options)
    again = dsgd.run(gossip(NOISE), problem(np.zeros(8), N), **options, start=half.state)
    whole = dsgd.run(gossip(NOISE), problem(np.zeros(8), N), key=KEY, steps=4)
    np.testing.assert_array_equal(again.params, whole.params)


def test_random_keys_continue_when_an_optimizer_starts_again():
    """The clients of FedAvg start with new optimizers in each period, here of two rounds."""
    method = algorithms.fed_avg(optax.chain(NOISE, optax.sgd(1.0)), 2)
    states = [
        dsgd.run(method, problem(np.zeros(1000), 4), steps=steps, key=KEY, mesh=1).state
        for steps in (2, 3, 4, 5)
    ]
    changes = [
        np.asarray(after.workers.params) - np.asarray(before.server.params)
        for before, after in zip(states[::2], states[1::2], strict=True)
    ]
    # of eight independent vectors: 5 standard deviations
    assert abs(np.corrcoef(np.concatenate(changes)) - np.eye(8)).max() < 5 / 1000**0.5


@pytest.mark.parametrize("key", [KEY, jax.random.PRNGKey(0)], ids=["typed", "numbers"])
def test_a_key_that_is_not_in_the_state_is_refused(key):
    method = gossip(custom_noise(key, in_state=False))
    with pytest.raises(ValueError, match=r"optimizer chain\(custom_noise, .*key .*its state"):
        dsgd.run(method, problem(np.zeros(4), N), steps=1, key=KEY)


def noisy_method(start: Any) -> dsgd.Algorithm:
    """Returns a custom method with random keys `[N]` in its state."""

    def init(params, n):
        return dsgd.State(workers=(workers.replicate(params, n), start(n)))

    def update(state, gradients, round):
        x, keys = state.workers
        noise = jax.vmap(lambda own: jax.random.normal(own, x.shape[1:]))(keys)
        return dsgd.State(workers=(round.mix(x - gradients + noise, topologies.ring(4)), keys))

    def x(state, *_):
        return state.workers[0]

    return dsgd.Algorithm("noisy", init, lambda state, round: dsgd.Query(x(state)), update, x)


def constant_key(state, gradients, round):
    x, rest = state.workers
    noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), state.step), x.shape[1:])
    changed = lax.cond(state.step >= 0, lambda x: x + noise[None], lambda x: x, x)
    return dsgd.State(workers=(changed, rest))


SHARED = {
    "same random key in all workers": noisy_method(
        lambda n: jnp.broadcast_to(jax.random.PRNGKey(0), (n, 2))
    ),
    "same random key in all runs": noisy_method(
        lambda n: jax.random.split(jax.random.PRNGKey(0), n)
    ),
    "constant key": noisy_method(lambda n: jnp.zeros((n, 3)))._replace(update=constant_key),
}


@pytest.mark.parametrize(
    "words",
    [pytest.param(each, marks=[pytest.mark.long] * (i > 0)) for i, each in enumerate(SHARED)],
)
def test_check_finds_random_keys_that_are_shared(words):
    findings = dsgd.check(SHARED[words], problem(np.zeros(4), 4)).findings
    (found,) = (finding for finding in findings if finding.what == "random keys")
    assert found.holds is False
    assert words in found.found


class Torch:
    """An object with the multi-line representation of `torch.optim.SGD`."""

    def __repr__(self):
        return "SGD (\nParameter Group 0\n    lr: 0.1\n)"


PRIVATE = optax.contrib.differentially_private_aggregate(1e9, 0.0, KEY)
# Optimizers that are refused when the method is built, and those that are refused when the
# parameters are known.
WHERE_MADE: list[tuple[Any, str]] = [
    (
        optax.sgd(None),
        r"optimizer chain\(identity, identity\): .* \+1, an ascent step.*optax\.sgd\(0\.1\)",
    ),
    (optax.scale_by_adam(), "optimizer scale_by_adam: .*ascent step.*scale_by_learning_rate"),
    (optax.sgd(float("nan")), r"optimizer chain\(identity, scale\): .* nan; .*finite"),
    (optax.adam(float("inf")), r"optimizer chain\(scale_by_adam, scale\): .* -inf; .*finite"),
    (optax.sgd(lambda count: jnp.nan * count), "scale_by_schedule.* is nan"),
    (optax.sgd(1j), "complex64.*real"),
    (optax.lbfgs(), r"optimizer chain\(scale_by_lbfgs, .*more than gradients"),
    (optax.polyak_sgd(), r"optimizer chain\(.*scale_by_polyak\).*more than gradients"),
    (optax.MultiSteps(optax.sgd(0.1), 2), r"optimizer = .*MultiSteps.*gradient_transformation\(\)"),
    (Torch(), r"optimizer = SGD \( Parameter Group 0.*optax\.sgd\(0\.1\)"),
]
WHERE_RUN: list[tuple[Any, str]] = [
    (optax.masked(optax.sgd(0.1), {"w": True}), "optimizer masked fails"),
    (optax.partition({"a": optax.sgd(0.1)}, {"w": "a"}), "optimizer partition fails"),
    (optax.lookahead(optax.sgd(0.1), 5, 0.5), "optimizer lookahead fails"),
    (optax.sgd(lambda count: jnp.ones(2)), r"optimizer chain\(.*scale_by_schedule\) fails"),
    (optax.sgd("0.1"), r"optimizer chain\(identity, scale\) fails"),
    # Per-sample clipping would interpret the elements of a vector as samples; its mean would be
    # broadcast.
    (
        optax.chain(PRIVATE, optax.sgd(0.1)),
        r"optimizer chain\(differentially_private.*float32\[\].*float32\[3\].*per-sample",
    ),
]
METHODS = {
    "server": algorithms.minibatch_sgd,
    "pairs": lambda optimizer: algorithms.asynchronous_gossip_sgd(optimizer, topologies.ring(1)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("optimizer", "words", "runs"),
    [(*case, runs) for runs, cases in enumerate((WHERE_MADE, WHERE_RUN)) for case in cases],
)
def test_an_optimizer_that_cannot_work_is_refused(optimizer, words, runs, method):
    def run():
        made = METHODS[method](optimizer)
        assert runs, "refused where it is made"
        dsgd.run(made, problem([1.0, 2, 3]), steps=1, key=KEY, mesh=1)

    with pytest.raises(ValueError, match=words) as refused:
        run()
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
    method = algorithms.minibatch_sgd(optimizer)
    params = dsgd.run(method, problem([1.0, 2, 3]), steps=2, key=KEY, mesh=1).params
    np.testing.assert_allclose(params, expected, rtol=1e-6)
