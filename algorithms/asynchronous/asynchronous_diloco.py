"""Asynchronous DiLoCo: asynchronous local SGD with delayed Nesterov momentum at the server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.asynchronous.asynchronous_server import LocalRuns, asynchronous_server
from algorithms.facts import method
from algorithms.mechanisms.outer import scale
from dsgd import Algorithm, checks
from dsgd.extend import Params, PyTree, Real


class Delayed(NamedTuple):
    """The server's state.

    Args:
        params, optimizer: the model.
        steps: number of changes that arrived, int32 scalar.
        momentum: u.
        total: b, the sum of the changes since the last step of u.
        buffer: M, int32 scalar.
    """

    params: Params
    optimizer: PyTree
    steps: jax.Array
    momentum: Params
    total: Params
    buffer: jax.Array


@method(
    sends="the change of H local steps to the server, the model back",
    needs=("all workers",),
    paper="Liu et al., 2024, algorithm 3",
    page="how_to/clusters/asynchronous.md",
    aliases=("async_diloco", "delayed_nesterov"),
    settings={"steps": 2},
)
@checks.arguments
def asynchronous_diloco(
    optimizer: optax.GradientTransformation,
    steps: int | Sequence[int],
    outer_step: Real = 0.07,
    momentum: Real = 0.9,
    *,
    buffer: int | None = None,
    share: Real = 0.0,
) -> Algorithm:
    r"""Asynchronous DiLoCo with delayed Nesterov: the server makes a step with each change that
    arrives, and renews its momentum after each M of them.

    $$ x_{t+1} = x_t - \eta \Big(c_t \mu u_t + \frac1M \Delta_t\Big), \qquad
       u_t = \mu u_{t-1} + \frac1M \sum_{i=t-M+1}^t \Delta_i, \quad c_t = 1 - cM + c
       \quad \text{if } M \mid t + 1 $$

    Otherwise $u_t = u_{t-1}$ and $c_t = c$. $\Delta_t = x_s - y$ is the change of H local steps of
    a worker from the model $x_s$ that it has read; $u_{-1} = 0$. With c = 0, the M steps between
    two changes of u sum to one Nesterov step on the mean change; with M = 1 each arrival makes a
    Nesterov step. Old changes have the weight of fresh ones.

    Dynamic local updates ("DyLU") let all workers send equally often: H is proportional to their
    speed, `steps=[max(1, int(H * min(seconds) / each)) for each in seconds]`, where a gradient of
    worker n takes `seconds[n]`. A round is one gradient of one worker; the history has
    `server_steps`, and the `delay` of the last gradient.

    Args:
        optimizer: each worker's step, AdamW in the paper; its state is new in each local run.
        steps: H, an integer, or one for each worker.
        outer_step: $\eta$; the default is a tenth of that of synchronous training.
        momentum: $\mu$, in [0, 1).
        buffer: M; None: the number of workers, as in the paper.
        share: c, the share of the momentum in each of the other steps, from 0 to 1 / M.

    Raises:
        ValueError: if steps or buffer are less than 1, steps are not one for each worker, or a
            number is out of range.

    Source: Liu et al., "Asynchronous local-SGD training for language modeling", 2024, algorithms 2
    and 3.
    """
    name = "asynchronous_diloco"
    checks.number(f"{name}: outer_step", outer_step, "(0, inf)")
    checks.number(f"{name}: momentum", momentum, "[0, 1)")
    checks.number(f"{name}: share", share, "[0, 1]")
    if buffer is not None:
        buffer = checks.positive_int(f"{name}: buffer", buffer)
    outer = optax.sgd(outer_step)

    def start(model, N):
        M = buffer or N
        checks.number(f"{name}: share, with buffer = {M},", share, f"[0, {1 / M}]")
        zeros = optax.tree.zeros_like(model.params)
        return Delayed(model.params, model.optimizer, jnp.int32(0), zeros, zeros, jnp.int32(M))

    def step(model, change, arrival, read):
        M, total = jnp.asarray(model.buffer, float), optax.tree.add(model.total, change)
        full = (model.steps + 1) % model.buffer == 0
        renewed = optax.tree.add(scale(momentum, model.momentum), scale(1 / M, total))
        u, total = jax.tree.map(
            partial(jnp.where, full),
            (renewed, optax.tree.zeros_like(total)),
            (model.momentum, total),
        )
        now = momentum * jnp.where(full, 1 - share * M + share, share)
        direction = optax.tree.add(scale(now, u), scale(1 / M, change))
        after = optimizers.step(outer, optimizers.Model(model.params, model.optimizer), direction)
        return Delayed(*after, model.steps + 1, u, total, model.buffer)

    return asynchronous_server(name, outer, step, start=start, local=LocalRuns(optimizer, steps))
