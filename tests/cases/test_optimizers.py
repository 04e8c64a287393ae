"""Optimizers with noise, with different steps for each array, and with several types."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms import optimizers

N, H, GAMMA = 8, 3, 0.5
KEY = jax.random.key(0)
NOISY = optax.chain(optax.add_noise(1.0, 0.0, jax.random.key(7)), optax.sgd(GAMMA))
LABELS = {"bias": "slow", "matrix": "fast"}
BY_LABEL = optax.partition({"slow": optax.sgd(0.1), "fast": optax.sgd(0.3)}, LABELS)


def linear(slopes: dict[str, np.ndarray], dtype=jnp.float32) -> dsgd.Problem:
    """Returns the problem whose gradients are the workers' slopes, leaves `[N, ...]`."""

    def init(key):
        return {
            name: jnp.zeros(leaf.shape[1:], dtype if name == "bias" else jnp.float32)
            for name, leaf in slopes.items()
        }

    return dsgd.Problem(
        init=init,
        loss=lambda x, a: sum(jnp.vdot(x[name], a[name]) for name in x),
        data=slopes,
        sample=lambda key, data: data,
        name="linear",
    )


def model(seed: int = 0) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed)
    return {
        "bias": drawn.normal(size=(4, 3)).astype(np.float32),
        "matrix": drawn.normal(size=(4, 2, 5)).astype(np.float32),
    }


@pytest.mark.parametrize(("method", "period"), [(algorithms.mime_lite, H), (algorithms.mime, 1)])
def test_the_noise_of_local_steps_with_a_frozen_state_is_independent(method, period):
    """Over clients and steps: the mean of N clients after H steps has the variance H / N. Copies of
    one draw would have H^2, and the same draws in all clients H. 4,000 elements: 5 standard errors.
    """
    flat = linear({"x": np.zeros((N, 4000), np.float32)})
    params = dsgd.run(method(NOISY, period), flat, steps=period, key=KEY, mesh=1, seeds=2).params
    assert np.var(params["x"], axis=1) == pytest.approx(GAMMA**2 * period / N, rel=0.12)
    assert abs(np.corrcoef(params["x"])[0, 1]) < 0.08


def test_the_fragments_of_a_model_receive_different_noise():
    """Although the server has one key for all of them."""
    fragments = linear(dict.fromkeys(("bias", "matrix"), np.zeros((2, 2000), np.float32)))
    method = algorithms.streaming_diloco(
        optax.sgd(0.1), 2, 2, outer=NOISY, local_share=0.0, delay=0
    )
    params = dsgd.run(method, fragments, steps=2, key=KEY, mesh=1).params
    bias, matrix = params["bias"], params["matrix"]
    assert [np.var(bias), np.var(matrix)] == pytest.approx(2 * [GAMMA**2], rel=0.16)
    assert abs(np.corrcoef(bias, matrix)[0, 1]) < 0.12


def shared_noise() -> dsgd.Algorithm:
    """Returns a method with the mistake: all workers step with the server's random key."""

    def init(params, n):
        return dsgd.State(optimizers.init(NOISY, params))

    def update(state, gradients, round):
        x = state.server
        changes = jax.vmap(lambda g: optimizers.update(NOISY, g, x.optimizer, x.params)[0])(
            gradients
        )
        return dsgd.State(x._replace(params=optax.apply_updates(x.params, round.mean(changes))))

    return dsgd.Algorithm(
        *("shared", init, lambda state, round: dsgd.Query(state.server.params), update),
        lambda state: state.server.params,
    )


def test_one_random_key_for_all_workers_models_is_refused():
    problem, words = linear({"x": np.ones((4, 3), np.float32)}), "one random key for 4 workers"
    with pytest.raises(ValueError, match=rf"optimizer chain\(add_noise, .*{words}.*update_frozen"):
        dsgd.run(shared_noise(), problem, steps=1, key=KEY, mesh=1)
    findings = dsgd.check(shared_noise(), problem)
    assert not findings.holds
    assert words in str(findings.findings)


def test_a_random_step_has_no_size():
    methods = algorithms.fed_nova(NOISY, H), algorithms.scaffnew(NOISY, 0.5)
    for method in methods:
        with pytest.raises(ValueError, match=r"optimizer chain\(add_noise.*random.*without noise"):
            dsgd.run(method, linear(model()), steps=1, key=KEY, mesh=1)


@pytest.mark.parametrize(
    ("optimizer", "rates"),
    [
        (BY_LABEL, (0.1, 0.3)),
        (
            optax.chain(
                optax.masked(optax.scale(2.0), {"bias": True, "matrix": False}), optax.sgd(0.1)
            ),
            (0.2, 0.1),
        ),
        (
            optax.partition(
                {1: optax.set_to_zero(), 2: optax.sgd(0.3)}, lambda x: jax.tree.map(jnp.ndim, x)
            ),
            (0.0, 0.3),
        ),
    ],
    ids=["labels", "mask", "by the number of axes"],
)
def test_fed_nova_normalizes_changes_of_optimizers_with_masks_and_labels(optimizer, rates):
    r"""Client n makes $\tau_n$ = 1, 2, 3, 1 steps along a constant slope: the mean moves by
    $\gamma \bar\tau \bar g$ in each array.
    """
    tau, slopes = np.arange(4) % H + 1, model()

    def steps(state, round):
        computes = (round.step % H < jnp.asarray(tau))[:, None]
        return dsgd.LocalWork(computes, jnp.ones(computes.shape))

    method = algorithms.with_local_work(algorithms.fed_nova(optimizer, H), steps)
    result = dsgd.run(method, linear(slopes), steps=H, key=KEY, mesh=1)
    for gamma, (name, leaf) in zip(rates, slopes.items(), strict=True):
        expected = -gamma * tau.mean() * leaf.mean(axis=0)
        np.testing.assert_allclose(result.params[name], expected, rtol=2e-6, atol=1e-7)


def test_states_keep_their_types_if_the_parameters_have_several():
    """The moments of `inject_hyperparams` have the type of its hyperparameters after a step."""
    injected = optax.inject_hyperparams(optax.adam)(0.1)
    for method in (
        algorithms.minibatch_sgd(injected),
        algorithms.fed_nova(injected, 2),
    ):
        result = dsgd.run(method, linear(model(), jnp.bfloat16), steps=2, key=KEY, mesh=1)
        assert result.params["bias"].dtype == jnp.bfloat16
        # With a constant gradient, both steps of Adam are the learning rate.
        for name, leaf in result.params.items():
            slope = model()[name].mean(axis=0)
            if method.name == "minibatch_sgd":
                np.testing.assert_allclose(leaf, -0.2 * np.sign(slope), rtol=0.02)


def test_a_step_size_needs_one_optimizer_for_all_parameters():
    with pytest.raises(ValueError, match=r"optimizer partition: it has no step size.*scalar"):
        dsgd.run(algorithms.scaffnew(BY_LABEL, 0.5), linear(model()), steps=1, key=KEY, mesh=1)
