"""Running averages of batch norm, estimated when a model is evaluated, so that methods need not
carry them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxprs_in_params
from jax.tree_util import keystr, tree_leaves_with_path

from dsgd import causes, sameness, workers
from dsgd.base import Params, PyTree
from dsgd.engine import leaves, pooled
from dsgd.engine.pooled import Pooled
from dsgd.problems.examples import Examples

_LOOPS = ("scan", "while")  # a result of one iteration may be an input of the next one
_BATCHES = 16  # number of batches of each worker from which running averages are estimated


class Training(NamedTuple):
    """How a model differs in training mode.

    Args:
        apply: (parameters, inputs, key or None) -> the outputs, and the parameters with the running
            averages updated by these inputs.
        averages: which leaves of the parameters are running averages.
        random: whether the model draws random numbers, as dropout does, and needs a key.
    """

    apply: Callable[[PyTree, PyTree, jax.Array | None], tuple[PyTree, PyTree]]
    averages: tuple[bool, ...]
    random: bool


@dataclass(frozen=True, eq=False)
class Statistics(sameness.Compared):
    """(params, data block) -> params with the running averages replaced by means over batches of
    all workers, at these parameters.

    In training, batch norm with momentum a updates an average s to $a s + (1 - a) s(B)$ for the
    batch B. At fixed parameters, its mean over batches converges to the mean of s(B) over training
    batches. This mean is estimated from 16 batches of each worker, which are drawn as in training
    but with a fixed key.

    Args:
        training: training mode of the model.
        sample: the problem's sampler, (key, data) -> batch.

    Source: Wu and Johnson, Rethinking "Batch" in BatchNorm, 2021, section 3 (PreciseBN).
    """

    training: Training
    sample: Callable[[jax.Array, Examples], Examples]

    def __call__(self, params: Params, data: Examples | Pooled) -> Params:
        n = len(jax.tree.leaves(data)[0])
        data = pooled.block_data(data)
        ids = workers.ids(n * workers.devices())
        old, rest = leaves.split(self.training.averages, params)

        def average_of_batch(id, samples, k):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), k), id)
            return self._fixed_point(params, self.sample(key, samples))

        def add(total, k):
            each = jax.vmap(average_of_batch, (0, pooled.axes(data), None))(ids, data, k)
            return jax.tree.map(lambda total, leaf: total + leaf / _BATCHES, total, each), None

        zeros = workers.replicate(jax.tree.map(jnp.zeros_like, old), n)
        each = lax.scan(add, zeros, jnp.arange(_BATCHES))[0]
        return leaves.merge(self.training.averages, params, workers.mean(each), rest)

    def _fixed_point(self, params: Params, batch: Examples) -> PyTree:
        """Returns the limit of the running averages if all batches equal this one: the fixed point
        b / (1 - a) of their update, s = a s + b.
        """
        old, rest = leaves.split(self.training.averages, params)
        inputs = counted_rows(batch)
        key = batch.key if self.training.random else None

        def update(averages):
            whole = leaves.merge(self.training.averages, params, averages, rest)
            return leaves.split(self.training.averages, self.training.apply(whole, inputs, key)[1])[
                0
            ]

        zeros, ones = (jax.tree.map(make, old) for make in (jnp.zeros_like, jnp.ones_like))
        b, a = jax.jvp(update, (zeros,), (ones,))
        return jax.tree.map(
            lambda old, a, b: jnp.where(a == 1, old, b / jnp.where(a == 1, 1, 1 - a)), old, a, b
        )


def counted_rows(batch: Examples) -> PyTree:
    """Returns the inputs of a batch with the rows of zero weight replaced by repeated rows of
    positive weight, so that they do not affect batch statistics.
    """
    counted = jnp.maximum(1, jnp.sum(batch.weights > 0))
    return jax.tree.map(lambda leaf: leaf[jnp.arange(len(batch.weights)) % counted], batch.inputs)


def require_supported(
    name: str, training: Training, params: PyTree, inputs: PyTree, trained: tuple[bool, ...]
) -> None:
    """Raises a ValueError if a leaf that is neither trained nor a running average changes in
    training, or if running averages affect the outputs in training.

    Args:
        name: name of the model.
        training: training mode of the model.
        params, inputs: shapes and types.
        trained: which leaves of the parameters are trained.
    """
    key = jax.eval_shape(lambda: jax.random.key(0)) if training.random else None
    with causes.refuse_errors(f"model {name} in training"):
        jaxpr: Any = jax.make_jaxpr(
            lambda params: training.apply(params, *_zeros((inputs, key)))[1]
        )(params).jaxpr
    paths = [keystr(path) for path, _ in tree_leaves_with_path(params)]
    for path, before, after, one, other in zip(
        paths, jaxpr.invars, jaxpr.outvars, trained, training.averages, strict=True
    ):
        if after is not before and not (one or other):
            raise ValueError(
                f"model {name}: {path} changes in training; expected only parameters, constants "
                "and running averages such as those of BatchNorm (collection batch_stats, "
                "nnx.BatchStat), which are estimated from the data when the model is evaluated"
            )
    if any(training.averages) and depends(
        partial(_outputs, training, params), *leaves.split(training.averages, params), inputs, key
    ):
        raise ValueError(
            f"model {name}: its outputs in training depend on its running averages (batch_stats); "
            "expected a module whose running averages are used in evaluation only, as in "
            "BatchNorm, since they are not carried from round to round"
        )


def _outputs(
    training: Training, like: PyTree, averages: PyTree, rest: PyTree, inputs: PyTree, key: Any
) -> PyTree:
    return training.apply(leaves.merge(training.averages, like, averages, rest), inputs, key)[0]


def depends(function: Callable[..., PyTree], first: PyTree, *rest: PyTree) -> bool:
    """Whether the function's result depends on its first argument. All arguments are shapes and
    types.
    """
    jaxpr = jax.make_jaxpr(function)(first, *rest).jaxpr
    return any(
        _propagate(jaxpr, [at < len(jax.tree.leaves(first)) for at in range(len(jaxpr.invars))])
    )


def _propagate(jaxpr: Any, dependent: list[bool]) -> list[bool]:
    """Returns which results of a jaxpr depend on the arguments marked in `dependent`."""
    found = {
        id(variable) for variable, marked in zip(jaxpr.invars, dependent, strict=True) if marked
    }
    for equation in jaxpr.eqns:
        given = [id(variable) in found for variable in equation.invars]
        inner = list(jaxprs_in_params(equation.params))
        direct = (
            len(inner) == 1
            and len(inner[0].invars) == len(given)
            and equation.primitive.name not in _LOOPS
        )
        results = (
            _propagate(inner[0], given)
            if direct and any(given)
            else [any(given)] * len(equation.outvars)
        )
        found.update(
            id(variable)
            for variable, reached in zip(equation.outvars, results, strict=True)
            if reached
        )
    return [id(variable) in found for variable in jaxpr.outvars]


def _zeros(shapes: PyTree) -> PyTree:
    """Returns zeros of these shapes and types; for keys, key 0. It is called inside a trace."""

    def zero(leaf):
        return (
            jax.random.key(0)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jnp.zeros(leaf.shape, leaf.dtype)
        )

    return jax.tree.map(zero, shapes)
