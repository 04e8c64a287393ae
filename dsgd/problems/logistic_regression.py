"""Multinomial and sparse binary logistic regression: convex, with a known smoothness constant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.sparse import hstack, issparse

from dsgd import checks
from dsgd.base import Problem
from dsgd.engine import pooled
from dsgd.engine.pooled import Pooled
from dsgd.machines import agreement, arrays
from dsgd.problems.adapters import Model
from dsgd.problems.data import DataSource, load
from dsgd.problems.examples import Examples
from dsgd.problems.finite_sum import finite_sum, right
from dsgd.problems.on_demand import OnDemand
from dsgd.problems.partition import partition_label
from dsgd.problems.quadratic import FromZero
from dsgd.problems.regularizers import l1, regularized
from dsgd.problems.sparse import SparseRows

# Smaller sides of a matrix up to which all eigenvalues are computed, at negligible cost, and up to
# which the product with its transpose is stored, which is smaller than the matrix.
_SMALL, _DENSE = 256, 8192


class Linear(NamedTuple):
    """Parameters of the linear model: `kernel` `[features, classes]` and `bias` `[classes]`."""

    kernel: jax.Array
    bias: jax.Array


@checks.arguments
def logistic_regression(
    data: DataSource = "digits",
    workers: int = 16,
    partition: str | Sequence[Any] = "iid",
    *,
    alpha: float | None = None,
    classes: int | None = None,
    shards: int | None = None,
    similarity: float | None = None,
    min_samples: int = 1,
    weights: str | Sequence[float] | np.ndarray = "equal",
    batch_size: int | None = 16,
    replacement: bool | Literal["epoch"] = True,
    l2: float = 1e-4,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Problem:
    r"""Returns multinomial logistic regression: $f_n(x) = \frac1{m_n} \sum_i -\log
    \mathrm{softmax}(x^T [a_i; 1])_{y_i} + \frac{l_2}{2} |x|^2$ over worker n's samples, starting at
    x = 0.

    Args:
        data: the name of a data set or file, a `Dataset`, or (inputs `[M, ...]`, classes `[M]`);
            see `dsgd.problems.load`.
        workers: N.
        partition, alpha, classes, shards, similarity: as in `finite_sum`; indices are those of the
            training samples.
        min_samples, weights, batch_size, replacement: as in `finite_sum`.
        l2: weight of the squared norm.
        seed: seed of the partition.
        data_dir: folder with the files of the data set, see `dsgd.problems.load`.

    Returns:
        A problem with known L (the softmax's Hessian is at most 1/2, so $L = \max_n \max(1, w_n)
        (|X_n|^2 / (2 m_n) + l_2)$) and $\mu \ge l_2$.

    Raises:
        ValueError: if a name is unknown, a worker has fewer samples than `min_samples`, and as for
            `finite_sum`.
        FileNotFoundError: if a data file does not exist.
    """
    dataset = load(data, data_dir)
    features = int(np.prod(dataset.train_inputs.shape[1:]))
    problem = finite_sum(
        Model(_Zeros(features, dataset.classes), _logits),
        optax.softmax_cross_entropy_with_integer_labels,
        (dataset.train_inputs, dataset.train_targets.astype(np.int32)),
        workers,
        partition,
        alpha=alpha,
        classes=classes,
        shards=shards,
        similarity=similarity,
        min_samples=min_samples,
        weights=weights,
        batch_size=batch_size,
        replacement=replacement,
        l2=l2,
        seed=seed,
        test=(dataset.test_inputs, dataset.test_targets),
        metrics={"test_accuracy": right},
        name=f"logistic_regression({dataset.name}, {partition_label(partition)})",
    )
    smoothness = OnDemand(_smoothness, problem, l2, 1 / 2, _append_ones)
    return problem._replace(
        constants=problem.constants._replace(smoothness=smoothness, strong_convexity=l2 or None)
    )


@checks.arguments
def sparse_logistic_regression(
    data: DataSource = "breast-cancer",
    workers: int = 16,
    partition: str | Sequence[Any] = "iid",
    *,
    penalty: float = 0.01,
    alpha: float | None = None,
    classes: int | None = None,
    shards: int | None = None,
    similarity: float | None = None,
    min_samples: int = 1,
    weights: str | Sequence[float] | np.ndarray = "equal",
    batch_size: int | None = None,
    replacement: bool | Literal["epoch"] = True,
    l2: float = 0.0,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Problem:
    r"""Returns binary logistic regression with an l1 regularizer, the usual test problem of
    decentralized proximal methods: $\min_x f(x) + \lambda |x|_1$ with $f_n(x) = \frac1{m_n} \sum_i
    \log(1 + e^{-y_i a_i^T x}) + \frac{l_2}{2} |x|^2$ over worker n's samples, $y_i = \pm 1$,
    starting at x = 0.

    There is no bias; to have one, add a constant feature. `solved` computes the minimum.

    Args:
        data: as in `logistic_regression`, with two classes, such as a file in LIBSVM's format;
            $y_i = 1$ for the class with the larger label.
        workers, partition, alpha, classes, shards, similarity: as in `logistic_regression`.
        penalty: $\lambda$, at least 0.
        min_samples, weights, batch_size, replacement: as in `finite_sum`; by default, batches are
            all samples of a worker, and gradients are exact.
        l2, seed, data_dir: as in `logistic_regression`.

    Returns:
        A problem with the regularizer `l1(penalty)`, and known $L = \max_n \max(1, w_n) (|A_n|^2 /
        (4 m_n) + l_2)$ and $\mu \ge l_2$ of f.

    Raises:
        ValueError: if the data have more than two classes or the penalty is negative, and as for
            `logistic_regression`.
        FileNotFoundError: if a data file does not exist.
    """
    dataset = load(data, data_dir)
    if dataset.classes != 2:
        raise ValueError(
            f"sparse_logistic_regression: {dataset.name} has {dataset.classes} classes; expected "
            "2: use regularized(logistic_regression(...), l1(...)) for more classes"
        )
    problem = finite_sum(
        Model(FromZero(int(np.prod(dataset.train_inputs.shape[1:]))), _products),
        optax.sigmoid_binary_cross_entropy,
        (dataset.train_inputs, dataset.train_targets.astype(np.int32)),
        workers,
        partition,
        alpha=alpha,
        classes=classes,
        shards=shards,
        similarity=similarity,
        min_samples=min_samples,
        weights=weights,
        batch_size=batch_size,
        replacement=replacement,
        l2=l2,
        seed=seed,
        test=(dataset.test_inputs, dataset.test_targets),
        metrics={"test_accuracy": _right_sign},
        name=f"sparse_logistic_regression({dataset.name}, {partition_label(partition)})",
    )
    smoothness = OnDemand(_smoothness, problem, l2, 1 / 4, _matrix)
    constants = problem.constants._replace(smoothness=smoothness, strong_convexity=l2 or None)
    return regularized(problem._replace(constants=constants), l1(penalty))


@dataclass(frozen=True)
class _Zeros:
    features: int
    classes: int

    def __call__(self, key: jax.Array) -> Linear:
        return Linear(jnp.zeros((self.features, self.classes)), jnp.zeros(self.classes))


def _logits(params: Linear, inputs: Any) -> jax.Array:
    return _flat(inputs) @ params.kernel + params.bias[None, :]


def _products(params: jax.Array, inputs: Any) -> jax.Array:
    return _flat(inputs) @ params


def _right_sign(products: jax.Array, targets: jax.Array) -> jax.Array:
    return (products > 0) == (targets == 1)


def _flat(inputs: Any) -> Any:
    """Flattens samples: `[m, ...]` to `[m, features]`."""
    return inputs if isinstance(inputs, SparseRows) else inputs.reshape(len(inputs), -1)


def _smoothness(
    problem: Problem, l2: float, curvature: float, matrix: Callable[[Any], Any]
) -> float:
    """Returns L.

    Args:
        problem: the problem.
        l2: weight of the squared norm.
        curvature: the largest second derivative of a sample's loss.
        matrix: a worker's samples `[m, features]` -> the matrix that multiplies the parameters.
    """
    largest = 0.0
    for n, inputs in zip(
        arrays.own_workers(problem.workers), _own_inputs(problem.data), strict=True
    ):
        rows = _flat(inputs)
        factor = 1.0 if problem.weights is None else max(1.0, problem.weights[n])
        largest = max(largest, factor * (curvature * _squared_norm(matrix(rows)) / len(rows) + l2))
    return agreement.largest("smoothness of logistic_regression", largest)


def _own_inputs(data: Examples | Pooled) -> Iterator[Any]:
    """Yields the inputs of each of this process's workers, `[m, ...]`."""
    if isinstance(data, Pooled):
        host = jax.tree.map(np.asarray, data)
        yield from (pooled.worker_data(host, n).inputs for n in range(len(host.size)))
        return
    inputs = jax.tree.map(arrays.own, data.inputs)
    for i, weights in enumerate(arrays.own(data.weights)):
        yield jax.tree.map(lambda leaf, i=i, real=weights > 0: leaf[i][real], inputs)


def _matrix(rows: Any) -> Any:
    """Returns the samples as a dense or scipy matrix in float64."""
    return rows.tocsr().astype(float) if isinstance(rows, SparseRows) else rows.astype(float)


def _append_ones(rows: Any) -> Any:
    """Returns the matrix with a column of ones for the bias, in float64."""
    ones, matrix = np.ones((len(rows), 1)), _matrix(rows)
    if issparse(matrix):
        return hstack([matrix, ones], format="csr")
    return np.concatenate([matrix, ones], axis=1)


def _squared_norm(matrix: Any) -> float:
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
