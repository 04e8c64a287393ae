"""Helpers of the compressors' tests: compiled programs, one for each compressor and d, and vectors
to compress.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache, partial
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from dsgd import Compressor, compressors

EPS = float(np.finfo(np.float32).eps)
TINY = float(np.finfo(np.float32).tiny)
LARGEST = float(np.finfo(np.float32).max)
HUGE = float(np.float32(1e30))
STANDARD_ERRORS = 5
UNOPTIMIZED = {"xla_backend_optimization_level": 0}  # half of a test's time is compilation


def see(compressor: Compressor, key: jax.Array, x: jax.Array) -> jax.Array:
    """Returns the decoded message."""
    return compressor.decompress(compressors.encode(compressor, key, x).message, x.shape[0])


@cache
def seen(compressor: Compressor):
    """Returns a program (key, x) -> decoded message."""
    return jax.jit(lambda key, x: see(compressor, key, x))


@cache
def seen_often(compressor: Compressor, draws: int):
    """Returns a program (key, x) -> decoded messages for many keys, float64 `[draws, d]`."""

    def draw(key, x):
        return jax.vmap(lambda key: see(compressor, key, x))(jax.random.split(key, draws))

    often = jax.jit(draw, compiler_options=UNOPTIMIZED)
    return lambda key, x: np.asarray(often(key, x), np.float64)


@cache
def seen_where(compressor: Compressor):
    """Returns a program (x, name=draws `[n, ...]`) -> decoded messages, float64 `[n, d]`, in which
    `jax.random.name` draws `draws[i]`, repeated if necessary.
    """

    def one(x, drawn):
        with ExitStack() as stack:
            for name, draw in drawn.items():
                stack.enter_context(
                    mock.patch(
                        f"jax.random.{name}",
                        lambda key, shape, dtype, draw=draw: jnp.broadcast_to(draw, shape),
                    )
                )
            return see(compressor, jax.random.key(0), x)

    where = jax.jit(jax.vmap(one, in_axes=(None, 0)), compiler_options=UNOPTIMIZED)
    return lambda x, **drawn: np.asarray(where(x, drawn), np.float64)


def sent(compressor: Compressor, keys: jax.Array, d: int) -> tuple[Any, np.ndarray]:
    """Returns the messages of a vector of d ones, and their recorded bits."""

    @partial(jax.jit, compiler_options=UNOPTIMIZED)
    def send(keys):
        messages = jax.vmap(lambda key: compressors.encode(compressor, key, jnp.ones(d)).message)(
            keys
        )
        return messages, jax.vmap(compressor.bits)(messages)

    messages, bits = send(keys)
    return messages, np.asarray(bits)


def as_bits(uniform: np.ndarray) -> np.ndarray:
    """Returns the 32 random bits that give a number in [0, 1)."""
    return (uniform.astype(np.float64) * 2.0**32).astype(np.uint32)


def sqnorm(x: np.ndarray) -> np.ndarray:
    """|x|^2 along the last axis, in float64."""
    return (np.asarray(x, np.float64) ** 2).sum(axis=-1)


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """Returns vectors `[..., d]` with only their k largest elements, the first of equal ones; NaN
    is the largest.
    """
    order = np.lexsort((-np.abs(x), ~np.isnan(x)))  # by the last key first, and stable
    kept = np.zeros(x.shape, bool)
    np.put_along_axis(kept, order[..., :k], True, axis=-1)
    return np.where(kept, x, 0)


def rounding(x: np.ndarray) -> float:
    """Returns the rounding error of float32 in a squared error: a few last digits of the largest
    element, and denormals, which XLA may flush, for each element.
    """
    return float(x.size * ((8 * EPS * np.abs(x.astype(np.float64)).max()) ** 2 + TINY**2))


def packed_bytes(d: int, bits: int) -> int:
    """Returns the bytes of d codes: those of planes of 8, 4, 2 and 1 bits, each padded to a whole
    byte.
    """
    return bits // 8 * d + sum(-(-d * width // 8) for width in (4, 2, 1) if bits % 8 & width)


def quantized_bits(d: int, bits: int) -> int:
    """Returns the bits of a message of `random_quantization`: codes and two ends, or up to two
    elements.
    """
    return 8 * packed_bytes(d, bits) + 64 if d > 2 else 32 * d


def standard_error(samples: np.ndarray) -> np.ndarray:
    return samples.std(axis=0) / np.sqrt(len(samples))


class Rounding(NamedTuple):
    """Rounding of each element to `up` with a probability, otherwise to `down`."""

    down: np.ndarray
    up: np.ndarray
    probability: np.ndarray

    def variance(self) -> float:
        return float((self.probability * (1 - self.probability) * (self.up - self.down) ** 2).sum())


def to_values(values: np.ndarray, scale: float, x: np.ndarray) -> Rounding:
    """The rounding of magnitudes to neighbours among values times a scale."""
    y = np.abs(x) / scale
    i = np.clip(np.searchsorted(values, y, side="right") - 1, 0, values.size - 2)
    down, up = values[i], values[i + 1]
    unit = np.sign(x) * scale
    return Rounding(unit * down, unit * up, (y - down) / (up - down))


def numbers(dtype: str) -> np.ndarray:
    """Returns the finite numbers of a type that are not negative."""
    kind = jnp.finfo(dtype)
    codes = np.arange(2 ** (kind.bits - 1)).astype("u2" if kind.bits == 16 else "u1")
    with np.errstate(invalid="ignore"):  # NaN of bfloat16
        values = codes.view(dtype).astype(np.float64)
    return values[np.isfinite(values)]


def normal(d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=d).astype(np.float32)


ELEMENTS = st.one_of(
    st.floats(-HUGE, HUGE, width=32),
    st.floats(-1, 1, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-40, TINY, HUGE]),
)


def vectors(d: int) -> st.SearchStrategy[np.ndarray]:
    """Yields zeros, constants, denormals, and mixtures of all scales up to `HUGE`."""
    return st.lists(ELEMENTS, min_size=1, max_size=7).map(
        lambda elements: np.resize(np.array(elements, np.float32), d)
    )
