"""Empirical risks: worker n's objective is the mean loss over its own samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from dsgd import checks
from dsgd.base import Constants, Problem, PyTree
from dsgd.checks import positive_int
from dsgd.engine.oracle import mean_loss
from dsgd.problems.data import Dataset
from dsgd.problems.partition import split


class Examples(NamedTuple):
    """Samples of one worker, of a batch, or with a leading worker axis.

    Args:
        inputs: `[m, ...]`.
        targets: int32 `[m]`, classes.
        weights: float `[m]`: 1 for a sample, 0 for the padding that makes all workers' arrays equally long.
    """

    inputs: jax.Array
    targets: jax.Array
    weights: jax.Array


@checks.arguments
@dataclass(frozen=True)
class minibatch:  # noqa: N801 (made and called like the functions that it stands beside)
    """Draws a batch of one worker's samples, uniformly and afresh in every round, on the device.

    Called as (key, worker's `Examples`), it returns a batch, `Examples` `[B, ...]`.

    Args:
        batch_size: B.
        replacement: whether one sample may be drawn twice in a batch.

    Raises:
        ValueError: batch_size < 1.

    Source: Liu and Zhang, section 1.2.3.
    """

    batch_size: int
    replacement: bool = True

    def __post_init__(self) -> None:
        checks.positive_int("minibatch: batch_size", self.batch_size)

    def __call__(self, key: jax.Array, mine: Examples) -> Examples:
        if self.replacement:
            # One draw of bits a sample, where randint draws two: the remainder favours some by size / 2^32.
            size = jnp.sum(mine.weights).astype(jnp.uint32)
            chosen = jax.random.bits(key, (self.batch_size,), jnp.uint32) % size
        else:
            # The B largest of one random number a sample: a uniform draw without replacement. Padding never wins.
            lots = jax.random.uniform(key, mine.weights.shape)
            _, chosen = lax.top_k(jnp.where(mine.weights > 0, lots, -1), self.batch_size)
        return Examples(mine.inputs[chosen], mine.targets[chosen], jnp.ones(self.batch_size, mine.weights.dtype))


def first(batch: Examples, samples: jax.Array) -> Examples:
    """The batch, of which only so many samples count, the first ones."""
    return batch._replace(weights=jnp.where(jnp.arange(len(batch.weights)) < samples, batch.weights, 0))


# A problem's functions are frozen dataclasses with `__call__`, equal where their fields are: the same problem built twice compiles once.


@dataclass(frozen=True)
class CrossEntropy:
    r"""(params, batch) -> mean softmax cross-entropy of `apply`'s logits, plus $\frac{l_2}{2} |x|^2$."""

    apply: Callable[[PyTree, jax.Array], jax.Array]
    l2: float

    def __call__(self, params: PyTree, batch: Examples) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(self.apply(params, batch.inputs), batch.targets)
        mean = jnp.sum(losses * batch.weights) / jnp.sum(batch.weights)
        return mean + 0.5 * self.l2 * optax.tree.norm(params, squared=True)


@dataclass(frozen=True)
class Evaluation:
    """(params, data block, test set) -> loss and test accuracy; the gradient."""

    loss: CrossEntropy

    def __call__(self, params: PyTree, data: Examples, test: Examples) -> tuple[dict[str, jax.Array], PyTree]:
        value, gradient = mean_loss(self.loss)(params, data)
        right = jnp.argmax(self.loss.apply(params, test.inputs), axis=-1) == test.targets
        return {"loss": value, "test_accuracy": jnp.mean(right.astype(test.weights.dtype))}, gradient


def classification(
    apply: Callable[[PyTree, jax.Array], jax.Array],
    init: Callable[[jax.Array], PyTree],
    dataset: Dataset,
    *,
    workers: int,
    partition: str,
    alpha: float,
    batch_size: int,
    replacement: bool,
    l2: float,
    seed: int,
    name: str,
) -> Problem:
    r"""Softmax cross-entropy plus $\frac{l_2}{2}|x|^2$ over a partitioned data set; the parts' sizes do not weigh (5.1).

    Args:
        apply: (params, inputs `[m, ...]`) -> logits `[m, classes]`.
        init: key -> params.
        dataset: train and test samples.
        workers, partition, alpha, seed: as in `dsgd.problems.split`.
        batch_size: B, of each worker.
        replacement: as in `minibatch`.
        l2: weight of the squared norm.
        name: for tables and errors.

    Raises:
        ValueError: batch_size < 1 or larger than a worker's data, l2 < 0, or as `split`.
    """
    positive_int("batch_size", batch_size)
    positive_int("workers", workers)
    if not 0 <= l2 < np.inf:
        raise ValueError(f"l2 = {l2}: need a finite number >= 0")
    parts = split(dataset.train_targets, workers, partition, alpha=alpha, seed=seed)
    smallest = int(np.argmin([len(part) for part in parts]))
    if batch_size > len(parts[smallest]):
        raise ValueError(
            f"batch_size = {batch_size}, but worker {smallest} has {len(parts[smallest])} samples (partition {partition!r},"
            f" {workers} workers); need a batch no larger than any worker's data"
        )

    loss = CrossEntropy(apply, l2)
    return Problem(
        init=init,
        loss=loss,
        sample=minibatch(batch_size, replacement),
        evaluate=Evaluation(loss),
        data=pad(dataset.train_inputs, dataset.train_targets, parts),
        shared=_examples(dataset.test_inputs, dataset.test_targets, np.ones(len(dataset.test_targets))),
        constants=Constants(),
        name=name,
        batch_size=batch_size,
        samples=max(map(len, parts)),
        take=first,
    )


def pad(inputs: np.ndarray, targets: np.ndarray, parts: list[np.ndarray]) -> Examples:
    """The workers' samples stacked, `[N, longest, ...]`, with zero weights on the padding."""
    longest = max(len(part) for part in parts)
    index = np.stack([np.pad(part, (0, longest - len(part)), mode="edge") for part in parts])
    real = np.arange(longest)[None, :] < np.array([len(part) for part in parts])[:, None]
    return _examples(inputs[index], targets[index], real)


def _examples(inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> Examples:
    # Types are converted by numpy: each conversion on the device would be a program to compile.
    kind = jnp.result_type(float)
    return Examples(*map(jnp.asarray, (inputs.astype(kind), targets.astype(np.int32), weights.astype(kind))))
