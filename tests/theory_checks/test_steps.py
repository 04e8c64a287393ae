"""Step sizes of the theorems, from the constants of a problem: formulas of the papers in numpy."""

from __future__ import annotations

from math import sqrt

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from algorithms.mechanisms import three_points
from dsgd import compressors, problems
from theory_checks import steps

N, D = 4, 6
RING = topologies.ring(N)


@pytest.fixture(scope="module")
def constants() -> problems.ProblemConstants:
    """Of quadratics with noise whose workers have different L_n."""
    with jax.enable_x64(True):
        problem = problems.random_quadratic(
            N, D, noise=0.7, heterogeneity=1.5, smoothness=3.0, strong_convexity=0.2
        )
    A = np.asarray(problem.data.A) * np.array([0.3, 0.7, 1.3, 2.1])[:, None, None]
    with jax.enable_x64(True):
        return problems.constants(problems.quadratic(A, problem.data.b, noise=0.7))


@pytest.fixture(scope="module")
def numbers(constants) -> dict[str, float]:
    """Returns L of f, the largest L, L-tilde, mu, D, sigma and varsigma, from the matrices."""
    A, b = (np.asarray(each, float) for each in constants.problem.data[:2])
    largest = np.linalg.eigvalsh(A)[:, -1]
    mean = np.linalg.eigvalsh(A.mean(axis=0))
    x = np.linalg.solve(A.mean(axis=0), b.mean(axis=0))
    return {
        "L": mean[-1],
        "most": largest.max(),
        "rms": sqrt(np.mean(largest**2)),
        "mu": mean[0],
        "D": x @ A.mean(axis=0) @ x / 2,
        "sigma": 0.7,
        "varsigma": sqrt(np.mean(np.sum((A @ x - b) ** 2, axis=1))),
    }


def test_steps_with_exact_gradients(constants, numbers):
    L, most, rms, mu = (numbers[name] for name in ("L", "most", "rms", "mu"))
    assert mu < L < rms < most
    delta, omega, p = 2 / D, D / 2 - 1, 0.15
    top, random = compressors.top_k(2 / D), compressors.random_k(2 / D)
    theta = 1 - sqrt(1 - delta)
    beta = (1 - delta) / (1 - sqrt(1 - delta))
    least = np.linalg.eigvalsh(RING.W)[0]
    lazy = topologies.ring(N, weights=topologies.lazy)
    noise = (1 - p) * omega / (p * N)
    expected = {
        steps.gradient_descent(constants): 1 / L,
        steps.ef21(constants, top): 1 / (L + rms * sqrt(beta / theta)),
        steps.three_point(constants, three_points.ef21(top)): 1 / (L + rms * sqrt(beta / theta)),
        steps.diana(constants, random): 1 / (most * (1 + 6 * omega / N)),
        steps.marina(constants, random, p): 1 / (L + rms * sqrt(noise)),
        steps.marina(constants, random, p, linear=True): min(
            1 / (L + rms * sqrt(2 * noise)), p / (2 * mu)
        ),
        steps.marina(constants, random, p, clients=3): 1
        / (L + rms * sqrt((1 - p) * (1 + omega) / (p * 3))),
        steps.scaffnew(constants): 1 / most,
        steps.exact_diffusion(constants): 2 / (most + mu),
        steps.d2(constants, lazy): 2 / (most + mu),
        steps.extra(constants, RING): (1 + least) / (2 * most),
    }
    for found, value in expected.items():
        assert found == pytest.approx(value, rel=1e-9)
    for left, found in (
        ((1 - delta, 1 - delta), (steps.ef21(constants, top, linear=True))),
        ((1 - delta, 1 - delta), steps.ef_bv(constants, top)),
        ((omega / (1 + omega), omega / (N + omega)), steps.ef_bv(constants, random)),
    ):
        s = sqrt((1 + left[0]) / (2 * left[0])) - 1
        assert found == pytest.approx(1 / (L + rms * sqrt(left[1] / left[0]) / s), rel=1e-9)


def test_recommended_steps_with_noise(constants, numbers):
    L, most, gap = (numbers[name] for name in ("L", "most", "D"))
    sigma, varsigma, T, rho = 0.7, numbers["varsigma"], 500, RING.rho
    both = sqrt(sigma**2 + varsigma**2)
    drift = 4 * most**2 * rho**2 * varsigma**2 / (1 - rho) ** 2
    drift += 2 * most**2 * rho**2 * sigma**2 / (1 - rho) * (1 - 1 / N)
    inverses = {
        steps.sgd(constants, steps=T): L + both * sqrt(L * T / (2 * gap)),
        steps.sgd(constants, steps=T, noise=0.2): L + 0.2 * sqrt(L * T / (2 * gap)),
        steps.minibatch_sgd(constants, steps=T): L + sigma * sqrt(L * T / (2 * gap * N)),
        steps.asynchronous_sgd(constants, staleness=5, steps=T): 12 * L + both * sqrt(L * T / gap),
        steps.birch_sgd(constants, tree_distance=5, epsilon=0.1): 4 * both**2 * L / 0.1,
        steps.birch_sgd(constants, tree_distance=5, epsilon=0.1, noise=0.2): 10 * L,
        steps.error_compensated_sgd(constants, compression=0.3, steps=T): 2 * L
        + sigma * sqrt(L * T / (N * gap))
        + (4 * L**2 * 0.3**2 * T / gap) ** (1 / 3),
        steps.decentralized_sgd(constants, RING, steps=T): most * (1 + rho) / (1 - rho)
        + sigma * sqrt(most * T / (2 * N * gap))
        + (drift * T / gap) ** (1 / 3),
    }
    for found, inverse in inverses.items():
        assert found == pytest.approx(1 / inverse, rel=1e-9)
    same = steps.local_sgd(constants, 1, steps=T)
    assert same == pytest.approx(1 / (most + sigma * sqrt(most * T / (2 * N * gap))), rel=1e-9)
    assert steps.local_sgd(constants, 4, steps=T) < same
    half, omega = compressors.random_k(0.5), 1.0  # on shards of two elements
    inflated = L * (1 + omega + omega * (1 + omega) / N)
    variance = (1 + omega) * ((1 + omega) * sigma**2 + omega * varsigma**2) / N
    expected = 1 / (inflated + sqrt(variance * L * T / (2 * gap)))
    assert steps.compressed_sgd(constants, half, steps=T) == pytest.approx(expected, rel=1e-9)
    assert steps.compressed_sgd(constants, half, steps=T, ring=True) != pytest.approx(expected)


def test_the_step_of_gradient_tracking_converges(constants):
    limit = steps.gradient_tracking(constants, RING)
    method = algorithms.gradient_tracking(optax.sgd(limit), RING)
    exact = constants.problem._replace(
        sample=lambda key, data: data, constants=constants.problem.constants
    )
    with jax.enable_x64(True):
        distance = dsgd.run(method, exact, steps=2_000, key=0, record_every=500).history["distance"]
    assert (np.diff(distance) < 0).all()


def test_what_is_missing_is_named(constants):
    for call, message in (
        (lambda c: steps.ef21(c, compressors.random_k(0.5)), "ef21: .* states no contraction"),
        (lambda c: steps.diana(c, compressors.top_k(0.5)), "diana: .* states no omega"),
        (lambda c: steps.d2(c, topologies.ring(N)), "eigenvalue -0.333; expected none below 0"),
        (lambda c: steps.extra(c, topologies.ring(5)), "4"),
        (lambda c: steps.marina(c, compressors.random_k(0.5), 0.1, clients=5), "expected 1 to 4"),
    ):
        with pytest.raises(ValueError, match=message):
            call(constants)
    data = (np.arange(24.0).reshape(12, 2), np.arange(12) % 2)
    other = problems.constants(problems.binary_logistic_regression(data, 2, l2=0.1, batch_size=1))
    with pytest.raises(ValueError, match=r"noise of .* is not known at all x; .* noise=problems"):
        steps.minibatch_sgd(other, steps=10)
    assert steps.minibatch_sgd(other, steps=10, noise=other.noise) < 1 / other.mean_smoothness
    flat = problems.constants(problems.binary_logistic_regression(data, 2))
    with pytest.raises(ValueError, match="has mu = 0; expected a strongly convex"):
        steps.gradient_tracking(flat, topologies.complete(2))
