"""Compressed messages: how they are made, sent and decoded.

For servers and rings, a vector is split into N shards, and worker n is the server of shard n. A
gradient is then a tree of shards with leaves `[n, M, part]` (each worker's part of every shard),
`[n, part]` (the shard that the worker serves) or `[N, part]` (the whole vector, the same on every
device). Only M <= N shards are not empty: 10 elements on 1,024 workers make ten shards. The servers
of the other shards are sent padding, which counts as bits; the state of workers, and the
computation on a single device, leave this padding out. The tree has the model's leaves, or, for
compressors of `compressors.whole_model`, one leaf, which is the model as one vector.

The messages, as packed arrays, are the only traffic between devices; messages to one server, which
is no worker, are simulated by sums of decoded vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from dsgd import checks, workers
from dsgd.base import Common, Compressor, Gradients, Params, PyTree
from dsgd.communication import bits
from dsgd.communication.bits import Arrays, Bits
from dsgd.communication.transports import Transport
from dsgd.compressors.members import constant_at, count_bits, decode, encode
from dsgd.compressors.sizes import fixed_bits, message_shape

Parts = PyTree
Messages = list[PyTree]  # one per leaf, with the leading axes of the leaf's vectors


class Delivery(NamedTuple):
    """The result of a compressed exchange.

    Args:
        received: the receivers' sum, mean or table of the decoded messages.
        decoded: the decoded messages of the workers' own vectors, of the shape of what was sent.
        messages: the messages, if the compressor starts from the previous message, else ().
        bits: bits of the exchange.
    """

    received: Parts
    decoded: Parts
    messages: Any
    bits: Bits


Sent = tuple[Delivery, Arrays]
"""What is delivered, and the arrays of one message."""


def send(
    transport: Transport,
    compressor: Compressor,
    key: jax.Array,
    tree: PyTree,
    N: int,
    last: Any = (),
    receive: Callable = lambda decoded, arrived: arrived,
    senders: jax.Array | None = None,
) -> Sent:
    """Sends one message from every worker.

    Args:
        transport: how the messages move.
        compressor: Q.
        key: random key, the same on every device.
        tree: leaves `[n, ...]`.
        N: number of workers.
        last: `messages` of the previous exchange, or ().
        receive: (decoded messages of the block's workers, leaves `[n, d]`, and those that arrive at
            them, `[m, d]`) -> vectors `[..., d]`, which become `received`; by default all that
            arrive.
        senders: workers that send a message, bool `[n]`; None: all. The messages of the others
            decode to 0.
    """
    vectors = flatten(tree, compressor.layer_wise)
    messages, decoded = _compress_rows(compressor, key, vectors, N, last)
    if senders is not None:
        without = last or messages, jax.tree.map(jnp.zeros_like, decoded)
        messages, decoded = jax.vmap(optax.tree.where)(senders, (messages, decoded), without)
    delivery = _deliver(transport, compressor, messages, decoded, receive)
    return _reshape(delivery, tree, compressor), bits.count_arrays(messages)


def to_servers(
    transport: Transport,
    compressor: Compressor,
    key: jax.Array,
    parts: Parts,
    N: int,
    last: Any = (),
) -> Sent:
    r"""Sends every worker's shards to the servers. Server n receives $\frac1N \sum_m Q(x_m)$ of
    shard n.

    Args:
        parts: leaves `[n, M, part]`.
        transport, compressor, key, N, last: as in `send`.

    Returns:
        A `Delivery`, with leaves `[n, part]` of `received`, and the arrays of the messages.
    """
    # On one device, messages to servers with empty shards need not be computed if their size is
    # known.
    if workers.devices() == 1 and all(
        fixed_bits(compressor, leaf.shape[-1], leaf.dtype) is not None
        for leaf in jax.tree.leaves(parts)
        if leaf.shape[1] < N
    ):
        vectors = parts
    else:
        vectors, last = pad_shards((parts, last), N, axis=1)
    # A key is folded in for each shard instead of being split, so that a shard's draws do not
    # depend on the number of shards that are compressed here.
    most = jnp.arange(max(leaf.shape[1] for leaf in jax.tree.leaves(vectors)))
    keys = jax.vmap(lambda own: jax.vmap(partial(jax.random.fold_in, own))(most))(
        workers.keys(key, N)
    )
    messages, decoded = _compress(compressor, keys, vectors, last, _common(key, N))

    def receive(decoded, arrived):
        if workers.devices() > 1:
            return jax.tree.map(jax.vmap(workers.mean_rows), arrived)
        by_leaf = jax.tree.unflatten(jax.tree.structure(decoded), messages)
        return pad_shards(jax.tree.map(_mean_decoded, decoded, by_leaf), N)

    delivery = _deliver(transport, compressor, messages, decoded, receive, axes=2)
    lengths = [leaf.shape[1] for leaf in jax.tree.leaves(parts)]
    delivery = delivery._replace(
        decoded=jax.tree.map(lambda leaf, own: leaf[:, : own.shape[1]], decoded, parts),
        messages=delivery.messages
        and [
            jax.tree.map(lambda x, M=M: x[:, :M], message)
            for message, M in zip(messages, lengths, strict=True)
        ],
    )
    return delivery, all_shards(bits.count_arrays(messages, axes=2), N)


def from_server(
    compressor: Compressor, key: jax.Array, tree: PyTree, N: int, last: Any = ()
) -> Sent:
    """Sends one message from one server to every worker.

    Args:
        tree: leaves `[...]`, the same on every device.
        compressor, key, N: as in `send`.
        last: `messages` of the previous message of the server, with a leading axis of length 1.

    Returns:
        A `Delivery`, with leaves `[...]` of `received` and `decoded`, and the arrays of the
        message.
    """
    rows = workers.replicate(tree, 1)
    vectors = flatten(rows, compressor.layer_wise)
    messages, decoded = _compress(compressor, key[None], vectors, last)
    size = _sizes(compressor, messages, 1)
    sent = bits.from_server(size if isinstance(size, int) else size[0], N)
    one = jax.tree.map(lambda leaf: leaf[0], decoded)
    delivery = Delivery(one, one, _remember(compressor, messages), sent)
    return _reshape(delivery, rows, compressor), bits.count_arrays(messages)


def ring_mean(
    transport: Transport, compressor: Compressor, key: jax.Array, parts: Parts, N: int
) -> Sent:
    r"""Computes a mean by a compressed ring all-reduce. Shard n starts at worker n, and every
    worker adds its own part on the way: N - 1 hops, then N - 1 forwards.

    $$ \frac1N Q(\cdots Q(Q(g_1) + g_2) + \cdots + g_N) \tag{3.5} $$

    Partial sums of half-precision parts are added, compressed and sent as float32, since they may
    be N times as large as the parts.

    Args:
        transport: how the messages of one hop move.
        parts: leaves `[n, M, part]`.
        compressor, key, N: as in `send`.

    Returns:
        A `Delivery`, with leaves `[N, part]` of `received`, the same on every device, and the
        arrays of the messages. `decoded` is (), because workers do not decode their own vectors.
    """
    original, ids = parts, workers.ids(N)
    parts = workers.widen(pad_shards(parts, N, axis=1))

    def part_of_hop(hop):
        """Returns each worker's part of the shard that reaches it at hop number `hop`."""
        shard = (ids - hop) % N
        return jax.tree.map(lambda leaf: leaf[jnp.arange(ids.shape[0]), shard], parts)

    def compress(hop, vectors):
        return _compress_rows(compressor, jax.random.fold_in(key, hop), vectors, N)[0]

    def hop(i, carry):
        messages, total_bits = carry
        arrived = transport.move(messages)
        total_bits += transport.bits(
            _sizes(compressor, messages, 1), _sizes(compressor, arrived, 1)
        )
        part = part_of_hop(i)
        total = jax.tree.map(jnp.add, _decompress(compressor, arrived, part), part)
        return compress(i, total), total_bits

    messages, sent = lax.fori_loop(1, N, hop, (compress(0, part_of_hop(0)), bits.none(N)))
    gathered = workers.gather(messages)  # worker i holds shard i + 1 after the last hop
    totals = _decompress(compressor, gathered, part_of_hop(0))
    mean = jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0) / N, totals)
    # A worker forwards all shards except the one that its successor holds, and receives all except
    # the one that it holds itself.
    sizes = _sizes(compressor, gathered, 1)
    sent += Bits(bits.to_others(sizes, N, but=(ids + 1) % N), bits.to_others(sizes, N))
    delivery = Delivery(workers.narrow(mean, original), (), (), sent)
    return delivery, all_shards(bits.count_arrays(messages), N)


def all_shards(shard: Arrays, N: int) -> Arrays:
    """Returns the arrays of a shard with the bits of all N shards, which N workers send or serve at
    the same time.
    """
    return shard._replace(bits=N * shard.bits)


def flatten(tree: PyTree, layer_wise: bool) -> PyTree:
    """Returns leaves `[n, ...]` as the vectors that are compressed, `[n, d]`: one per leaf if
    `layer_wise`, else one vector of all leaves.
    """
    if not layer_wise:
        tree = jax.vmap(lambda one: ravel_pytree(one)[0])(tree)
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], -1), tree)


def unflatten(vectors: PyTree, like: PyTree, layer_wise: bool) -> PyTree:
    """Reshapes vectors `[..., d]` to the tree with leaves `[n, ...]`: the inverse of `flatten`.

    Args:
        vectors: leaves `[..., d]`, with any axes in place of the workers' axis.
        like: a tree of the original shapes and types.
        layer_wise: as in `flatten`.
    """
    if layer_wise:
        return jax.tree.map(
            lambda vector, leaf: vector.reshape(*vector.shape[:-1], *leaf.shape[1:]), vectors, like
        )
    unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], like))[1]
    return _map_axes(vectors.ndim - 1, unravel)(vectors)


def shards(tree: Gradients, N: int, compressor: Compressor) -> Parts:
    """Splits leaves `[n, ...]` into shards for N servers, `[n, M, part]`.

    The last shard is padded with zeros. They do not change a vector's norm, so that omega and delta
    of the padded shard bound the error of the unpadded one. The N - M shards of padding alone are
    left out.
    """

    def cut_vector(x):
        part = -(-x.shape[1] // N)
        M = -(-x.shape[1] // part) if part else 1
        return jnp.pad(x, ((0, 0), (0, M * part - x.shape[1]))).reshape(x.shape[0], M, part)

    return jax.tree.map(cut_vector, flatten(tree, compressor.layer_wise))


def start_shards(
    method: str, params: Params, N: int, up: Compressor, down: Compressor, insist: str | None = ""
) -> tuple[Parts, Parts]:
    """Returns the shards of workers and servers before the first round.

    Args:
        method: name of the method, for the error message.
        params: a model.
        N: number of workers.
        up, down: the workers' and the servers' compressors; contractions.
        insist: the argument by which a user can allow other compressors, for the error message;
            None: all compressors are allowed.

    Returns:
        Zeros of the shape of every worker's shards, leaves `[N, M, part]`; and the shard of the
        model that each server owns, leaves `[N, part]`.

    Raises:
        ValueError: if a compressor states no contraction for a shard.
    """
    model_shards = shards(workers.replicate(params, 1), N, up)
    served = pad_shards(jax.tree.map(lambda leaf: leaf[0], model_shards), N)
    if insist is not None:
        for compressor in (up, down):
            require_contraction(method, compressor, served, insist)
    return workers.replicate(
        jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), model_shards), N
    ), served


def pad_shards(parts: PyTree, N: int, axis: int = 0) -> PyTree:
    """Pads an axis with zeros for the servers of empty shards: leaves `[M, ...]` become
    `[N, ...]`.
    """

    def pad(leaf):
        short = N - leaf.shape[axis]
        return (
            jnp.pad(leaf, [(0, short * (i == axis)) for i in range(leaf.ndim)]) if short else leaf
        )

    return jax.tree.map(pad, parts)


def unshard(parts: Parts, like: Params, compressor: Compressor) -> Params:
    """Reassembles the tree that `shards` split into these parts, `[M, part]` or `[N, part]`.

    Args:
        parts: the shards.
        like: a tree of the original shapes and types.
        compressor: as in `shards`.
    """
    if compressor.layer_wise:
        return jax.tree.map(
            lambda part, leaf: part.ravel()[: leaf.size].reshape(leaf.shape), parts, like
        )
    flat, unravel = ravel_pytree(like)
    return unravel(parts.ravel()[: flat.size])


def last_messages(compressor: Compressor, vectors: Parts) -> Any:
    """Returns the initial "previous messages" for vectors `[..., d]`: zeros if the compressor
    starts from the previous message, else ().
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
    """A compressor, or a set of compressors, that may state a contraction."""

    @property
    def delta(self) -> Callable | None:
        """Function from the number of elements d to the contraction, or to None if none is stated
        for d; None if the compressor states none for any d.
        """
        ...

    @property
    def name(self) -> str:
        """The name in tables and error messages."""
        ...

    @property
    def layer_wise(self) -> bool:
        """Whether every leaf is compressed on its own."""
        ...


def require_two(method: str, up: Contracting, down: Contracting) -> None:
    """Raises ValueError if one compressor is layer-wise and the other compresses the whole model,
    since the vectors of the two differ.
    """
    if up.layer_wise != down.layer_wise:
        raise ValueError(
            f"{method}: {up.name} up and {down.name} down; expected both layer by layer, or both "
            "wrapped in compressors.whole_model"
        )


def require_contraction(
    method: str, compressor: Contracting, vectors: PyTree, insist: str = ""
) -> None:
    """Raises ValueError if the compressor states no contraction for vectors of these lengths,
    leaves `[..., d]`, or if a leaf is empty.

    Args:
        method: name of the method, for the error message.
        compressor: the compressor, or the set of compressors.
        vectors: leaves `[..., d]`.
        insist: how a user can allow other compressors, for the error message; "" if that is not
            possible.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(vectors):
        if leaf.shape[-1] == 0:
            raise ValueError(
                f"{method}: layer {jax.tree_util.keystr(path) or 'itself'} has no elements; "
                "expected at least one"
            )
        delta = constant_at(compressor.delta, leaf.shape[-1])
        if delta is not None and not (checks.is_number(delta) and 0 < delta <= 1):
            raise ValueError(
                f"{method}: delta of {compressor.name} returns {checks.kind(delta)}; expected a "
                "number in (0, 1], or None"
            )
        if delta is None:
            raise ValueError(
                f"{method}: {compressor.name} states no contraction for vectors of "
                f"{leaf.shape[-1]} elements; expected a compressor that states one: "
                "compressors.contraction makes one of any unbiased compressor"
                f"{insist and f' (or pass {insist})'}"
            )


def _common(key: jax.Array, N: int) -> Common:
    """Returns what the block's workers share in an exchange with this key."""
    return Common.of_exchange(key, workers.ids(N), N)


def _compress_rows(
    compressor: Compressor, key: jax.Array, vectors: PyTree, N: int, last: Any = ()
) -> tuple[Messages, PyTree]:
    """Compresses one vector of each worker, leaves `[n, d]`, in an exchange with this key."""
    return _compress(compressor, workers.keys(key, N), vectors, last, _common(key, N))


def _compress(
    compressor: Compressor, keys: jax.Array, vectors: Parts, last: Any, common: Common | None = None
) -> tuple[Messages, Parts]:
    """Compresses each vector `[*axes, d]` with the leading keys along each axis: `[n]`, or `[n, M]`
    for shards. Returns the messages and the decoded vectors.

    Args:
        compressor, keys, vectors, last: as in `send`.
        common: what the n senders share; the workers' shards of equal number share a key.
    """
    leaves, treedef = jax.tree.flatten(vectors)
    memories = [(message,) for message in last] if last else [()] * len(leaves)

    def encode_vector(key, common, x, *memory):
        message, decoded = encode(compressor, key, x, *memory, common=common)
        # On several devices the message is computed in any case; decoding it avoids a second search
        # for top_k's positions.
        if workers.devices() > 1:
            decoded = decode(compressor, message, x.shape[0])
        return message, decoded.astype(x.dtype)

    def encode_leaf(keys, common, vectors, *memory):
        # The common key is not an argument of the mapped functions, so that what is drawn from it
        # is drawn once for all workers.
        def encode_row(keys, worker, vectors, *memory):
            own = common and common._replace(worker=worker)
            if keys.ndim == 0:
                return encode_vector(keys, own, vectors, *memory)

            def encode_shard(shard, key, x, *memory):
                return encode_vector(key, own and own.fold_in(shard), x, *memory)

            return jax.vmap(encode_shard)(np.arange(keys.shape[0]), keys, vectors, *memory)

        ids = np.arange(keys.shape[0]) if common is None else common.worker
        return jax.vmap(encode_row)(keys, ids, vectors, *memory)

    def leaf_keys(i):
        own = keys[tuple(map(slice, leaves[i].shape[:-1]))]
        # A single leaf uses the keys as they are: for short messages, folding in an index takes
        # longer than drawing from the key.
        if len(leaves) == 1:
            return own, common
        folded = _map_axes(keys.ndim, lambda key: jax.random.fold_in(key, i))(own)
        return folded, common and common.fold_in(i)

    sent = [
        encode_leaf(*leaf_keys(i), vector, *memory)
        for i, (vector, memory) in enumerate(zip(leaves, memories, strict=True))
    ]
    return [message for message, _ in sent], treedef.unflatten(decoded for _, decoded in sent)


def _deliver(
    transport: Transport,
    compressor: Compressor,
    messages: Messages,
    decoded: Parts,
    receive: Callable,
    axes: int = 1,
) -> Delivery:
    """Moves messages and decodes those that arrive; leaves have `axes` axes before the vectors'."""
    arrived = transport.move(messages)
    sizes = (_sizes(compressor, each, axes) for each in (messages, arrived))
    # On one device, or in place of one server, the senders' decoded vectors are used.
    decodes = workers.devices() > 1 and not transport.simulated
    vectors = _decompress(compressor, arrived, decoded) if decodes else decoded
    return Delivery(
        receive(decoded, vectors),
        decoded,
        _remember(compressor, messages),
        transport.bits(*sizes),
    )


def _reshape(delivery: Delivery, like: PyTree, compressor: Compressor) -> Delivery:
    """Reshapes the delivered vectors to the tree that they were made of."""
    received, decoded = (
        unflatten(vectors, like, compressor.layer_wise)
        for vectors in (delivery.received, delivery.decoded)
    )
    return delivery._replace(received=received, decoded=decoded)


def _mean_decoded(decoded: jax.Array, message: PyTree) -> jax.Array:
    """Returns the mean over workers of their decoded messages, `[n, M, part]` to `[M, part]`.

    If the message is the vector itself, decoding needs no arithmetic, and the mean is faster over
    one long axis, where the vectors are summed while they are computed.
    """
    as_it_is = [sent.shape for sent in jax.tree.leaves(message)] == [decoded.shape]
    if as_it_is:
        return workers.mean(decoded.reshape(len(decoded), -1)).reshape(decoded.shape[1:])
    return workers.mean(decoded)


def _decompress(compressor: Compressor, messages: Messages, like: Parts) -> Parts:
    """Decodes messages to vectors of the lengths and types of `like`, leaves `[*axes, d]`; the
    lengths of the axes are those of the messages.
    """
    leaves, treedef = jax.tree.flatten(like)
    return treedef.unflatten(
        _map_axes(leaf.ndim - 1, partial(decode, compressor, d=leaf.shape[-1]))(message).astype(
            leaf.dtype
        )
        for message, leaf in zip(messages, leaves, strict=True)
    )


def _map_axes(axes: int, function):
    for _ in range(axes):
        function = jax.vmap(function)
    return function


def _remember(compressor: Compressor, messages: Messages) -> Any:
    return messages if compressor.warm else ()


def _sizes(compressor: Compressor, messages: Messages, axes: int) -> int | jax.Array:
    """Returns the bits of all leaves' messages together: an int if the size is fixed, else uint32
    `[*axes]`.
    """
    fixed = [
        count_bits(compressor, jax.tree.map(lambda leaf: leaf[(0,) * axes], message))
        for message in messages
    ]
    if all(isinstance(bits, int) for bits in fixed):
        return sum(fixed)
    return sum(_map_axes(axes, compressor.bits)(message) for message in messages)
