"""What workers send each other: compressed messages through N servers, around a ring, and to neighbours on a graph.

For servers and rings, a gradient is cut into N parts, and worker n is the server of part n. Whatever stands for a gradient is a tree of
parts: leaves `[n, M, part]` for what each worker has of every part, `[n, part]` for the part that it serves, `[N, part]` for the whole,
the same on every device. M <= N of the parts have elements: of 10 elements in 1,024 workers ten. Servers of the others are sent padding,
which is told; what workers hold, and what one device computes, is without it. The tree has the model's leaves, or one leaf, the model as
one vector, where the compressor is of `compressors.whole_model`.

All that crosses devices are messages: packed arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from dsgd import checks, counts, workers
from dsgd.base import Compressor, Gradients, Info, Params, PyTree, Round
from dsgd.compressors.members import count_bits, decode, encode, stated
from dsgd.compressors.sizes import fixed_bits, message_shape
from dsgd.graphs.topology import Topology
from dsgd.network import told

Parts = PyTree
Messages = list[PyTree]  # one for each leaf, with the leading axes of its vectors


class Delivery(NamedTuple):
    """What came of an exchange.

    Args:
        received: what the receivers make of it.
        seen: what they see of one's own vectors, the shape of what was sent.
        messages: what was sent, where the compressor starts warm from it next time, else ().
        info: its bits.
    """

    received: Parts
    seen: Parts
    messages: Any
    info: Info


def to_servers(compressor: Compressor, key: jax.Array, parts: Parts, N: int, last: Any = ()) -> Delivery:
    r"""Every worker sends every server its part, and server n receives $\frac1N \sum_m Q(x_m)$ of part n.

    Args:
        compressor: Q.
        key: the same on every device.
        parts: leaves `[n, M, part]`.
        N: number of workers.
        last: `messages` of the last time, or ().

    Returns:
        `received` has leaves `[n, part]`.
    """
    # What servers without elements are sent need not be made where it stays on its device and is as long as what others are sent.
    if workers.devices() == 1 and all(
        fixed_bits(compressor, leaf.shape[-1], leaf.dtype) is not None for leaf in jax.tree.leaves(parts) if leaf.shape[1] < N
    ):
        vectors = parts
    else:
        vectors, last = padded((parts, last), N, axis=1)
    # A key is folded in for each part, not split off for all: then what a part draws does not depend on how many of them are made here.
    most = jnp.arange(max(leaf.shape[1] for leaf in jax.tree.leaves(vectors)))
    keys = jax.vmap(lambda own: jax.vmap(partial(jax.random.fold_in, own))(most))(workers.keys(key, N))
    messages, seen = _compress(compressor, keys, vectors, last)
    arrived = workers.all_to_all(messages)
    if workers.devices() == 1:
        mean = padded(jax.tree.map(_mean_as_seen, seen, jax.tree.unflatten(jax.tree.structure(seen), messages)), N)
    else:
        mean = jax.tree.map(jax.vmap(workers.mean_rows), _decompress(compressor, arrived, seen))
    info = Info(_to_others(_sizes(compressor, messages, 2), N), _to_others(_sizes(compressor, arrived, 2), N))
    held = [leaf.shape[1] for leaf in jax.tree.leaves(parts)]
    messages = [jax.tree.map(lambda x, M=M: x[:, :M], message) for message, M in zip(messages, held, strict=True)]
    seen = jax.tree.map(lambda leaf, own: leaf[:, : own.shape[1]], seen, parts)
    return Delivery(mean, seen, _remember(compressor, messages), info)


def from_servers(compressor: Compressor, key: jax.Array, vectors: Parts, N: int, last: Any = ()) -> Delivery:
    """Every server sends every worker its part.

    Args:
        vectors: of the parts that one serves, leaves `[n, part]`.
        others: as in `to_servers`.

    Returns:
        `received` has leaves `[N, part]`, the same on every device.
    """
    messages, seen = _compress(compressor, workers.keys(key, N), vectors, last)
    gathered = workers.gather(messages)
    if workers.devices() == 1:
        received = seen
    else:
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((N, *leaf.shape[1:]), leaf.dtype), vectors)
        received = _decompress(compressor, gathered, shapes)
    info = Info(_to_all(_sizes(compressor, messages, 1), N), _to_others(_sizes(compressor, gathered, 1), N))
    return Delivery(received, seen, _remember(compressor, messages), info)


def around_ring(compressor: Compressor, key: jax.Array, parts: Parts, N: int) -> tuple[Parts, Info]:
    r"""The ring all-reduce: part n starts at worker n, and every worker adds its own on the way. N - 1 hops, then N - 1 forwards.

    $$ \frac1N Q(\cdots Q(Q(g_1) + g_2) + \cdots + g_N) \tag{3.5} $$

    Partial sums of half precision are added up, compressed and sent as float32: they may be N times as large as what is summed.

    Args:
        parts: leaves `[n, M, part]`.
        others: as in `to_servers`.

    Returns:
        Leaves `[N, part]`, the same on every device; bits.
    """
    given, ids = parts, workers.ids(N)
    parts = workers.widened(padded(parts, N, axis=1))

    def own(hop):
        """Of each worker, the part that has made `hop` hops to it."""
        part = (ids - hop) % N
        return jax.tree.map(lambda leaf: leaf[jnp.arange(ids.shape[0]), part], parts)

    def compress(hop, vectors):
        return _compress(compressor, workers.keys(jax.random.fold_in(key, hop), N), vectors, ())[0]

    def hop(i, carry):
        messages, info = carry
        arrived = workers.shift(messages, 1)
        info = told.both(info, Info(_to_one(_sizes(compressor, messages, 1), N), _to_one(_sizes(compressor, arrived, 1), N)))
        mine = own(i)
        total = jax.tree.map(jnp.add, _decompress(compressor, arrived, mine), mine)
        return compress(i, total), info

    nothing = counts.of(0, ids.shape[0])
    messages, info = lax.fori_loop(1, N, hop, (compress(0, own(0)), Info(nothing, nothing)))
    gathered = workers.gather(messages)  # worker i ends with part i + 1
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), parts)
    mean = jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0) / N, _decompress(compressor, gathered, shapes))
    # A worker forwards all but the part that its successor ends with, and receives all but its own.
    sizes = _sizes(compressor, gathered, 1)
    return workers.narrowed(mean, given), told.both(info, Info(_to_others(sizes, N, but=(ids + 1) % N), _to_others(sizes, N)))


def to_neighbours(compressor: Compressor, key: jax.Array, vectors: PyTree, topology: Topology, round: Round, last: Any = ()) -> Delivery:
    r"""Every worker sends its neighbours one message, and worker n receives $\sum_m W_{nm} (Q(x_m) - Q(x_n))$.

    Args:
        vectors: leaves `[n, d]`, of `flat`.
        topology: W.
        others: as in `to_servers`.

    Returns:
        `received` has leaves `[n, d]`.
    """
    messages, seen = _compress(compressor, workers.keys(key, topology.n), vectors, last)
    arrived, table = workers.fetch(messages, topology, round.step), seen
    if workers.devices() > 1:
        length = jax.tree.leaves(arrived)[0].shape[0]
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((length, *leaf.shape[1:]), leaf.dtype), vectors)
        table = _decompress(compressor, arrived, shapes)
    pulled = workers.pull(seen, topology, round.step, table=table)
    info = told.messages(_sizes(compressor, messages, 1), _sizes(compressor, arrived, 1), topology, round.step)
    return Delivery(pulled, seen, _remember(compressor, messages), info)


def flat(tree: PyTree, layer_wise: bool) -> PyTree:
    """Leaves `[n, ...]` as the vectors that are compressed, `[n, d]`: one for each leaf, or one of them all."""
    if not layer_wise:
        tree = jax.vmap(lambda one: ravel_pytree(one)[0])(tree)
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], -1), tree)


def shaped(vectors: PyTree, like: PyTree, layer_wise: bool) -> PyTree:
    """Of vectors `[n, d]`, the tree with leaves `[n, ...]` that `flat` would make them of.

    Args:
        like: a tree of its shapes and types.
    """
    if layer_wise:
        return jax.tree.map(lambda vector, leaf: vector.reshape(leaf.shape), vectors, like)
    return jax.vmap(ravel_pytree(jax.tree.map(lambda leaf: leaf[0], like))[1])(vectors)


def cut(tree: Gradients, N: int, compressor: Compressor) -> Parts:
    """Leaves `[n, ...]` cut into parts for N servers, `[n, M, part]`, the last padded with zeros: they do not change a vector's norm, so
    that omega and delta of the padded part bound the error of what is not padding. The N - M that would be padding only are left out."""

    def cut_vector(x):
        part = -(-x.shape[1] // N)
        held = -(-x.shape[1] // part) if part else 1
        return jnp.pad(x, ((0, 0), (0, held * part - x.shape[1]))).reshape(x.shape[0], held, part)

    return jax.tree.map(cut_vector, flat(tree, compressor.layer_wise))


def padded(parts: PyTree, N: int, axis: int = 0) -> PyTree:
    """Along this axis zeros for the servers whose parts are padding only: leaves `[M, ...]` to `[N, ...]`."""

    def pad(leaf):
        short = N - leaf.shape[axis]
        return jnp.pad(leaf, [(0, short * (i == axis)) for i in range(leaf.ndim)]) if short else leaf

    return jax.tree.map(pad, parts)


def join(parts: Parts, like: Params, compressor: Compressor) -> Params:
    """The tree of which these are the parts, `[M, part]` or `[N, part]`.

    Args:
        like: a tree of its shapes and types.
    """
    if compressor.layer_wise:
        return jax.tree.map(lambda part, leaf: part.ravel()[: leaf.size].reshape(leaf.shape), parts, like)
    flat, unravel = ravel_pytree(like)
    return unravel(parts.ravel()[: flat.size])


def start(compressor: Compressor, vectors: Parts) -> Any:
    """What stands for the messages before the first, for vectors `[..., d]`: zeros where the compressor starts warm, else ()."""
    if not compressor.warm:
        return ()
    shapes = [(leaf.shape[:-1], message_shape(compressor, leaf.shape[-1], leaf.dtype)) for leaf in jax.tree.leaves(vectors)]
    return [jax.tree.map(lambda x, axes=axes: jnp.zeros((*axes, *x.shape), x.dtype), message) for axes, message in shapes]


@runtime_checkable
class Contracting(Protocol):
    """A compressor, or a set of them: the contraction that it states for d elements, None where it states none."""

    @property
    def delta(self) -> Callable | None:
        """d -> the contraction, None where none is stated; None: for no d."""
        ...

    @property
    def name(self) -> str:
        """For tables and errors."""
        ...

    @property
    def layer_wise(self) -> bool:
        """Whether every leaf is compressed on its own."""
        ...


def need_two(method: str, up: Contracting, down: Contracting) -> None:
    """Raises a ValueError where one is layer by layer and the other of the whole model: their vectors differ."""
    if up.layer_wise != down.layer_wise:
        raise ValueError(f"{method} with {up.name} up and {down.name} down: need both layer by layer, or both of whole_model")


def need_contraction(method: str, compressor: Contracting, vectors: PyTree, insist: str = "") -> None:
    """Raises a ValueError where the compressor states no contraction for vectors of these lengths, leaves `[..., d]`, or one is empty.

    Args:
        insist: how to take it all the same, of methods that let one.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(vectors):
        if leaf.shape[-1] == 0:
            raise ValueError(f"{method}: layer {jax.tree_util.keystr(path) or 'itself'} has no elements; need at least one")
        delta = stated(compressor.delta, leaf.shape[-1])
        if delta is not None and not (checks.is_number(delta) and 0 < delta <= 1):
            raise ValueError(f"{method}: delta of {compressor.name} gives {checks.typed(delta)}; need a number in (0, 1], or None")
        if delta is None:
            raise ValueError(
                f"{method} with {compressor.name}, which states no contraction for vectors of {leaf.shape[-1]} elements: "
                f"need one that does; compressors.contraction makes one of any that is unbiased{insist and f' (or {insist})'}"
            )


def _compress(compressor: Compressor, keys: jax.Array, vectors: Parts, last: Any) -> tuple[Messages, Parts]:
    """One message for each vector `[*axes, d]`, from the first of the keys along each axis; and what their sender sees of them, like the
    vectors."""
    leaves, treedef = jax.tree.flatten(vectors)
    memories = [(message,) for message in last] if last else [()] * len(leaves)

    def one(key, x, *memory):
        message, decoded = encode(compressor, key, x, *memory)
        if workers.devices() > 1:  # the message is made in any case, and top_k's places are found only once
            decoded = decode(compressor, message, x.shape[0])
        return message, decoded.astype(x.dtype)

    def of_leaf(i):
        mine = keys[tuple(map(slice, leaves[i].shape[:-1]))]
        # Where there is one leaf, the keys are its own: where messages are short, to make keys takes longer than to draw from them.
        return mine if len(leaves) == 1 else _over(keys.ndim, lambda key: jax.random.fold_in(key, i))(mine)

    sent = [_over(keys.ndim, one)(of_leaf(i), vector, *memory) for i, (vector, memory) in enumerate(zip(leaves, memories, strict=True))]
    return [message for message, _ in sent], treedef.unflatten(seen for _, seen in sent)


def _mean_as_seen(seen: jax.Array, message: PyTree) -> jax.Array:
    """The mean over workers of what they see of their messages, `[n, M, part]`, to `[M, part]`.

    A message that is the vector itself takes no arithmetic to make: on one long axis it is added up as it is made.
    """
    as_it_is = [sent.shape for sent in jax.tree.leaves(message)] == [seen.shape]
    if as_it_is:
        return workers.mean(seen.reshape(len(seen), -1)).reshape(seen.shape[1:])
    return workers.mean(seen)


def _decompress(compressor: Compressor, messages: Messages, like: Parts) -> Parts:
    """Vectors of the shapes and types of `like`, leaves `[*axes, d]`."""
    leaves, treedef = jax.tree.flatten(like)
    return treedef.unflatten(
        _over(leaf.ndim - 1, partial(decode, compressor, d=leaf.shape[-1]))(message).astype(leaf.dtype)
        for message, leaf in zip(messages, leaves, strict=True)
    )


def _over(axes: int, function):
    for _ in range(axes):
        function = jax.vmap(function)
    return function


def _remember(compressor: Compressor, messages: Messages) -> Any:
    return messages if compressor.warm else ()


def _sizes(compressor: Compressor, messages: Messages, axes: int) -> int | jax.Array:
    """Bits of all leaves' messages together: an int where they are always as many, else uint32 `[*axes]`."""
    fixed = [count_bits(compressor, jax.tree.map(lambda leaf: leaf[(0,) * axes], message)) for message in messages]
    if all(isinstance(bits, int) for bits in fixed):
        return sum(fixed)
    return sum(_over(axes, compressor.bits)(message) for message in messages)


def _to_others(sizes: int | jax.Array, N: int, but: jax.Array | None = None) -> jax.Array:
    """The sum of sizes `[n, N]` or `[N]` over all but worker `but` `[n]`; None: all but oneself."""
    ids = workers.ids(N)
    if isinstance(sizes, int):
        return counts.of((N - 1) * sizes, ids.shape[0])
    left_out = jnp.arange(N)[None, :] == (ids if but is None else but)[:, None]
    each = jnp.where(left_out, jnp.uint32(0), jnp.broadcast_to(sizes, left_out.shape))
    return counts.carry(jnp.sum(counts.of(each, N), axis=1, dtype=jnp.uint32))


def _to_all(sizes: int | jax.Array, N: int) -> jax.Array:
    """N - 1 times sizes `[n]`."""
    n = workers.ids(N).shape[0]
    return counts.of((N - 1) * sizes, n) if isinstance(sizes, int) else counts.times(jnp.full(n, N - 1, jnp.uint32), counts.of(sizes, n))


def _to_one(sizes: int | jax.Array, N: int) -> jax.Array:
    return counts.of(sizes, workers.ids(N).shape[0])
