"""Throughput of every compressor, beside the least that it can cost.

    python -m experiments.benchmark compression

An encode must do what cannot be left out (draw random numbers, as `jax.random.uniform` does, or
select, as `jax.lax.top_k` does), read the vector once, and write the message once. Both are timed
in the same run, in turns, the second as that share of a copy: `cost` is the encode over their sum,
the median over pairs of timings. Throughput is in bytes of the float32 vector, 4 d, whatever the
size of the message.
"""

from __future__ import annotations

# a script that was run by its path: beside it, JAX looks for Python 3.14's module of this name
if __name__ == "compression":
    raise ImportError(
        "experiments/benchmark/compression.py is no module of Python's: run scripts as python -m "
        "experiments.<name>"
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
    """Times every compressor beside a copy, random numbers and a selection."""

    dimensions: tuple[commands.Count, ...] = (2**20, 2**24)
    """Elements d of the vector."""
    repeats: commands.Count = 9
    """Timings of each program."""
    out: Path = Path("results/benchmark/compression")
    """Folder for config.json, throughput.csv and a table for each dimension."""


class Candidate(NamedTuple):
    """A compressor, and which of the measured programs it cannot do without."""

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
    Candidate(compressors.natural, ("uniform",)),
    Candidate(compressors.sign),
    Candidate(compressors.clipping(4)),
    Candidate(compressors.clipping(7)),
    Candidate(compressors.random_sparsification(FRACTION), ("uniform of k",)),
    Candidate(compressors.random_k(FRACTION), ("uniform", "top_k")),
    Candidate(compressors.top_k(FRACTION), ("top_k",)),
    Candidate(compressors.top_k(FRACTION, compressors.random_quantization(4)), ("top_k",)),
    Candidate(compressors.low_rank(4), ("products",)),
)


class Speed(NamedTuple):
    """Of one compressor: bytes of the vector a second, and the cost of an encode in units of the
    least.
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
    """Bytes of the vector a second of each reference, and of each compressor."""
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
        # of a copy's bytes: one read, one packed write
        moved = (FLOAT_BITS * d + bits) / (2 * FLOAT_BITS * d)
        least = moved * taken["copy"] + sum(taken[name] for name in needs)
        cost = float(np.median(taken["encode"] / least))
        encoded, decoded = (4 * d / float(np.median(taken[name])) for name in ("encode", "decode"))
        speeds[compressor.name] = Speed(bits / d, encoded, decoded, cost)
    rates = {name: 4 * d / float(np.median(np.concatenate(taken))) for name, taken in times.items()}
    return rates, speeds


def reference_programs(key: jax.Array, x: jax.Array) -> dict[str, Program]:
    """What an encode cannot do without, each on its own, compiled."""
    d, side = x.shape[0], int(np.sqrt(x.shape[0]))
    k = max(1, round(FRACTION * d))
    thin = jnp.ones((side, 4))

    def products(x):
        matrix = x[: side * side].reshape(side, side)
        return matrix.T @ (matrix @ thin)

    functions = {
        "copy": (jnp.negative, x),  # a plain copy may not be compiled at all
        "uniform": (lambda key: jax.random.uniform(key, (d,)), key),
        "uniform of k": (lambda key: jax.random.uniform(key, (k,)), key),
        "top_k": (lambda x: jax.lax.top_k(jnp.abs(x), k), x),
        "products": (products, x),
    }
    return {
        name: timing.program(function, argument) for name, (function, argument) in functions.items()
    }


def codec(compressor: Compressor, key: jax.Array, x: jax.Array) -> tuple[Program, Program, float]:
    """Encode and decode, compiled, and the bits of a message."""
    encode = timing.program(lambda key, x: compressors.encode(compressor, key, x).message, key, x)
    message = compressors.encode(compressor, key, x).message
    return (
        encode,
        timing.program(lambda message: compressor.decompress(message, x.shape[0]), message),
        float(compressor.bits(message)),
    )


def tabulate(d: int, references: dict[str, float], speeds: dict[str, Speed]) -> Table:
    """One row a program."""
    table = tables.table(
        f"throughput in GB of float32 a second, d = {d:,} (medians)",
        ("program", "bits/\nelement", "encode", "decode", "cost"),
        "cost: an encode over what it cannot do without (random numbers or\nselection, one read, "
        "one packed write), the median over pairs",
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
