"""Given sequences of staleness $t - D(t)$ for `asynchronous_sgd`: rules for the earlier model at
which the gradient of update t is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks, signatures

MOST = 10**6
"""The largest bound; the server keeps bound + 1 models."""


class Delays(NamedTuple):
    r"""A rule for D(t).

    Args:
        bound: $\tau$, with $0 \le t - D(t) \le \tau$ (Assumption 5). The staleness must not exceed
            it, because the server keeps no older model.
        staleness: (key, t, number of shards P, moved) -> $t - D(t)$ of each shard of the model,
            int32 `[P]`, at most t. `moved()` returns the squared distance between each shard and
            its earlier versions, `[P, tau + 1]`, indexed by staleness.
        name: for tables.
    """

    bound: int
    staleness: Callable[[jax.Array, jax.Array, int, Callable[[], jax.Array]], jax.Array]
    name: str


@checks.arguments
def constant(bound: int) -> Delays:
    r"""Constant staleness: $D(t) = t - \tau$ for $t \ge \tau$, and 0 before.

    Args:
        bound: tau, 0 to 10^6. With tau = 0 the method is SGD.

    Raises:
        ValueError: if bound is negative or more than 10^6.
    """
    bound = checks.natural("delays.constant: bound", bound, most=MOST)
    return Delays(
        bound,
        lambda key, t, parts, moved: jnp.full(parts, jnp.minimum(t, bound), jnp.int32),
        f"constant({bound})",
    )


@checks.arguments
def uniform(bound: int) -> Delays:
    r"""Random staleness: $t - D(t)$ is drawn uniformly from 0, ..., $\min(t, \tau)$, independently
    for each shard of the model.

    Args:
        bound: tau, 0 to 10^6.

    Raises:
        ValueError: if bound is negative or more than 10^6.
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
    r"""Worst-case staleness: the earlier model that is farthest from the current one,
    $D(t) = \arg\max_{t - \tau \le s \le t} |x_t - x_s|$, for each shard.

    The term that the proof bounds, $|f'(x_t) - f'(x_{D(t)})|^2 \le L^2 |x_t - x_{D(t)}|^2$ (4.6),
    is then as large as possible. (D(t) depends on earlier samples, which the theorem does not
    allow.)

    Args:
        bound: tau, 0 to 10^6.

    Raises:
        ValueError: if bound is negative or more than 10^6.
    """
    bound = checks.natural("delays.worst_case: bound", bound, most=MOST)

    def staleness(key, t, parts, moved):
        possible = jnp.arange(bound + 1) <= t
        return jnp.argmax(jnp.where(possible, moved(), -1.0), axis=1).astype(jnp.int32)

    return Delays(bound, staleness, f"worst_case({bound})")


@checks.arguments
def given(D: Sequence[int] | np.ndarray, bound: int | None = None) -> Delays:
    """A custom sequence D(0), D(1), ...; after its end, its staleness is repeated from the start.

    Args:
        D: index of the model at which the gradient of update t is computed, `[T]`, or `[T, P]` for
            separate sequences of P shards.
        bound: tau; None: the largest staleness of the sequence.

    Raises:
        ValueError: if some D(t) is not an integer in [0, t], or the bound is below the largest
            staleness.

    Source: Liu and Zhang, section 4.2, where t and D(t) count from 1.
    """
    if not checks.is_numeric(D):
        raise ValueError(f"delays.given: D = {checks.show(D)}; expected integers [T] or [T, parts]")
    models = np.asarray(D)
    if models.ndim not in (1, 2) or models.size == 0 or models.dtype.kind not in "iu":
        raise ValueError(
            f"delays.given: D has shape {models.shape} and type {models.dtype}; expected integers "
            "[T] or [T, parts]"
        )
    table = np.arange(len(models))[:, None] - models.reshape(len(models), -1)
    for wrong, why in (
        (table < 0, "in the future"),
        (table > np.arange(len(models))[:, None], "before the start"),
    ):
        if wrong.any():
            t, part = np.argwhere(wrong)[0]
            raise ValueError(
                f"delays.given: D({t}) = {models.reshape(len(models), -1)[t, part]} is {why}; "
                "expected 0 <= D(t) <= t"
            )
    largest = int(table.max())
    bound = largest if bound is None else checks.natural("delays.given: bound", bound)
    if bound < largest:
        raise ValueError(
            f"delays.given: bound = {bound}, but the staleness reaches {largest}; expected bound "
            f">= {largest}"
        )

    def staleness(key, t, parts, moved):
        if table.shape[1] not in (1, parts):
            raise ValueError(
                f"delays.given: D has {table.shape[1]} columns, but the model has {parts} parts; "
                f"expected {parts} columns, or one D for all"
            )
        return jnp.broadcast_to(jnp.asarray(table, jnp.int32)[t % len(table)], (parts,))

    return Delays(bound, staleness, f"given({len(table)})")


signatures.simplify(__name__)
