"""Multinomial and binary logistic regression, with a known smoothness constant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dsgd import checks
from dsgd.base import Problem, Regularizer
from dsgd.problems.adapters import Model
from dsgd.problems.curvature import LinearCurvature, append_ones, as_matrix, flat
from dsgd.problems.data import Dataset, DataSource, load, test_options
from dsgd.problems.finite_sum import finite_sum, right
from dsgd.problems.partition import partition_label
from dsgd.problems.quadratic import FromZero
from dsgd.problems.regularizers import SmoothRegularizer, l1


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
    regularizer: Regularizer | SmoothRegularizer | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Problem:
    r"""Returns multinomial logistic regression: $f_n(x) = \frac1{m_n} \sum_i -\log
    \mathrm{softmax}(x^T [a_i; 1])_{y_i} + \frac{l_2}{2} |x|^2 + r(x)$ over worker n's samples,
    starting at x = 0.

    Args:
        data: the name of a data set or file, a `Dataset`, or (inputs `[M, ...]`, classes `[M]`);
            see `dsgd.problems.load`.
        workers: N.
        partition, alpha, classes, shards, similarity: as in `finite_sum`; indices are those of the
            training samples.
        min_samples, weights, batch_size, replacement: as in `finite_sum`.
        l2: weight of the squared norm.
        regularizer: r, as in `finite_sum`.
        seed: seed of the partition.
        data_dir: folder with the files of the data set, see `dsgd.problems.load`.

    Returns:
        A problem with known L (the softmax's Hessian is at most 1/2, so $L = \max_n \max(1, w_n)
        (|X_n|^2 / (2 m_n) + l_2)$) and $\mu \ge l_2$; with a smooth r as in
        `binary_logistic_regression`.

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
        regularizer=regularizer,
        seed=seed,
        **test_options(dataset, right),
        name=f"logistic_regression({dataset.name}, {partition_label(partition)})",
    )
    return _with_constants(problem, (0.0, 1 / 2), l2, regularizer, append_ones)


class _SampleLoss(NamedTuple):
    """A loss of binary classification: a function of the products $a_i^T x$ and the classes 0 and
    1, and bounds of its second derivative.
    """

    function: Callable[[jax.Array, jax.Array], jax.Array]
    curvature: tuple[float, float]


def _margins(products: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns $y_i a_i^T x$ for the classes 0 and 1 of $y_i = -1$ and 1."""
    return (2 * targets - 1) * products


def _log_loss(products: jax.Array, targets: jax.Array) -> jax.Array:
    return jax.nn.softplus(-_margins(products, targets))


def _squared_loss(products: jax.Array, targets: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(-_margins(products, targets)) ** 2


def _squared_curvature(s: float) -> float:
    """Returns the second derivative of $s^2$ for s = sigmoid(-u)."""
    return 2 * s**2 * (1 - s) * (2 - 3 * s)


_EXTREMA = [(15 + sign * sqrt(33)) / 24 for sign in (1, -1)]  # s of its extrema
_LOSSES = {
    "log": _SampleLoss(_log_loss, (0.0, 1 / 4)),
    "squared": _SampleLoss(
        _squared_loss, (_squared_curvature(_EXTREMA[0]), _squared_curvature(_EXTREMA[1]))
    ),
}


@checks.arguments
def binary_logistic_regression(
    data: DataSource = "breast-cancer",
    workers: int = 16,
    partition: str | Sequence[Any] = "iid",
    *,
    loss: str = "log",
    bias: bool = False,
    alpha: float | None = None,
    classes: int | None = None,
    shards: int | None = None,
    similarity: float | None = None,
    min_samples: int = 1,
    weights: str | Sequence[float] | np.ndarray = "equal",
    batch_size: int | None = None,
    replacement: bool | Literal["epoch"] = True,
    l2: float = 0.0,
    regularizer: Regularizer | SmoothRegularizer | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Problem:
    r"""Returns binary logistic regression: $f_n(x) = \frac1{m_n} \sum_i \ell(y_i a_i^T x) +
    \frac{l_2}{2} |x|^2 + r(x)$ over worker n's samples, $y_i = \pm 1$, starting at x = 0.

    Args:
        data: as in `logistic_regression`, with two classes, such as a file in LIBSVM's format;
            $y_i = 1$ for the class with the larger label. `load(data, hold_out=False)` has all
            samples of a file in their order.
        workers, partition, alpha, classes, shards, similarity: as in `logistic_regression`.
        loss: "log": $\ell(u) = \log(1 + e^{-u})$; "squared": $\ell(u) = (1 - 1 / (1 + e^{-u}))^2$,
            the squared error of the predicted probability, which is not convex.
        bias: whether $a_i$ has a last element 1, so that the last element of x is a bias, which is
            part of the norm and of r.
        min_samples, weights, batch_size, replacement: as in `finite_sum`; by default, batches are
            all samples of a worker, and gradients are exact.
        l2, seed, data_dir: as in `logistic_regression`.
        regularizer: r, as in `finite_sum`.

    Returns:
        A problem with known $L = \max_n \max(1, w_n) (\kappa |A_n|^2 / m_n + l_2 + \lambda_r)$,
        where $\kappa$ = 1/4 for "log" and 0.15406 for "squared"; and, for "log", $\mu \ge l_2 +
        \mu_r$, if this is not negative. $\lambda_r$ and $\mu_r$ are the `smoothness` and the
        `strong_convexity` of a smooth r.

    Raises:
        ValueError: if the data have more than two classes or the loss is unknown, and as for
            `logistic_regression`.
        FileNotFoundError: if a data file does not exist.

    Source: Gorbunov, Burlachenko, Li and Richtarik, "MARINA: faster non-convex distributed learning
    with compression", 2021 (the squared loss).
    """
    return _two_classes(
        "binary_logistic_regression",
        load(data, data_dir),
        loss,
        bias,
        l2,
        regularizer,
        workers=workers,
        partition=partition,
        alpha=alpha,
        classes=classes,
        shards=shards,
        similarity=similarity,
        min_samples=min_samples,
        weights=weights,
        batch_size=batch_size,
        replacement=replacement,
        seed=seed,
    )


def _two_classes(
    where: str,
    dataset: Dataset,
    loss: str,
    bias: bool,
    l2: float,
    r: Regularizer | SmoothRegularizer | None,
    *,
    partition: str | Sequence[Any],
    **options: Any,
) -> Problem:
    """Returns the problem of `binary_logistic_regression`, with the name of the called function."""
    if loss not in _LOSSES:
        raise ValueError(f"{where}: loss = {loss!r}; expected one of {', '.join(_LOSSES)}")
    if dataset.classes != 2:
        raise ValueError(
            f"{where}: {dataset.name} has {dataset.classes} classes; expected 2: use "
            "logistic_regression for more classes"
        )
    of_sample, curvature = _LOSSES[loss]
    features = int(np.prod(dataset.train_inputs.shape[1:]))
    problem = finite_sum(
        Model(FromZero(features + bias), _affine if bias else _products),
        of_sample,
        (dataset.train_inputs, dataset.train_targets.astype(np.int32)),
        partition=partition,
        l2=l2,
        regularizer=r,
        **options,
        **test_options(dataset, _right_sign),
        name=f"{where}({dataset.name}, {partition_label(partition)})",
    )
    return _with_constants(problem, curvature, l2, r, append_ones if bias else as_matrix)


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
    decentralized proximal methods: $\min_x f(x) + \lambda |x|_1$ with f of
    `binary_logistic_regression`. `solved` computes the minimum.

    Args:
        penalty: $\lambda$, at least 0; without a regularizer if it is 0.
        data: as in `binary_logistic_regression`, like all other arguments.

    Returns:
        A problem with the regularizer `l1(penalty)`, and known L and $\mu \ge l_2$ of f.

    Raises:
        ValueError: if the penalty is negative, and as for `binary_logistic_regression`.
        FileNotFoundError: if a data file does not exist.
    """
    r = l1(penalty)
    return _two_classes(
        "sparse_logistic_regression",
        load(data, data_dir),
        "log",
        False,
        l2,
        r if penalty else None,
        workers=workers,
        partition=partition,
        alpha=alpha,
        classes=classes,
        shards=shards,
        similarity=similarity,
        min_samples=min_samples,
        weights=weights,
        batch_size=batch_size,
        replacement=replacement,
        seed=seed,
    )


@dataclass(frozen=True)
class _Zeros:
    features: int
    classes: int

    def __call__(self, key: jax.Array) -> Linear:
        return Linear(jnp.zeros((self.features, self.classes)), jnp.zeros(self.classes))


def _logits(params: Linear, inputs: Any) -> jax.Array:
    return flat(inputs) @ params.kernel + params.bias[None, :]


def _products(params: jax.Array, inputs: Any) -> jax.Array:
    return flat(inputs) @ params


def _affine(params: jax.Array, inputs: Any) -> jax.Array:
    return _products(params[:-1], inputs) + params[-1]


def _right_sign(products: jax.Array, targets: jax.Array) -> jax.Array:
    return (products > 0) == (targets == 1)


def _with_constants(
    problem: Problem,
    curvature: tuple[float, float],
    l2: float,
    r: Regularizer | SmoothRegularizer | None,
    matrix: Callable[[Any], Any],
) -> Problem:
    """Returns the problem with L and mu.

    Args:
        problem: the problem.
        curvature: bounds of the second derivative of a sample's loss.
        l2: weight of the squared norm.
        r: the regularizer.
        matrix: a worker's samples `[m, features]` -> the matrix that multiplies the parameters.
    """
    added = least = l2
    if isinstance(r, SmoothRegularizer):
        added, least = l2 + r.smoothness, l2 + r.strong_convexity
    convex = curvature[0] >= 0 and least >= 0
    return problem._replace(
        constants=problem.constants._replace(
            smoothness=LinearCurvature(problem, max(map(abs, curvature)), matrix, added),
            strong_convexity=least if convex else None,
        )
    )
