"""Local steps of sampled clients of a server, which averages their changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from algorithms.mechanisms.outer import Inner, Outer, local_updates, mean_change, outer_gradient
from dsgd import Algorithm, Communicator, checks, network, workers
from dsgd.extend import Gradients, Period, Real

# Probabilities with which clients participate: see `fed_avg`.
Inclusion = Real | Sequence[float] | Literal["selection"] | None


def client_updates(
    name: str,
    optimizer: optax.GradientTransformation,
    period: Period,
    outer: optax.GradientTransformation,
    inclusion: Inclusion,
    via: network.AllReduce,
    direction: Callable[[Gradients, Outer, Inner], Gradients] | None = None,
) -> Algorithm:
    """Returns the method with local steps of sampled clients and a step of the server. The clients'
    optimizers start again in each period. Arguments are those of `fed_opt` and `local_updates`.
    """
    period = checks.period(f"{name}: period", period)
    change = _mean_change_of_clients(name, inclusion)
    return local_updates(
        f"{name}({period})",
        optimizer,
        outer,
        period,
        via=via,
        fresh=True,
        direction=direction,
        change=change,
    )


def _mean_change_of_clients(name: str, inclusion: Inclusion) -> Callable:
    r"""Returns the `change` of `local_updates` for sampled clients: the ratio $\sum_{n \in S} p_n
    \Delta_n / \sum_{n \in S} p_n$, or, with inclusion probabilities, $\sum_{n \in S} \frac{p_n}
    {\pi_n} \Delta_n$.

    Args:
        name: the method's name, for error messages.
        inclusion: $\pi$, a number or `[N]`; "selection": that of the cluster; None: the ratio.
    """
    if inclusion is None:
        return mean_change
    if isinstance(inclusion, str) and inclusion != "selection":
        raise ValueError(
            f"{name}: inclusion = {inclusion!r}; expected 'selection', a number in (0, 1], or one "
            "for each client"
        )
    if not isinstance(inclusion, Tracer | str):
        _require_probabilities(f"{name}: inclusion", inclusion)

    def change(x: Outer, y: Inner, round: Communicator, via: network.AllReduce):
        N, participation = round.workers, workers.participation()
        if participation is None:
            raise ValueError(
                f"{name}: inclusion = {checks.show(inclusion)} but all clients participate; "
                "expected a cluster with `present`, for example clusters.sampled(m, of=N), or "
                "inclusion=None"
            )
        if isinstance(inclusion, str):
            given, drawn = participation.inclusion, participation.name
            if given is None:
                raise ValueError(
                    f"{name}: inclusion = 'selection' but the probabilities of {drawn} are "
                    "unknown; expected a selection with `Quantity.inclusion`, for example "
                    "clusters.sampled(m, of=N); pass the probabilities, or inclusion=None"
                )
            given = np.asarray(given)
            _require_probabilities(f"{name}: inclusion of {drawn}", given)
        else:
            given = inclusion
        probabilities = jnp.asarray(given, jnp.result_type(float))
        if probabilities.shape not in ((), (N,)):
            raise ValueError(
                f"{name}: inclusion has {probabilities.size} numbers for {N} clients; expected one "
                "probability, or one for each client"
            )
        rows = workers.local_block(jnp.broadcast_to(probabilities, (N,)), N)
        unbiased = jax.tree.map(
            lambda delta: (
                delta / jnp.expand_dims(rows, tuple(range(1, delta.ndim))).astype(delta.dtype)
            ),
            outer_gradient(x, y),
        )
        # The mean over all clients of vectors that are 0 for those that do not participate.
        delta, _ = round.aggregate(unbiased, via=via)
        return delta, x.memory, y.memory

    return change


def _require_probabilities(where: str, probabilities: Real | Sequence[float] | np.ndarray) -> None:
    """Raises ValueError if a probability is not above 0 and at most 1."""
    values = np.ravel(np.asarray(probabilities))
    for probability in values[~((values > 0) & (values <= 1))][:1].tolist():
        checks.number(where, probability, "(0, 1]")
