"""What methods share: one optax step on one model or on stacked ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.core import Tracer

from dsgd import workers
from dsgd.base import Gradients, Params, PyTree, Round, State

_LARGE = 1 << 24  # elements of all workers' models: from where on memory counts, and a loop around a step does not


class Model(NamedTuple):
    """A model and its optimiser's state."""

    params: Params
    optimizer: PyTree


def start(optimizer: optax.GradientTransformation, params: Params) -> Model:
    """The model before the first step."""
    return Model(params, optimizer.init(params))


@partial(jax.jit, static_argnums=(0, 1))
def drawn(init: Callable[[jax.Array], Params], optimizer: optax.GradientTransformation, key: jax.Array) -> Model:
    """The same from a problem's `init`, compiled; found again where both functions are the same."""
    return start(optimizer, init(key))


def step(optimizer: optax.GradientTransformation, model: Model, gradient: Params) -> Model:
    r"""One step, $x \leftarrow x - \gamma g$ for `optax.sgd`."""
    change, memory = optimizer.update(gradient, model.optimizer, model.params)
    return Model(optax.apply_updates(model.params, change), memory)


def start_local(optimizer: optax.GradientTransformation, params: Params, N: int) -> Model:
    """Equal models for N workers, leaves `[N, ...]` (Assumption 8)."""
    return workers.stack(start(optimizer, params), N)


def step_local(optimizer: optax.GradientTransformation, models: Model, gradients: Gradients) -> Model:
    """Every worker's own step on its own model, leaves `[n, ...]`; large models take the memory of the gradients."""
    stepped = jax.vmap(partial(step, optimizer))
    if sum(leaf.size for leaf in jax.tree.leaves(models.params)) < _LARGE:
        return stepped(models, gradients)
    return lax.platform_dependent(models, gradients, cpu=partial(_in_place, stepped), default=stepped)


def _in_place(stepped: Callable[[Model, Gradients], Model], models: Model, gradients: Gradients) -> Model:
    """The models after the step, where the gradients were, and the optimisers' states, where they were.

    On CPUs XLA gives all that it computes a place of its own, but for what goes round a loop: this one turns once, which compilers do not
    know. On GPUs the step takes the gradients' place without it.
    """

    def turn(carry):
        i, memory, there = carry
        after = stepped(Model(models.params, memory), there)
        return i + 1, after.optimizer, after.params

    first = lax.optimization_barrier(jnp.int32(0))
    _, memory, params = lax.while_loop(lambda carry: carry[0] < 1, turn, (first, models.optimizer, gradients))
    return Model(params, memory)


def if_computed(round: Round, after: PyTree, before: PyTree) -> PyTree:
    """Rows `[n, ...]`: who computed nothing in this round, of the work that the query said, makes no step of its own."""
    if round.work is None:
        return after
    return workers.where_rows(jnp.any(round.work.samples > 0, axis=1), after, before)


def change_local(optimizer: optax.GradientTransformation, models: Any, gradients: Gradients) -> tuple[PyTree, PyTree]:
    r"""Every worker's own change, $-\gamma g$ for `optax.sgd`, not yet made, and the optimiser's states after it.

    Args:
        models: with `params` and `optimizer`, leaves `[n, ...]`.
        gradients: likewise, or what stands for them.
    """
    change, memory = jax.vmap(optimizer.update)(gradients, models.optimizer, models.params)
    return jax.tree.map(lambda change, x: change.astype(x.dtype), change, models.params), memory


def server_params(state: State) -> Params:
    """The one model of methods whose `State.server` is a `Model`."""
    return state.server.params


def mean_params(state: State) -> Params:
    """The mean of the local models of methods whose `State.workers` is a `Model`, or has such `params`."""
    return workers.mean(state.workers.params)


def learning_rate(optimizer: optax.GradientTransformation) -> Any:
    """Size of the first step for a gradient of 1: gamma for `optax.sgd` and for Adam; for error messages.

    A schedule is read at its start. NaN where the optimiser only works on the model's own tree (labels, masks).

    Raises:
        ValueError: one whose update needs more than gradients (a line search).
    """
    one: Any = np.float32(1)
    try:
        change: Any = optimizer.update(one, optimizer.init(one), one)[0]
    except Exception as error:  # it is only a probe: what fails on a scalar may work on the model
        if "required keyword-only argument" in str(error):
            raise ValueError(
                f"the optimiser's update needs more than gradients ({error}); need one that steps on gradients alone"
            ) from error
        return float("nan")
    return change if isinstance(change, Tracer) else abs(float(change))
