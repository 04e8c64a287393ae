r"""What compressors without chance make of a vector, to the last digit where that can be: in every type, of a tree, after many messages.

- top_k keeps the largest elements, of equals the first; clipping the leading bits; sign the signs, times $|x|_1 / d$; identity all.
- whole_model is of all leaves as one vector.
- low_rank that goes on from its last message finds the best approximation: what is missing are all singular values but the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from dsgd import compressors
from dsgd.base import Compressor
from dsgd.compressors.members import encode
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.statements.compression import COARSE, QUICKLY, vector

TYPES = (np.float64, np.float32, ml_dtypes.bfloat16)
_SHARE = 0.25


def _largest(x: np.ndarray) -> np.ndarray:
    first = np.argsort(-np.abs(x.astype(float)), kind="stable")[: math.ceil(_SHARE * x.size)]
    return np.where(np.isin(np.arange(x.size), first), x, 0)


def _cut(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFC00000)).view(np.float32)  # sign, 8 of exponent, 1 of mantissa


CERTAIN: tuple[tuple[Compressor, Callable[[np.ndarray], np.ndarray], bool], ...] = (
    (compressors.identity, lambda x: x, True),
    (compressors.top_k(_SHARE), _largest, True),
    (compressors.clipping(1), _cut, True),
    (compressors.sign, lambda x: np.where(x < 0, -1, 1) * np.abs(x.astype(float)).mean(), False),
)
"""Compressors without chance, what arrives, and whether to the last digit."""


@partial(jax.jit, static_argnames="compressor", compiler_options=QUICKLY)
def _arrives(compressor, x):
    return compressor.decompress(encode(compressor, jax.random.key(0), x).message, x.shape[0])


def certain(draws: Draws) -> list[Outcome]:
    """Of a random vector."""
    return elementwise(draws.choice(CERTAIN), vector(draws), draws.choice(TYPES))


def elementwise(of: tuple[Compressor, Callable[[np.ndarray], np.ndarray], bool], x: np.ndarray, dtype: Any) -> list[Outcome]:
    """The largest distance from what is to arrive."""
    compressor, right, to_the_last = of
    x = x.astype(dtype)
    arrived = np.asarray(_arrives(compressor, jnp.asarray(x)), float)
    off = float(np.abs(arrived - right(x).astype(float)).max())
    scale = 0.0 if to_the_last else COARSE * float(np.abs(x.astype(float)).max())
    return [Outcome(off, 0.0, case=f"{compressor.name} of {np.dtype(dtype).name}", equality=True, scale=scale)]


_TREE = {"bias": (5,), "kernel": (7,)}
_WHOLE = compressors.whole_model(compressors.top_k(_SHARE))
_apply = partial(jax.jit, static_argnums=0, compiler_options=QUICKLY)(compressors.apply)


def whole(draws: Draws) -> list[Outcome]:
    """Of a random tree."""
    return of_tree(_WHOLE, vector(draws))


def of_tree(compressor: Compressor, x: np.ndarray) -> list[Outcome]:
    """The largest elements of all leaves together."""
    ends = np.cumsum([size for (size,) in _TREE.values()])[:-1]
    tree = {name: jnp.asarray(leaf) for name, leaf in zip(_TREE, np.split(x, ends), strict=True)}
    arrived = np.concatenate([*_apply(compressor, jax.random.key(0), tree).values()])
    return [Outcome(float(np.abs(arrived - _largest(x)).max()), 0.0, case=compressor.name, equality=True)]


_WARM, _LOW_RANK = 40, compressors.low_rank(1)  # messages, of one object: it is compiled once


@partial(jax.jit, static_argnames="compressor", compiler_options=QUICKLY)
def _last_of_many(compressor, key, x):
    def again(i, message):
        return encode(compressor, jax.random.fold_in(key, i), x, message).message

    return compressor.decompress(lax.fori_loop(1, _WARM, again, encode(compressor, key, x).message), x.shape[0])


def warm(draws: Draws) -> list[Outcome]:
    """A random matrix whose first singular value is at least 5/3 of the others."""
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    left, right = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (3, 4))
    return best_of_rank(_LOW_RANK, left, np.array([1.0, draws.real(0.0, 0.6), draws.real(0.0, 0.6)]), right)


def best_of_rank(compressor: Compressor, left: np.ndarray, values: np.ndarray, right: np.ndarray) -> list[Outcome]:
    """After many messages of one 3 x 4 matrix what is missing are all singular values but the first."""
    x = (left * values @ right[:3]).ravel()
    arrived = _last_of_many(compressor, jax.random.key(0), jnp.asarray(x))
    off = float(((np.asarray(arrived) - x) ** 2).sum())
    return [Outcome(off, float((values[1:] ** 2).sum()), case=compressor.name, equality=True, scale=1.0)]


STATEMENTS = [
    Statement(
        "C(x), element by element",
        "sections 3.1.1, 3.2",
        "C without chance; float64, float32, bfloat16",
        certain,
        [partial(elementwise, of, np.linspace(-1, 2, 12), dtype) for of in CERTAIN for dtype in TYPES],
    ),
    Statement("whole_model is of one vector", "section 3.1.2", "top-k of a tree", whole),
    Statement("warm low rank finds the best", "PowerSGD, section 4.2", "one matrix, many messages", warm),
]
