"""Deterministic compressors, as the project's and in numpy, and vectors in parts for N servers.

Workers and servers hold parts: each layer of a vector is split into N equal parts, padded with
zeros, and server n holds the n-th part of every layer. Each part is compressed separately,
including its padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from dsgd import compressors
from dsgd.base import Compressor
from tests.methods import bits
from tests.methods.given import Given
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import Trajectory

Q = Callable[[np.ndarray], np.ndarray]  # vector [d] -> decoded message

HALF, SHORT = compressors.top_k(0.5), compressors.clipping(3)
SIGN: Compressor = compressors.sign
HALF_OF_ALL, SHORT_OF_ALL = compressors.whole_model(HALF), compressors.whole_model(SHORT)


def declare_unbiased(compressor: Compressor) -> Compressor:
    """Returns a compressor that is stated to be unbiased, so that methods that need one accept it.
    The recursions hold for any map.
    """
    return compressor._replace(delta=None, omega=lambda d: 1.0)


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """Returns x with all but the k largest elements set to 0; of equal elements, the first are
    kept.
    """
    places = sorted(range(len(x)), key=lambda i: (-abs(x[i]), i))[:k]
    return np.array([x[i] if i in places else 0.0 for i in range(len(x))])


def largest_half(x: np.ndarray) -> np.ndarray:
    """Keeps half of the elements, rounded up (`compressors.top_k(0.5)`)."""
    return largest(x, -(-len(x) // 2))


def mean_size_times_sign(x: np.ndarray) -> np.ndarray:
    """Returns signs times the mean magnitude (`compressors.sign`)."""
    return np.mean(np.abs(x)) * np.where(x < 0, -1, 1)


def clip(x: np.ndarray) -> np.ndarray:
    """Keeps the sign, 8 bits of exponent and 3 of mantissa (`compressors.clipping(3)`)."""
    return (x.astype(np.float32).view(np.uint32) >> 20 << 20).view(np.float32).astype(float)


@dataclass(frozen=True)
class Compression:
    """Compressed models that neighbours send to each other.

    Args:
        compressor: the project's.
        q: the same in numpy, of one vector.
        size: (number of elements, bits of a number) -> bits of a message.
        whole: whether a model is compressed as one vector, and not each layer.
    """

    compressor: Compressor
    q: Q
    size: Callable[[int, int], int]
    whole: bool = False

    def __call__(self, given: Given, X: np.ndarray) -> np.ndarray:
        """Returns the messages of all workers, `[N, d]`."""
        return np.array([self.q(x) for x in X]) if self.whole else given.each(self.q, X)

    def bits(self, given: Given) -> int:
        """Returns the bits of a message."""
        vectors = (given.d,) if self.whole else given.layers
        return sum(self.size(d, given.word) for d in vectors)


HALVES = Compression(HALF, largest_half, lambda d, word: bits.largest(-(-d // 2), d, word))
WHOLE_HALVES = Compression(HALF_OF_ALL, largest_half, HALVES.size, whole=True)
CLIPPED = Compression(SHORT_OF_ALL, clip, lambda d, word: bits.packed_bits(12, d), whole=True)
SHORTS = Compression(SHORT, clip, CLIPPED.size)
SIGNS = Compression(SIGN, mean_size_times_sign, lambda d, word: bits.packed_bits(1, d) + word)


def shard(x: np.ndarray, N: int) -> np.ndarray:
    """Splits a vector into N equal parts, the last padded with zeros: `[d]` to `[N, part]`."""
    return np.pad(x, (0, -len(x) % N)).reshape(N, -1)


def unshard(parts: np.ndarray, d: int) -> np.ndarray:
    """Joins the parts of a vector: `[..., N, part]` to `[..., d]`."""
    return parts.reshape(*parts.shape[:-2], -1)[..., :d]


class Parts:
    """Partition of a vector over N servers: each server holds a part of every layer, concatenated.

    Args:
        layers: number of elements of each layer; a single layer if the model is compressed as one
            vector.
        N: number of servers.
    """

    def __init__(self, layers: Sequence[int], N: int) -> None:
        self.layers: tuple[int, ...] = tuple(layers)
        self.N: int = N
        self._ends = np.cumsum(self.layers)[:-1]
        self._part_ends = np.cumsum([-(-size // N) for size in self.layers])[:-1]

    def shard(self, x: np.ndarray) -> np.ndarray:
        """Splits a vector: `[d]` to `[N, part]`."""
        return np.concatenate([shard(layer, self.N) for layer in np.split(x, self._ends)], axis=1)

    def unshard(self, parts: np.ndarray) -> np.ndarray:
        """Joins the parts: `[..., N, part]` to `[..., d]`."""
        each = np.split(parts, self._part_ends, axis=-1)
        return np.concatenate(
            [unshard(part, size) for part, size in zip(each, self.layers, strict=True)], axis=-1
        )

    def each(self, q: Q) -> Q:
        """Returns the compressor of a part that compresses each of its layers separately."""
        return lambda part: np.concatenate([q(piece) for piece in np.split(part, self._part_ends)])


def parts_at(path: str) -> Callable[[Trajectory], np.ndarray]:
    """Returns the function from a trajectory to the vectors that its state has in parts, `[..., N,
    part]`, at this path.
    """
    return lambda found: trajectories.join_parts(attrgetter(path)(found.states))
