from __future__ import annotations

from functools import partial

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
    """Different ones; that of worker 0 is negative and the largest of all, their mean is positive
    definite.
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


def evaluate(problem, x, mesh):
    measure = partial(oracle.evaluate, problem)
    over_workers = jax.shard_map(
        measure, mesh=mesh, in_specs=(P(), P("workers"), P()), out_specs=P(), check_vma=False
    )
    return jax.jit(over_workers)(x, problem.data, problem.shared)


def value(A: np.ndarray, x: np.ndarray) -> float:
    return float(np.mean([x @ a @ x / 2 - b @ x for a, b in zip(dense(A), B, strict=True)]))


def slopes(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.stack([a @ x - b for a, b in zip(dense(A), B, strict=True)])


def test_constants_are_those_of_brute_force(hessians):
    known = problems.quadratic(hessians, B, noise=0.7).constants
    eigenvalues = [linalg.eigvals(a).real for a in dense(hessians)]
    assert np.min(eigenvalues) < -np.max(eigenvalues)
    best = optimize.minimize(
        partial(value, hessians),
        np.zeros(D),
        jac=lambda x: slopes(hessians, x).mean(axis=0),
        method="BFGS",
        tol=1e-10,
    )
    assert known.smoothness == pytest.approx(np.abs(eigenvalues).max(), rel=1e-9)
    assert known.strong_convexity == pytest.approx(
        linalg.eigvals(dense(hessians).mean(axis=0)).real.min(), rel=1e-9
    )
    assert known.minimum == pytest.approx(best.fun, rel=1e-9)
    np.testing.assert_allclose(known.minimizer, best.x, rtol=1e-6)
    assert known.heterogeneity == pytest.approx(
        np.sqrt(np.mean(np.sum(slopes(hessians, best.x) ** 2, axis=1))), rel=1e-6
    )
    assert known.noise == 0.7


def test_objective_is_the_mean_of_the_workers_losses(hessians, mesh):
    with jax.enable_x64(True):
        problem = problems.quadratic(hessians, B)
        losses = jax.jit(jax.vmap(problem.loss, (None, 0)))
        for x in np.random.default_rng(2).normal(size=(3, D)):
            scalars, slope = evaluate(problem, jnp.asarray(x), mesh)
            local = np.asarray(losses(jnp.asarray(x), problem.data))
            np.testing.assert_allclose(local.mean(), value(hessians, x), rtol=1e-12)
            np.testing.assert_allclose(scalars["loss"], value(hessians, x), rtol=1e-12)
            np.testing.assert_allclose(slope, slopes(hessians, x).mean(axis=0), rtol=1e-12)


def test_gradient_is_that_of_the_loss(hessians, key):
    """With its noise in the batch, and without it in a worker's whole data."""
    exact = problems.quadratic(hessians, B)
    assert exact.sample(key, worker(exact.data, 0)).noise is None
    with jax.enable_x64(True):
        problem = problems.quadratic(hessians, B, noise=2.0)
        x = jnp.asarray(np.random.default_rng(4).normal(size=D))
        for n in (0, N - 1):
            mine = worker(problem.data, n)
            np.testing.assert_allclose(
                problem.gradient(x, mine), slopes(hessians, np.asarray(x))[n], rtol=1e-12
            )
            for batch in (mine, problem.sample(key, mine)):
                np.testing.assert_allclose(
                    problem.gradient(x, batch), jax.grad(problem.loss)(x, batch), rtol=1e-12
                )


def test_noise_is_normal_and_has_the_variance_asked_for():
    r"""$g_n - f_n'$ is $N(0, \sigma^2 I / d)$: unbiased, $E |\xi|^2 = \sigma^2$, and no coordinate
    knows of another.
    """
    sigma = 3.0
    problem = problems.quadratic(make_hessians("dense"), B, noise=sigma)
    mine, x = worker(problem.data, 1), jnp.ones(D)
    drawn = jax.jit(jax.vmap(lambda key: problem.gradient(x, problem.sample(key, mine))))(
        jax.random.split(jax.random.key(0), DRAWS)
    )
    xi = np.asarray(drawn - problem.gradient(x, mine)[None], np.float64)
    squares = np.sum(xi**2, axis=1)
    assert abs(squares.mean() - sigma**2) <= LIMIT * squares.std() / np.sqrt(DRAWS)
    assert np.abs(xi.mean(axis=0)).max() <= LIMIT * sigma / np.sqrt(D * DRAWS)
    products = xi.T @ xi / DRAWS - sigma**2 / D * np.eye(D)
    assert np.abs(products).max() <= LIMIT * np.sqrt(2) * sigma**2 / D / np.sqrt(DRAWS)
    assert stats.kstest(xi.ravel() / (sigma / np.sqrt(D)), "norm").pvalue > 1e-4


def test_start_is_zero_or_the_one_given_even_if_the_array_changes_later(key):
    np.testing.assert_array_equal(problems.quadratic(np.ones((N, D)), B).init(key), np.zeros(D))
    start = np.array([1.0, -2.0, 0.5])
    problem = problems.quadratic(np.ones((N, D)), B, start=start)
    start[:] = 7
    np.testing.assert_array_equal(problem.init(key), [1.0, -2.0, 0.5])


def spoiled(entry: float) -> np.ndarray:
    changed = make_hessians("dense")
    changed[2, 0, 1] += entry
    return changed


@pytest.mark.parametrize(
    ("A", "b", "options", "message"),
    [
        pytest.param(
            np.ones((N, D + 1)), B, {}, r"A has shape \(4, 4\), b \(4, 3\)", id="diagonals too long"
        ),
        pytest.param(
            np.ones((N + 1, D)),
            B,
            {},
            r"A has shape \(5, 3\), b \(4, 3\)",
            id="more Hessians than workers",
        ),
        pytest.param(
            np.ones((N, D, D + 1)), B, {}, r"A has shape \(4, 3, 4\)", id="Hessians not square"
        ),
        pytest.param(np.eye(D), B[0], {}, r"b \(3,\)", id="no worker axis"),
        pytest.param(np.ones((0, D)), np.ones((0, D)), {}, r"\(0, 3\)", id="no worker"),
        pytest.param(spoiled(0.5), B, {}, r"A\[2\] is not symmetric", id="asymmetric"),
        pytest.param(spoiled(np.nan), B, {}, "not finite", id="A not finite"),
        pytest.param(
            np.ones((N, D)), B + np.array([0, np.inf, 0]), {}, "not finite", id="b not finite"
        ),
        pytest.param(-make_hessians("dense"), B, {}, "eigenvalue -", id="mean indefinite"),
        pytest.param(
            np.ones((N, D)) * np.array([1, 0, 1]), B, {}, "eigenvalue 0", id="mean singular"
        ),
        pytest.param(np.ones((N, D)), B, {"noise": -0.1}, "noise = -0.1", id="negative noise"),
        pytest.param(
            np.ones((N, D)), B, {"noise": float("inf")}, "noise = inf", id="infinite noise"
        ),
        pytest.param(
            np.ones((N, D)),
            B,
            {"start": np.zeros(D + 1)},
            r"start has shape \(4,\)",
            id="start too long",
        ),
        pytest.param(
            np.ones((N, D)),
            B,
            {"start": [0.0, np.nan, 0.0]},
            "start.*not finite",
            id="start not finite",
        ),
    ],
)
def test_quadratic_that_is_none_is_refused(A, b, options, message):
    with pytest.raises(ValueError, match=message):
        problems.quadratic(A, b, **options)


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_asymmetry_is_judged_by_the_size_of_the_worker_s_own_hessian(unit):
    """In other units, or beside a much steeper worker, half an eigenvalue of asymmetry is no
    rounding error.
    """
    A = np.stack([np.eye(D), 1e8 * np.eye(D)])
    A[0, 0, 1] = 0.5
    with pytest.raises(ValueError, match=r"A\[0\] is not symmetric"):
        problems.quadratic(unit * A, np.zeros((2, D)))


def test_asymmetry_of_a_rounding_error_is_accepted():
    problems.quadratic(spoiled(1e-12), B)


@st.composite
def requests(draw):
    smoothness = draw(st.floats(0.1, 100))
    return {
        "workers": draw(st.integers(2, 6)),
        "dimension": draw(st.integers(2, 6)),
        "smoothness": smoothness,
        "strong_convexity": smoothness * draw(st.floats(1e-3, 1)),
        "heterogeneity": draw(st.just(0.0) | st.floats(1e-3, 100)),
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
    if equal_hessians:  # then the heterogeneity is the same everywhere
        assert np.ptp(np.asarray(problem.data.A), axis=0).max() == 0
        assert known.strong_convexity == pytest.approx(request["strong_convexity"], rel=1e-9)
    else:
        assert known.strong_convexity >= request["strong_convexity"] * (1 - 1e-9)
    for a in dense(np.asarray(problem.data.A, np.float64)):
        eigenvalues = linalg.eigvalsh(a)
        tolerance = 1e-5 * request["smoothness"]
        assert eigenvalues[0] == pytest.approx(request["strong_convexity"], abs=tolerance)
        assert eigenvalues[-1] == pytest.approx(request["smoothness"], abs=tolerance)


def test_seed_decides_the_random_quadratic():
    first, same, other = (problems.random_quadratic(N, D, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.data.A, same.data.A)
    np.testing.assert_array_equal(first.data.b, same.data.b)
    assert not np.allclose(first.data.A, other.data.A)
    assert not np.allclose(first.data.b, other.data.b)


@pytest.mark.parametrize(
    ("workers", "dimension", "options", "message"),
    [
        (0, 3, {}, "workers = 0"),
        (3, 0, {}, "dimension = 0"),
        (3, 3, {"strong_convexity": 0.0}, "strong_convexity = 0.0"),
        (3, 3, {"strong_convexity": 2.0, "smoothness": 1.0}, "smoothness = 1.0"),
        (3, 3, {"smoothness": float("inf")}, "smoothness = inf"),
        (3, 3, {"heterogeneity": -1.0}, "heterogeneity = -1.0"),
        (1, 3, {"heterogeneity": 1.0}, "heterogeneity = 1.0 with 1 workers"),
        (3, 3, {"noise": -1.0}, "noise = -1.0"),
        (3, 1, {"strong_convexity": 0.1, "smoothness": 1.0}, "dimension 1"),
    ],
)
def test_random_quadratic_that_cannot_be_is_refused(workers, dimension, options, message):
    """In one dimension there is one eigenvalue, which cannot be both 0.1 and 1."""
    with pytest.raises(ValueError, match=message):
        problems.random_quadratic(workers, dimension, **options)


def test_one_worker_or_one_dimension_can_be():
    alone = problems.random_quadratic(1, 4, heterogeneity=0.0).constants
    assert (alone.smoothness, alone.strong_convexity) == (pytest.approx(1.0), pytest.approx(0.1))
    line = problems.random_quadratic(
        5, 1, smoothness=2.0, strong_convexity=2.0, heterogeneity=3.0
    ).constants
    assert (line.smoothness, line.strong_convexity, line.heterogeneity) == (
        pytest.approx(2.0),
        pytest.approx(2.0),
        pytest.approx(3.0),
    )
