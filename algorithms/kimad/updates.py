"""The update that a worker computes at the estimate of the model and sends: A^update of Algorithm
1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from dsgd import checks
from dsgd.base import Gradients, Params, PyTree, Query


class Update(NamedTuple):
    r"""$u_m = A^{update}(\hat x, f_m)$, from one gradient in each of `period` rounds; it is sent in
    the last of them.

    Args:
        start: (params, N) -> state, leaves `[N, ...]`.
        begin: (state, estimate) -> state, after all workers have received a new estimate of the
            model.
        query: (state, estimate) -> Query.
        step: (state, estimate, gradients) -> (state, updates, leaves `[n, ...]`).
        period: number of rounds.
        name: for tables; "" for the gradient.
    """

    start: Callable[[Params, int], PyTree]
    begin: Callable[[PyTree, Params], PyTree]
    query: Callable[[PyTree, Params], Query]
    step: Callable[[PyTree, Params, Gradients], tuple[PyTree, Gradients]]
    period: int
    name: str


gradient: Update = Update(
    start=lambda params, N: (),
    begin=lambda memory, estimate: memory,
    query=lambda memory, estimate: Query(estimate),
    step=lambda memory, estimate, gradients: (memory, gradients),
    period=1,
    name="",
)
r"""$u_m = g_m(\hat x)$."""


@checks.arguments
def local_steps(optimizer: optax.GradientTransformation, period: int) -> Update:
    r"""The sum of H local steps from the estimate of the model.

    $$ y_m^0 = \hat x, \qquad y_m^{h+1} = y_m^h - \alpha g_m(y_m^h), \qquad u_m = \hat x - y_m^H $$

    With H = 1 the update is $\alpha g_m(\hat x)$, so that the effective step size is the server's
    times alpha.

    Args:
        optimizer: each worker's step, whose state stays local; `optax.sgd(alpha)` gives the
            equation.
        period: H.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1.

    Source: Xin et al., "Kimad", appendix A.
    """
    period = checks.positive_int("kimad.local_steps: period", period)

    def begin(memory, estimate):
        return memory._replace(
            params=jax.tree.map(lambda x, y: jnp.broadcast_to(x, y.shape), estimate, memory.params)
        )

    def step(memory, estimate, gradients):
        memory = optimizers.step_local(optimizer, memory, gradients)
        return memory, jax.tree.map(lambda x, y: x[None] - y, estimate, memory.params)

    return Update(
        start=lambda params, N: optimizers.init_local(optimizer, params, N),
        begin=begin,
        query=lambda memory, estimate: Query(memory.params),
        step=step,
        period=period,
        name=f"{period} local steps",
    )
