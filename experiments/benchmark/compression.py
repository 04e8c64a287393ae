"""Throughput of every compressor, relative to a lower bound of its cost.

    python -m experiments.benchmark compression

An encode must at least draw random numbers (as `jax.random.uniform` does) or select elements (as
`jax.lax.top_k` does), read the vector once, and write the message once. The encode and these
operations are timed in the same run, in turns; reading and writing are timed as the corresponding
share of a copy. `cost` is the time of the encode over the sum of their times, the median over pairs
of timings. Throughput is in bytes of the float32 vector, 4 d, independent of the size of the
message.
"""

from __future__ import annotations

# The script was run by its path. Then JAX would find this file as Python 3.14's module
# `compression`.
if __name__ == "compression":
    raise ImportError(
        "experiments/benchmark/compression.py is not a module of Python; run commands as python "
        "-m experiments.<name>"
    )

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from dsgd import compressors
from dsgd.base import Compressor
from dsgd.compressors.sizes import FLOAT_BITS
from experiments.shared import commands, tables, timing

FRACTION = 0.01

Program = Callable[[], object]


@dataclass(frozen=True)
class Args:
    """Times every compressor and the operations that it needs."""

    dimensions: tuple[commands.Count, ...] = (2**20, 2**24)
    """Elements d of the vector."""
    repeats: commands.Count = 9
    """Timings of each program."""
    out: Path = Path("results/benchmark/compression")
    """Folder for config.json, throughput.csv and a table for each dimension."""


class Candidate(NamedTuple):
    """A compressor, and the measured operations that it needs."""

    compressor: Compressor
    needs: tuple[str, ...] = ()


CANDIDATES = (
    Candidate(compressors.identity),
    Candidate(compressors.random_quantization(1), ("uniform",)),
    Candidate(compressors.random_quantization(3), ("uniform",)),
    Candidate(compressors.random_quantization(4), ("uniform",)),
    Candidate(compressors.random_quantization(8), ("uniform",)),
    Candidate(compressors.random_quantization(4, bucket=512), ("uniform",)),
    Candidate(compressors.qsgd(7), ("uniform",)),
    Candidate(compressors.ternary, ("uniform",)),
    Candidate(compressors.clipped_ternary(2.5), ("uniform",)),
    Candidate(compressors.natural, ("uniform",)),
    Candidate(compressors.sign),
    Candidate(compressors.clipping(4)),
    Candidate(compressors.clipping(7)),
    Candidate(compressors.random_sparsification(FRACTION), ("uniform of k",)),
    Candidate(compressors.random_k(FRACTION), ("uniform", "top_k")),
    Candidate(compressors.shared_random_k(FRACTION), ("uniform of k",)),
    Candidate(compressors.with_seed(compressors.random_block(FRACTION))),
    Candidate(compressors.with_seed(compressors.count_sketch(5, 1_000))),
    Candidate(compressors.perm_k(16)),
    Candidate(compressors.correlated_quantization(1), ("uniform",)),
    Candidate(compressors.top_k(FRACTION), ("top_k",)),
    Candidate(compressors.top_k(FRACTION, compressors.random_quantization(4)), ("top_k",)),
    Candidate(compressors.low_rank(4), ("products",)),
    Candidate(compressors.block_top_k(FRACTION, 256)),
    Candidate(compressors.threshold(2.5)),
    Candidate(compressors.sampled_top_k(FRACTION), ("uniform of k",)),
    Candidate(compressors.sidco(FRACTION, 2)),
    Candidate(compressors.variance_optimal(FRACTION), ("uniform",)),
    Candidate(compressors.rotated(compressors.random_quantization(4)), ("uniform",)),
    Candidate(compressors.drive()),
    Candidate(compressors.eden(4)),
    Candidate(
        compressors.induced(compressors.top_k(FRACTION), compressors.random_k(FRACTION)),
        ("top_k", "uniform", "top_k"),
    ),
    Candidate(compressors.repeated(compressors.sign, 2)),
)


class Speed(NamedTuple):
    """Speed of one compressor: bytes of the vector per second, and the cost of an encode relative
    to the lower bound.
    """

    bits: float
    encode: float
    decode: float
    cost: float


def main(args: Args) -> None:
    if not args.dimensions or min(args.dimensions) < 16 or args.repeats < 1:
        raise ValueError(
            f"dimensions = {args.dimensions}, repeats = {args.repeats}: expected dimensions of at "
            "least 16, repeats of at least 1"
        )
    commands.begin(args)
    columns = (
        "dimension",
        "program",
        "bits_per_element",
        "encode_bytes_per_second",
        "decode_bytes_per_second",
        "cost",
    )
    rows: list[tuple] = []
    with commands.kept_rows(args.out / "throughput.csv", columns, rows):
        for d in args.dimensions:
            references, speeds = measure(args, d)
            rows += [(d, name, "", rate, "", "") for name, rate in references.items()]
            rows += [(d, name, *speed) for name, speed in speeds.items()]
            tables.show(
                tables.console(), tabulate(d, references, speeds), args.out / f"table_{d}.csv"
            )


def measure(args: Args, d: int) -> tuple[dict[str, float], dict[str, Speed]]:
    """Returns the bytes of the vector per second of each reference operation, and the speed of each
    compressor.
    """
    key, x = jax.random.key(0), jax.random.normal(jax.random.key(1), (d,))
    references = reference_programs(key, x)
    times: dict[str, list[np.ndarray]] = {name: [] for name in references}
    speeds = {}
    for compressor, needs in CANDIDATES:
        encode, decode, bits = codec(compressor, key, x)
        programs = {name: references[name] for name in ("copy", *needs)}
        taken = timing.in_turn({"encode": encode, "decode": decode, **programs}, args.repeats)
        for name in programs:
            times[name].append(taken[name])
        # share of a copy's bytes: one read, one packed write
        moved = (FLOAT_BITS * d + bits) / (2 * FLOAT_BITS * d)
        least = moved * taken["copy"] + sum(taken[name] for name in needs)
        cost = float(np.median(taken["encode"] / least))
        encoded, decoded = (4 * d / float(np.median(taken[name])) for name in ("encode", "decode"))
        speeds[compressor.name] = Speed(bits / d, encoded, decoded, cost)
    rates = {name: 4 * d / float(np.median(np.concatenate(taken))) for name, taken in times.items()}
    return rates, speeds


def reference_programs(key: jax.Array, x: jax.Array) -> dict[str, Program]:
    """Returns the operations that an encode needs, each compiled as a separate program."""
    d, side = x.shape[0], int(np.sqrt(x.shape[0]))
    k = max(1, round(FRACTION * d))
    thin = jnp.ones((side, 4))

    def products(x):
        matrix = x[: side * side].reshape(side, side)
        return matrix.T @ (matrix @ thin)

    functions = {
        "copy": (jnp.negative, x),  # a plain copy might not be compiled
        "uniform": (lambda key: jax.random.uniform(key, (d,)), key),
        "uniform of k": (lambda key: jax.random.uniform(key, (k,)), key),
        "top_k": (lambda x: jax.lax.top_k(jnp.abs(x), k), x),
        "products": (products, x),
    }
    return {
        name: timing.program(function, argument) for name, (function, argument) in functions.items()
    }


def codec(compressor: Compressor, key: jax.Array, x: jax.Array) -> tuple[Program, Program, float]:
    """Returns compiled encode and decode, and the bits of a message."""
    encode = timing.program(lambda key, x: compressors.encode(compressor, key, x).message, key, x)
    message = compressors.encode(compressor, key, x).message
    return (
        encode,
        timing.program(lambda message: compressor.decompress(message, x.shape[0]), message),
        float(compressor.bits(message)),
    )


def tabulate(d: int, references: dict[str, float], speeds: dict[str, Speed]) -> Table:
    """Tabulates one row per program."""
    table = tables.table(
        f"throughput, GB of float32 per second, d = {d:,} (medians)",
        ("program", "bits/\nelement", "encode", "decode", "cost"),
        "cost: time of an encode / time of the operations that it needs (random numbers\nor "
        "selection, one read, one packed write), median over pairs",
    )
    for name, rate in references.items():
        table.add_row(name, "", f"{rate / 1e9:.3g}", "", "")
    table.add_section()
    for name, speed in speeds.items():
        table.add_row(
            name,
            f"{speed.bits:.3g}",
            f"{speed.encode / 1e9:.3g}",
            f"{speed.decode / 1e9:.3g}",
            f"{speed.cost:.2f}",
        )
    return table
