"""Methods with memories of compressed messages: methods that equal others, their limits, defaults,
and combinations of memories.

All runs have six workers, in float64. Each method has one program, whose arguments are the
method's hyperparameters (`theory_checks.machinery.trajectories`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import sampled

import algorithms
import dsgd
from algorithms import memories
from algorithms.mechanisms import servers
from algorithms.mechanisms.memories import Down, Up
from dsgd import clusters, compressors, network, problems
from tests.algorithms import quadratics
from tests.methods.compressors import Parts, largest
from tests.methods.given import quadratic
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import LAYERS, D, N, Trajectory

GAMMA, T, LASSO = 0.05, 2_000, 0.3
TOP, RANDOM, IDENTITY = compressors.top_k(0.2), compressors.random_k(0.2), compressors.identity
OMEGA = 15 / 3 - 1  # of the larger of two layers, 3 of 15 elements
N_SERVERS = network.multi_server


class Numbers(NamedTuple):
    """Arguments of the methods below; each method uses some of them."""

    gamma: float = GAMMA
    momentum: float = 0.0
    eta: float = 0.0
    lambda_: float = 1.0
    nu: float = 1.0
    decay: float = 1.0


METHODS: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "SGD": lambda of: algorithms.minibatch_sgd(sgd(of)),
    "DIANA, decreasing": lambda of: algorithms.diana(
        optax.sgd(lambda t: of.gamma / (1 + t)), IDENTITY
    ),
    "EF21": lambda of: algorithms.ef21(sgd(of), TOP, None, via=network.star),
    "EF21, N servers": lambda of: algorithms.ef21(sgd(of), TOP, None),
    "EF21, N identities": lambda of: algorithms.ef21(sgd(of), TOP, IDENTITY),
    "EF21, both ways": lambda of: algorithms.ef21(sgd(of), TOP, TOP, via=network.star),
    "EF21-SGDM": lambda of: algorithms.ef21_sgdm(sgd(of), TOP, of.eta),
    "EF21-SGD2M": lambda of: algorithms.ef21_sgdm(sgd(of), TOP, of.eta, double=True),
    "EF21-SGDM, identity": lambda of: algorithms.ef21_sgdm(sgd(of), IDENTITY, of.eta),
    "EF-BV, top k": lambda of: algorithms.ef_bv(sgd(of), TOP, of.lambda_, of.nu),
    "EF-BV, random k": lambda of: algorithms.ef_bv(sgd(of), RANDOM, of.lambda_, of.nu),
    "EF-BV": lambda of: algorithms.ef_bv(sgd(of), RANDOM),
    "EF-BV of top k": lambda of: algorithms.ef_bv(sgd(of), TOP),
    "DIANA": lambda of: algorithms.diana(sgd(of), RANDOM),
    "DIANA, alpha": lambda of: algorithms.diana(sgd(of), RANDOM, of.lambda_),
    "DIANA, N servers": lambda of: algorithms.diana(sgd(of), RANDOM, of.lambda_, via=N_SERVERS),
    "DIANA, identity": lambda of: algorithms.diana(sgd(of), IDENTITY),
    "EControl": lambda of: algorithms.econtrol(sgd(of), TOP, of.eta),
    "EControl, identity": lambda of: algorithms.econtrol(sgd(of), IDENTITY, of.eta),
    "compressed SGD": lambda of: algorithms.error_feedback(sgd(of), Up(RANDOM)),
    "compressed SGD, N servers": lambda of: algorithms.compressed_sgd(sgd(of), RANDOM),
    "no memories": lambda of: algorithms.error_feedback(
        sgd(of), Up(RANDOM), Down(RANDOM, None), via=N_SERVERS
    ),
    "EC-SGD": lambda of: algorithms.error_feedback(sgd(of), Up(TOP, error=1.0)),
    "EC-SGD, both ways": lambda of: algorithms.error_feedback(
        sgd(of), Up(TOP, error=1.0), Down(TOP)
    ),
    "EC-SGD, decay": lambda of: algorithms.error_feedback(
        sgd(of), Up(TOP, error=of.decay, decay=of.decay)
    ),
    "EC-SGD, steps": lambda of: algorithms.error_feedback(
        optax.sgd(1.0), Up(TOP, error=1.0), vector=memories.steps(sgd(of))
    ),
    "dist-EF-SGD": lambda of: algorithms.dist_ef_sgd(sgd(of), TOP),
}


def sgd(of: Any) -> optax.GradientTransformation:
    return optax.sgd(of.gamma, momentum=of.momentum)


build = quadratics.builders(METHODS)
in_float64 = quadratics.in_float64


@cache
def run(name: str, numbers: Numbers, noise: float = 0.0) -> Trajectory:
    return quadratics.run(build(name), numbers, T, noise=noise)


def models(name: str, numbers: Numbers, noise: float = 0.0) -> np.ndarray:
    """Returns the model after each round, `[T, d]`."""
    return run(name, numbers, noise).home


# --- Identities.

MIXED = Numbers(momentum=0.5)
SHIFTS = 1 / (1 + OMEGA)
IDENTITIES: dict[str, tuple[tuple[str, Numbers], tuple[str, Numbers]]] = {
    "EF-BV with numbers of 1": (("EF-BV, top k", MIXED), ("EF21", MIXED)),
    "EF-BV of a contraction": (("EF-BV of top k", MIXED), ("EF21", MIXED)),
    "EF-BV with the shifts of DIANA": (
        ("EF-BV, random k", Numbers(lambda_=SHIFTS)),
        ("DIANA", Numbers()),
    ),
    "DIANA's alpha": (("DIANA, alpha", MIXED._replace(lambda_=SHIFTS)), ("DIANA", MIXED)),
    "EF-BV's numbers": (
        ("EF-BV, random k", Numbers(lambda_=SHIFTS, nu=1 / (1 + OMEGA / N))),
        ("EF-BV", Numbers()),
    ),
    "DIANA without shifts": (
        ("DIANA, alpha", Numbers(gamma=0.01, lambda_=0.0)),
        ("compressed SGD", Numbers(gamma=0.01)),
    ),
    "no memories with N servers": (
        ("no memories", Numbers(gamma=0.002)),
        ("compressed SGD, N servers", Numbers(gamma=0.002)),
    ),
    "EControl without errors": (("EControl", MIXED), ("EF21", MIXED)),
    "EF21-SGDM without momentum": (("EF21-SGDM", Numbers(eta=1.0)), ("EF21", Numbers())),
    "EF21-SGD2M without momentum": (("EF21-SGD2M", Numbers(eta=1.0)), ("EF21", Numbers())),
    "EF21-SGDM of the identity": (
        ("EF21-SGDM, identity", Numbers(eta=0.2)),
        ("SGD", Numbers(gamma=0.2 * GAMMA, momentum=0.8)),
    ),
    "DIANA of the identity": (("DIANA, identity", MIXED), ("SGD", MIXED)),
    "EControl of the identity": (
        ("EControl, identity", MIXED._replace(eta=0.3)),
        ("SGD", MIXED),
    ),
    "EF21 with an uncompressed reply": (("EF21, N servers", MIXED), ("EF21, N identities", MIXED)),
    "memories in units of the step": (("EC-SGD, steps", Numbers()), ("EC-SGD", Numbers())),
    "dist-EF-SGD": (("dist-EF-SGD", Numbers()), ("EC-SGD, both ways", Numbers())),
    "no decay": (("EC-SGD, decay", Numbers()), ("EC-SGD", Numbers())),
}


@pytest.mark.parametrize("noise", [pytest.param(0.0, marks=pytest.mark.long), 0.5])
@pytest.mark.parametrize("name", sampled(IDENTITIES, "EF-BV's numbers"))
def test_methods_with_memories_equal_others(name, noise):
    (one, numbers), (other, others) = IDENTITIES[name]
    found = models(one, numbers, noise)[:60]
    assert np.ptp(found, axis=0).max() > 0.1
    np.testing.assert_allclose(found, models(other, others, noise)[:60], rtol=0, atol=1e-12)


def test_memories_that_decay_are_those_of_a_loop():
    """Each error is multiplied by beta before it is added to the next gradient."""
    beta, (A, b, x) = 0.7, quadratics.arrays()
    G, e = quadratic(A, b), np.zeros((N, D))
    top = Parts(LAYERS, 1).each(lambda layer: largest(layer, -(-len(layer) // 5)))
    found = models("EC-SGD, decay", Numbers(decay=beta))
    for t in range(60):
        p = G(t, np.tile(x, (N, 1))) + beta * e
        sent = np.array([top(row) for row in p])
        e, x = p - sent, x - GAMMA * sent.mean(axis=0)
        np.testing.assert_allclose(found[t], x, rtol=0, atol=1e-12)


# --- Limits.

EXACT: dict[str, Numbers] = {
    "EF21": Numbers(),
    "EF21, both ways": Numbers(gamma=0.02),
    "EF21-SGDM": Numbers(eta=0.2),
    "EF21-SGD2M": Numbers(eta=0.2),
    "EF-BV, top k": Numbers(lambda_=0.5, nu=0.8),
    "EF-BV": Numbers(gamma=0.02),
    "DIANA": Numbers(gamma=0.02),
    "DIANA, N servers": Numbers(gamma=0.02, lambda_=0.2),
    "EControl": Numbers(eta=0.2),
}


@pytest.mark.parametrize("name", sampled(EXACT))
def test_limits_with_shifts_are_exact(name):
    """The shifts approach the workers' gradients at the optimum, which differ."""
    gap = np.abs(models(name, EXACT[name]) - quadratics.minimizer()).max(axis=1)
    assert gap[0] > 0.1
    assert gap[-1] < 1e-9


def test_limits_without_shifts_are_biased_in_proportion_to_the_step_size():
    star = quadratics.minimizer()
    gaps = [
        np.linalg.norm(models("EC-SGD", Numbers(gamma=gamma))[-500:] - star, axis=1).max()
        for gamma in (0.1, 0.01)
    ]
    assert gaps[1] > 0.02
    assert 8 < gaps[0] / gaps[1] < 12


@pytest.mark.parametrize("name", ["DIANA, alpha", "EControl", "EF21"])
def test_the_servers_shift_is_the_mean_of_the_workers(name):
    numbers = Numbers(lambda_=0.1, eta=0.2, gamma=0.02)
    states = run(name, numbers, 0.5).states
    mean = trajectories.rows(states.workers.shift).mean(axis=1)
    shift = trajectories.rows(states.server.server.shift, 1)
    np.testing.assert_allclose(shift, mean, rtol=0, atol=1e-12)
    assert np.abs(shift[-1]).max() > 0.01


@pytest.mark.parametrize("name", sampled(["EF21", "EF21-SGDM", "DIANA", "EF-BV", "EControl"]))
def test_limits_with_sampled_clients_are_exact(name):
    """Half of the clients participate in each round; the others keep their memories."""
    A, b, start = quadratics.arrays()
    cluster = clusters.Cluster(clusters.constant(1.0), present=clusters.sampled(N // 2, of=N))
    found = dsgd.run(
        METHODS[name](Numbers(gamma=0.02, eta=0.2)),
        problems.quadratic(A, b, start=start),
        steps=4_000,
        key=jax.random.key(0),
        cluster=cluster,
        mesh=1,
        record_every=4_000,
    )
    np.testing.assert_allclose(found.params, quadratics.minimizer(), rtol=0, atol=1e-9)
    assert found.history["present"][-1] == 0.5


def test_sizes_are_those_of_the_vectors_that_are_compressed():
    """Layers have 7 and 15 elements, which six servers cut into parts of 2 and 3."""
    rows, whole = {"a": np.zeros((N, 7)), "b": np.zeros((N, 3, 5))}, compressors.whole_model(RANDOM)
    assert servers.OneServer(RANDOM, None, network.star).sizes(rows) == (7, 15)
    assert servers.OneServer(whole, None, network.star).sizes(rows) == (22,)
    for compressor, sizes in ((RANDOM, (2, 3)), (whole, (4,))):
        route = servers.NServers(compressor, compressor, network.multi_server)
        assert route.sizes(route.start({"a": jnp.zeros(7), "b": jnp.zeros((3, 5))}, N)[0]) == sizes


# --- Invalid arguments.

BAD = {
    "via": (
        lambda: algorithms.diana(optax.sgd(0.1), RANDOM, via=network.ring_all_reduce),  # pyright: ignore[reportArgumentType]
        "diana: via = .*; expected .* network.star or network.parameter_server, or "
        "network.multi_server",
    ),
    "error": (
        lambda: algorithms.error_feedback(optax.sgd(0.1), Up(TOP, error=-1.0)),
        r"error_feedback: error of up = -1.0; expected a number in \[0, inf\)",
    ),
    "over": (
        lambda: algorithms.error_feedback(optax.sgd(0.1), Up(TOP, over="some")),  # pyright: ignore[reportArgumentType]
        "error_feedback: over of up = 'some'; expected 'all' or 'arrived'",
    ),
    "memory": (
        lambda: algorithms.error_feedback(optax.sgd(0.1), Up(TOP), Down(TOP, "both")),  # pyright: ignore[reportArgumentType]
        "error_feedback: memory of down = 'both'; expected 'error', 'difference' or None",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_numbers_are_refused(name):
    make, words = BAD[name]
    with pytest.raises(ValueError, match=words):
        make()


NO_BOUND = RANDOM._replace(omega=lambda d: None, name="unbounded")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            algorithms.diana(optax.sgd(0.1), NO_BOUND),
            "diana: unbounded states omega = None for vectors of 3 elements",
        ),
        (
            algorithms.ef21_sgdm(optax.sgd(0.1), compressors.natural._replace(delta=None)),
            "ef21_sgdm: natural states no contraction for vectors of 3 elements",
        ),
        (
            algorithms.ef21(optax.sgd(0.1), TOP, TOP),
            "regularizer",
        ),
        (
            algorithms.diana(optax.sgd(0.1, momentum=0.9), RANDOM),
            r"optimizer chain\(trace, scale\): it has moments.*such as optax.sgd\(0.1\)",
        ),
        (
            algorithms.dist_ef_sgd(optax.sgd(0.1)),
            "dist_ef_sgd: memories in units of the step",
        ),
    ],
    ids=["no omega", "no contraction", "prox on shards", "prox of momentum", "prox of steps"],
)
def test_methods_that_do_not_fit_the_problem_are_refused(method, words):
    problem = problems.regularized(problems.random_quadratic(N, 3), problems.l1(0.1))
    with pytest.raises(ValueError, match=words):
        dsgd.run(method, problem, steps=1, key=jax.random.key(0), mesh=1)


def test_proximal_steps_have_the_size_of_the_step_of_their_round():
    A, b, start = quadratics.arrays()
    found = quadratics.run(
        build("DIANA, decreasing"), Numbers(), 30, regularizer=problems.l1(LASSO)
    )
    x = start
    for t in range(30):
        gamma = GAMMA / (1 + t)
        x = x - gamma * (A.mean(axis=0) @ x - b.mean(axis=0))
        x = np.sign(x) * np.maximum(np.abs(x) - gamma * LASSO, 0)
    assert trajectories.rows(found.states.server.shared.params, 1)[-1] == pytest.approx(
        x, abs=1e-12
    )


def test_states_have_only_the_memories_of_the_method():
    """N servers also have the workers' estimate of their shards, with its padding."""
    d = 4 * N
    numbers = {
        "compressed SGD": 0,
        "EC-SGD": N * d,
        "EC-SGD, both ways": N * d + d,
        "EF21": N * d + d,
        "EF21, both ways": N * d + 2 * d,
        "EF21, N identities": N * d + 3 * d,
        "EControl": 2 * N * d + d,
        "EF21-SGDM": 2 * N * d + d,
        "DIANA": N * d + d,
    }
    for name, more in numbers.items():
        method = METHODS[name](Numbers(eta=0.5))
        state = jax.eval_shape(lambda method=method: method.init(jnp.zeros(d), N))
        momenta = d  # of the model, in its optimizer
        size = sum(leaf.size for leaf in jax.tree.leaves((state.server, state.workers)))
        assert size == d + momenta + more, name
