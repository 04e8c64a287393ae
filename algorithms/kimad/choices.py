"""Sets of compressors, from which one is chosen for each layer in each round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import checks, xla
from dsgd.base import Compressor, PyTree
from dsgd.compressors import sparsification
from dsgd.compressors.members import constant_at, encode
from dsgd.compressors.sizes import fixed_bits, wide
from dsgd.wire import codecs


class CompressorSet(NamedTuple):
    r"""$\Omega$, a set of compressors.

    Args:
        sizes: (d, element type) -> bits of each compressor's message for d elements, a list of
            ints.
        profile: (key, x `[d]`) -> (errors $|C_j(x) - x|^2$ of all compressors, float32 `[choices]`;
            data about x that `apply` needs, a pytree).
        apply: (x `[d]`, the data from `profile`, j, an int32 scalar) -> $C_j(x)$ `[d]`.
        delta: d -> the contraction factor that all of them satisfy, or None if one of them declares
            none.
        number: number of compressors.
        name: for tables and error messages.
        layer_wise: whether the compressors are applied to each leaf of the tree, or to the tree as
            one vector.
    """

    sizes: Callable[[int, Any], list[int]]
    profile: Callable[[jax.Array, jax.Array], tuple[jax.Array, PyTree]]
    apply: Callable[[jax.Array, PyTree, jax.Array], jax.Array]
    delta: Callable[[int], float | None]
    number: int
    name: str
    layer_wise: bool = True


@checks.arguments
def top_k(ratios: Sequence[float] | np.ndarray) -> CompressorSet:
    r"""A set of top-k compressors, $k = \lceil r d \rceil$ for each ratio r, which share one sort.

    A message is that of `compressors.top_k(r)`: values and packed indices. If the uncompressed
    vector is not longer, it is sent instead, with error 0.

    Args:
        ratios: k / d, floats in (0, 1].

    Raises:
        ValueError: if there are no ratios, or a ratio is an integer or not in (0, 1].

    Source: Xin et al., "Kimad", sections 4.2 and 4.3.
    """
    if np.ndim(ratios) != 1 or not len(ratios):
        raise ValueError(
            f"kimad.top_k: ratios = {checks.show(ratios)}; expected a list of at least one number "
            "in (0, 1]"
        )
    ratios = [
        float(sparsification.require_share("kimad.top_k", f"ratios[{i}]", ratio))
        for i, ratio in enumerate(ratios)
    ]

    def sizes(d: int, dtype: Any) -> list[int]:
        element, place = 8 * np.dtype(dtype).itemsize, codecs.index_bits(d)
        each = (sparsification.selected_count(ratio, d) for ratio in ratios)
        return [min(element * k + codecs.packed_bits(place, k), element * d) for k in each]

    def counts(d: int, dtype: Any) -> list[int]:
        """Returns the number of elements that each choice sends."""
        whole = 8 * np.dtype(dtype).itemsize * d
        return [
            d if bits == whole else sparsification.selected_count(ratio, d)
            for ratio, bits in zip(ratios, sizes(d, dtype), strict=True)
        ]

    def profile(key, x):
        order = lax.sort(xla.ranks(wide(x)))  # integers are sorted faster than floats
        squares = lax.cumsum(_magnitudes(order, x.dtype) ** 2)  # sums over the smallest elements
        left_out = x.shape[0] - np.array(counts(x.shape[0], x.dtype))
        return jnp.concatenate([jnp.zeros(1, squares.dtype), squares])[left_out].astype(
            jnp.float32
        ), order

    def apply(x, order, choice):
        d, ranks = x.shape[0], xla.ranks(wide(x))
        k = jnp.array(counts(d, x.dtype), jnp.int32)[choice]
        least = order[d - k]
        ties = ranks == least  # among equal elements, the first are sent
        room = k - jnp.sum(ranks > least, dtype=jnp.int32)
        return jnp.where(
            (ranks > least) | (ties & (jnp.cumsum(ties, dtype=jnp.int32) <= room)),
            x,
            jnp.zeros((), x.dtype),
        )

    def delta(d: int) -> float:
        return min(sparsification.selected_count(ratio, d) for ratio in ratios) / d

    return CompressorSet(
        sizes, profile, apply, delta, len(ratios), f"top_k({_list_ratios(ratios)})"
    )


@checks.arguments
def from_compressors(compressors: Sequence[Compressor]) -> CompressorSet:
    """A set of arbitrary compressors whose message lengths for d elements are fixed; each layer is
    compressed once with every compressor.

    Args:
        compressors: either all layer by layer, or all for the whole model.

    Raises:
        ValueError: if there are none, some work layer by layer and others on the whole model, or a
            message has a random length.
    """
    if not compressors:
        raise ValueError("kimad.from_compressors: compressors = []; expected at least one")
    if len({compressor.layer_wise for compressor in compressors}) > 1:
        names = ", ".join(compressor.name for compressor in compressors)
        raise ValueError(
            f"kimad.from_compressors: compressors {names} mix layer-wise and whole-model ones; "
            "expected all "
            "layer by layer, or all of compressors.whole_model"
        )

    def size(compressor: Compressor, d: int, dtype: Any) -> int:
        bits = fixed_bits(compressor, d, dtype)
        if bits is None:
            raise ValueError(
                f"kimad.from_compressors: {compressor.name} has messages of random length; "
                "expected a "
                "compressor whose message length is known before it is chosen"
            )
        return bits

    def profile(key, x):
        keys = jax.random.split(key, len(compressors))
        each = [
            encode(compressor, key, x).decoded.astype(x.dtype)
            for compressor, key in zip(compressors, keys, strict=True)
        ]
        decoded = jnp.stack(each)
        return jnp.sum((wide(decoded) - wide(x)[None]) ** 2, axis=1).astype(jnp.float32), decoded

    def delta(d: int) -> float | None:
        each = [constant_at(compressor.delta, d) for compressor in compressors]
        known = [delta for delta in each if delta is not None]
        return min(known) if len(known) == len(each) else None

    return CompressorSet(
        sizes=lambda d, dtype: [size(compressor, d, dtype) for compressor in compressors],
        profile=profile,
        apply=lambda x, decoded, choice: decoded[choice],
        delta=delta,
        number=len(compressors),
        name=", ".join(compressor.name for compressor in compressors),
        layer_wise=compressors[0].layer_wise,
    )


@checks.arguments
def whole_model(choices: CompressorSet) -> CompressorSet:
    """Returns the same set, applied to the model as one vector; with `top_k`, the k largest
    elements of all layers.

    Args:
        choices: any set.
    """
    return (
        choices._replace(layer_wise=False, name=f"whole_model({choices.name})")
        if choices.layer_wise
        else choices
    )


def _magnitudes(ranks: jax.Array, dtype: Any) -> jax.Array:
    return lax.bitcast_convert_type(ranks, jnp.promote_types(dtype, jnp.float32))


def _list_ratios(ratios: Sequence[float]) -> str:
    return (
        ", ".join(f"{ratio:g}" for ratio in ratios) if len(ratios) <= 3 else f"{len(ratios)} ratios"
    )
