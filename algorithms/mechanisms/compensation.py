"""Means of vectors that are compressed in both directions, with error memories at both ends."""

from __future__ import annotations

from typing import Any, NamedTuple

import optax

from algorithms import methods
from dsgd import Communicator, Compressor, communication
from dsgd.extend import Params, PyTree


class Memory(NamedTuple):
    """Error memories: what compression has left out so far.

    Args:
        worker: e of each worker, leaves `[n, M, part]`.
        server: e of the server's shard, leaves `[n, part]`.
        up, down: the last messages, from which warm-started compressors start.
    """

    worker: Any
    server: Any
    up: Any
    down: Any


def start(method: str, like: Params, N: int, compressor: Compressor) -> Memory:
    """Returns the memories before the first `exchange`, which are zeros.

    Args:
        method: name of the method, for the error message.
        like: a tree with the shapes and types of the vectors, without the worker axis.
        N: number of workers.
        compressor: of the workers and of the servers.

    Raises:
        ValueError: if the compressor states no contraction for a shard.
    """
    zeros = optax.tree.zeros_like(like)
    worker, server = communication.start_shards(method, zeros, N, compressor, compressor)
    last = [communication.last_messages(compressor, part) for part in (worker, server)]
    return Memory(worker, server, *last)


def exchange(
    compressor: Compressor, vectors: PyTree, memory: Memory, round: Communicator
) -> tuple[PyTree, Memory]:
    """Returns the mean of the workers' vectors, leaves `[n, ...]`, after compression in both
    directions, leaves `[...]`; and the memories after it.
    """
    z = optax.tree.add(communication.shards(vectors, round.workers, compressor), memory.worker)
    sent = round.to_servers(compressor, z, memory.up)
    s = optax.tree.add(sent.received, memory.server)
    answer = round.from_servers(compressor, s, memory.down)
    error, server_error = optax.tree.sub((z, s), (sent.decoded, answer.decoded))
    mean = communication.unshard(answer.received, methods.first(vectors), compressor)
    return mean, Memory(error, server_error, sent.messages, answer.messages)
