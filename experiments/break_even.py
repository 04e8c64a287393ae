"""When compression pays: the bandwidth below which a compressed round is faster than a plain one.

Both send 2(N - 1) messages one after another, to servers and back, so that latency is the same. The compressed round saves the transfer of
some bits and costs the time to encode and decode, measured here: that of one worker, who encodes N parts, decodes N as a server, encodes
their mean, and decodes the N parts of the result.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from dsgd import compressors
from dsgd.base import Compressor
from experiments import common


def bandwidth(compressor: Compressor, N: int, d: int, repeats: int = 7) -> float:
    """Bits per second of a port, below which it pays; 0 where it never does.

    Args:
        compressor: of both directions.
        N: number of workers.
        d: elements of the model.
        repeats: timings, of which the median counts.
    """
    part = -(-d // N)
    saved = compressors.identity.mean_bits(part) - compressor.mean_bits(part)
    if saved <= 0:
        return 0.0
    return 2 * (N - 1) * saved / codec_seconds(compressor, N, d, repeats)


def codec_seconds(compressor: Compressor, N: int, d: int, repeats: int) -> float:
    """What one worker spends on encoding and decoding in a round."""
    part = -(-d // N)
    parts = jax.random.normal(jax.random.key(0), (N, part))
    compress, decompress = jax.vmap(compressor.compress), jax.vmap(lambda message: compressor.decompress(message, part))

    def one_round(i, carry):
        parts, key = carry
        key, up_key, down_key = jax.random.split(key, 3)
        received = decompress(compress(jax.random.split(up_key, N), parts))
        answer = compressor.compress(down_key, jnp.mean(received, axis=0))
        everybody = decompress(jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (N, *leaf.shape)), answer))
        return parts + 1e-6 * everybody, key  # the next round needs this one's result

    rounds = max(1, 2**20 // d)  # a program is called in some 50 microseconds, which small vectors must not pay
    loop = common.program(
        lambda parts, key: jax.lax.fori_loop(0, rounds, one_round, (parts, key))[0],
        parts,
        jax.random.key(1),
    )
    return float(np.median([common.seconds(loop) for _ in range(repeats)])) / rounds


def tabulate(sizes: Mapping[str, int], pays: Mapping[tuple[str, int], float], N: int) -> Table:
    """One row a compressor, one column a size of the model.

    Args:
        sizes: elements of the model by heading.
        pays: `bandwidth` by compressor's name and elements.
        N: number of workers.
    """
    table = Table(title=f"compression pays below this bandwidth, Mbit/s ({N} workers)", caption="-: never; its messages are no shorter")
    table.add_column("compressor", no_wrap=True)
    for heading in sizes:
        table.add_column(heading, justify="right", no_wrap=True)
    for name in dict.fromkeys(name for name, _ in pays):
        table.add_row(name, *(megabits(pays[name, d]) for d in sizes.values()))
    return table


def megabits(bandwidth: float) -> str:
    """Bits per second as Mbit/s with three digits, "-" for 0."""
    if not bandwidth:
        return "-"
    exponent = int(np.floor(np.log10(bandwidth / 1e6)))
    return f"{round(bandwidth / 1e6, 2 - exponent):,.{max(0, 2 - exponent)}f}"
