"""Break-even bandwidth of compression: the bandwidth below which a compressed round is faster than
an uncompressed one.

Both rounds send 2(N - 1) messages one after another, to servers and back, so their latency is the
same. The compressed round transfers fewer bits, and takes time to encode and decode: one worker
encodes N parts, decodes N parts as a server, encodes their mean, and decodes the N parts of the
result. The cost of the codec is the time of these operations beyond that of an uncompressed round,
which copies and averages the same arrays.
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
    """Returns the bandwidth of a port, bits per second, below which compression pays; 0 if it never
    pays, infinity if encoding takes no longer than copying.

    Args:
        compressor: compressor of both directions, without error memory.
        N: number of workers.
        d: elements of the model.
        repeats: pairs of timings; their median difference is used.
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
    """Returns the seconds by which one worker's round is longer than without compression."""
    # A call of a program takes about 50 microseconds, which would distort the times of small
    # vectors.
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
    """Returns a compiled program that does one worker's work of the given number of rounds. Every
    message is carried from one iteration to the next, so that it is actually written to memory.
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
        decoded = decompress(
            jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (N, *leaf.shape)), down)
        )
        parts = parts + 1e-6 * decoded  # makes every round different
        return parts, compress_all(jax.random.split(up_key, N), parts), answer, key

    def loop(parts, key):
        start = parts, compress_all(jax.random.split(key, N), parts), compress(key, parts[0]), key
        return jax.lax.fori_loop(0, rounds, one_round, start)[:-1]

    return timing.program(loop, jax.random.normal(jax.random.key(0), (N, part)), jax.random.key(1))


def tabulate(sizes: Mapping[str, int], pays: Mapping[tuple[str, int], float], N: int) -> Table:
    """Tabulates one row per compressor, with one column per model size.

    Args:
        sizes: elements of the model by heading.
        pays: `bandwidth` by compressor's name and elements.
        N: number of workers.
    """
    table = tables.table(
        f"bandwidth below which compression pays, Mbit/s ({N} workers)",
        ("compressor", *sizes),
        "-: never (messages are not smaller).\nany: always (encoding and decoding are as fast as "
        "copying).",
    )
    for name in dict.fromkeys(name for name, _ in pays):
        table.add_row(name, *(megabits(pays[name, d]) for d in sizes.values()))
    return table


def megabits(bandwidth: float) -> str:
    """Formats bits per second as Mbit/s with three digits; "-" for 0, "any" for infinity."""
    if not bandwidth:
        return "-"
    if not np.isfinite(bandwidth):
        return "any"
    exponent = int(np.floor(np.log10(bandwidth / 1e6)))
    return f"{round(bandwidth / 1e6, 2 - exponent):,.{max(0, 2 - exponent)}f}"
