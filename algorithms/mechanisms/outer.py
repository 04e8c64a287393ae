"""Local steps, then an outer step: the mechanism of the methods with local updates.

Each worker makes local steps from the common model with an inner optimizer. At a synchronization
the mean of the workers' changes is the gradient of one step of an outer optimizer, and all workers
continue from the model after that step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import methods, optimizers
from dsgd import Algorithm, Communicator, Compressor, network, workers
from dsgd.communication import Delivery, flatten, require_contraction
from dsgd.extend import Gradients, Params, Period, PyTree, Real, is_state_key


class Outer(NamedTuple):
    """The state that all workers share, or that a server stores.

    Args:
        params: x, the common model after the last synchronization.
        optimizer: state of the outer optimizer.
        memory: further state of the method.
    """

    params: Params
    optimizer: PyTree
    memory: PyTree = ()


class Inner(NamedTuple):
    """State of a worker.

    Args:
        params: y, its model.
        optimizer: state of its inner optimizer.
        memory: further state of the method, which a worker that does not participate keeps.
    """

    params: Params
    optimizer: PyTree
    memory: PyTree = ()


def outer_gradient(x: Outer, y: Inner) -> Params:
    r"""Returns each worker's change since the last synchronization, $x - y^{(n)}$, leaves
    `[n, ...]`.
    """
    return jax.tree.map(lambda x, y: x[None] - y, x.params, y.params)


def mean_change(
    x: Outer, y: Inner, round: Communicator, via: network.AllReduce
) -> tuple[Params, Any, Any]:
    r"""Returns the outer gradient of local SGD, $\Delta = \sum_n w_n (x - y^{(n)}) / \sum_n w_n$,
    and the memories, unchanged.
    """
    return round.weighted_mean(outer_gradient(x, y), via), x.memory, y.memory


def compressed_change(
    compressor: Compressor,
    decay: Real,
    x: Outer,
    y: Inner,
    round: Communicator,
    via: network.OneServer | network.AllGather,
) -> tuple[Params, Any, Any]:
    r"""Returns the mean of compressed changes, with error memory e in `Inner.memory`. A worker that
    does not participate keeps its memory.

    $$ e^{(n)} \leftarrow \beta e^{(n)} + x - y^{(n)}, \qquad m^{(n)} = C(e^{(n)}), \qquad
       e^{(n)} \leftarrow e^{(n)} - m^{(n)}, \qquad
       \Delta = \frac{\sum_n w_n m^{(n)}}{\sum_n w_n} $$

    Args:
        compressor: C, a contraction.
        decay: $\beta$.
        via: as in `mean_of_messages`.
    """
    total = jax.tree.map(
        lambda e, delta: jnp.asarray(decay, e.dtype) * e + delta, y.memory, outer_gradient(x, y)
    )
    sent = mean_of_messages(compressor, total, round, via)
    memory = workers.where_delivered(optax.tree.sub(total, sent.decoded), y.memory)
    return sent.received, x.memory, memory


def mean_of_messages(
    compressor: Compressor,
    tree: PyTree,
    round: Communicator,
    via: network.OneServer | network.AllGather,
) -> Delivery:
    """Returns the weighted mean of the workers' compressed vectors, leaves `[n, ...]`, as a
    `Delivery`; its `received` has leaves `[...]`.

    Args:
        via: `network.all_gather`, by which all workers receive all messages, or `network.star` or
            `network.parameter_server`: a server receives them and replies with its model.
    """
    if isinstance(via, network.AllGather):
        return round.mean_of_messages(compressor, tree)
    sent = round.to_server(compressor, tree, via=via, weighted=True)
    round.from_server(sent.received)  # has as many bits as the model
    return sent


def error_memory(method: str, compressor: Compressor, models: Params) -> Params:
    """Returns the first error memory of `compressed_change`, zeros.

    Raises:
        ValueError: if the compressor states no contraction for these models, leaves `[N, ...]`.
    """
    require_contraction(method, compressor, flatten(models, compressor.layer_wise))
    return optax.tree.zeros_like(models)


def local_updates(
    name: str,
    inner: optax.GradientTransformation,
    outer: optax.GradientTransformation,
    period: Period | Callable[[Outer, Communicator], jax.Array],
    *,
    via: network.AllReduce = network.ring_all_reduce,
    fresh: bool = False,
    direction: Callable[[Gradients, Outer, Inner], Gradients] | None = None,
    change: Callable[[Outer, Inner, Communicator, Any], tuple[Params, Any, Any]] = mean_change,
    shared: Callable[[Params], PyTree] = lambda params: (),
    own: Callable[[Params], PyTree] = lambda models: (),
) -> Algorithm:
    r"""Returns the method with local steps and an outer step.

    $$ y^{(n)} \leftarrow y^{(n)} - \gamma d_n(y^{(n)}) \quad H \text{ times from } x_t, \qquad
       x_{t+1} = \mathrm{Outer}(x_t, \Delta_t), \qquad y^{(n)} \leftarrow x_{t+1} $$

    Args:
        name: for tables and error messages.
        inner: each worker's step.
        outer: step on the common model; `optax.sgd(1)` sets it to the mean of the workers' models.
        period: H, or a function (Outer, Communicator) -> bool scalar: whether this round ends with
            a synchronization.
        via: communication pattern of the synchronization.
        fresh: whether the states of the inner optimizers start again after each synchronization.
        direction: (gradients, Outer, Inner) -> d, leaves `[n, ...]`; None: the gradients.
        change: (Outer, Inner, Communicator, via) -> outer gradient $\Delta$ and the memories after
            the synchronization.
        shared: parameters -> `Outer.memory`.
        own: equal models, leaves `[N, ...]` -> `Inner.memory`.
    """
    optimizers.require_descent(outer)

    def update(x: Outer, y: Inner, gradients: Gradients, round: Communicator):
        if direction is not None:
            gradients = direction(gradients, x, y)
        y = optimizers.local_step(inner, y, gradients, round)

        def synchronize(x: Outer, y: Inner):
            delta, shared, own = change(x, y, round, via)
            model = optimizers.Model(x.params, x.optimizer)
            x = Outer(*optimizers.server_step(outer, model, delta), shared)
            memory = y.optimizer
            if fresh:
                memory = restart(optimizers.init(inner, x.params).optimizer, memory)
            return x, Inner(repeat_rows(x.params, y.params), memory, own)

        if callable(period):
            return round.when(period(x, round), synchronize, x, y)
        return round.every(period, synchronize, x, y)

    def absent(before: Inner, after: Inner) -> Inner:
        """Returns the state of workers that did not participate: they adopt the common model when
        they return.
        """
        optimizer = after.optimizer if fresh else before.optimizer
        return before._replace(params=after.params, optimizer=optimizer)

    return methods.with_server(
        name,
        inner,
        update,
        server=lambda params: Outer(*optimizers.init(outer, params), shared(params)),
        start=lambda y: Inner(y.params, y.optimizer, own(y.params)),
        absent=absent,
    )


def repeat_rows(tree: PyTree, like: PyTree) -> PyTree:
    """Repeats leaves `[...]` to the shape `[n, ...]` of `like`."""
    return jax.tree.map(lambda leaf, rows: jnp.broadcast_to(leaf, rows.shape), tree, like)


def scale(factor: Real, tree: PyTree) -> PyTree:
    """Multiplies all leaves by a scalar; their types stay the same."""
    return jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), tree)


def restart(first: PyTree, memory: PyTree) -> PyTree:
    """Returns the inner optimizers' states before their first step; their random keys go on.

    Args:
        first: states before the first step, leaves `[...]` or `[n, ...]`.
        memory: the current states, leaves `[n, ...]`.
    """
    return jax.tree.map(
        lambda first, rows: rows if is_state_key(rows) else jnp.broadcast_to(first, rows.shape),
        first,
        memory,
        is_leaf=is_state_key,
    )
