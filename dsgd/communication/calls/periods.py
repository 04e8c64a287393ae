"""Calls that determine in which rounds, and in which exchange, messages are sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from dsgd import checks
from dsgd.base import Period
from dsgd.communication.calls.sender import Sender
from dsgd.communication.record import Frame


class PeriodCalls(Sender):
    """Calls that determine in which rounds, and in which exchange, messages are sent."""

    def when(
        self, now: Any, send: Callable, *operands: Any, otherwise: Callable | None = None
    ) -> Any:
        """Returns `send(*operands)` if `now`, and records its messages; else returns the operands
        unchanged.

        Args:
            now: bool scalar, the same on every device.
            send: function that may call the communicator and compute anything else.
            operands: one tree, or several, which `send` changes; it returns as many.
            otherwise: function of the operands that is called if not `now`, without messages; None:
                the operands are returned.

        Raises:
            ValueError: if the two results differ in structure, shapes or types.
        """
        return self._branch(now, self.record.frame.turn, 0, send, operands, otherwise)

    def every(
        self, period: Period, send: Callable, *operands: Any, offset: int | jax.Array = 0
    ) -> Any:
        """Returns `send(*operands)` in the last of every `period` rounds, and records its messages;
        in other rounds returns the operands unchanged.

        A schedule of topologies advances with each exchange, not with each round.

        Args:
            period: a positive integer; it may be swept.
            send, operands: as in `when`.
            offset: an integer in [0, period): the exchanges take place in the rounds t with
                t + 1 = offset modulo `period`.
        """
        both = _common_multiple(self.record.frame.period, period)
        return self._branch(
            (self.step + 1 - offset) % period == 0,
            self.step // both,
            both,
            send,
            operands,
            None,
        )

    @contextmanager
    def joint(self) -> Iterator[None]:
        """Context of calls that are one exchange: its messages carry the data of all calls.

        Raises:
            ValueError: if the calls have different communication patterns.
        """
        self.record.require_seen("joint")
        with self.record.join():
            yield

    @contextmanager
    def delayed(self, rounds: Period) -> Iterator[None]:
        """Context of messages that the method uses only `rounds` rounds later. On the clock of a
        cluster the workers go on in the meantime, and wait for the messages in that later round,
        after they have computed its gradient.

        The calls return at once what arrives later. The method must not use it earlier.

        Args:
            rounds: at least 0, and at most the number of rounds to the next such exchange.
        """
        self.record.require_seen("delayed")
        with self.record.delay(rounds):
            yield

    def _branch(
        self,
        now: Any,
        turn: Any,
        period: Period,
        send: Callable,
        operands: tuple,
        otherwise: Callable | None,
    ) -> Any:
        record, opened = self.record, list[Frame]()
        record.require_seen("when")
        checks.require_scalar(f"{record.method}: round.when gets a condition", now)
        now, outer = jnp.asarray(now), record.frame.period
        if not isinstance(period, Tracer) and period == 1:
            return send(*operands)

        def branch(operands):
            # Inside `when`, the number of rounds between two exchanges is not fixed.
            opened[:] = [Frame(turn, 0 if isinstance(outer, int) and outer == 0 else period)]
            with record.inside(opened[0]):
                result = send(*operands)
            return result, opened[0].arrays()

        # The jitted branch is traced once, for both its shapes and its use in `lax.cond`.
        branch = jax.jit(branch, inline=True)
        shapes, arrays = jax.eval_shape(branch, operands)

        def silent(operands):
            kept = (
                otherwise(*operands)
                if otherwise
                else operands[0]
                if len(operands) == 1
                else operands
            )
            checks.require_same(f"{record.method}: round.when: without messages", kept, shapes)
            unknown = jax.tree.map(
                lambda leaf: jnp.full(leaf.shape, np.nan if _is_float(leaf) else 0, leaf.dtype),
                arrays,
            )
            return kept, unknown

        result, sent = lax.cond(now, branch, silent, operands)
        record.enclose(opened[0], sent, now)
        return result


def _common_multiple(outer: Period, period: Period) -> Period:
    """Returns the number of rounds between exchanges of `every` nested in another `every` of period
    `outer`, or in `when`, which has the period 0.
    """
    if not isinstance(outer, Tracer) and outer <= 1:
        return period
    traced = isinstance(outer, Tracer) or isinstance(period, Tracer)
    return jnp.lcm(outer, period) if traced else math.lcm(outer, period)


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
