r"""Given sequences of staleness $t - D(t)$, for `asynchronous_sgd`: which earlier model the
gradient of update t is computed at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks

MOST = 10**6
"""The largest bound: the server keeps one model more."""


class Delays(NamedTuple):
    r"""A rule for D(t).

    Args:
        bound: $\tau$, with $0 \le t - D(t) \le \tau$ (Assumption 5). The rule must stay within: the
            server keeps no older model.
        staleness: (key, t, parts P, moved) -> $t - D(t)$ of each part of the model, int32 `[P]`, at
            most t. `moved()` is how far each part has moved since, squared: `[P, tau + 1]` by
            staleness.
        name: for tables.
    """

    bound: int
    staleness: Callable[[jax.Array, jax.Array, int, Callable[[], jax.Array]], jax.Array]
    name: str


@checks.arguments
def constant(bound: int) -> Delays:
    r"""$D(t) = t - \tau$, from $t = \tau$ on; 0 before.

    Args:
        bound: tau. With 0 it is SGD.

    Raises:
        ValueError: bound < 0 or above 10^6.
    """
    bound = checks.natural("delays.constant: bound", bound, most=MOST)
    return Delays(
        bound,
        lambda key, t, parts, moved: jnp.full(parts, jnp.minimum(t, bound), jnp.int32),
        f"constant({bound})",
    )


@checks.arguments
def uniform(bound: int) -> Delays:
    r"""$t - D(t)$ is drawn uniformly from 0, ..., $\min(t, \tau)$, for each part of the model on
    its own.

    Args:
        bound: tau.

    Raises:
        ValueError: bound < 0 or above 10^6.
    """
    bound = checks.natural("delays.uniform: bound", bound, most=MOST)
    return Delays(
        bound,
        lambda key, t, parts, moved: jax.random.randint(
            key, (parts,), 0, jnp.minimum(t, bound) + 1
        ),
        f"uniform({bound})",
    )


@checks.arguments
def worst_case(bound: int) -> Delays:
    r"""The earlier model that is farthest from the present one,
    $D(t) = \arg\max_{t - \tau \le s \le t} |x_t - x_s|$, part by part.

    What the proof bounds, $|f'(x_t) - f'(x_{D(t)})|^2 \le L^2 |x_t - x_{D(t)}|^2$ (4.6), is then as
    large as it can be. (So D(t) depends on earlier samples, which the theorem does not allow.)

    Args:
        bound: tau.

    Raises:
        ValueError: bound < 0 or above 10^6.
    """
    bound = checks.natural("delays.worst_case: bound", bound, most=MOST)

    def staleness(key, t, parts, moved):
        possible = jnp.arange(bound + 1) <= t
        return jnp.argmax(jnp.where(possible, moved(), -1.0), axis=1).astype(jnp.int32)

    return Delays(bound, staleness, f"worst_case({bound})")


@checks.arguments
def given(D: Sequence[int] | np.ndarray, bound: int | None = None) -> Delays:
    """A sequence D(0), D(1), ... of your own. When it is over, its staleness begins again.

    Args:
        D: the number of the model that the gradient of update t is computed at, `[T]`; `[T, P]` for
            each of P parts its own.
        bound: tau; None: the largest staleness that there is.

    Raises:
        ValueError: D(t) that is negative, no integer, or in the future; a bound below the largest
            staleness.

    Source: Liu and Zhang, section 4.2, where t and D(t) count from 1.
    """
    if not checks.is_numeric(D):
        raise ValueError(f"delays.given: D = {checks.shown(D)}: need integers [T] or [T, parts]")
    models = np.asarray(D)
    if models.ndim not in (1, 2) or models.size == 0 or models.dtype.kind not in "iu":
        raise ValueError(
            f"delays.given: D of shape {models.shape} and type {models.dtype}: need integers [T] "
            "or [T, parts]"
        )
    table = np.arange(len(models))[:, None] - models.reshape(len(models), -1)
    for wrong, why in (
        (table < 0, "in the future"),
        (table > np.arange(len(models))[:, None], "before the start"),
    ):
        if wrong.any():
            t, part = np.argwhere(wrong)[0]
            raise ValueError(
                f"delays.given: D({t}) = {models.reshape(len(models), -1)[t, part]} is {why}: "
                "need 0 <= D(t) <= t"
            )
    largest = int(table.max())
    bound = largest if bound is None else checks.natural("delays.given: bound", bound)
    if bound < largest:
        raise ValueError(
            f"delays.given: bound = {bound}, but the staleness reaches {largest}: need a buffer "
            "for at least as much"
        )

    def staleness(key, t, parts, moved):
        if table.shape[1] not in (1, parts):
            raise ValueError(
                f"delays.given: D for {table.shape[1]} parts, but the model has {parts}: need the "
                "same number, or one D for all"
            )
        return jnp.broadcast_to(jnp.asarray(table, jnp.int32)[t % len(table)], (parts,))

    return Delays(bound, staleness, f"given({len(table)})")
