"""Stochastic gradients that are transformed sample by sample before they are averaged, as in
differential privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dsgd import checks, sameness, workers, xla
from dsgd.base import Loss, Params, Problem, PyTree
from dsgd.engine import accumulate, leaves, pooled, protocol, units
from dsgd.engine.pooled import Pooled
from dsgd.problems.examples import Examples, with_keys
from dsgd.problems.finite_sum import MeanLoss

_NOISE = np.uint32(2**32 - 2)  # folded into a batch's key for the noise


@checks.arguments
@dataclass(frozen=True)
class clipped:  # noqa: N801 (users call it like the functions next to it)
    r"""Clips a gradient $g$ to $g \min(1, C / |g|)$, with the norm over all leaves.

    Args:
        norm: C.

    Raises:
        ValueError: if C is not positive and finite.
    """

    norm: float

    def __post_init__(self) -> None:
        if not 0 < self.norm < math.inf:
            raise ValueError(f"clipped: norm = {self.norm}; expected a finite number > 0")

    def __call__(self, gradient: PyTree) -> PyTree:
        rescaled, power = xla.rescale(gradient)
        ratio = optax.tree.norm(rescaled) / self.norm
        return jax.tree.map(
            lambda leaf, wide: jnp.where(
                ratio * power > 1, wide * (1 / ratio).astype(wide.dtype), leaf
            ).astype(leaf.dtype),
            gradient,
            rescaled,
        )


@checks.arguments
def per_sample(
    problem: Problem, transform: Callable[[PyTree], PyTree], *, noise: float = 0.0
) -> Problem:
    r"""Returns the problem with stochastic gradients $\frac1B \left( \sum_i T(\nabla \ell_i(x)) + s
    z \right) + l_2 x$, z standard normal.

    With `clipped(C)` and s = C times the noise multiplier it is the gradient of DP-SGD, computed by
    each worker from its own batch. A method is then differentially private at the level of samples
    if its messages depend on the data through gradients only. Batches are drawn as in the given
    problem, with a fixed number of samples.

        problems.per_sample(problems.logistic_regression(), problems.clipped(1.0), noise=1.1)

    Args:
        problem: a finite sum, or a problem whose batches are `problems.Examples`. Its loss and its
            evaluation do not change.
        transform: T, the gradient of one sample (without that of the norm) -> a tree of the same
            structure and shapes.
        noise: s, the standard deviation of the noise on the sum. The noise differs by worker,
            micro-batch, round and key of the run.

    Raises:
        ValueError: if the batches are not `Examples`, the problem has a custom gradient, its model
            has batch norm (whose losses are not those of single samples), T changes the tree, or
            noise is negative or not finite.

    Source: Abadi et al., Deep learning with differential privacy, 2016, Algorithm 1;
    `optax.contrib.differentially_private_aggregate`.
    """
    if not 0 <= noise < math.inf:
        raise ValueError(f"per_sample: noise = {noise}; expected a finite number >= 0")
    if problem.gradient is not None:
        raise ValueError(
            f"per_sample: {problem.name} has a custom gradient; expected a problem whose "
            "gradient is that of its loss"
        )
    if problem.evaluation.statistics is not None:
        raise ValueError(
            f"per_sample: {problem.name} has batch norm, whose losses are not those of single "
            "samples; expected a model without it"
        )
    batch = _batch(problem)
    if not isinstance(batch, Examples):
        raise ValueError(
            f"per_sample: {problem.name} draws batches of type {type(batch).__name__}; expected "
            "problems.Examples"
        )
    has_key = isinstance(batch.key, jax.ShapeDtypeStruct)
    gradient = PerSample(problem.name, problem.loss, transform, float(noise), leaves.flags(problem))
    rows = accumulate.row_shapes(gradient.rows(batch), problem.workers * batch.weights.shape[0])
    chunk_size = (
        accumulate.chunk_size(gradient.total, leaves.shapes(problem), rows) // problem.workers
    )
    return problem._replace(
        loss=Loss(problem.loss, replace(gradient, chunk_size=max(1, chunk_size))),
        sample=with_keys(problem.sampler) if noise and not has_key else problem.sample,
        constants=problem.constants._replace(noise=None, heterogeneity=None),
        name=f"{problem.name}, per sample",
    )


def _batch(problem: Problem) -> Any:
    """Returns the shapes and types of a batch of one worker."""

    def draw(data):
        first = pooled.row_data(
            pooled.flatten(data) if isinstance(data, Pooled) else data, jnp.int32(0)
        )
        return problem.sample(jax.random.key(0), first, *[jnp.int32(0)] * problem.sampler.numbered)

    return jax.eval_shape(draw, problem.data)


@dataclass(frozen=True, eq=False)
class PerSample(sameness.Compared):
    """(params, batch) -> the gradient with respect to the trained leaves, see `per_sample`.

    Args:
        name: name of the problem.
        loss: loss of the problem.
        transform: T.
        noise: s.
        trained: which leaves of the parameters are trained.
        chunk_size: number of samples whose gradients are in memory at a time; None: all.
    """

    name: str
    loss: Callable[[Params, Examples], jax.Array]
    transform: Callable[[PyTree], PyTree]
    noise: float
    trained: tuple[bool, ...]
    chunk_size: int | None = None

    def __call__(self, params: Params, batch: Examples) -> PyTree:
        total = accumulate.total(self.total, params, self.rows(batch), self.chunk_size)
        if self.noise:
            total = self._noisy(total, batch)
        count, trained = jnp.sum(batch.weights), leaves.split(self.trained, params)[0]
        slope = jax.tree.map(
            lambda leaf, norm: leaf / count.astype(leaf.dtype) + norm, total, self._penalty(trained)
        )
        return workers.narrow(slope, trained)

    def rows(self, batch: Examples) -> Examples:
        """Returns the batch with a key for each sample, if it has a key."""
        if isinstance(batch.key, jax.Array):
            return batch._replace(key=jax.random.split(batch.key, len(batch.weights)))
        if isinstance(batch.key, jax.ShapeDtypeStruct):
            return batch._replace(
                key=jax.eval_shape(partial(jax.random.split, num=batch.weights.shape[0]), batch.key)
            )
        return batch

    def total(self, params: Params, rows: Examples, counted: jax.Array) -> PyTree:
        """Returns the sum of the transformed gradients of the samples marked in `counted`, bool
        `[m]`, in float32 at least.
        """
        trained, fixed = leaves.split(self.trained, params)

        def change_one(one):
            inputs, targets = jax.tree.map(lambda leaf: leaf[None], (one.inputs, one.targets))
            single = Examples(inputs, targets, jnp.ones_like(one.weights)[None], one.key)

            def loss(trained):
                whole = leaves.merge(self.trained, params, trained, fixed)
                return (
                    self.loss.mean_over_samples(whole, single)
                    if isinstance(self.loss, MeanLoss)
                    else self.loss(whole, single)
                )

            with protocol.error_context(f"loss of {self.name}"):
                slope = jax.grad(loss)(trained)
            with protocol.error_context(f"transform of per_sample({self.name})"):
                changed = self.transform(slope)
            checks.require_same(
                f"per_sample({self.name}): transform returned a tree", changed, slope
            )
            return changed

        weights = jnp.where(counted, rows.weights, 0)
        each = units.scale_rows(weights, workers.widen(jax.vmap(change_one)(rows)))
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), each)

    def _noisy(self, total: PyTree, batch: Examples) -> PyTree:
        if not isinstance(batch.key, jax.Array):
            raise ValueError(
                f"per_sample({self.name}): exact gradients have no noise, since they are not "
                "drawn; expected a method that draws batches, such as minibatch_sgd"
            )
        each, structure = jax.tree.flatten(total)
        keys = jax.random.split(jax.random.fold_in(batch.key, _NOISE), len(each))
        noisy = [
            leaf + self.noise * jax.random.normal(key, leaf.shape, leaf.dtype)
            for key, leaf in zip(keys, each, strict=True)
        ]
        return jax.tree.unflatten(structure, noisy)

    def _penalty(self, trained: Params) -> Any:
        """Returns the gradient of the terms that do not depend on samples."""
        if isinstance(self.loss, MeanLoss) and self.loss.has_penalty:
            return jax.grad(self.loss.penalty)(trained)
        return jax.tree.map(jnp.zeros_like, trained)
