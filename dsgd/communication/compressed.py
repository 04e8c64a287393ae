"""Compressed messages: through N servers, around a ring, to neighbours on a graph, and to all.

For servers and rings, a vector is cut into N shards, and worker n is the server of shard n. A
gradient is then a tree of shards: leaves `[n, M, part]` for what each worker has of every shard,
`[n, part]` for the shard that it serves, `[N, part]` for the whole, the same on every device. M <=
N of the shards have elements: of 10 elements in 1,024 workers ten. The servers of the others are
sent padding, which counts as bits; what workers keep, and what one device computes, is without it.
The tree has the model's leaves, or one leaf, the model as one vector, if the compressor is one of
`compressors.whole_model`.

The only traffic between devices are messages: packed arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from dsgd import checks, workers
from dsgd.base import Compressor, Gradients, Params, PyTree
from dsgd.communication import bits
from dsgd.communication.bits import Bits
from dsgd.compressors.members import count_bits, decode, encode, stated
from dsgd.compressors.sizes import fixed_bits, message_shape
from dsgd.graphs.topology import Topology

Parts = PyTree
Messages = list[PyTree]  # one for each leaf, with the leading axes of its vectors


class Delivery(NamedTuple):
    """The result of a compressed exchange.

    Args:
        received: the receivers' sum, mean or table of what they decode.
        decoded: what they decode of the worker's own vectors, of the shape of what was sent.
        messages: what was sent, if the compressor starts warm from it next time, else ().
        bits: of the exchange.
    """

    received: Parts
    decoded: Parts
    messages: Any
    bits: Bits


def to_servers(
    compressor: Compressor, key: jax.Array, parts: Parts, N: int, last: Any = ()
) -> Delivery:
    r"""Every worker sends every server its part, and server n receives $\frac1N \sum_m Q(x_m)$ of
    part n.

    Args:
        compressor: Q.
        key: the same on every device.
        parts: leaves `[n, M, part]`.
        N: number of workers.
        last: `messages` of the last time, or ().

    Returns:
        `received` has leaves `[n, part]`.
    """
    # What servers without elements are sent need not be made where it stays on its device and is as
    # long as what others are sent.
    if workers.devices() == 1 and all(
        fixed_bits(compressor, leaf.shape[-1], leaf.dtype) is not None
        for leaf in jax.tree.leaves(parts)
        if leaf.shape[1] < N
    ):
        vectors = parts
    else:
        vectors, last = padded((parts, last), N, axis=1)
    # A key is folded in for each part, not split off for all: then what a part draws does not
    # depend on how many of them are made here.
    most = jnp.arange(max(leaf.shape[1] for leaf in jax.tree.leaves(vectors)))
    keys = jax.vmap(lambda own: jax.vmap(partial(jax.random.fold_in, own))(most))(
        workers.keys(key, N)
    )
    messages, decoded = _compress(compressor, keys, vectors, last)
    arrived = workers.all_to_all(messages)
    if workers.devices() == 1:
        mean = padded(
            jax.tree.map(
                _mean_decoded, decoded, jax.tree.unflatten(jax.tree.structure(decoded), messages)
            ),
            N,
        )
    else:
        mean = jax.tree.map(jax.vmap(workers.mean_rows), _decompress(compressor, arrived, decoded))
    sent = Bits(
        bits.to_others(_sizes(compressor, messages, 2), N),
        bits.to_others(_sizes(compressor, arrived, 2), N),
    )
    held = [leaf.shape[1] for leaf in jax.tree.leaves(parts)]
    messages = [
        jax.tree.map(lambda x, M=M: x[:, :M], message)
        for message, M in zip(messages, held, strict=True)
    ]
    decoded = jax.tree.map(lambda leaf, own: leaf[:, : own.shape[1]], decoded, parts)
    return Delivery(mean, decoded, _remember(compressor, messages), sent)


def to_all(
    compressor: Compressor, key: jax.Array, vectors: Parts, N: int, last: Any = ()
) -> Delivery:
    """Every worker, as a server of its shard say, sends all others one message.

    Args:
        vectors: leaves `[n, d]`.
        others: as in `to_servers`.

    Returns:
        `received` has leaves `[N, d]`, the same on every device.
    """
    messages, decoded = _compress(compressor, workers.keys(key, N), vectors, last)
    gathered = workers.gather(messages)
    if workers.devices() == 1:
        received = decoded
    else:
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((N, *leaf.shape[1:]), leaf.dtype), vectors
        )
        received = _decompress(compressor, gathered, shapes)
    sent = Bits(
        bits.to_all(_sizes(compressor, messages, 1), N),
        bits.to_others(_sizes(compressor, gathered, 1), N),
    )
    return Delivery(received, decoded, _remember(compressor, messages), sent)


def moved(
    compressor: Compressor, key: jax.Array, vectors: PyTree, N: int, move: Callable, last: Any = ()
) -> Delivery:
    """Every worker sends one message, and receives one.

    Args:
        vectors: leaves `[n, d]`.
        move: gives each worker the row of another one, leaves `[n, ...]` to `[n, ...]`.
        others: as in `to_servers`.

    Returns:
        `received` has leaves `[n, d]`.
    """
    messages, decoded = _compress(compressor, workers.keys(key, N), vectors, last)
    arrived = move(messages)
    received = (
        move(decoded) if workers.devices() == 1 else _decompress(compressor, arrived, vectors)
    )
    sent = Bits(
        bits.to_one(_sizes(compressor, messages, 1), N),
        bits.to_one(_sizes(compressor, arrived, 1), N),
    )
    return Delivery(received, decoded, _remember(compressor, messages), sent)


def around_ring(compressor: Compressor, key: jax.Array, parts: Parts, N: int) -> Delivery:
    r"""The ring all-reduce: part n starts at worker n, and every worker adds its own on the way. N
    - 1 hops, then N - 1 forwards.

    $$ \frac1N Q(\cdots Q(Q(g_1) + g_2) + \cdots + g_N) \tag{3.5} $$

    Partial sums of half precision are added up, compressed and sent as float32: they may be N times
    as large as what is summed.

    Args:
        parts: leaves `[n, M, part]`.
        others: as in `to_servers`.

    Returns:
        `received` has leaves `[N, part]`, the same on every device; no worker sees what becomes of
        its own vectors.
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
        messages, so_far = carry
        arrived = workers.shift(messages, 1)
        so_far += Bits(
            bits.to_one(_sizes(compressor, messages, 1), N),
            bits.to_one(_sizes(compressor, arrived, 1), N),
        )
        mine = own(i)
        total = jax.tree.map(jnp.add, _decompress(compressor, arrived, mine), mine)
        return compress(i, total), so_far

    messages, sent = lax.fori_loop(1, N, hop, (compress(0, own(0)), bits.none(N)))
    gathered = workers.gather(messages)  # worker i ends with part i + 1
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), parts)
    mean = jax.tree.map(
        lambda leaf: jnp.roll(leaf, 1, axis=0) / N, _decompress(compressor, gathered, shapes)
    )
    # A worker forwards all but the part that its successor ends with, and receives all but its own.
    sizes = _sizes(compressor, gathered, 1)
    sent += Bits(bits.to_others(sizes, N, but=(ids + 1) % N), bits.to_others(sizes, N))
    return Delivery(workers.narrowed(mean, given), (), (), sent)


def to_neighbours(
    compressor: Compressor,
    key: jax.Array,
    vectors: PyTree,
    topology: Topology,
    step: jax.Array,
    last: Any = (),
) -> Delivery:
    r"""Every worker sends its neighbours one message, and worker n receives
    $\sum_m W_{nm} (Q(x_m) - Q(x_n))$.

    Args:
        vectors: leaves `[n, d]`, of `flat`.
        topology: W.
        step: of a schedule.
        others: as in `to_servers`.

    Returns:
        `received` has leaves `[n, d]`.
    """
    messages, decoded = _compress(compressor, workers.keys(key, topology.n), vectors, last)
    arrived, table = workers.fetch(messages, topology, step), decoded
    if workers.devices() > 1:
        length = jax.tree.leaves(arrived)[0].shape[0]
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((length, *leaf.shape[1:]), leaf.dtype), vectors
        )
        table = _decompress(compressor, arrived, shapes)
    pulled = workers.pull(decoded, topology, step, table=table)
    sent = bits.to_neighbours(
        _sizes(compressor, messages, 1), _sizes(compressor, arrived, 1), topology, step
    )
    return Delivery(pulled, decoded, _remember(compressor, messages), sent)


def flat(tree: PyTree, layer_wise: bool) -> PyTree:
    """Leaves `[n, ...]` as the vectors that are compressed, `[n, d]`: one for each leaf, or one of
    them all.
    """
    if not layer_wise:
        tree = jax.vmap(lambda one: ravel_pytree(one)[0])(tree)
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], -1), tree)


def shaped(vectors: PyTree, like: PyTree, layer_wise: bool) -> PyTree:
    """Of vectors `[n, d]`, the tree with leaves `[n, ...]` that `flat` would make them of.

    Args:
        like: a tree of its shapes and types.
    """
    if layer_wise:
        return jax.tree.map(
            lambda vector, leaf: vector.reshape(vector.shape[0], *leaf.shape[1:]), vectors, like
        )
    return jax.vmap(ravel_pytree(jax.tree.map(lambda leaf: leaf[0], like))[1])(vectors)


def shards(tree: Gradients, N: int, compressor: Compressor) -> Parts:
    """Leaves `[n, ...]` cut into parts for N servers, `[n, M, part]`, the last padded with zeros:
    they do not change a vector's norm, so that omega and delta of the padded part bound the error
    of what is not padding. The N - M that would be padding only are left out."""

    def cut_vector(x):
        part = -(-x.shape[1] // N)
        held = -(-x.shape[1] // part) if part else 1
        return jnp.pad(x, ((0, 0), (0, held * part - x.shape[1]))).reshape(x.shape[0], held, part)

    return jax.tree.map(cut_vector, flat(tree, compressor.layer_wise))


def start_shards(
    method: str, params: Params, N: int, up: Compressor, down: Compressor, insist: str | None = ""
) -> tuple[Parts, Parts]:
    """What workers and servers have before the first round.

    Args:
        method: for the error message.
        params: a model.
        N: number of workers.
        up, down: compressors of workers and servers, contractions.
        insist: the argument that lets others be taken; None: others are.

    Returns:
        Zeros of every worker's shards, leaves `[N, M, part]`; and of the model the shard that each
        serves, leaves `[N, part]`.

    Raises:
        ValueError: a compressor that states no contraction for a shard.
    """
    whole = shards(workers.stack(params, 1), N, up)
    served = padded(jax.tree.map(lambda leaf: leaf[0], whole), N)
    if insist is not None:
        for compressor in (up, down):
            need_contraction(method, compressor, served, insist)
    return workers.stack(jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), whole), N), served


def padded(parts: PyTree, N: int, axis: int = 0) -> PyTree:
    """Along this axis zeros for the servers whose parts are padding only: leaves `[M, ...]` to
    `[N, ...]`.
    """

    def pad(leaf):
        short = N - leaf.shape[axis]
        return (
            jnp.pad(leaf, [(0, short * (i == axis)) for i in range(leaf.ndim)]) if short else leaf
        )

    return jax.tree.map(pad, parts)


def unshard(parts: Parts, like: Params, compressor: Compressor) -> Params:
    """The tree that `shards` has cut into these parts, `[M, part]` or `[N, part]`.

    Args:
        like: a tree of its shapes and types.
    """
    if compressor.layer_wise:
        return jax.tree.map(
            lambda part, leaf: part.ravel()[: leaf.size].reshape(leaf.shape), parts, like
        )
    flat, unravel = ravel_pytree(like)
    return unravel(parts.ravel()[: flat.size])


def last_messages(compressor: Compressor, vectors: Parts) -> Any:
    """What stands for the messages before the first, for vectors `[..., d]`: zeros where the
    compressor starts warm, else ().
    """
    if not compressor.warm:
        return ()
    shapes = [
        (leaf.shape[:-1], message_shape(compressor, leaf.shape[-1], leaf.dtype))
        for leaf in jax.tree.leaves(vectors)
    ]
    return [
        jax.tree.map(lambda x, axes=axes: jnp.zeros((*axes, *x.shape), x.dtype), message)
        for axes, message in shapes
    ]


@runtime_checkable
class Contracting(Protocol):
    """A compressor, or a set of them: the contraction that it states for d elements, None where it
    states none.
    """

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
    """Raises a ValueError where one is layer by layer and the other of the whole model: their
    vectors differ.
    """
    if up.layer_wise != down.layer_wise:
        raise ValueError(
            f"{method} with {up.name} up and {down.name} down: need both layer by layer, or both "
            "of whole_model"
        )


def need_contraction(
    method: str, compressor: Contracting, vectors: PyTree, insist: str = ""
) -> None:
    """Raises a ValueError where the compressor states no contraction for vectors of these lengths,
    leaves `[..., d]`, or one is empty.

    Args:
        insist: how to take it all the same, of methods that let one.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(vectors):
        if leaf.shape[-1] == 0:
            raise ValueError(
                f"{method}: layer {jax.tree_util.keystr(path) or 'itself'} has no elements; need "
                "at least one"
            )
        delta = stated(compressor.delta, leaf.shape[-1])
        if delta is not None and not (checks.is_number(delta) and 0 < delta <= 1):
            raise ValueError(
                f"{method}: delta of {compressor.name} gives {checks.typed(delta)}; need a number "
                "in (0, 1], or None"
            )
        if delta is None:
            raise ValueError(
                f"{method} with {compressor.name}, which states no contraction for vectors of "
                f"{leaf.shape[-1]} elements: "
                "need one that does; compressors.contraction makes one of any that is "
                f"unbiased{insist and f' (or {insist})'}"
            )


def _compress(
    compressor: Compressor, keys: jax.Array, vectors: Parts, last: Any
) -> tuple[Messages, Parts]:
    """One message for each vector `[*axes, d]`, from the first of the keys along each axis; and the
    decoded vectors.
    """
    leaves, treedef = jax.tree.flatten(vectors)
    memories = [(message,) for message in last] if last else [()] * len(leaves)

    def one(key, x, *memory):
        message, decoded = encode(compressor, key, x, *memory)
        # the message is made in any case, and top_k's places are found only once
        if workers.devices() > 1:
            decoded = decode(compressor, message, x.shape[0])
        return message, decoded.astype(x.dtype)

    def of_leaf(i):
        mine = keys[tuple(map(slice, leaves[i].shape[:-1]))]
        # Where there is one leaf, the keys are its own: where messages are short, to make keys
        # takes longer than to draw from them.
        return (
            mine
            if len(leaves) == 1
            else _over(keys.ndim, lambda key: jax.random.fold_in(key, i))(mine)
        )

    sent = [
        _over(keys.ndim, one)(of_leaf(i), vector, *memory)
        for i, (vector, memory) in enumerate(zip(leaves, memories, strict=True))
    ]
    return [message for message, _ in sent], treedef.unflatten(decoded for _, decoded in sent)


def _mean_decoded(decoded: jax.Array, message: PyTree) -> jax.Array:
    """The mean over workers of their decoded messages, `[n, M, part]`, to `[M, part]`.

    A message that is the vector itself takes no arithmetic to make: on one long axis it is added up
    as it is made.
    """
    as_it_is = [sent.shape for sent in jax.tree.leaves(message)] == [decoded.shape]
    if as_it_is:
        return workers.mean(decoded.reshape(len(decoded), -1)).reshape(decoded.shape[1:])
    return workers.mean(decoded)


def _decompress(compressor: Compressor, messages: Messages, like: Parts) -> Parts:
    """Vectors of the shapes and types of `like`, leaves `[*axes, d]`."""
    leaves, treedef = jax.tree.flatten(like)
    return treedef.unflatten(
        _over(leaf.ndim - 1, partial(decode, compressor, d=leaf.shape[-1]))(message).astype(
            leaf.dtype
        )
        for message, leaf in zip(messages, leaves, strict=True)
    )


def _over(axes: int, function):
    for _ in range(axes):
        function = jax.vmap(function)
    return function


def _remember(compressor: Compressor, messages: Messages) -> Any:
    return messages if compressor.warm else ()


def _sizes(compressor: Compressor, messages: Messages, axes: int) -> int | jax.Array:
    """Bits of all leaves' messages together: an int where they are always as many, else uint32
    `[*axes]`.
    """
    fixed = [
        count_bits(compressor, jax.tree.map(lambda leaf: leaf[(0,) * axes], message))
        for message in messages
    ]
    if all(isinstance(bits, int) for bits in fixed):
        return sum(fixed)
    return sum(_over(axes, compressor.bits)(message) for message in messages)
