"""Running averages of batch norm: estimated when a model is evaluated, so that no method has to
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

_LOOPS = ("scan", "while")  # what one turn computes, the next one reads
_BATCHES = 16  # of each worker, from which running averages are estimated


class Training(NamedTuple):
    """How a model differs in training.

    Args:
        apply: (parameters, inputs, key or None) -> outputs, and the parameters with their running
            averages after these inputs.
        averages: which leaves of the parameters are running averages.
        random: whether it draws random numbers, as dropout does, and needs a key.
    """

    apply: Callable[[PyTree, PyTree, jax.Array | None], tuple[PyTree, PyTree]]
    averages: tuple[bool, ...]
    random: bool


@dataclass(frozen=True, eq=False)
class Statistics(sameness.Compared):
    r"""(params, data block) -> params, whose running averages are the means over batches of all
    workers, at these parameters.

    With a momentum of a, batch norm in training makes $a s + (1 - a) s(B)$ of an average s: its
    mean over batches tends to the mean of the s(B) of training batches, at fixed parameters. That
    mean is taken over 16 batches of each worker, drawn as those of the training but with a key of
    their own, which is always the same.

    Args:
        training: of the model.
        sample: of the problem.

    Source: Wu and Johnson, Rethinking "Batch" in BatchNorm, 2021, section 3 (PreciseBN).
    """

    training: Training
    sample: Callable[[jax.Array, Examples], Examples]

    def __call__(self, params: Params, data: Examples | Pooled) -> Params:
        n = len(jax.tree.leaves(data)[0])
        data = pooled.of_block(data)
        ids = workers.ids(n * workers.devices())
        old, rest = leaves.split(self.training.averages, params)

        def of_batch(id, mine, k):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), k), id)
            return self._of_batch(params, self.sample(key, mine))

        def add(total, k):
            each = jax.vmap(of_batch, (0, pooled.axes(data), None))(ids, data, k)
            return jax.tree.map(
                lambda total, leaf: total + jnp.mean(leaf, axis=0) / _BATCHES, total, each
            ), None

        mean = lax.scan(add, jax.tree.map(jnp.zeros_like, old), jnp.arange(_BATCHES))[0]
        return leaves.merged(self.training.averages, params, workers.mean_over_devices(mean), rest)

    def _of_batch(self, params: Params, batch: Examples) -> PyTree:
        """What the running averages tend to if all batches are this one: the fixed point of their
        update, s = a s + b.
        """
        old, rest = leaves.split(self.training.averages, params)
        inputs = counted_rows(batch)
        key = batch.key if self.training.random else None

        def update(averages):
            whole = leaves.merged(self.training.averages, params, averages, rest)
            return leaves.split(self.training.averages, self.training.apply(whole, inputs, key)[1])[
                0
            ]

        zeros, ones = (jax.tree.map(make, old) for make in (jnp.zeros_like, jnp.ones_like))
        b, a = jax.jvp(update, (zeros,), (ones,))
        return jax.tree.map(
            lambda old, a, b: jnp.where(a == 1, old, b / jnp.where(a == 1, 1, 1 - a)), old, a, b
        )


def counted_rows(batch: Examples) -> PyTree:
    """The inputs, with counted samples once more in place of those that do not count, whose values
    must not be part of batch statistics.
    """
    counted = jnp.maximum(1, jnp.sum(batch.weights > 0))
    return jax.tree.map(lambda leaf: leaf[jnp.arange(len(batch.weights)) % counted], batch.inputs)


def need_supported(
    name: str, training: Training, params: PyTree, inputs: PyTree, trained: tuple[bool, ...]
) -> None:
    """Raises a ValueError if a leaf changes in training that is neither trained nor a running
    average, or such averages change the outputs.

    Args:
        name: of the model.
        training: of the model.
        params, inputs: shapes and types.
        trained: which leaves of the parameters are trained.
    """
    key = jax.eval_shape(lambda: jax.random.key(0)) if training.random else None
    with causes.explained(f"model {name} in training"):
        jaxpr: Any = jax.make_jaxpr(
            lambda params: training.apply(params, *_zeros((inputs, key)))[1]
        )(params).jaxpr
    paths = [keystr(path) for path, _ in tree_leaves_with_path(params)]
    for path, before, after, one, other in zip(
        paths, jaxpr.invars, jaxpr.outvars, trained, training.averages, strict=True
    ):
        if after is not before and not (one or other):
            raise ValueError(
                f"model {name}: {path} changes in training; expected parameters, constants, and "
                "running averages as of BatchNorm"
                " (collection batch_stats, nnx.BatchStat), which are estimated from the data when "
                "the model is evaluated"
            )
    if any(training.averages) and depends(
        partial(_outputs, training, params), *leaves.split(training.averages, params), inputs, key
    ):
        raise ValueError(
            f"model {name}: its outputs in training depend on its running averages (batch_stats); "
            "expected a module whose averages serve"
            " the evaluation only, as of BatchNorm, since they are not carried from round to round"
        )


def _outputs(
    training: Training, like: PyTree, averages: PyTree, rest: PyTree, inputs: PyTree, key: Any
) -> PyTree:
    return training.apply(leaves.merged(training.averages, like, averages, rest), inputs, key)[0]


def depends(function: Callable[..., PyTree], first: PyTree, *rest: PyTree) -> bool:
    """Whether what the function computes depends on its first argument; of all arguments, shapes
    and types.
    """
    jaxpr = jax.make_jaxpr(function)(first, *rest).jaxpr
    return any(
        _reached(jaxpr, [at < len(jax.tree.leaves(first)) for at in range(len(jaxpr.invars))])
    )


def _reached(jaxpr: Any, known: list[bool]) -> list[bool]:
    """Which results depend on the known ones among the arguments."""
    found = {
        id(variable) for variable, is_known in zip(jaxpr.invars, known, strict=True) if is_known
    }
    for equation in jaxpr.eqns:
        given = [id(variable) in found for variable in equation.invars]
        inner = list(jaxprs_in_params(equation.params))
        same = (
            len(inner) == 1
            and len(inner[0].invars) == len(given)
            and equation.primitive.name not in _LOOPS
        )
        results = (
            _reached(inner[0], given)
            if same and any(given)
            else [any(given)] * len(equation.outvars)
        )
        found.update(
            id(variable)
            for variable, reached in zip(equation.outvars, results, strict=True)
            if reached
        )
    return [id(variable) in found for variable in jaxpr.outvars]


def _zeros(shapes: PyTree) -> PyTree:
    """Values inside of a trace."""

    def zero(leaf):
        return (
            jax.random.key(0)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jnp.zeros(leaf.shape, leaf.dtype)
        )

    return jax.tree.map(zero, shapes)
