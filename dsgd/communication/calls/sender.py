"""What all calls of a communicator share: how they record an exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from dsgd import checks, workers
from dsgd.base import Compressor, PyTree, Round
from dsgd.communication import noise
from dsgd.communication.bits import Arrays
from dsgd.communication.compressed import Delivery, Sent
from dsgd.communication.record import Record
from dsgd.communication.transports import Transport

MESSAGE = "dsgd.message"
"""Name scope of the operations of recorded messages in a compiled program."""
GOES_ON = "algorithms.decentralized_sgd on a symmetric W, local_sgd, scaffold or minibatch_sgd"


class Sender(Round):
    """A round with a record of what is sent."""

    record: Record

    def next_key(self) -> jax.Array:
        """Returns a random key of this update that no other call receives, the same for all
        workers; `workers.keys(key, N)` derives one key per worker.
        """
        return self.record.next_key()

    def require_all(self, reason: str) -> None:
        """Raises ValueError on clusters where workers may not participate or messages may be lost.

        Args:
            reason: why the method needs all workers and messages, for the error message.
        """
        if workers.participation() is None:
            return
        where = "messages are lost" if self.present is None else "workers do not participate"
        raise ValueError(
            f"{self.record.method} on a cluster where {where}: {reason}; expected a method that "
            f"tolerates this, such as {GOES_ON}"
        )

    @property
    def _noise(self) -> Any:
        """The noise of messages, or None."""
        given = self.now and self.now.message_noise
        return None if given is None or given.absent else given

    def _refuse_noise(self, call: str, reason: str) -> None:
        """Raises ValueError on clusters with noise on messages; `reason` is why `call` cannot have
        it.
        """
        if self._noise is not None:
            raise ValueError(
                f"{self.record.method}: round.{call} on a cluster with message_noise "
                f"({self._noise.name}): {reason}; expected a method that sends uncompressed "
                "vectors, such as algorithms.decentralized_sgd, or message_noise=None"
            )

    def _with_noise(self, call: str, tree: PyTree) -> PyTree:
        """Returns the messages as they are received, with one draw of the noise for each: leaves
        `[n, ...]`.
        """
        if self._noise is None:
            return tree
        if not any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(tree)):
            self._refuse_noise(call, "it sends integers")
        return noise.on_messages(self._noise, self.record.next_key(), tree, self.workers)

    @contextmanager
    def _open(self, call: str, transport: Transport | None = None) -> Iterator[None]:
        """Opens the scope of a call's messages, in which collectives count as recorded."""
        self.record.require_seen(call)
        if transport and transport.needs_all:
            self.require_all(transport.needs_all)
        with jax.named_scope(f"{MESSAGE}.{call}"):
            yield

    @contextmanager
    def _send(self, call: str, transport: Transport, arrays: Arrays) -> Iterator[None]:
        """Records messages of these arrays, and opens the scope in which they are sent."""
        with self._open(call, transport):
            size = int(arrays.bits)
            sent = transport.bits(size, size)
            self.record.add(call + transport.label, transport, sent, size=size, arrays=arrays)
            yield

    def _send_compressed(
        self,
        call: str,
        transport: Transport,
        send: Callable[..., Sent],
        compressor: Compressor,
        tree: Any,
        *options: Any,
    ) -> Delivery:
        """Records the messages of a function of `communication.compressed`."""
        self._refuse_noise(call, "it sends packed messages")
        with self._open(call, transport):
            key, reply_key = self.record.next_key(), None
            if transport.has_reply:
                key, reply_key = jax.random.split(key)
            delivery, arrays = send(transport, compressor, key, tree, self.workers, *options)
            name = f"{call}{transport.label} of {compressor.name}"
            self.record.add(name, transport, delivery.bits, arrays=arrays, reply_key=reply_key)
            return delivery

    @contextmanager
    def _weigh(self) -> Iterator[None]:
        """Context in which means over workers have the problem's weights."""
        self.record.weighs = True
        with workers.with_weights(self.problem and self.problem.weights):
            yield

    def _require_pattern(self, what: str, pattern: Any, kind: Any) -> Any:
        """Returns the pattern.

        Raises:
            ValueError: if it is not of this kind, so that it does not carry what a call needs.
        """
        return checks.require(f"{self.record.method}: round.{what}", pattern, kind)
