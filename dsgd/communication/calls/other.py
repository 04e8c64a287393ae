"""Calls that compute with the problem, log numbers, and record what a method models itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks, workers
from dsgd.base import PyTree
from dsgd.communication import bits
from dsgd.communication.bits import Arrays, Bits
from dsgd.communication.calls.sender import MESSAGE, Sender
from dsgd.communication.transports import Transport
from dsgd.network import AllReduce, Asynchronous, PointToPoint
from dsgd.wire import counts

Carrying = AllReduce | PointToPoint | Asynchronous


class OtherCalls(Sender):
    """Calls that compute with the problem, log numbers, and record what a method models itself."""

    def if_active(self, tree: PyTree, otherwise: PyTree) -> PyTree:
        """Returns the rows of `tree` for workers that participate and compute something in this
        round, and the rows of `otherwise` for all other workers, leaves `[n, ...]`.
        """
        if self.work is not None:
            tree = workers.where_rows(jnp.any(self.work.samples > 0, axis=1), tree, otherwise)
        return workers.where_present(tree, otherwise)

    def prox(self, model: PyTree, step: Any) -> PyTree:
        r"""Returns $\mathrm{prox}_{s r}(x) = \arg\min_z r(z) + \frac1{2 s} |z - x|^2$ for the
        problem's regularizer r; x itself if it has none.

        `jax.vmap(round.prox, (0, None))(models, step)` is the same for each of several models.

        Args:
            model: x, one model, leaves `[...]`.
            step: s, a positive scalar.
        """
        self.record.proximal = True
        regularizer = self.problem and self.problem.regularizer
        if regularizer is None:
            return model
        after = regularizer.prox(model, step)
        checks.require_same(
            f"{self.record.method}: prox of {regularizer.name} returns a tree", after, model
        )
        return jax.tree.map(lambda after, x: after.astype(x.dtype), after, model)

    def log(self, **metrics: Any) -> None:
        """Records numbers in the history, by name: scalars, or `[N]` (one for each worker), the
        same on every device.
        """
        for name, value in metrics.items():
            if np.shape(value) != (self.workers,):
                checks.require_scalar(
                    f"{self.record.method}: round.log gets {name!r}",
                    value,
                    f"a scalar, or [{self.workers}],",
                )
        self._note("log", "metrics", metrics)

    def refuse_if(self, wrong: Any, words: str, number: Any = 0) -> None:
        """Ends the run with a ValueError if `wrong` holds in any round.

        Args:
            wrong: bool scalar, the same on every device.
            words: error message: what is wrong and how to fix it, with {} for `number`.
            number: real scalar, the same on every device.
        """
        self._note("refuse_if", "refusals", {words: self._unless("refuse_if", wrong, number)})

    def warn_if(self, wrong: Any, words: str, number: Any = 0) -> None:
        """Warns if `wrong` holds in any round; arguments as in `refuse_if`."""
        self._note("warn_if", "warnings", {words: self._unless("warn_if", wrong, number)})

    def computed(self, seconds: Any) -> None:
        """Records the seconds that each worker has computed in this round, `[N]`, for methods that
        stop workers early on a cluster.
        """
        self.record.require_seen("computed")
        if np.shape(seconds) != (self.workers,):
            given = checks.kind(seconds)
            raise ValueError(
                f"{self.record.method}: round.computed: seconds = {given}; expected an array of "
                f"shape [{self.workers}], one number for each worker"
            )
        self.record.time("computed", "compute", seconds)

    def event(
        self,
        tree: PyTree,
        among: jax.Array,
        elapsed: Any,
        pattern: Asynchronous,
        *,
        receives: jax.Array | None = None,
    ) -> None:
        """Records messages between a few workers, for event-driven methods that keep their own
        time.

        Args:
            tree: leaves `[n, ...]`; a message is one row.
            among: numbers of the workers that send, int32 `[k]`; or the sender and the receiver of
                each message, `[m, 2]`. Numbers outside 0, ..., N - 1 are ignored: servers are no
                workers.
            elapsed: seconds since the last event; None: the run has no simulated time.
            pattern: communication pattern, for tables of costs: `network.asynchronous_server`,
                `network.asynchronous_gossip` or another `network.Asynchronous`.
            receives: numbers of messages that each worker receives, below 2^16, uint32 `[N]`; None:
                those of the pairs, or as many as it sends.

        Raises:
            ValueError: if it is another pattern, or messages have noise.
        """
        pattern = self._require_pattern("event: pattern", pattern, Asynchronous)
        self._refuse_noise("event", "event-driven methods move their messages themselves")
        N, senders, receivers = self.workers, among, among
        if among.ndim == 2:
            senders, receivers = among.T

        def times(numbers):
            places = jnp.where(numbers < 0, N, numbers)  # .at counts them from the end
            return jnp.zeros(N, jnp.uint32).at[places].add(1, mode="drop")

        def count(size, _):
            each, arrived = bits.to_one(size, N), times(receivers) if receives is None else receives
            both = workers.local_block((times(senders), arrived), N)
            return Bits(*(counts.scale(number, each) for number in both))

        with self._send(
            "event", Transport(pattern, count, simulated=True), bits.count_arrays(tree)
        ):
            pass
        if elapsed is not None:
            checks.require_scalar(f"{self.record.method}: round.event gets elapsed", elapsed)
            self.record.time("event", "elapsed", elapsed)

    def sent(
        self, up: jax.Array, down: jax.Array, pattern: Carrying, *, simulated: bool = False
    ) -> None:
        """Records an exchange; the method computes its bits itself.

        Args:
            up, down: bits that each worker sends and receives, uint32 `[n, 4]`, counts of
                `dsgd.wire.counts`.
            pattern: how the messages flow.
            simulated: whether the collectives in the program differ from these messages.

        Raises:
            ValueError: if the pattern carries nothing, as `network.local`, or messages have noise.
        """
        pattern = self._require_pattern("sent: pattern", pattern, Carrying)
        self._refuse_noise("sent", "the method moves its messages itself")
        transport = Transport(pattern, lambda *_: Bits(up, down), simulated=simulated)
        with self._send("sent", transport, Arrays()):
            pass

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Context in which collectives of `dsgd.workers` do not count as messages: use it for
        numbers of the history, or for data that the method records with `sent`.

        Means are weighted by the workers' weights if an earlier call of the method in this round
        was weighted.
        """
        weights = self.problem.weights if self.problem is not None and self.record.weighs else None
        with jax.named_scope(f"{MESSAGE}.unrecorded"), workers.with_weights(weights):
            yield

    def _unless(self, call: str, wrong: Any, number: Any) -> jax.Array:
        """Returns `number` if `wrong` holds, else NaN."""
        checks.require_scalar(f"{self.record.method}: round.{call} gets a condition", wrong)
        checks.require_scalar(f"{self.record.method}: round.{call} gets a number", number)
        return jnp.where(wrong, jnp.asarray(number, float), jnp.nan)

    def _note(self, call: str, kind: str, numbers: dict[str, Any]) -> None:
        self.record.require_seen(call)
        self.record.frame.numbers[kind].update(
            {name: jnp.asarray(number) for name, number in numbers.items()}
        )
