"""Estimates of the bandwidth of links from the messages that they carried."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dsgd import checks
from dsgd.base import PyTree


class Monitor(NamedTuple):
    """An estimator of the bandwidth of each of N links.

    Args:
        start: N -> state, a pytree of arrays.
        observe: (state, rates in bits per second `[N]`, NaN for links without a message) -> state
            after a round.
        estimate: (state, true bandwidths `[N]`) -> bits per second `[N]`, NaN if unknown.
        name: for tables.
    """

    start: Callable[[int], PyTree]
    observe: Callable[[PyTree, jax.Array], PyTree]
    estimate: Callable[[PyTree, jax.Array], jax.Array]
    name: str


def _unknown(N: int) -> jax.Array:
    return jnp.full(N, jnp.nan, jnp.float32)


last: Monitor = Monitor(
    start=_unknown,
    observe=lambda memory, rates: jnp.where(jnp.isnan(rates), memory, rates),
    estimate=lambda memory, true: memory,
    name="last",
)
r"""The last message's rate, $\hat B_{k+1} = c_k / T_k$ for $c_k$ bits that took $T_k$ seconds."""

oracle: Monitor = Monitor(
    start=lambda N: (),
    observe=lambda memory, rates: memory,
    estimate=lambda memory, true: true,
    name="oracle",
)
"""The true mean bandwidth of the link over the seconds planned for the message, which real senders
do not know.
"""


@checks.arguments
def exponential_average(weight: float) -> Monitor:
    r"""The exponential average $\hat B_{k+1} = (1 - w) \hat B_k + w \, c_k / T_k$. It starts with
    the first message's rate, and starts again after a message that took no time.

    Args:
        weight: w, in (0, 1]; with w = 1 it equals `last`.

    Raises:
        ValueError: if the weight is not in (0, 1].
    """
    if not 0 < weight <= 1:
        raise ValueError(
            f"kimad.exponential_average: weight = {weight!r}; expected a number in (0, 1]"
        )

    def observe(memory, rates):
        moved = jnp.where(jnp.isfinite(memory), (1 - weight) * memory + weight * rates, rates)
        return jnp.where(jnp.isnan(rates), memory, moved)

    return Monitor(
        _unknown, observe, lambda memory, true: memory, f"exponential_average({weight:g})"
    )


@checks.arguments
def harmonic_mean(window: int) -> Monitor:
    r"""The harmonic mean of the last W messages' rates,
    $\hat B_{k+1} = W \big/ \sum_{j < W} T_{k-j} / c_{k-j}$, on which single fast messages have
    little influence.

    Args:
        window: W; fewer messages are used until there are W.

    Raises:
        ValueError: if the window is less than 1.

    Source: Jiang, Sekar and Zhang, "Improving fairness, efficiency, and stability in HTTP-based
    adaptive video streaming with FESTIVE", 2012, section 4.
    """
    checks.positive_int("kimad.harmonic_mean: window", window)

    def observe(memory, rates):
        return jnp.where(jnp.isnan(rates), memory, jnp.concatenate([memory[1:], rates[None]]))

    def estimate(memory, true):
        known = ~jnp.isnan(memory)
        return jnp.sum(known, axis=0) / jnp.sum(jnp.where(known, 1 / memory, 0), axis=0)

    return Monitor(
        lambda N: jnp.full((window, N), jnp.nan, jnp.float32),
        observe,
        estimate,
        f"harmonic_mean({window})",
    )
