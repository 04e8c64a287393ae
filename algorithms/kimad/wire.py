"""Messages as bytes on a connection: the k largest elements of a vector, packed, for any k of a
list.
"""

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
    """Header of a message.

    Args:
        choice: index of the compressor.
        last: whether this is the last message.
        computing: seconds for which the sender computed and compressed before.
        heard: bandwidth in bits per second of the last message from the receiver; NaN: there was
            none.
    """

    choice: int
    last: bool
    computing: float
    heard: float


class Message(NamedTuple):
    """A compressed vector.

    Args:
        choice: index of the compressor.
        packed: the bytes that are sent.
        decoded: the vector that the receiver decodes from them.
    """

    choice: int
    packed: bytes
    decoded: jax.Array


class Wire:
    """Packs float32 vectors of d elements with each of several compressors, in the order of
    increasing message sizes.

    Args:
        ratios: k / d of each; invalid ones raise the ValueError of `kimad.top_k`.
        d: number of elements.
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
        key = jax.random.key(0)  # unused, because nothing is random
        self._shapes = [message_shape(one, d) for one in self.compressors]
        self._encode = [
            jax.jit(lambda x, one=one: encode(one, key, x).message) for one in self.compressors
        ]
        self._decode = [
            jax.jit(lambda message, one=one: one.decompress(message, d)) for one in self.compressors
        ]

    def choice(self, budget: float) -> int:
        """Returns the compressor with the largest message within the budget in bits, or the
        smallest message: the more elements, the smaller the error.
        """
        return max(0, int(np.searchsorted(self.sizes, budget, side="right")) - 1)

    def message(self, x: jax.Array, choice: int) -> Message:
        """Compresses a vector."""
        packed = self._encode[choice](x)
        decoded = jax.block_until_ready(self._decode[choice](packed))
        return Message(
            choice,
            b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(packed)),
            decoded,
        )

    def decode(self, choice: int, packed: bytes) -> jax.Array:
        """Returns the vector that the receiver decodes from the bytes."""
        leaves, treedef = jax.tree.flatten(self._shapes[choice])
        ends = np.cumsum([leaf.size * leaf.dtype.itemsize for leaf in leaves])
        parts = [
            np.frombuffer(packed[end - leaf.size * leaf.dtype.itemsize : end], leaf.dtype).reshape(
                leaf.shape
            )
            for leaf, end in zip(leaves, ends, strict=True)
        ]
        return self._decode[choice](treedef.unflatten(parts))

    def compile(self) -> None:
        """Compiles the programs of all compressors."""
        for choice in range(len(self.sizes)):
            message = self.message(jnp.zeros(self.d), choice)
            assert _BYTE * len(message.packed) == self.sizes[choice], (
                "a message has the declared length"
            )
            jax.block_until_ready(self.decode(choice, message.packed))


def send(to: socket.socket, frame: Frame, packed: bytes) -> None:
    """Sends a message. Raises an OSError if the receiver accepts no byte for the time limit of the
    connection.
    """
    view = memoryview(_HEADER.pack(*frame, len(packed)) + packed)
    # `sendall` applies the limit to the whole message, which takes longer on a slow link
    while view:
        view = view[to.send(view) :]


def receive(origin: socket.socket, wire: Wire) -> tuple[Frame, bytes, float]:
    """Receives a message; returns its header, its bytes, and its bandwidth in bits per second, from
    the first byte to the last.

    Raises:
        OSError: if the sender closed the connection or sends an invalid message.
    """
    *fields, length = _HEADER.unpack(_read(origin, _HEADER.size))
    frame, began = Frame(*fields), time.monotonic()
    if frame.choice >= len(wire.sizes) or _BYTE * length != wire.sizes[frame.choice]:
        raise OSError(
            f"kimad: received {length} bytes with compressor {frame.choice}; expected a message of "
            "the same ratios and model in all processes"
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
            raise OSError(
                "kimad: the other process closed the connection; expected all processes until the "
                "end"
            )
        view = view[count:]
    return bytes(buffer)
