"""A compressor with arbitrary errors: the error of each message is an input of the analysis, or one
of the worst errors that it found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.typing import ArrayLike

from dsgd.base import Compressor
from dsgd.compressors.sizes import fixed_size
from theory_checks.machinery import rounds

ROWS = 1 << 20
"""Number of ids of messages. The key of a message determines its id."""


def with_errors(
    ids: ArrayLike, errors: Any, delta: float, gains: jax.Array | None = None
) -> Compressor:
    r"""Returns the compressor that adds a given error to each message with a known id.

    $$ C(v) = (1 + a_r) v + b_r $$

    Args:
        ids: ids r of the messages, int32 `[R]`. Other messages have no error.
        errors: b, `[R, p]`; they are added to the first p elements of v.
        delta: the contraction that the compressor states.
        gains: a, `[R]`; None: 0.
    """
    width = errors.shape[-1]

    def compress(key, v):
        chosen = (rounds.row(key, ROWS) == ids).astype(v.dtype)
        gain = 0 if gains is None else chosen @ gains.astype(v.dtype)
        return (v + gain * v).at[:width].add(chosen @ errors.astype(v.dtype))

    return _contraction(compress, delta)


def from_table(errors: jax.Array, delta: float) -> Compressor:
    """Returns the compressor that adds `errors[r]` to all elements of the message with id r.

    Args:
        errors: `[ROWS]`.
        delta: as in `with_errors`.
    """
    return _contraction(lambda key, v: v + errors[rounds.row(key, ROWS)].astype(v.dtype), delta)


def _contraction(compress: Callable, delta: float) -> Compressor:
    return fixed_size(compress, lambda message, d: message, "adversarial", delta=lambda d: delta)
