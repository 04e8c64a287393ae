"""When compression pays: the bandwidth below which a compressed round is faster than a plain one.

Both send 2(N - 1) messages one after another, to servers and back, so that latency is the same. The
compressed round saves the transfer of some bits and costs time to encode and decode: that of one
worker, who encodes N parts, decodes N as a server, encodes their mean, and decodes the N parts of
the result. It is what these take longer than in a plain round, which has the same arrays to copy
and to average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from dsgd import compressors
from dsgd.base import Compressor
from experiments.shared import tables, timing


def bandwidth(compressor: Compressor, N: int, d: int, repeats: int = 9) -> float:
    """Bits per second of a port, below which it pays; 0 where it never does, infinity where
    encoding takes no longer than copying.

    Args:
        compressor: of both directions, without error memory.
        N: number of workers.
        d: elements of the model.
        repeats: pairs of timings, of which the median difference counts.
    """
    part = -(-d // N)
    saved = (
        2
        * (N - 1)
        * (
            compressors.mean_bits(compressors.identity, part)
            - compressors.mean_bits(compressor, part)
        )
    )
    if saved <= 0:
        return 0.0
    taken = codec_seconds(compressor, N, d, repeats)
    return saved / taken if taken > 0 else float("inf")


def codec_seconds(compressor: Compressor, N: int, d: int, repeats: int) -> float:
    """What one worker's round takes longer than without compression."""
    # a program is called in some 50 microseconds, which small vectors must not pay
    rounds = max(4, 2**18 // d)
    plain, compressed = (
        exchange_loop(each, N, d, rounds) for each in (compressors.identity, compressor)
    )
    return (
        float(
            np.median([timing.seconds(compressed) - timing.seconds(plain) for _ in range(repeats)])
        )
        / rounds
    )


def exchange_loop(compressor: Compressor, N: int, d: int, rounds: int) -> Callable[[], object]:
    """So many rounds of one worker's work, compiled. Every message is carried from one iteration to
    the next, and so is really written.
    """
    part = -(-d // N)

    def compress(key, x):
        return compressors.encode(compressor, key, x).message

    compress_all, decompress = (
        jax.vmap(compress),
        jax.vmap(lambda message: compressor.decompress(message, part)),
    )

    def one_round(i, carry):
        parts, up, down, key = carry
        key, up_key, down_key = jax.random.split(key, 3)
        answer = compress(down_key, jnp.mean(decompress(up), axis=0))
        everybody = decompress(
            jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (N, *leaf.shape)), down)
        )
        parts = parts + 1e-6 * everybody  # no two rounds are the same
        return parts, compress_all(jax.random.split(up_key, N), parts), answer, key

    def loop(parts, key):
        start = parts, compress_all(jax.random.split(key, N), parts), compress(key, parts[0]), key
        return jax.lax.fori_loop(0, rounds, one_round, start)[:-1]

    return timing.program(loop, jax.random.normal(jax.random.key(0), (N, part)), jax.random.key(1))


def tabulate(sizes: Mapping[str, int], pays: Mapping[tuple[str, int], float], N: int) -> Table:
    """One row a compressor, one column a size of the model.

    Args:
        sizes: elements of the model by heading.
        pays: `bandwidth` by compressor's name and elements.
        N: number of workers.
    """
    table = tables.table(
        f"compression pays below this bandwidth, Mbit/s ({N} workers)",
        ("compressor", *sizes),
        "-: never; its messages are no shorter.\n"
        "any: encoding and decoding take no longer than copying.",
    )
    for name in dict.fromkeys(name for name, _ in pays):
        table.add_row(name, *(megabits(pays[name, d]) for d in sizes.values()))
    return table


def megabits(bandwidth: float) -> str:
    """Bits per second as Mbit/s with three digits, "-" for 0, "any" for infinity."""
    if not bandwidth:
        return "-"
    if not np.isfinite(bandwidth):
        return "any"
    exponent = int(np.floor(np.log10(bandwidth / 1e6)))
    return f"{round(bandwidth / 1e6, 2 - exponent):,.{max(0, 2 - exponent)}f}"
