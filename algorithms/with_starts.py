"""A wrapper with which the workers of a method start from different models."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dsgd import Algorithm, AllRows, array_likes, checks
from dsgd.machines.arrays import copy_arrays


@checks.arguments
def with_starts(method: Algorithm, models: Any) -> Algorithm:
    """Returns the method with workers that start from different models, in every run and with every
    seed. By default all workers start from the parameters of the problem.

    Methods with local models accept different starts, except for those in which the workers keep
    copies of each other's models that are equal at the start (CHOCO-SGD, LEAD, BEER). Methods with
    one model, or with a server, accept one start only. The limits of exact methods do not depend on
    the starts. In the history, the record of the initial state is that of the mean model.

    A custom method accepts different starts if its `init` has a third argument `models=None`, of
    leaves `[N, ...]`; if it is given, the state must start from it instead of the parameters.

    Args:
        method: any method that accepts different starts.
        models: the model of each worker, a tree like the trained parameters with leaves `[N, ...]`,
            which are converted to the parameters' types; or a function from the parameters to such
            a tree.

    Raises:
        ValueError: if the workers of the method must start from the same model. At the start of a
            run: if the models do not have the structure and shapes of the parameters.
    """
    if "models" not in inspect.signature(method.init).parameters:
        raise ValueError(
            f"with_starts: the workers of {method.name} must start from the same model; expected a "
            "method with local models and no copies of them, such as algorithms.decentralized_sgd"
        )
    kept = (
        models
        if callable(models)
        else copy_arrays(array_likes.tree("with_starts: models", models, checks.copy_array))
    )

    start: Callable = method.init  # with a third argument

    def init(params, N):
        given = kept(params) if callable(kept) else kept
        checks.require_same(f"with_starts: {method.name} gets models", given, params, (N,))
        rows = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), given, params)
        return start(params, N, rows)

    # Until the first synchronization, workers that do not participate have different models.
    absent = method.absent and AllRows(method.absent)
    return method._replace(name=f"with_starts({method.name})", init=init, absent=absent)
