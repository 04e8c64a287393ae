"""Messages as bytes on a connection: a vector's k largest elements, packed, for any k of a list."""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.kimad import choices
from dsgd import compressors
from dsgd.base import Compressor
from dsgd.compressors.members import encode
from dsgd.compressors.sizes import message_shape

_HEADER = struct.Struct("!H?ddI")  # choice, last, computing, heard, bytes
_BYTE = 8


class Frame(NamedTuple):
    """What is said with each message.

    Args:
        choice: which of the compressors it has.
        last: whether it is the last.
        computing: seconds that its sender computed, and compressed, before.
        heard: bits per second of the last message from its receiver; NaN: there was none.
    """

    choice: int
    last: bool
    computing: float
    heard: float


class Message(NamedTuple):
    """A vector's: which compressor, its bytes, and what the receiver decodes from them."""

    choice: int
    packed: bytes
    decoded: jax.Array


class Wire:
    """Packs vectors of d elements, float32, by each of some compressors; the sizes of their
    messages rise.

    Args:
        ratios: k / d of each; a ValueError as of `kimad.top_k`.
        d: elements.
    """

    def __init__(self, ratios: Sequence[float] | np.ndarray, d: int) -> None:
        ratios = [float(ratio) for ratio in ratios]
        sizes = choices.top_k(ratios).sizes(d, np.float32)
        whole = _BYTE * 4 * d
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        self.d: int = d
        self.sizes: list[int] = [sizes[i] for i in order]
        self.compressors: list[Compressor] = [
            compressors.identity if sizes[i] >= whole else compressors.top_k(ratios[i])
            for i in order
        ]
        key = jax.random.key(0)  # of which nothing is drawn
        self._shapes = [message_shape(one, d) for one in self.compressors]
        self._encode = [
            jax.jit(lambda x, one=one: encode(one, key, x).message) for one in self.compressors
        ]
        self._decode = [
            jax.jit(lambda message, one=one: one.decompress(message, d)) for one in self.compressors
        ]

    def choice(self, budget: float) -> int:
        """The largest message within so many bits, or the smallest: the more elements, the less the
        error.
        """
        return max(0, int(np.searchsorted(self.sizes, budget, side="right")) - 1)

    def message(self, x: jax.Array, choice: int) -> Message:
        """The vector's."""
        packed = self._encode[choice](x)
        decoded = jax.block_until_ready(self._decode[choice](packed))
        return Message(
            choice,
            b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(packed)),
            decoded,
        )

    def decoded(self, choice: int, packed: bytes) -> jax.Array:
        """What the receiver decodes from the bytes."""
        leaves, treedef = jax.tree.flatten(self._shapes[choice])
        ends = np.cumsum([leaf.size * leaf.dtype.itemsize for leaf in leaves])
        parts = [
            np.frombuffer(packed[end - leaf.size * leaf.dtype.itemsize : end], leaf.dtype).reshape(
                leaf.shape
            )
            for leaf, end in zip(leaves, ends, strict=True)
        ]
        return self._decode[choice](treedef.unflatten(parts))

    def rehearse(self) -> None:
        """Compiles all."""
        for choice in range(len(self.sizes)):
            message = self.message(jnp.zeros(self.d), choice)
            assert _BYTE * len(message.packed) == self.sizes[choice], (
                "a message is as long as it says"
            )
            jax.block_until_ready(self.decoded(choice, message.packed))


def send(to: socket.socket, frame: Frame, packed: bytes) -> None:
    """A message on its way; an OSError where nobody takes a byte of it for the connection's time
    limit.
    """
    view = memoryview(_HEADER.pack(*frame, len(packed)) + packed)
    # the limit of `sendall` would be for the whole message, which on a slow link takes longer
    while view:
        view = view[to.send(view) :]


def receive(origin: socket.socket, wire: Wire) -> tuple[Frame, bytes, float]:
    """A message, and the bits per second at which it came, from its first byte to its last.

    Raises:
        OSError: the other end is gone, or sends something else.
    """
    *said, length = _HEADER.unpack(_read(origin, _HEADER.size))
    frame, began = Frame(*said), time.monotonic()
    if frame.choice >= len(wire.sizes) or _BYTE * length != wire.sizes[frame.choice]:
        raise OSError(
            f"a message of {length} bytes with compressor {frame.choice}: its sender has other "
            "ratios, or another model"
        )
    packed = _read(origin, length)
    taken = time.monotonic() - began
    return frame, packed, _BYTE * length / taken if taken > 0 else math.inf


def _read(origin: socket.socket, length: int) -> bytes:
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view:
        count = origin.recv_into(view)
        if not count:
            raise OSError("the other end of a connection is gone")
        view = view[count:]
    return bytes(buffer)
