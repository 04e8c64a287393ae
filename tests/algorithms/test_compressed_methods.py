"""Compressed methods: padding, layers, warm starts, a single worker, and invalid arguments, which
their recursions (`tests/methods`) do not show.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import smoke_cases

import dsgd
import topologies
from algorithms import (
    choco_sgd,
    compressed_sgd,
    deepsqueeze,
    ef21,
    error_compensated_sgd,
    with_diagnostics,
)
from dsgd import clusters, compressors, problems
from dsgd.compressors.low_rank import Factors

N, D, GAMMA = 3, 10, 0.2  # parts of four elements, the last with two of padding
STEP = optax.sgd(GAMMA)
CLUSTER = clusters.Cluster(clusters.constant(1.0))
METHODS: dict[str, Callable[[optax.GradientTransformation, dsgd.Compressor], dsgd.Algorithm]] = {
    "csgd": lambda optimizer, Q: compressed_sgd(optimizer, Q, allow_biased=True),
    "compressed_sgd_ring": lambda optimizer, Q: compressed_sgd(
        optimizer, Q, ring=True, allow_biased=True
    ),
    "error_compensated_sgd": lambda optimizer, Q: error_compensated_sgd(
        optimizer, Q, Q, allow_expanding=True
    ),
    "ef21": lambda optimizer, Q: ef21(optimizer, Q, Q),
}
WITH_MEMORY = pytest.mark.parametrize(
    "method", [error_compensated_sgd, ef21], ids=lambda method: method.__name__
)


def run(
    algorithm: dsgd.Algorithm, gradients: dsgd.Gradients, steps: int, mesh: int = 1
) -> dsgd.Result:
    """Runs workers whose gradients `[N, ...]` do not depend on the model."""
    problem = dsgd.Problem(
        init=lambda key: jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), gradients
        ),
        loss=dsgd.Loss(lambda params, batch: jnp.zeros(()), lambda params, batch: batch),
        sample=lambda key, mine: mine,
        data=gradients,
    )
    options = {"key": jax.random.key(1), "mesh": mesh, "cluster": CLUSTER}
    return dsgd.run(with_diagnostics(algorithm), problem, steps=steps, **options)


# --- Parts of padding, and a single worker.

# gradients with fewer elements than workers: a compressor that draws, one with messages of random
# size, and one with warm starts
FEW = {
    "csgd": compressors.natural,
    "compressed_sgd_ring": compressors.natural,
    "error_compensated_sgd": compressors.random_sparsification(0.4),
    "ef21": compressors.low_rank(1),
}


# around the ring all N parts are built, including padding
@pytest.mark.parametrize("name", smoke_cases(FEW, {"error_compensated_sgd"}))
def test_servers_without_elements_are_sent_padding_that_is_not_stored(name):
    """One device computes only the elements, eight devices send each other padding: values and the
    bits of every worker are the same.
    """
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        gradients = {
            "biases": jnp.asarray(rng.normal(size=(8, 3))),
            "weights": jnp.asarray(rng.normal(size=(8, 4, 5))),
        }
        here, apart = (
            run(METHODS[name](STEP, FEW[name]), gradients, steps=3, mesh=devices)
            for devices in (1, 8)
        )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-12), here.state, apart.state)
    for way in ("measured_bits_up", "measured_bits_down"):
        np.testing.assert_array_equal(here.history[way], apart.history[way])
    if name in ("error_compensated_sgd", "ef21"):
        workers = here.state.workers
        held = workers.worker.error if name == "error_compensated_sgd" else workers.worker.shift
        assert {layer: leaf.shape[1:] for layer, leaf in held.items()} == {
            "biases": (3, 1),
            "weights": (7, 3),
        }
        assert all(np.abs(leaf).max() > 0 for leaf in held.values())


def rounding(x: np.ndarray) -> np.ndarray:
    """Returns three quarters of the nearest multiple of 1/16: Q(Q(x)) differs from Q(x)."""
    return np.round(x.astype(np.float32) * 16).astype(float) / 16 * 0.75


ROUNDING = dsgd.Compressor(
    compress=lambda key, x: jnp.round(x.astype(jnp.float32) * 16).astype(jnp.int16),
    decompress=lambda message, d: message.astype(jnp.float32) / 16 * 0.75,
    bits=lambda message: 16 * message.size,
    delta=lambda d: 0.5,  # for all but the smallest vectors
    name="rounding",
)


@pytest.mark.parametrize("method", METHODS)
def test_a_single_worker_compresses_and_sends_nothing(method):
    """Twice through its own server, once around a ring of one worker."""
    g = np.random.default_rng(0).normal(size=D).astype(np.float32)
    found = run(METHODS[method](STEP, ROUNDING), jnp.asarray(g)[None], steps=1)
    once = rounding(g)
    x = {"compressed_sgd_ring": -GAMMA * once, "ef21": rounding(-GAMMA * once)}.get(
        method, -GAMMA * rounding(once)
    )
    server = found.state.server
    np.testing.assert_allclose(server if method == "ef21" else server.params, x, atol=1e-6)
    assert not found.history["bits"].any()


# --- Randomness.

NOISY = dsgd.Compressor(
    compress=lambda key, x: x + jax.random.normal(key, x.shape, x.dtype),
    decompress=lambda message, d: message,
    bits=lambda message: 64 * message.size,
    omega=lambda d: 0.0,
    delta=lambda d: 1.0,
    name="noisy",
)
"""A compressor that sends its random numbers."""


def test_every_message_has_its_own_random_numbers():
    """Independent for every worker, server, layer and direction, and around the ring for every hop:
    otherwise all parts would select the same indices. To neighbours, independent for every worker.
    """
    with jax.enable_x64(True):
        g = np.random.default_rng(0).normal(size=(N, 9))
        gradients = {"one": jnp.asarray(g), "other": jnp.asarray(g)}
        memory = run(
            METHODS["error_compensated_sgd"](STEP, NOISY), gradients, steps=1
        ).state.workers
        left_out = jax.tree.leaves((memory.worker.error, memory.server.error))
        squeezed = run(deepsqueeze(STEP, topologies.ring(N), NOISY, 0.5), gradients, steps=1)
        models = [
            run(METHODS[name](STEP, NOISY), gradients, steps=1).params
            for name in ("csgd", "compressed_sgd_ring")
        ]
        collected = [leaf + GAMMA * g.mean(axis=0) for leaf in jax.tree.leaves(models)]
    for noise in (left_out, jax.tree.leaves(squeezed.state.workers.error), collected):
        numbers = np.sort(np.concatenate([np.ravel(leaf) for leaf in noise]))
        assert np.diff(numbers).min() > 1e-9


# --- Warm starts.


def follows(v: np.ndarray, message: Factors, start: np.ndarray) -> None:
    """Returns one step of power iteration on the parts v `[..., 20]`, as matrices `[4, 5]`, from
    the right factor `start` `[..., 5, 1]`, up to the sign of the left factor.
    """
    v = v.reshape(*v.shape[:-1], 4, 5)
    left = v @ start
    left /= np.linalg.norm(left, axis=-2, keepdims=True)
    np.testing.assert_allclose(np.abs(np.sum(left * message.left, axis=(-2, -1))), 1, atol=1e-5)
    np.testing.assert_allclose(
        message.right, np.swapaxes(v, -1, -2) @ message.left, atol=1e-4 * np.abs(v).max()
    )


@pytest.mark.parametrize(
    "method", [error_compensated_sgd, pytest.param(ef21, marks=pytest.mark.long)]
)
def test_low_rank_messages_start_from_the_last_right_factor(method):
    """The state keeps the factor of every worker's message to every server, and of every server's
    own.
    """
    rank_one = compressors.low_rank(1)
    gradients = jnp.asarray(np.random.default_rng(0).normal(size=(2, 40)), jnp.float32)
    method_ = method(STEP, rank_one, rank_one)
    states = [run(method_, gradients, steps=t).state for t in (4, 5)]
    before, after = (state.workers for state in states)
    assert after.worker.last[0].right.shape == (2, 2, 5, 1)
    assert after.server.last[0].right.shape == (2, 5, 1)
    parts = np.asarray(gradients).reshape(2, 2, 20)
    if method is error_compensated_sgd:
        v_worker = parts + before.worker.error
        v_server = (v_worker - after.worker.error).mean(axis=0) + before.server.error
    else:
        v_worker = parts - before.worker.shift
        v_server = after.server.model.params - states[0].server.reshape(2, 20)
    follows(v_worker, after.worker.last[0], before.worker.last[0].right)
    follows(v_server, after.server.last[0], before.server.last[0].right)


@pytest.mark.parametrize("method", [choco_sgd, pytest.param(deepsqueeze, marks=pytest.mark.long)])
def test_low_rank_messages_to_neighbours_start_from_the_last_right_factor(method):
    whole = compressors.whole_model(compressors.low_rank(1))
    gradients = jnp.asarray(np.random.default_rng(0).normal(size=(3, 20)), jnp.float32)
    algorithm = method(STEP, topologies.ring(3), whole, 0.1)
    before, after = (run(algorithm, gradients, steps=t).state.workers for t in (4, 5))
    half = before.params - GAMMA * gradients
    sent = half - before.x_hat if method is choco_sgd else half + before.error
    follows(np.asarray(sent), after.last[0], before.last[0].right)


# --- The purpose of a memory.


def test_only_with_memory_a_biased_compressor_converges_on_a_counterexample():
    r"""Three workers in R^3 with $f_n(x) = \langle a_n, x\rangle^2 + \frac14 |x|^2$, in three
    copies, one for each of three servers.

    From x = (1, 1, 1) t the gradient of worker 1 is t (-11/2, 9/2, 9/2): its largest element has
    the wrong sign, and the same holds for the others. Each step along largest elements therefore
    multiplies one coordinate by 1 + 11/6 gamma, whereas $f' = \frac76 t (1, 1, 1)$: after 4,000
    steps of 0.004 the gap of gradient descent has decreased by e^-37.

    Source: Beznosikov, Horvath, Richtarik and Safaryan, "On biased compression for distributed
    learning", 2020, example 1.
    """
    a, largest = np.array([[-3, 2, 2], [2, -3, 2], [2, 2, -3]]), compressors.top_k(1 / 3)
    one = 2 * a[:, :, None] * a[:, None, :] + np.eye(3) / 2
    problem = problems.quadratic(
        np.stack([np.kron(np.eye(3), hessian) for hessian in one]),
        np.zeros((3, 9)),
        start=np.ones(9),
    )

    def gap(algorithm, steps):
        return dsgd.run(
            algorithm, problem, steps=steps, key=jax.random.key(0), record_every=steps // 10, mesh=1
        ).history["loss"]

    diverging = gap(compressed_sgd(optax.sgd(0.01), largest, allow_biased=True), 1_000)
    assert (np.diff(np.log(diverging)) > 11 / 6 * 0.01 * 100 / 3).all()
    for method in (error_compensated_sgd, ef21):
        assert gap(method(optax.sgd(0.004), largest, largest), 4_000)[-1] < 1e-6 < 1 < diverging[0]


# --- Invalid arguments.


@WITH_MEMORY
def test_compressors_that_do_not_fit_together_are_refused(method):
    one_vector = compressors.whole_model(compressors.top_k(0.1))
    for up, down in ((compressors.sign, one_vector), (one_vector, compressors.sign)):
        with pytest.raises(ValueError, match=f"{method.__name__}.* up and .* down"):
            method(STEP, up, down)
    method(STEP, one_vector, one_vector)
