"""Steps of optax optimizers, on one model or on stacked models; shared by all methods.

Every call of an optimizer's own `init` and `update` goes through those of this module. They name
the optimizer in the error message if it fails or if its updates do not fit the parameters, and they
wrap random keys of its state in `StateKey`, so that the engine can give each worker and seed its
own key.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from dsgd import Communicator, causes, checks, workers, xla
from dsgd.engine import randomness
from dsgd.extend import Gradients, Params, PyTree, Real, StateKey, is_state_key, lift

FIRST, SECOND = ("mu", "trace"), ("nu", "nu_max")
"""Names that optax gives to first and second moments in the states of its optimizers."""

_TESTED = 8  # number of steps tested for ascent


class Model(NamedTuple):
    """A model and the state of its optimizer."""

    params: Params
    optimizer: PyTree


def init(optimizer: optax.GradientTransformation, params: Params) -> Model:
    """Returns the model before the first step.

    Raises:
        ValueError: if the optimizer fails on these parameters, returns updates of another shape, or
            draws random numbers from a key that is not in its state.
    """
    with _name_errors(optimizer):
        memory = optimizer.init(params)
    return Model(params, _wrap_keys(optimizer, params, memory))


def first_memory(optimizer: optax.GradientTransformation, params: Params, key: jax.Array) -> PyTree:
    """Returns the optimizer's state before its first step, with random numbers that also depend on
    the key.
    """
    return randomness.fold_owner(init(optimizer, params).optimizer, key)


@partial(jax.jit, static_argnums=(0, 1))
def initial_model(
    problem_init: Callable[[jax.Array], Params],
    optimizer: optax.GradientTransformation,
    key: jax.Array,
) -> Model:
    """Returns the initial model of all workers of a run with this key. The function is compiled
    once for the same `init` and optimizer.
    """
    return randomness.fold_owner(init(optimizer, problem_init(key)), key)


def step(optimizer: optax.GradientTransformation, model: Model, gradient: Params) -> Model:
    r"""Makes one step, $x \leftarrow x - \gamma g$ for `optax.sgd`."""
    updates, memory = update(optimizer, gradient, model.optimizer, model.params)
    return Model(optax.apply_updates(model.params, updates), memory)


def update(
    optimizer: optax.GradientTransformation, gradient: Params, memory: PyTree, params: Params
) -> tuple[Params, PyTree]:
    r"""Returns the optimizer's updates, $-\gamma g$ for `optax.sgd`, and its next state.

    Raises:
        ValueError: if the optimizer fails, or its updates do not have the structure, the shapes and
            the real types of the parameters; or if it steps on the models of several workers with
            the same random key.
    """
    keyed = has_keys(memory)
    if keyed:
        leaves, treedef = jax.tree.flatten(memory, is_leaf=is_state_key)
        places = [i for i, leaf in enumerate(leaves) if is_state_key(leaf)]
        try:
            keys = randomness.one_key_per_model([leaves[i] for i in places], (gradient, params))
        except ValueError as error:
            raise ValueError(f"optimizer {display_name(optimizer)}: {error}") from error
        for i, key in zip(places, keys, strict=True):
            leaves[i] = key
        memory = treedef.unflatten(leaves)
    with _name_errors(optimizer):
        updates, after = lift(
            optimizer.update,
            gradient,
            jax.tree.map(_unwrap_key, memory, is_leaf=is_state_key),
            params,
        )
        if keyed:
            after = jax.tree.map(
                lambda old, new: old.with_key(new) if is_state_key(old) else new,
                memory,
                after,
                is_leaf=is_state_key,
            )
    _require_updates(optimizer, updates, params)
    if jax.tree.structure(after) == jax.tree.structure(memory):
        after = jax.tree.map(_keep_type, after, memory)
    return updates, after


def update_frozen(
    optimizer: optax.GradientTransformation,
    gradients: Gradients,
    memory: PyTree,
    params: Params,
    round: Communicator,
) -> Params:
    """Returns every worker's update by an optimizer with a state that all workers share and that
    does not change. Each worker draws its own random numbers in each call.

    Args:
        optimizer: any.
        gradients, params: leaves `[n, ...]`.
        memory: the optimizer's state, leaves `[...]`.
        round: the current round.
    """
    if not has_keys(memory):
        return jax.vmap(lambda g, x: update(optimizer, g, memory, x)[0])(gradients, params)

    def step_worker(key, g, x):
        return update(optimizer, g, randomness.fold_owner(memory, key), x)[0]

    keys = workers.keys(round.next_key(), round.workers)
    return jax.vmap(step_worker)(keys, gradients, params)


def has_keys(memory: PyTree) -> bool:
    """Returns whether an optimizer's state has random keys."""
    return any(map(is_state_key, jax.tree.leaves(memory, is_leaf=is_state_key)))


def init_local(
    optimizer: optax.GradientTransformation, params: Params, N: int, models: Params | None = None
) -> Model:
    """Returns equal models for N workers, leaves `[N, ...]` (Assumption 8), or, if given, `models`,
    leaves `[N, ...]`, with the states of their optimizers.
    """
    if models is not None:
        return init_each(optimizer, models)
    return workers.replicate(init(optimizer, params), N)


def init_each(optimizer: optax.GradientTransformation, rows: Params) -> Model:
    """Returns a model for each row of leaves `[N, ...]`, for example for the shards of servers."""
    return jax.vmap(lambda row: init(optimizer, row))(rows)


def step_local(
    optimizer: optax.GradientTransformation, models: Model, gradients: Gradients
) -> Model:
    """Makes every worker's own step on its own model, leaves `[n, ...]`. Large models reuse the
    memory of the gradients.
    """

    def step_overwritten(params, overwritten):
        memory, gradients = overwritten
        after = jax.vmap(partial(step, optimizer))(Model(params, memory), gradients)
        return after.optimizer, after.params

    memory, params = xla.apply_in_place(
        step_overwritten, models.params, (models.optimizer, gradients)
    )
    return Model(params, memory)


def server_step(optimizer: optax.GradientTransformation, model: Model, gradient: Params) -> Model:
    """Makes one step of a single model, or none if no worker's gradient was delivered."""
    return workers.if_nonempty(step(optimizer, model, gradient), model)


def local_step(
    optimizer: optax.GradientTransformation, models: Any, gradients: Gradients, round: Communicator
) -> Any:
    """Makes every worker's own step on its own model. Workers that do not participate or compute
    nothing make none.

    Args:
        optimizer: each worker's optimizer.
        models: state with fields `params` and `optimizer`, leaves `[n, ...]`; other fields are
            unchanged.
        gradients: leaves `[n, ...]`.
        round: the current round.
    """
    before = Model(models.params, models.optimizer)
    after = round.if_active(step_local(optimizer, before, gradients), before)
    return models._replace(params=after.params, optimizer=after.optimizer)


def update_local(
    optimizer: optax.GradientTransformation, models: Any, gradients: Gradients
) -> tuple[PyTree, PyTree]:
    r"""Returns every worker's update, $-\gamma g$ for `optax.sgd`, without applying it, and the
    optimizers' next states.

    Args:
        optimizer: each worker's optimizer.
        models: state with fields `params` and `optimizer`, leaves `[n, ...]`.
        gradients: gradients, or vectors used as such, leaves `[n, ...]`.
    """
    updates, memory = jax.vmap(partial(update, optimizer))(
        gradients, models.optimizer, models.params
    )
    return jax.tree.map(lambda update, x: update.astype(x.dtype), updates, models.params), memory


def moments(names: tuple[str, ...], states: PyTree) -> list[Any]:
    """Returns the leaves of an optimizer's states that belong to moments with the given names, of
    `FIRST` and `SECOND`.
    """
    leaves = zip(_are_moments(names, states), jax.tree.leaves(states), strict=True)
    return [leaf for is_moment, leaf in leaves if is_moment]


def with_moments(names: tuple[str, ...], states: PyTree, new: Sequence[Any]) -> PyTree:
    """Returns the states with new values of the leaves that `moments` returns."""
    leaves, treedef = jax.tree.flatten(states)
    chosen = [i for i, is_moment in enumerate(_are_moments(names, states)) if is_moment]
    for i, leaf in zip(chosen, new, strict=True):
        leaves[i] = leaf
    return treedef.unflatten(leaves)


def _are_moments(names: tuple[str, ...], states: PyTree) -> list[bool]:
    """Returns, for each leaf, whether it belongs to a moment with one of the given names. If names
    are nested, the outermost counts, because parameters may have fields of the same names.
    """

    def name(path: tuple[Any, ...]) -> str | None:
        fields = (key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey))
        return next((field for field in fields if field in FIRST + SECOND), None)

    return [name(path) in names for path, _ in jax.tree_util.tree_leaves_with_path(states)]


def step_size(optimizer: optax.GradientTransformation, at: PyTree = None) -> jax.Array:
    r"""Returns the length of the optimizer's first step for a gradient of 1, $\gamma$ for
    `optax.sgd`; or that of the step at a later state, $\gamma_t$, for optimizers without moments.

    Args:
        optimizer: any.
        at: the state; None: the first.

    Raises:
        ValueError: if a state is given, and the optimizer's states have moments: $x = \mathrm{prox}
            _{\gamma r}(x + u)$ is the optimum only if the step u is $-\gamma f'(x)$; or if the
            optimizer draws random numbers.
    """
    try:
        start = init(optimizer, jnp.zeros(()))
    except ValueError as error:
        raise ValueError(
            f"optimizer {display_name(optimizer)}: it has no step size, because it does not accept "
            "a scalar; expected one optimizer for all parameters, without trees of masks or labels"
        ) from error
    require_no_noise(optimizer, start.optimizer)
    if at is None:
        at = start.optimizer
    elif any(leaf.ndim for leaf in jax.tree.leaves(jax.eval_shape(optimizer.init, jnp.zeros(1)))):
        raise ValueError(
            f"optimizer {display_name(optimizer)}: it has moments, with which steps that alternate "
            "with proximal steps do not approach the optimum; expected one without on a problem "
            "with a regularizer, such as optax.sgd(0.1)"
        )
    return -update(optimizer, jnp.ones(()), at, start.params)[0]


def require_no_noise(optimizer: optax.GradientTransformation, memory: PyTree) -> None:
    """Raises a ValueError if the optimizer draws random numbers.

    Args:
        optimizer: any.
        memory: a state that `init` returned.
    """
    if has_keys(memory):
        raise ValueError(
            f"optimizer {display_name(optimizer)}: its steps are random, so that they have no "
            "size; expected an optimizer without noise, such as optax.sgd(0.1)"
        )


def require_descent(optimizer: optax.GradientTransformation) -> float:
    r"""Validates that the optimizer's first step for a gradient of 1 is a descent step. An
    optimizer that fails on a scalar is not checked.

    Returns:
        The size of that step, $\gamma$ for `optax.sgd` and for Adam; NaN if it is unknown.

    Raises:
        ValueError: if the update needs more than gradients (for example a line search), or the
            first step is not a finite real number, or it is an ascent step although the step size
            is not negative.
    """
    one: Any = np.float32(1)
    try:
        memory = optimizer.init(one)
        step: Any = optimizer.update(one, memory, one)[0]
    except Exception as error:  # an optimizer that fails on a scalar may work on the model
        if "required keyword-only argument" in str(error):
            raise ValueError(
                f"optimizer {display_name(optimizer)}: its update needs more than gradients "
                f"({error}); "
                "expected one that steps on gradients alone, for example optax.sgd(0.1)"
            ) from error
        return float("nan")
    # step sizes per coordinate are checked against the model by `start`
    if isinstance(step, Tracer) or np.ndim(step):
        return float("nan")
    first = f"optimizer {display_name(optimizer)}: its first step for a gradient of 1"
    if not checks.is_numeric(step):
        raise ValueError(
            f"{first} is {checks.kind(step)}; expected a real number: pass a real step size, and "
            "schedules that return one"
        )
    if not np.isfinite(step):
        raise ValueError(
            f"{first} is {step}; expected a finite number: pass finite hyperparameters"
        )
    if step > 0 and _ascends(optimizer, memory, one):
        raise ValueError(
            f"{first} is +{float(step):g}, an ascent step; expected a descent step: pass a "
            "positive step size, for example optax.sgd(0.1), or end the chain with "
            "optax.scale_by_learning_rate(0.1)"
        )
    return abs(float(step))


def _ascends(optimizer: optax.GradientTransformation, memory: PyTree, one: Any) -> bool:
    """Returns whether all of the first steps ascend for a gradient of 1, without an explicitly
    negative step size.

    Random steps may ascend by chance, and so does every other step of sharpness-aware methods.
    """
    # the user passed a negative step size explicitly
    chosen = re.findall(r"\w+", display_name(optimizer))[-1] in ("scale", "scale_by_schedule")
    if chosen or any(map(randomness.may_be_key, jax.tree.leaves(memory))):
        return False
    for _ in range(_TESTED):
        step: Any
        step, memory = optimizer.update(one, memory, one)
        if not step > 0:
            return False
    return True


def display_name(optimizer: optax.GradientTransformation) -> str:
    """Returns the optimizer's name for error messages: the function that made it; for a chain, with
    its parts.
    """
    return _maker(optimizer.update)


def _maker(update: Callable) -> str:
    name = getattr(update, "__qualname__", type(update).__name__).partition(".<locals>")[0]
    try:
        kept = inspect.getclosurevars(update).nonlocals
    except TypeError:  # no Python function
        return name
    for wrapped in ("tx", "optimizer"):  # optax.with_extra_args_support, and FedNova's
        if wrapped in kept:
            return display_name(kept[wrapped])
    return f"{name}({', '.join(map(_maker, kept['update_fns']))})" if "update_fns" in kept else name


@contextmanager
def _name_errors(optimizer: optax.GradientTransformation) -> Iterator[None]:
    """Turns an optimizer's own errors into a one-line ValueError that names the optimizer."""
    try:
        yield
    except Exception as error:
        cause = causes.remedy(error)
        cause = cause if len(cause) <= 200 else f"{cause[:180]} ..."
        raise ValueError(
            f"optimizer {display_name(optimizer)} fails on these parameters "
            f"({type(error).__name__}: "
            f"{cause}); expected an optimizer that steps on gradients alone, with floats as "
            "hyperparameters, and masks, labels and schedules that fit the parameters"
        ) from error


def _require_updates(
    optimizer: optax.GradientTransformation, updates: PyTree, params: Params
) -> None:
    """Raises a ValueError if the updates would be broadcast or cast to fit the parameters."""
    where = f"optimizer {display_name(optimizer)}: its updates"
    if jax.tree.structure(updates) != jax.tree.structure(params):
        checks.require_same(where, updates, params)
    for (path, leaf), x in zip(
        jax.tree_util.tree_leaves_with_path(updates), jax.tree.leaves(params), strict=True
    ):
        name = f"{where}{jax.tree_util.keystr(path)}"
        if jnp.shape(leaf) != jnp.shape(x):
            raise ValueError(
                f"{name} are {checks.kind(leaf)} for parameters {checks.kind(x)}; expected the "
                "parameters' shape: an optimizer that"
                " clips or sums per-sample gradients needs a problem whose gradients are per sample"
            )
        if jnp.issubdtype(jnp.result_type(x), jnp.floating) and not jnp.issubdtype(
            jnp.result_type(leaf), jnp.floating
        ):
            raise ValueError(
                f"{name} are {checks.kind(leaf)} for parameters {checks.kind(x)}; expected real "
                "numbers: pass real step sizes"
            )


def _keep_type(new: Any, old: Any) -> Any:
    """Returns a leaf of the new state in the type of the old one, if both are floating point. The
    moments of `optax.inject_hyperparams` have the type of its hyperparameters after a step.
    """
    types = jnp.result_type(old), jnp.result_type(new)
    floats = all(jnp.issubdtype(each, jnp.floating) for each in types)
    return new.astype(types[0]) if floats and types[0] != types[1] else new


def _unwrap_key(leaf: Any) -> Any:
    """Returns a leaf in the form in which the optimizer itself stores it."""
    return leaf.key() if is_state_key(leaf) else leaf


def _wrap_keys(optimizer: optax.GradientTransformation, params: Params, memory: PyTree) -> PyTree:
    """Returns the optimizer's state with random keys wrapped in `StateKey`."""
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), (memory, params)
    )
    used = randomness.uses(
        lambda memory, params: update(optimizer, params, memory, params), *shapes
    )
    if used.constant:
        raise ValueError(
            f"optimizer {display_name(optimizer)}: its update draws random numbers from a key "
            "that is "
            "not in its state, so that they are the same in all workers, seeds and runs; expected "
            "the key in the state that init returns, as in optax.add_noise"
        )
    leaves, treedef = jax.tree.flatten(memory)
    keys = used.keys[: len(leaves)]
    return treedef.unflatten(
        StateKey.from_key(leaf) if is_key else leaf
        for leaf, is_key in zip(leaves, keys, strict=True)
    )


def moving_average(beta: Real, m: PyTree, gradients: PyTree) -> PyTree:
    r"""Returns $\beta m + (1 - \beta) g$, in the types of m."""

    def mean(m, g):
        return jnp.asarray(beta, m.dtype) * m + jnp.asarray(1 - beta, m.dtype) * g.astype(m.dtype)

    return jax.tree.map(mean, m, gradients)
