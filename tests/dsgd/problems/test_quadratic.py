from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from scipy import linalg, optimize, stats

from dsgd import problems
from dsgd.engine import oracle

N, D = 4, 3
DRAWS = 20_000
LIMIT = 5  # standard errors


def make_hessians(kind: str) -> np.ndarray:
    """Returns different Hessians; that of worker 0 is negative and the largest, and their mean is
    positive definite.
    """
    rng = np.random.default_rng(0)
    shift = np.array([-9.0, 4.0, 4.0, 4.0]) + 1.0
    if kind == "diagonal":
        return rng.uniform(-1, 1, (N, D)) + shift[:, None]
    raw = rng.uniform(-1, 1, (N, D, D))
    return (raw + np.swapaxes(raw, 1, 2)) / 2 + shift[:, None, None] * np.eye(D)


@pytest.fixture(params=["dense", "diagonal"])
def hessians(request) -> np.ndarray:
    return make_hessians(request.param)


B = np.random.default_rng(1).normal(size=(N, D))


def dense(A: np.ndarray) -> np.ndarray:
    return np.stack([np.diag(a) for a in A]) if A.ndim == 2 else A


def worker(data, n: int):
    return jax.tree.map(lambda leaf: leaf[n], data)


def value(A: np.ndarray, x: np.ndarray) -> float:
    return float(np.mean([x @ a @ x / 2 - b @ x for a, b in zip(dense(A), B, strict=True)]))


def slopes(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    return dense(A) @ x - B


def test_constants_agree_with_brute_force(hessians):
    known = problems.quadratic(hessians, B, noise=0.7).constants
    eigenvalues = [linalg.eigvals(a).real for a in dense(hessians)]
    assert np.min(eigenvalues) < -np.max(eigenvalues)
    objective, slope = partial(value, hessians), lambda x: slopes(hessians, x).mean(axis=0)
    best = optimize.minimize(objective, np.zeros(D), jac=slope, method="BFGS", tol=1e-10)
    heterogeneity = np.sqrt(np.mean(np.sum(slopes(hessians, best.x) ** 2, axis=1)))
    convexity = linalg.eigvals(dense(hessians).mean(axis=0)).real.min()
    assert known.smoothness == pytest.approx(np.abs(eigenvalues).max(), rel=1e-9)
    assert known.strong_convexity == pytest.approx(convexity, rel=1e-9)
    assert known.minimum == pytest.approx(best.fun, rel=1e-9)
    np.testing.assert_allclose(known.minimizer, best.x, rtol=1e-6)
    assert known.heterogeneity == pytest.approx(heterogeneity, rel=1e-6)
    assert known.noise == 0.7


def test_objective_and_gradients_are_those_of_numpy(hessians, mesh, key):
    """With the noise of its batch, and without it for a worker's whole data."""
    with jax.enable_x64(True):
        problem = problems.quadratic(hessians, B, noise=2.0)
        over = {"mesh": mesh, "out_specs": P(), "check_vma": False}
        specs = (P(), P("workers"), P())
        measure = jax.shard_map(partial(oracle.evaluate, problem), in_specs=specs, **over)
        for x in np.random.default_rng(2).normal(size=(3, D)):
            scalars, slope = jax.jit(measure)(
                jnp.asarray(x), problem.data, problem.evaluation.replicated
            )
            np.testing.assert_allclose(scalars["loss"], value(hessians, x), rtol=1e-12)
            np.testing.assert_allclose(slope, slopes(hessians, x).mean(axis=0), rtol=1e-12)
            for n in (0, N - 1):
                mine = worker(problem.data, n)
                exact = problem.gradient(jnp.asarray(x), mine)
                np.testing.assert_allclose(exact, slopes(hessians, x)[n], rtol=1e-12)
                batch = problem.sample(key, mine)
                slope = jax.grad(problem.loss)(jnp.asarray(x), batch)
                np.testing.assert_allclose(
                    problem.gradient(jnp.asarray(x), batch), slope, rtol=1e-12
                )


def test_noise_is_normal_and_has_the_variance_asked_for():
    r"""$g_n - f_n'$ is $N(0, \sigma^2 I / d)$: unbiased, $E |\xi|^2 = \sigma^2$, with independent
    coordinates.
    """
    sigma = 3.0
    problem = problems.quadratic(make_hessians("dense"), B, noise=sigma)
    mine, x = worker(problem.data, 1), jnp.ones(D)
    drawn = jax.jit(jax.vmap(lambda key: problem.gradient(x, problem.sample(key, mine))))(
        jax.random.split(jax.random.key(0), DRAWS)
    )
    xi = np.asarray(drawn - problem.gradient(x, mine)[None], np.float64)
    assert np.abs(xi.mean(axis=0)).max() <= LIMIT * sigma / np.sqrt(D * DRAWS)
    products = xi.T @ xi / DRAWS - sigma**2 / D * np.eye(D)
    assert np.abs(products).max() <= LIMIT * np.sqrt(2) * sigma**2 / D / np.sqrt(DRAWS)
    assert stats.kstest(xi.ravel() / (sigma / np.sqrt(D)), "norm").pvalue > 1e-4


@st.composite
def requests(draw) -> dict[str, Any]:
    """With one worker there is no heterogeneity, with one dimension one eigenvalue."""
    workers, dimension = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    smoothness = draw(st.floats(0.1, 100))
    return {
        "workers": workers,
        "dimension": dimension,
        "smoothness": smoothness,
        "strong_convexity": smoothness * draw(st.floats(1e-3, 1) if dimension > 1 else st.just(1)),
        "heterogeneity": draw(st.just(0.0) | st.floats(1e-3, 100)) if workers > 1 else 0.0,
        "noise": draw(st.just(0.0) | st.floats(1e-3, 10)),
        "diagonal": draw(st.booleans()),
        "seed": draw(st.integers(0, 1000)),
    }


@settings(max_examples=30)
@given(request=requests(), equal_hessians=st.booleans())
def test_random_quadratic_has_the_constants_asked_for(request, equal_hessians):
    problem = problems.random_quadratic(**request, equal_hessians=equal_hessians)
    known = problem.constants
    assert problem.workers == request["workers"]
    assert known.smoothness == pytest.approx(request["smoothness"], rel=1e-9)
    assert known.heterogeneity == pytest.approx(request["heterogeneity"], rel=1e-9, abs=1e-9)
    assert known.noise == request["noise"]
    if equal_hessians:  # with equal Hessians the heterogeneity is the same everywhere
        assert np.ptp(np.asarray(problem.data.A), axis=0).max() == 0
        assert known.strong_convexity == pytest.approx(request["strong_convexity"], rel=1e-9)
    else:
        assert known.strong_convexity >= request["strong_convexity"] * (1 - 1e-9)
    for a in dense(np.asarray(problem.data.A, np.float64)):
        extremes = linalg.eigvalsh(a)[[0, -1]]
        asked = request["strong_convexity"], request["smoothness"]
        np.testing.assert_allclose(extremes, asked, rtol=0, atol=1e-5 * request["smoothness"])


@pytest.mark.parametrize("diagonal", [False, True])
def test_spectrum_and_distance_are_those_given(diagonal):
    """The problems of RelaySGD: f has the factor 1/2, and the gradients of the workers at x* have
    the mean square zeta^2.
    """
    singular, zeta, distance = np.linspace(0.5, 1, 5), 0.3, 7.0
    problem = problems.random_quadratic(
        3, 5, spectrum=singular**2, heterogeneity=zeta, distance=distance, diagonal=diagonal
    )
    A, b = (np.asarray(leaf, float) for leaf in (problem.data.A, problem.data.b))
    np.testing.assert_allclose(np.sort(linalg.eigvalsh(dense(A)[1])), singular**2, rtol=1e-5)
    assert np.abs(A[0] - A[1]).max() > 0.01
    x = np.linalg.solve(dense(A).mean(axis=0), b.mean(axis=0))
    assert np.linalg.norm(x) == pytest.approx(distance, rel=1e-5)
    slopes = dense(A) @ x - b
    assert np.mean(np.sum(slopes**2, axis=1)) == pytest.approx(zeta**2, rel=1e-4)
    different = singular * np.array([[2.0], [3.0], [4.0]])
    of_each = problems.random_quadratic(3, 5, spectrum=different)
    np.testing.assert_allclose(
        linalg.eigvalsh(np.asarray(of_each.data.A, float)[2]), different[2], rtol=1e-5
    )
    assert of_each.constants.smoothness == pytest.approx(4.0, rel=1e-6)
