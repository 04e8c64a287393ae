"""Methods that send factors or frequencies of matrices, on a model with a convolution, a dense
layer and biases: properties that the comparisons with their recursions (`tests/methods`) do not
show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import smoke_cases
from jax.flatten_util import ravel_pytree

import dsgd
from algorithms import demo, dion, powersgd, powersgd_momentum
from algorithms.mechanisms import matrices
from dsgd import clusters
from tests.methods.powersgd import gram_schmidt

N = 4
SHAPES = {"bias": (3,), "dense": (6, 4), "kernel": (2, 1, 2, 5)}
START = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
D = sum(leaf.size for leaf in START.values())
GAMMA = 0.1
METHODS: dict[str, Callable[[], dsgd.Algorithm]] = {
    "powersgd": lambda: powersgd(powersgd_momentum(GAMMA), 1),
    "dion": lambda: dion(optax.sgd(GAMMA), 0.5),
    "demo": lambda: demo(optax.sgd(GAMMA), 0.9, 3, 4),
}
FACTORED = pytest.mark.parametrize("name", ["powersgd", "dion"])


class Bowl:
    r"""Quadratics $f_n(x) = \frac12 x^\top A_n x - b_n^\top x$ of the whole model, with different
    Hessians.
    """

    def __init__(self, workers: int = N) -> None:
        rng = np.random.default_rng(0)
        bases = np.linalg.qr(rng.normal(size=(workers, D, D)))[0]
        self.A = np.einsum("nij,nj,nkj->nik", bases, rng.uniform(0.5, 2, (workers, D)), bases)
        self.b = rng.normal(size=(workers, D))

    def mean(self) -> Bowl:
        """Returns the problem of a single worker whose function is the mean."""
        mean = Bowl(1)
        mean.A, mean.b = self.A.mean(axis=0, keepdims=True), self.b.mean(axis=0, keepdims=True)
        return mean

    def slopes(self, x: np.ndarray) -> np.ndarray:
        """Returns the workers' gradients at x, `[workers, D]`."""
        return self.A @ x - self.b

    @property
    def minimizer(self) -> np.ndarray:
        return np.linalg.solve(self.A.mean(axis=0), self.b.mean(axis=0))

    def problem(self, noise: float = 0.0) -> dsgd.Problem:
        def gradient(params, batch):
            A, b = batch
            x, unravel = ravel_pytree(params)
            return unravel((A @ x - b).astype(x.dtype))

        def draw(key, mine):
            A, b = mine
            return A, b + noise * jax.random.normal(key, b.shape, b.dtype)

        return dsgd.Problem(
            init=lambda key: START,
            loss=dsgd.Loss(lambda params, batch: jnp.zeros(()), gradient),
            sample=draw,
            data=(jnp.asarray(self.A), jnp.asarray(self.b)),
        )


def run(
    method: dsgd.Algorithm, bowl: Bowl, steps: int, **options: Any
) -> tuple[np.ndarray, dsgd.State]:
    """Returns the final model as a vector, and the final state, in float64."""
    with jax.enable_x64(True):
        double = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), START)
        problem = bowl.problem()._replace(init=lambda key: double)
        options = {"key": jax.random.key(1), "mesh": 1, "record_every": steps} | options
        result = dsgd.run(method, problem, steps=steps, **options)
        return np.asarray(ravel_pytree(result.params)[0]), jax.tree.map(np.asarray, result.state)


def split_matrices(rows: np.ndarray) -> list[np.ndarray]:
    """Returns the entries of vectors `[n, D]` that belong to the dense layer and to the
    convolution, as matrices with a row for each output.
    """
    dense, kernel = rows[:, 3:27].reshape(-1, 6, 4), rows[:, 27:].reshape(-1, 4, 5)
    return [np.swapaxes(dense, 1, 2), np.swapaxes(kernel, 1, 2)]


# --- Leaves as matrices.


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), None),
        ((7,), None),
        ((1, 7), None),
        ((1, 1, 7), None),
        ((6, 4), (6, 4)),
        ((3, 3, 16, 32), (144, 32)),  # a convolution: all inputs of an output feature
        ((3, 3, 1, 32), (9, 32)),
        ((64, 4, 16), (64, 64)),  # queries of an attention layer
        ((4, 16, 64), (64, 64)),  # its output
        ((1, 6, 4), (6, 4)),
    ],
)
def test_axes_are_cut_where_the_sides_of_the_matrix_are_shortest(shape, expected):
    assert matrices.sides(shape) == expected


def test_rows_are_output_features_and_leaves_come_back():
    rng = np.random.default_rng(0)
    tree = {
        "bias": jnp.asarray(rng.normal(size=(2, 5)), jnp.bfloat16),
        "half": jnp.asarray(rng.normal(size=(2, 3, 4)), jnp.bfloat16),
        "kernel": jnp.asarray(rng.normal(size=(2, 2, 1, 2, 5)), jnp.float32),
        "untrained": None,
    }
    found, others = matrices.split(tree)
    assert [(each.shape, each.dtype) for each in found] == [
        ((2, 4, 3), jnp.float32),
        ((2, 5, 4), jnp.float32),
    ]
    np.testing.assert_array_equal(found[1][1, 3], tree["kernel"][1, ..., 3].ravel())
    first = jax.tree.map(lambda leaf: leaf[0], tree)
    back = matrices.join([each[0] for each in found], [each[0] for each in others], first)
    jax.tree.map(np.testing.assert_array_equal, back, first)
    assert jax.tree.map(lambda leaf: leaf.dtype, back) == jax.tree.map(lambda x: x.dtype, first)


# --- The contract, with messages of matrices.


@pytest.mark.parametrize("name", smoke_cases(METHODS, {"powersgd"}))
def test_it_holds_the_contract_on_matrices(name):
    findings = dsgd.check(METHODS[name](), Bowl().problem(noise=0.3))
    findings.require()
    assert all(finding.holds for finding in findings.findings)


# --- Factors.


@FACTORED
def test_the_iterates_are_those_of_one_worker_with_the_mean_gradient(name):
    """All operations are linear in the memories, so that the iterates depend only on their mean.

    Later, the rounding errors of PowerSGD grow tenfold in five rounds, by its orthogonalization.
    """
    (x, many), (x_one, one) = (run(METHODS[name](), bowl, 10) for bowl in (Bowl(), Bowl().mean()))
    np.testing.assert_allclose(x, x_one, rtol=0, atol=1e-12)
    for memories, memory in zip(many.workers, one.workers, strict=True):
        mean = memories.mean(axis=0)
        np.testing.assert_allclose(mean, memory[0], rtol=0, atol=1e-11)
        assert np.abs(memories - mean[None]).max() > 0.1
    assert np.abs(x).max() > 0.1


@pytest.mark.parametrize("form", ["paper", "package", "hook"])
def test_public_forms_of_powersgd_make_the_same_steps(form):
    r"""Three public implementations make the same steps. The memory of the paper's code (epfml) and
    of PyTorch is $D_n - \Delta'$. That of the pip package is $D_n - P (D_n^\top P)^\top$: it
    subtracts what the worker itself sent. PyTorch's hook orthonormalizes Q before the power
    iteration.
    """
    bowl, steps = Bowl(), 12
    (_, first), (x, last) = (run(powersgd(optax.sgd(GAMMA), 2), bowl, t) for t in (1, steps))
    y, memories = np.zeros(D), [np.zeros((N, 4, 6)), np.zeros((N, 5, 4))]
    start = split_matrices(bowl.slopes(y).mean(axis=0, keepdims=True))
    # a Q from which the first power iteration yields the method's Q after the first round
    Qs = [
        np.linalg.pinv(g) @ np.linalg.pinv(g.T) @ Q
        for (g,), Q in zip(start, first.server.Q, strict=True)
    ]
    for _ in range(steps):
        slopes = bowl.slopes(y)
        change = slopes.mean(axis=0)
        for i, (g, at) in enumerate(
            zip(split_matrices(slopes), (slice(3, 27), slice(27, 47)), strict=True)
        ):
            D_n, Q = g + memories[i], Qs[i]
            P = gram_schmidt((D_n @ (gram_schmidt(Q) if form == "hook" else Q)).mean(axis=0))
            Qs[i] = (np.swapaxes(D_n, 1, 2) @ P).mean(axis=0)
            delta = P @ Qs[i].T
            memories[i] = D_n - (P @ P.T @ D_n if form == "package" else delta)
            change[at] = delta.T.ravel()
        y = y - GAMMA * change
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-12)
    for memory, expected in zip(last.workers, memories, strict=True):
        np.testing.assert_allclose(memory.mean(axis=0), expected.mean(axis=0), atol=1e-11)
        if form != "package":
            np.testing.assert_allclose(memory, expected, rtol=0, atol=1e-11)


@FACTORED
def test_leaves_whose_gradient_is_0_stay_and_move_later(name):
    """The gradient of the dense layer is the first bias times a matrix, and that bias is 0 in the
    first round. The gradient of the convolution is always 0.
    """
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(N, 6, 4)), jnp.float32)

    def loss(params, weight):
        return jnp.sum((params["bias"] - 1) ** 2) / 2 + params["bias"][0] * jnp.sum(
            weight * params["dense"]
        )

    problem = dsgd.Problem(lambda key: START, loss, weights, lambda key, mine: mine)
    one, three = (
        dsgd.run(METHODS[name](), problem, steps=t, key=jax.random.key(0), mesh=1) for t in (1, 3)
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(three.state))
    assert not np.any(one.params["dense"])
    assert np.any(one.params["bias"])
    assert np.any(three.params["dense"])
    assert not np.any(three.params["kernel"])


@pytest.mark.parametrize(("name", "what"), [("powersgd", "present"), ("dion", "delivered")])
def test_workers_without_a_part_in_the_mean_keep_their_memory(name, what):
    """A worker that never participates, or whose messages never arrive, does not change the
    iterates: means are over the other workers.
    """
    bowl, three = (
        Bowl(),
        clusters.Quantity(lambda key, clock, n: jnp.float32(n != 3), "all but the last", False),
    )
    cluster = replace(clusters.Cluster(clusters.constant(1.0)), **{what: three})
    x, state = run(METHODS[name](), bowl, 10, cluster=cluster)
    bowl.A, bowl.b = bowl.A[:3], bowl.b[:3]
    x_of_three, of_three = run(METHODS[name](), bowl, 10)
    np.testing.assert_allclose(x, x_of_three, rtol=0, atol=1e-12)
    for memory, expected in zip(state.workers, of_three.workers, strict=True):
        np.testing.assert_allclose(memory[:3], expected, rtol=0, atol=1e-12)
        assert not memory[3].any()


def test_a_round_in_which_no_message_arrives_changes_nothing():
    early = clusters.Quantity(lambda key, clock, n: jnp.float32(clock < 2.5), "early", False)
    cluster = clusters.Cluster(clusters.constant(1.0), delivered=early)
    (x, three), (y, five) = (
        run(METHODS["powersgd"](), Bowl(), steps, cluster=cluster) for steps in (3, 5)
    )
    assert x.all()
    np.testing.assert_array_equal(x, y)
    for before, after in (three.server, five.server), (three.workers, five.workers):
        jax.tree.map(np.testing.assert_array_equal, before, after)
