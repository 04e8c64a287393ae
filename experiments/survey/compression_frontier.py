"""The frontier of `experiments.compression`: pairs of a compressor and a memory at equal bits.

Each pair runs for as many rounds as its messages fit into the given number of megabits that a
worker sends. The server replies uncompressed in all of them, which is not counted.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from rich.table import Table

import algorithms
import dsgd
from algorithms import memories
from dsgd import compressors, plots
from dsgd.base import Compressor
from experiments.shared import figures, studies, tables, tuning

REFUSED = "refused"
RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_TENTH, _CODES = compressors.random_k(0.1), compressors.random_quantization(4)

FAMILIES: dict[str, tuple[Compressor, ...]] = {
    "float types": (
        compressors.identity,
        compressors.cast("bfloat16"),
        compressors.cast("float8_e4m3fn"),
        compressors.cast("float4_e2m1fn"),
        compressors.natural,
    ),
    "unbiased quantization": (
        _CODES,
        compressors.qsgd(7),
        compressors.natural_dithering(4),
        compressors.ternary,
        compressors.drive("unbiased"),
    ),
    "one or two bits": (
        compressors.sign,
        compressors.one_bit,
        compressors.drive(),
        compressors.eden(2),
        compressors.two_bit,
    ),
    "random elements": (
        compressors.random_sparsification(0.1),
        compressors.variance_optimal(0.1),
        _TENTH,
        compressors.contraction(_TENTH)._replace(name="random_k(0.1), scaled"),
        compressors.shared_random_k(0.1),
    ),
    "largest elements": (
        compressors.top_k(0.1),
        compressors.top_k(0.01),
        compressors.chunked_top_k(4, 64),
        compressors.block_top_k(0.1, 13),
        compressors.sidco(0.1),
        compressors.dct_top_k(4, 64),
        compressors.low_rank(1),
    ),
    "combinations": (
        compressors.top_k(
            0.1, compressors.contraction(compressors.random_quantization(4))
        )._replace(name="top_k(0.1) in 4 bits"),
        compressors.induced(compressors.top_k(0.1), _TENTH)._replace(
            name="induced top_k, random_k"
        ),
        compressors.repeated(compressors.sign, 2),
    ),
}
COMPRESSORS = {each.name: each for family in FAMILIES.values() for each in family}

Build = Callable[[optax.GradientTransformation, Compressor], dsgd.Algorithm]


def _make(vector: memories.Vector = memories.gradient, **up: Any) -> Build:
    return lambda optimizer, compressor: algorithms.error_feedback(
        optimizer, memories.Up(compressor, **up), vector=vector
    )


MEMORIES: dict[str, Build] = {
    "none": _make(),
    "error (ec_sgd)": _make(error=1.0),
    "shift (ef21)": _make(shift=1.0),
    "shift (diana)": algorithms.diana,
    "shift (ef_bv)": algorithms.ef_bv,
    "momentum's shift (ef21_sgdm)": _make(memories.momentum(0.1), shift=1.0),
    "shift, error (econtrol)": _make(error=0.1, shift=1.0),
}
"""By name: (optimizer, compressor) -> method. They accept compressors for which they are not meant,
except diana and ef_bv: their steps follow from the compressor's constants."""

Outcome = studies.Tuned | str | None  # None: it diverges at every step size
Key = tuple[str, str, str]  # "frontier", compressor, memory


def rounds(compressor: Compressor, d: int, megabits: float, most: int) -> int:
    """Returns the number of rounds in which a worker sends this many megabits, at most `most`."""
    each = compressors.mean_bits(compressor, d)
    return min(most, max(1, math.floor(1e6 * megabits / each)))


def make_cases(args: Any, problem: dsgd.Problem) -> dict[Key, studies.Case]:
    """Returns the pairs of the compressors `frontier` with the memories that accept them."""
    cases, d = dict[Key, studies.Case](), tuning.elements(problem)
    for name, (memory, method) in itertools.product(args.frontier, MEMORIES.items()):
        if accepts(name, memory, d):
            compressor = COMPRESSORS[name]
            cases["frontier", name, memory] = studies.Case(
                studies.with_sgd(method, compressors.whole_model(compressor)),
                problem,
                steps=rounds(compressor, d, args.megabits, args.most_rounds),
                records=20,
                share=0.1,
                grid={studies.RATE: RATES},
            )
    return cases


def accepts(name: str, memory: str, d: int) -> bool:
    """Returns whether the method accepts the compressor, of d elements."""
    compressor = COMPRESSORS[name]
    if memory.endswith("(diana)"):
        return compressor.unbiased
    if memory.endswith("(ef_bv)"):
        return compressor.unbiased or (compressor.delta is not None and compressor.delta(d))
    return True


def rows(found: Mapping[Any, studies.Tuned], cases: Iterable[Key]) -> dict[str, dict[str, Outcome]]:
    """Returns the outcomes of each compressor by memory. A pair diverges if its loss is larger than
    at the start, or not finite.
    """
    by_name: dict[str, dict[str, Outcome]] = {}
    for key in cases:
        _, name, memory = key
        tuned = found.get(key)
        ends = tuned is not None and tuned.loss <= tuned.history["loss"][:, 0].mean()
        row = by_name.setdefault(name, dict.fromkeys(MEMORIES, REFUSED))
        row[memory] = tuned if ends else None
    return by_name


def tabulate(args: Any, outcomes: dict[str, dict[str, Outcome]], d: int) -> Table:
    """Tabulates one row per compressor: its best memory, and those with which it diverges."""
    table = tables.table(
        f"Loss after {args.megabits:g} Mbit sent by each worker",
        ("compressor", "bits/\nelem.", "no\nmemory", "best", "with", "diverges\nwith"),
        "Over the last tenth of the rounds, at the best step size. A pair diverges\nif its loss is "
        "larger than at the start, with every step size, although the\ncompressor works with "
        "other memories, and the memory with other compressors.",
    )
    for name, by_memory in outcomes.items():
        losses = {
            memory: outcome.loss
            for memory, outcome in by_memory.items()
            if isinstance(outcome, studies.Tuned)
        }
        best = min(losses, key=lambda memory: losses[memory], default="")
        diverging = [short(memory) for memory, outcome in by_memory.items() if outcome is None]
        compressor = COMPRESSORS[name]
        table.add_row(
            name,
            f"{compressors.mean_bits(compressor, d) / d:.3g}",
            f"{losses['none']:.3f}" if "none" in losses else "-",
            f"{losses[best]:.3f}" if best else "-",
            short(best),
            "\n".join(diverging),
        )
        if name in (family[-1].name for family in FAMILIES.values()):
            table.add_section()
    return table


def short(memory: str) -> str:
    """Returns the name of the method in brackets, or the memory's name."""
    return memory.partition("(")[2].rstrip(")") or memory


def draw(args: Any, outcomes: dict[str, dict[str, Outcome]], words: str) -> Figure:
    """Draws the losses of all pairs as a table of coloured cells, by family."""
    losses = np.array(
        [
            [each.loss if isinstance(each, studies.Tuned) else np.nan for each in row.values()]
            for row in outcomes.values()
        ]
    )
    sheet, (axes,) = plots.figure(1, width=figures.WIDTH, height=2.4 + 0.27 * len(outcomes))
    norm = LogNorm(np.nanmin(losses), np.nanmax(losses))
    image = axes.imshow(losses, cmap="viridis_r", norm=norm, aspect="auto")
    for (i, j), value in np.ndenumerate(losses):
        outcome = [*[*outcomes.values()][i].values()][j]
        if np.isfinite(value):
            dark = norm(value) > 0.55
            axes.text(j, i, f"{value:.3f}", color="white" if dark else "black", **_CENTRED)
        elif outcome is None:
            axes.add_patch(_cell(i, j, facecolor="white", hatch="xxx", edgecolor="0.6"))
            axes.text(j, i, "diverges", color="black", backgroundcolor="white", **_CENTRED)
        else:
            axes.add_patch(_cell(i, j, facecolor="0.93", edgecolor="none"))
    i, j = np.unravel_index(np.nanargmin(losses), losses.shape)
    axes.add_patch(_cell(int(i), int(j), fill=False, edgecolor="black", linewidth=2, zorder=5))
    names = [name.replace(" ", "\n") for name in MEMORIES]
    axes.set_xticks(range(len(MEMORIES)), names, fontsize=8)
    axes.grid(visible=False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_yticks(range(len(outcomes)), outcomes)
    _name_families(axes, list(outcomes))
    bar = sheet.colorbar(image, ax=axes, label="loss f(x), last tenth", shrink=0.5, pad=0.02)
    plots.log_scale(bar.ax, "y")
    handles = [
        Patch(
            facecolor="white",
            hatch="xxx",
            edgecolor="0.6",
            label="larger than at the start, at every step size",
        ),
        Patch(facecolor="0.93", label="refused (no constants)"),
        Patch(facecolor="white", edgecolor="black", linewidth=2, label="smallest loss"),
    ]
    sheet.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figures.title(
        sheet,
        f"Loss after each worker has sent {args.megabits:g} Mbit, by compressor and memory\n"
        f"{words}",
    )
    return sheet


_CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}


def _cell(row: int, column: int, **look: Any) -> Any:
    return Rectangle((column - 0.5, row - 0.5), 1, 1, **look)


def _name_families(axes: Axes, names: list[str]) -> None:
    """Separates the families by lines, and writes their names on the right."""
    for family, members in FAMILIES.items():
        at = [names.index(each.name) for each in members if each.name in names]
        if not at:
            continue
        axes.axhline(at[-1] + 0.5, color="white", linewidth=3)
        place = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 9}
        axes.text(1.01, (at[0] + at[-1]) / 2, textwrap.fill(family, 12), **place)
