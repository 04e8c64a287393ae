"""Time to encode and to decode a vector with every compressor, relative to a copy of the vector.

    python -m experiments.benchmark compression

Each compressor's programs and the copy take turns; a cost is the median over the turns of the ratio
of their seconds. The programs are lowered as those of runs. An encode computes the message only; a
method that needs the decoded vector as well computes both in one program. The first rows are the
costs of operations that many compressors need: random numbers (`jax.random.uniform`), the
selection of the largest elements (`jax.lax.top_k`), and the matrix products of a low rank.
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

from dsgd import Compressor, compressors
from dsgd.compressors import buckets, cast, natural_dithering, qsgd, random_quantization
from experiments.shared import commands, tables, timing

FRACTION = 0.01
MOST = 20  # copies; a compressor that takes more has the reason in its docstring

Program = Callable[[], object]


@dataclass(frozen=True)
class Args:
    """Times every compressor next to a copy of the same vector."""

    dimensions: tuple[commands.Count, ...] = (2**20, 2**24)
    """Elements d of the vector."""
    repeats: commands.Count = 9
    """Timings of each program."""
    only: tuple[str, ...] = ()
    """Texts: compressors with one of them in their name; all without texts."""
    out: Path = Path("results/benchmark/compression")
    """Folder for config.json, copies.csv and a table for each dimension."""


# Every public compressor is in this list: a test checks it.
CANDIDATES: tuple[Compressor, ...] = (
    compressors.identity,
    random_quantization(1),
    random_quantization(3),
    random_quantization(4),
    random_quantization(8),
    buckets(random_quantization(4), 512),
    qsgd(7),
    qsgd(7, "linf"),
    compressors.ternary,
    compressors.clipped_ternary(),
    compressors.natural,
    natural_dithering(7),
    cast("float16", "none"),
    cast("bfloat16"),
    cast("bfloat16", stochastic=True),
    cast("float8_e4m3fn"),
    cast("float4_e2m1fn", stochastic=True),
    buckets(cast("float4_e2m1fn", "power"), 32),
    compressors.e3m0,
    compressors.eight_bit,
    compressors.two_bit,
    compressors.one_bit,
    compressors.sign,
    compressors.clipping(4),
    compressors.clipping(7),
    compressors.correlated_quantization(2),
    compressors.rotated(qsgd(7)),
    compressors.drive(),
    compressors.eden(2),
    compressors.random_sparsification(FRACTION),
    compressors.variance_optimal(FRACTION),
    compressors.perm_k(16),
    compressors.shared_random_k(FRACTION),
    compressors.with_seed(compressors.random_places(FRACTION)),
    compressors.with_seed(compressors.random_block(FRACTION)),
    compressors.with_seed(compressors.count_sketch(5, 2048)),
    compressors.random_k(FRACTION),
    compressors.contraction(compressors.random_k(FRACTION)),
    compressors.top_k(FRACTION),
    compressors.top_k(FRACTION, random_quantization(4)),
    compressors.chunked_top_k(64, 4096),
    compressors.block_top_k(FRACTION, 64),
    compressors.sampled_top_k(FRACTION),
    compressors.sidco(FRACTION),
    compressors.threshold(2.5),
    compressors.induced(compressors.top_k(FRACTION), compressors.natural),
    compressors.repeated(compressors.sign, 3),
    compressors.dct_top_k(2, 64),
    compressors.low_rank(4),
)


class Cost(NamedTuple):
    """Costs of one compressor, in copies.

    Args:
        bits: of a message per element.
        encode, decode: ratios of their seconds to those of a copy.
    """

    bits: float
    encode: float
    decode: float


def main(args: Args) -> None:
    if not args.dimensions or min(args.dimensions) < 16 or args.repeats < 1:
        raise ValueError(
            f"dimensions = {args.dimensions}, repeats = {args.repeats}: expected dimensions of at "
            "least 16, repeats of at least 1"
        )
    commands.begin(args)
    columns = ("dimension", "program", "bits_per_element", "encode_copies", "decode_copies")
    rows: list[tuple] = []
    with commands.keep_rows(args.out / "copies.csv", columns, rows):
        for d in args.dimensions:
            copy, references, costs = measure(args, d)
            rows += [(d, name, "", cost, "") for name, cost in references.items()]
            rows += [(d, name, *cost) for name, cost in costs.items()]
            made = tabulate(d, copy, references, costs)
            tables.show(tables.console(), made, args.out / f"table_{d}.csv")


def measure(args: Args, d: int) -> tuple[float, dict[str, float], dict[str, Cost]]:
    """Returns the seconds of a copy, the costs of the reference operations, and those of the
    compressors.
    """
    key, x = jax.random.key(0), jax.random.normal(jax.random.key(1), (d,))
    copy = timing.program(jnp.negative, x)  # a plain copy might not be compiled
    copies: list[np.ndarray] = []

    def time_in_copies(**programs: Program) -> list[float]:
        taken = timing.time_in_turn({"copy": copy, **programs}, args.repeats)
        copies.append(taken["copy"])
        return [float(np.median(taken[name] / taken["copy"])) for name in programs]

    references = {
        name: time_in_copies(operation=program)[0]
        for name, program in reference_programs(key, x).items()
    }
    costs = {}
    for compressor in CANDIDATES:
        if args.only and not any(text in compressor.name for text in args.only):
            continue
        encode, decode, bits = codec(compressor, key, x)
        costs[compressor.name] = Cost(bits / d, *time_in_copies(encode=encode, decode=decode))
    return float(np.median(np.concatenate(copies))), references, costs


def reference_programs(key: jax.Array, x: jax.Array) -> dict[str, Program]:
    """Returns the operations that an encode needs, each compiled as a separate program."""
    d, side = x.shape[0], int(np.sqrt(x.shape[0]))
    k = max(1, round(FRACTION * d))
    thin = jnp.ones((side, 4))

    def products(x):
        matrix = x[: side * side].reshape(side, side)
        return matrix.T @ (matrix @ thin)

    functions = {
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


def tabulate(d: int, copy: float, references: dict[str, float], costs: dict[str, Cost]) -> Table:
    """Tabulates one row per program."""
    slow = [name for name, cost in costs.items() if cost.encode + cost.decode > MOST]
    table = tables.table(
        f"time in copies of the vector, d = {d:,} (medians)",
        ("program", "bits/\nelement", "encode,\ncopies", "decode,\ncopies"),
        f"a copy takes {copy * 1e3:.3g} ms ({8 * d / copy / 1e9:.3g} GB/s read and written).\n"
        f"More than {MOST} copies in total: {', '.join(slow) or 'none'}",
    )
    for name, cost in references.items():
        table.add_row(name, "", f"{cost:.3g}", "")
    table.add_section()
    for name, cost in costs.items():
        table.add_row(name, f"{cost.bits:.3g}", f"{cost.encode:.3g}", f"{cost.decode:.3g}")
    return table
