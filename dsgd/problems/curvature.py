"""Smoothness constants of quadratics and of linear models, computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.interpreters import partial_eval
from scipy.sparse import hstack, issparse, vstack

from dsgd.base import Problem, PyTree
from dsgd.engine import oracle, pooled
from dsgd.engine.pooled import Pooled
from dsgd.machines import agreement, arrays
from dsgd.problems.examples import Examples
from dsgd.problems.finite_sum import MeanLoss
from dsgd.problems.sparse import SparseRows

# Smaller sides of a matrix up to which all eigenvalues are computed, at negligible cost, and up to
# which the product with its transpose is stored, which is smaller than the matrix.
_SMALL, _DENSE = 256, 8192
_MOST_PARAMETERS = 4096  # of explicit Hessians
_COLUMNS = 64  # of a Hessian that are computed at a time
LOSSES: dict[Callable[..., Any], float] = {
    optax.sigmoid_binary_cross_entropy: 1 / 4,
    optax.softmax_cross_entropy: 1 / 2,
    optax.softmax_cross_entropy_with_integer_labels: 1 / 2,
    optax.huber_loss: 1.0,
    optax.log_cosh: 1.0,
}
"""Largest second derivatives of convex losses in the model's outputs."""


class Curvature:
    """`Constants.smoothness` as a function without arguments, which knows the parts of L, too."""

    def __call__(self) -> float:
        """Returns L, a Lipschitz constant of every $f_n'$ and of every $w_n f_n'$."""
        return self.largest

    @cached_property
    def largest(self) -> float:
        """What a call returns."""
        raise NotImplementedError

    @cached_property
    def of_workers(self) -> np.ndarray:
        """A Lipschitz constant of each $f_n'$, `[N]`."""
        raise NotImplementedError

    @cached_property
    def of_mean(self) -> float:
        """A Lipschitz constant of f'."""
        raise NotImplementedError


class LinearCurvature(Curvature):
    r"""Curvature of a linear model: $|f_n''| \le c |A_n|^2 / m_n + s$ for the matrix $A_n$ of
    worker n's samples.

    Args:
        problem: a finite sum.
        curvature: c, the largest absolute second derivative of a sample's loss in the model's
            outputs.
        matrix: a worker's samples `[m, features]` -> $A_n$, the matrix that multiplies the
            parameters, in float64.
        offset: s, the curvature of the terms that do not depend on the samples.
    """

    def __init__(
        self,
        problem: Problem,
        curvature: float,
        matrix: Callable[[Any], Any],
        offset: float,
    ) -> None:
        self.problem: Problem = problem
        self.curvature: float = curvature
        self.matrix: Callable[[Any], Any] = matrix
        self.offset: float = offset

    @cached_property
    def largest(self) -> float:
        N = self.problem.workers
        factors = np.maximum(1.0, _weights(self.problem))[list(arrays.own_workers(N))]
        return agreement.largest(
            "smoothness of a linear model", float(np.max(factors * self._of_own_workers))
        )

    @cached_property
    def of_workers(self) -> np.ndarray:
        return self._of_own_workers

    @cached_property
    def of_mean(self) -> float:
        shares = np.sqrt(_weights(self.problem) / self.problem.workers)
        scaled = [
            matrix * (share / np.sqrt(matrix.shape[0]))
            for share, matrix in zip(shares, self._matrices(), strict=True)
        ]
        stacked = vstack(scaled) if issparse(scaled[0]) else np.concatenate(scaled)
        return self.curvature * squared_norm(stacked) + self.offset

    @cached_property
    def _of_own_workers(self) -> np.ndarray:
        return np.array(
            [
                self.curvature * squared_norm(matrix) / matrix.shape[0] + self.offset
                for matrix in self._matrices()
            ]
        )

    def _matrices(self) -> Iterator[Any]:
        return map(self.matrix, _own_inputs(self.problem.data))


class QuadraticCurvature(Curvature):
    """Curvature of quadratics.

    Args:
        A: Hessians of all workers `[N, d, d]`, or their diagonals `[N, d]`, in float64.
    """

    def __init__(self, A: np.ndarray) -> None:
        self.A: np.ndarray = A

    @cached_property
    def largest(self) -> float:
        return float(self.of_workers.max())

    @cached_property
    def of_workers(self) -> np.ndarray:
        return np.abs(_eigenvalues(self.A)).max(axis=1)

    @cached_property
    def of_mean(self) -> float:
        return float(np.abs(_eigenvalues(self.A.mean(axis=0)[None])).max())


class HessianCurvature(Curvature):
    r"""Curvature of objectives with constant Hessians, from these: of quadratics, and of the
    upper bound $\frac{c}{2 m_n} \sum_i |h_x(a_i)|^2$ of a linear model h.

    Args:
        problem: the problem, with at most 4,096 parameters.
        curvature: c, the largest absolute second derivative of a sample's loss in the outputs of
            the model; None: the losses themselves are quadratic, or one of `LOSSES`.

    Raises:
        ValueError: if a Hessian depends on the parameters, or there are too many.
    """

    def __init__(self, problem: Problem, curvature: float | None = None) -> None:
        loss = problem.loss
        # Bounds of the curvature of a smooth regularizer
        self.added: float = 0.0
        self.least_added: float = 0.0
        if isinstance(loss, MeanLoss):
            if r := loss.regularizer:
                self.added, self.least_added = r.smoothness, r.strong_convexity
            c = LOSSES.get(loss.per_sample) if curvature is None else curvature
            loss = replace(
                loss,
                chunk_size=None,
                regularizer=None,
                per_sample=loss.per_sample if c is None else _Square(c, loss.per_sample),
            )
        self.problem: Problem = problem._replace(loss=loss)
        with jax.enable_x64(True):
            start, self._unravel = ravel_pytree(to_float64(problem.init(jax.random.key(0))))
            self._require_constant(start)

    @cached_property
    def largest(self) -> float:
        return float(np.max(np.maximum(1.0, _weights(self.problem)) * self.of_workers))

    @cached_property
    def of_workers(self) -> np.ndarray:
        return self._found[0] + self.added

    @cached_property
    def of_mean(self) -> float:
        return float(np.abs(self._found[1]).max()) + self.added

    @cached_property
    def least_of_mean(self) -> float:
        """A lower bound of the eigenvalues of f'' for quadratic losses, exact without a smooth
        regularizer; rounding errors around 0 are 0.
        """
        least, most = self._found[1][[0, -1]]
        rounded = 0.0 if abs(least) < 1e-12 * len(self._found[1]) * most else float(least)
        return rounded + self.least_added

    @cached_property
    def _found(self) -> tuple[np.ndarray, np.ndarray]:
        """L_n `[N]` and the eigenvalues of the mean Hessian `[d]`."""
        N, weights, mean = self.problem.workers, _weights(self.problem), 0.0
        data, largest = jax.tree.map(arrays.fetch, self.problem.data), np.zeros(N)
        with jax.enable_x64(True):
            start = ravel_pytree(to_float64(self.problem.init(jax.random.key(0))))[0]

            @jax.jit
            def hessian(data):
                product = lambda v: self._product(start, v, data)  # noqa: E731
                return jax.lax.map(product, jnp.eye(start.size), batch_size=_COLUMNS)

            for n, weight in enumerate(weights):
                of_worker = np.asarray(hessian(to_float64(_padded(data, n))))
                largest[n] = np.abs(np.linalg.eigvalsh(of_worker)).max()
                mean = mean + weight / N * of_worker
        return largest, np.linalg.eigvalsh(mean)

    def _product(self, x: jax.Array, v: jax.Array, data: PyTree) -> jax.Array:
        """Returns the Hessian of a worker's objective times v."""

        def gradient(x):
            slope = oracle.value_and_grad(self.problem)(self._unravel(x), data)[1]
            return ravel_pytree(slope)[0]

        return jax.jvp(gradient, (x,), (v,))[1]

    def _require_constant(self, start: jax.Array) -> None:
        name, d = self.problem.name, start.size
        if d > _MOST_PARAMETERS:
            raise ValueError(
                f"constants: {name} has {d} parameters; expected at most {_MOST_PARAMETERS}, of "
                "which Hessians are computed; set problem.constants.smoothness"
            )
        data = to_float64(_padded(jax.tree.map(arrays.fetch, self.problem.data), 0))
        traced = jax.make_jaxpr(self._product)(start, start, data).jaxpr
        used = partial_eval.dce_jaxpr(traced, [True] * len(traced.outvars))[1]
        if used[0]:  # the product depends on x
            raise ValueError(
                f"constants: the Hessian of {name} depends on x, and no bound of it is known; "
                "expected a quadratic problem, a ready problem, or a finite sum of a linear model "
                "with a loss of optax; pass curvature=, the largest second derivative of a "
                "sample's loss in the outputs of a linear model, or set "
                "problem.constants.smoothness"
            )


@dataclass(frozen=True)
class _Square:
    """(outputs, targets) -> c / 2 times the squared norms of the outputs, in the shape of a loss.

    Args:
        curvature: c.
        per_sample: the loss.
    """

    curvature: float
    per_sample: Callable[..., Any]

    def __call__(self, outputs: jax.Array, targets: PyTree) -> jax.Array:
        losses = jax.eval_shape(self.per_sample, outputs, targets)
        axes = tuple(range(losses.ndim, outputs.ndim))
        return self.curvature / 2 * jnp.sum(outputs**2, axis=axes)


def to_float64(tree: PyTree) -> PyTree:
    """Converts floating-point leaves to float64; call it with `jax.enable_x64(True)`."""

    def convert(leaf):
        leaf = jnp.asarray(leaf)
        return leaf.astype(float) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(convert, tree)


def _padded(data: PyTree, n: int) -> PyTree:
    """Returns the data of worker n; a pool's with padding, so that few shapes are compiled."""
    own = pooled.worker_data(data, n)
    if not isinstance(data, Pooled):
        return own
    count = len(own.weights)
    more = (1 << (count - 1).bit_length()) - count

    def pad(leaf):
        return np.concatenate([leaf, np.repeat(leaf[:1], more, axis=0)])

    padded = jax.tree.map(pad, own)
    return padded._replace(weights=np.pad(own.weights, (0, more)))


def _eigenvalues(A: np.ndarray) -> np.ndarray:
    return A if A.ndim == 2 else np.linalg.eigvalsh(A)


def _weights(problem: Problem) -> np.ndarray:
    return np.ones(problem.workers) if problem.weights is None else np.asarray(problem.weights)


def _own_inputs(data: Examples | Pooled) -> Iterator[Any]:
    """Yields the inputs of each of this process's workers as rows, `[m, features]`."""
    if isinstance(data, Pooled):
        host = jax.tree.map(np.asarray, data)
        for n in range(len(host.size)):
            yield flat(pooled.worker_data(host, n).inputs)
        return
    inputs = jax.tree.map(arrays.own, data.inputs)
    for i, weights in enumerate(arrays.own(data.weights)):
        yield flat(jax.tree.map(lambda leaf, i=i, real=weights > 0: leaf[i][real], inputs))


def flat(inputs: Any) -> Any:
    """Flattens samples: `[m, ...]` to `[m, features]`."""
    return inputs if isinstance(inputs, SparseRows) else inputs.reshape(len(inputs), -1)


def as_matrix(rows: Any) -> Any:
    """Returns the samples as a dense or scipy matrix in float64."""
    return rows.tocsr().astype(float) if isinstance(rows, SparseRows) else rows.astype(float)


def append_ones(rows: Any) -> Any:
    """Returns the matrix with a column of ones for the bias, in float64."""
    ones, matrix = np.ones((len(rows), 1)), as_matrix(rows)
    if issparse(matrix):
        return hstack([matrix, ones], format="csr")
    return np.concatenate([matrix, ones], axis=1)


def squared_norm(matrix: Any) -> float:
    """Returns the squared spectral norm: the largest eigenvalue of the matrix times its transpose,
    in the order in which the product is smaller.
    """
    thin = matrix if matrix.shape[0] > matrix.shape[1] else matrix.T
    size = thin.shape[1]
    if size <= _SMALL:
        gram = thin.T @ thin
        return float(np.linalg.eigvalsh(gram.toarray() if issparse(gram) else gram)[-1])
    from scipy.sparse.linalg import aslinearoperator, eigsh  # noqa: PLC0415 (slow to import)

    stored = size <= _DENSE and not issparse(thin)
    gram: Any = thin.T @ thin if stored else aslinearoperator(thin.T) @ aslinearoperator(thin)
    start = np.random.default_rng(0).normal(size=size)
    return float(eigsh(gram, k=1, v0=start, return_eigenvectors=False)[0])
