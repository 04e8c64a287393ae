"""Training of a language model over slow links: seven methods at equal tokens, each at its best
rates, against tokens, megabits and simulated seconds.

    python -m experiments.slow_links
    python -m experiments.slow_links --model gpt2-small --text texts/ --period 100 --compute 0.5

Synchronous AdamW, DeMo and PowerSGD send messages in every step; local AdamW, DiLoCo, Streaming
DiLoCo and SparseLoCo every H steps. All make one gradient per worker and step, on the same number
of tokens, with the same schedule of the step size (linear warm-up, then a cosine to a tenth). The
rates of each method are those of its grid with the smallest loss at the end. The iterates of these
methods do not depend on time, so that one run yields the seconds on all links: computation, plus
the messages that the workers wait for on the survey's switch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import optax
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from rich.table import Table

import algorithms
import dsgd
from algorithms.local_updates.streaming_diloco import of_fragments
from dsgd import network, plots, problems
from experiments.shared import commands, figures, statistics, tables, tuning

ADAMW, LOCAL, DILOCO, STREAMING, SPARSE, DEMO, POWERSGD = (
    "synchronous AdamW",
    "local AdamW",
    "DiLoCo",
    "Streaming DiLoCo",
    "SparseLoCo",
    "DeMo",
    "PowerSGD",
)
WARM_UP, FINAL = 0.05, 0.1  # share of the steps, and the last step size relative to the largest
BITS = "test_bits_per_byte"
THOUSANDS = "thousand tokens"
END = 0.1  # last part of a run on which rates are compared
SHOWN = 1.5  # upper end of the y axes, relative to the highest last value


class Size(NamedTuple):
    """A transformer, with defaults of the same size."""

    context: int
    width: int
    layers: int
    heads: int
    evaluation_size: int = 128


MODELS = {
    "small": Size(32, 64, 2, 4),
    "medium": Size(128, 256, 4, 8),
    # The blocks of GPT-2 small, with bytes instead of 50,257 tokens: 86 of its 124 million
    # parameters.
    "gpt2-small": Size(1024, 768, 12, 12, 32),
}


@dataclass(frozen=True)
class Args(commands.Common):
    """Trains a language model over slow links."""

    model: Literal["small", "medium", "gpt2-small"] = "small"
    """Transformer for bytes: small (135 k parameters), medium (3.3 M), or gpt2-small (the blocks of
    GPT-2 small, 86 M), which needs a GPU.
    """
    text: str = "docstrings"
    """Text: docstrings, grammar, or a file or folder."""
    workers: commands.Several = 8
    """Number of workers."""
    batch_size: commands.Count = 2
    """Number of windows that each worker draws in a step."""
    steps: commands.Count = 400
    """Number of steps, a multiple of the period."""
    period: commands.Count = 20
    """H, number of steps between two messages of the methods with local steps."""
    fragments: commands.Count = 4
    """P of Streaming DiLoCo."""
    rank: commands.Count = 2
    """Rank of PowerSGD."""
    learning_rates: tuple[commands.Positive, ...] = (1e-3, 3e-3, 1e-2)
    """Candidate step sizes of AdamW."""
    outer_rates: tuple[commands.Positive, ...] = (0.2, 0.4, 0.7, 1.0)
    """Candidate outer step sizes of DiLoCo, Streaming DiLoCo and SparseLoCo."""
    sign_rates: tuple[commands.Positive, ...] = (1e-3, 3e-3, 1e-2)
    """Candidate step sizes of DeMo."""
    powersgd_rates: tuple[commands.Positive, ...] = (0.03, 0.1, 0.3)
    """Candidate step sizes of PowerSGD."""
    compute: commands.Positive = 0.02
    """Seconds of a worker's gradient."""
    latency: commands.NotNegative = 1e-3
    """Seconds of latency of a message."""
    bandwidths: tuple[commands.Positive, ...] = (1e9, 1e8, 1e7)
    """Bits per second of the links."""
    target: commands.Positive | None = None
    """Target in bits per byte on held-out text; by default the highest last value of a method."""
    seeds: commands.Count = 1
    """Independent runs of each method."""
    out: Path = Path("results/slow_links")
    """Folder for config.json, history.csv and figure.png."""


class Method(NamedTuple):
    """A method and the grid of its rates.

    Args:
        build: rates -> method.
        grid: candidates by name.
    """

    build: Callable[..., dsgd.Algorithm]
    grid: dict[str, tuple[float, ...]]


def main(args: Args) -> None:
    check(args)
    problem, methods = make_problem(args), make_methods(args)
    commands.begin(args)
    found = tuning.compare(
        args, "methods", methods, lambda name: tune(args, methods[name], problem)
    )
    seconds = {name: on_links(args, methods[name], problem, found[name].history) for name in found}
    target = args.target or max(one.history[BITS][:, -1].mean() for one in found.values())
    commands.finish(
        args,
        {"figure": draw(args, problem, found, seconds, target)},
        {"ends": ends(args, methods, found), "costs": costs(args, found, seconds, target)},
    )


def check(args: Args) -> None:
    """Raises a ValueError if flags do not fit together."""
    if args.steps % args.period:
        raise ValueError(f"--steps {args.steps}: expected a multiple of --period {args.period}")
    if not max(args.fragments, 2) <= args.period:
        raise ValueError(
            f"--period {args.period}: expected at least 2 and --fragments {args.fragments}"
        )


def make_problem(args: Any) -> dsgd.Problem:
    """Returns next-byte prediction with the transformer of the arguments `model`, `text`,
    `workers`, `batch_size` and `seed`.
    """
    size = MODELS[args.model]
    return problems.language_model(
        args.text,
        args.workers,
        context=size.context,
        width=size.width,
        layers=size.layers,
        heads=size.heads,
        batch_size=args.batch_size,
        seed=args.seed,
        evaluation_size=size.evaluation_size,
    )


def make_methods(args: Args) -> dict[str, Method]:
    """Returns the methods by name."""
    shape = optax.warmup_cosine_decay_schedule(
        0.0, 1.0, math.ceil(WARM_UP * args.steps), args.steps, FINAL
    )

    def schedule(rate):
        return lambda step: rate * shape(step + 1)

    def adamw(rate):
        return optax.adamw(schedule(rate), weight_decay=0.1)

    def nesterov(rate):
        return optax.sgd(rate, momentum=0.9, nesterov=True)

    H, inner = args.period, {"learning_rate": args.learning_rates}
    both = {**inner, "outer_rate": args.outer_rates}
    return {
        ADAMW: Method(lambda learning_rate: algorithms.minibatch_sgd(adamw(learning_rate)), inner),
        LOCAL: Method(lambda learning_rate: algorithms.local_sgd(adamw(learning_rate), H), inner),
        DILOCO: Method(
            lambda learning_rate, outer_rate: algorithms.diloco(
                adamw(learning_rate), H, nesterov(outer_rate)
            ),
            both,
        ),
        STREAMING: Method(
            lambda learning_rate, outer_rate: algorithms.streaming_diloco(
                adamw(learning_rate), args.fragments, H, nesterov(outer_rate)
            ),
            both,
        ),
        SPARSE: Method(
            lambda learning_rate, outer_rate: algorithms.sparse_loco(
                adamw(learning_rate), H, outer=optax.sgd(outer_rate)
            ),
            both,
        ),
        DEMO: Method(
            lambda learning_rate: algorithms.demo(optax.sgd(schedule(learning_rate))),
            {"learning_rate": args.sign_rates},
        ),
        POWERSGD: Method(
            lambda learning_rate: algorithms.powersgd(
                algorithms.powersgd_momentum(schedule(learning_rate)), args.rank
            ),
            {"learning_rate": args.powersgd_rates},
        ),
    }


def tune(args: Args, method: Method, problem: dsgd.Problem) -> tuning.Tuned | None:
    """Returns the history at the rates with the smallest loss at the end; None if the method
    diverged at all of them.
    """
    others: dict[str, Any] = dict(method.grid)
    return tuning.tune(
        args,
        method.build,
        problem,
        records=args.steps // args.period,
        share=END,
        rates=others.pop("learning_rate"),
        **others,
    )


def on_links(
    args: Args, method: Method, problem: dsgd.Problem, history: dict[str, np.ndarray]
) -> dict[float, np.ndarray]:
    r"""Returns the simulated seconds of the records on links of each bandwidth, `[records]`.

    $$ t c + \sum_e k_e(t) \max(0, s_e - \tau_e c) $$

    c are the seconds of a gradient, $k_e(t)$ is the number of exchanges e that the workers have
    waited for by step t, $s_e$ their seconds on the network, and $\tau_e$ the number of gradients
    that workers compute meanwhile.
    """
    rates = {name: values[0] for name, values in method.grid.items()}
    exchanges = dsgd.exchanges(method.build(**rates), problem)
    # A worker sends as many bits as it receives in these patterns.
    volume = sum(each.pattern.volume(args.workers) / each.period for each in exchanges)
    sent = history["bits"][:, -1].mean() / 2 / history["step"][-1]
    streams = any(each.delay for each in exchanges)
    shares = of_elements(problem, len(exchanges)) if streams else np.ones(len(exchanges))
    mean_size = sent / volume  # of a message with a share of 1
    steps = history["step"]
    found = {}
    for bandwidth in args.bandwidths:
        seconds = steps * args.compute
        for i, (each, share) in enumerate(zip(exchanges, shares, strict=True)):
            transfer = mean_size * share / bandwidth
            cost = float(network.cost(each.pattern, args.workers, args.latency, transfer))
            first = (i + 1) * each.period // len(exchanges) if each.delay else each.period
            count = np.maximum(0, (steps - each.delay - first) // each.period + 1)
            seconds = seconds + count * max(0.0, cost - each.delay * args.compute)
        found[bandwidth] = seconds
    return found


def of_elements(problem: dsgd.Problem, fragments: int) -> np.ndarray:
    """Returns the number of elements of each fragment of Streaming DiLoCo, relative to their
    mean.
    """
    params = jax.eval_shape(problem.init, jax.random.key(0))
    leaves = jax.tree.leaves(params)
    sizes = [sum(leaves[i].size for i in member) for member in of_fragments(params, fragments)]
    return np.array(sizes) / np.mean(sizes)


def ends(args: Args, methods: dict[str, Method], found: dict[str, tuning.Tuned]) -> Table:
    """Tabulates the rates, the quality after all steps, and the bits of a step."""
    caption = (
        "Outer: outer step size. *: at an edge of the grid. Mbit: sent and received per worker."
    )
    if left_out := [name for name in methods if name not in found]:
        caption += f"\nOmitted, because all rates diverged: {', '.join(left_out)}."
    table = tables.table(
        f"{title(args)}:\nafter {args.steps} steps",
        ("method", "step size", "outer", "loss", "bits per byte", "Mbit per step"),
        caption,
    )
    for name, (rate, history, others) in found.items():
        rates = {"learning_rate": rate, **others}
        chosen = [
            statistics.step_size(rates[which], grid) for which, grid in methods[name].grid.items()
        ]
        chosen += ["-"] * (2 - len(chosen))
        megabits = history["bits"][:, -1].mean() / 1e6 / args.steps
        quality = [statistics.with_error(history[of][:, -1], digits=2) for of in ("loss", BITS)]
        table.add_row(name, *chosen, *quality, f"{megabits:.3g}")
    return table


def costs(
    args: Args,
    found: dict[str, tuning.Tuned],
    seconds: dict[str, dict[float, np.ndarray]],
    target: float,
) -> Table:
    """Tabulates the cost to the target, one row per method."""
    links = tuple(f"min,\n{link(bandwidth)}" for bandwidth in args.bandwidths)
    table = tables.table(
        f"cost to reach {target:.2f} bits per byte on held-out text",
        ("method", "tokens", "Mbit", *links),
        "Mbit: sent and received per worker. min: simulated minutes on links of\nthis bandwidth, "
        f"with {args.compute * 1e3:g} ms for a gradient and {args.latency * 1e3:g} ms of latency."
        "\n-: not reached.",
    )
    for name, (_, history, _) in found.items():
        at = statistics.first_reaching(history[BITS], target)
        if at is None:
            table.add_row(name, *["-"] * (2 + len(links)))
            continue
        minutes = [f"{each[at] / 60:,.3g}" for each in seconds[name].values()]
        megabits = history["bits"].mean(axis=0)[at] / 1e6
        table.add_row(name, f"{tokens(args, history)[at]:,}", f"{megabits:,.3g}", *minutes)
    return table


def tokens(args: Args, history: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the number of tokens that all workers have computed, `[records]`."""
    return history["step"] * args.workers * args.batch_size * MODELS[args.model].context


def link(bandwidth: float) -> str:
    """Returns a bandwidth as text."""
    return f"{bandwidth / 1e9:g} Gbit/s" if bandwidth >= 1e9 else f"{bandwidth / 1e6:g} Mbit/s"


def title(args: Args) -> str:
    """Describes the setting."""
    return (
        f"{args.model} transformer on {Path(args.text).name}, {args.workers} workers, "
        f"H = {args.period}, {statistics.runs(args.seeds)}"
    )


def draw(
    args: Args,
    problem: dsgd.Problem,
    found: dict[str, tuning.Tuned],
    seconds: dict[str, dict[float, np.ndarray]],
    target: float,
) -> Figure:
    """Draws bits per byte against tokens, megabits and the seconds on each link; the first panel
    shows the loss.
    """
    axes = [
        (THOUSANDS, "loss f, nats", lambda name, history: tokens(args, history) / 1e3, "loss"),
        (THOUSANDS, "bits per byte", lambda name, history: tokens(args, history) / 1e3, BITS),
        ("megabits per worker", "", lambda name, history: history["bits"].mean(axis=0) / 1e6, BITS),
    ]
    axes += [
        (
            f"seconds, {link(bandwidth)}",
            "" if i else "bits per byte",
            lambda name, history, bandwidth=bandwidth: seconds[name][bandwidth],
            BITS,
        )
        for i, bandwidth in enumerate(args.bandwidths)
    ]
    columns, rows = 3, math.ceil(len(axes) / 3)
    sheet, panels = plots.figure(
        columns, rows, width=figures.WIDTH / columns, height=2.6, sharey=False
    )
    for panel in panels[len(axes) :]:
        panel.set_axis_off()
    for panel, (x, y, cost, metric) in zip(panels, axes, strict=False):
        figures.describe(panel, x, y, log="" if x == THOUSANDS else "x")
        lines = {
            name: (cost(name, one.history), one.history[metric]) for name, one in found.items()
        }
        plots.draw_lines(panel, lines)
        panel.set_ylim(top=SHOWN * max(y[:, -1].mean() for _, y in lines.values()))
        if x.startswith("megabits"):  # several powers of ten
            panel.xaxis.set_major_locator(LogLocator())
        if metric == BITS:
            panel.axhline(target, color="0.4", linewidth=0.8)
    figures.legend(sheet, 4, panels[0])
    figures.title(
        sheet,
        f"{title(args)}; {tuning.elements(problem):,} parameters, {args.compute * 1e3:g} ms for a "
        f"gradient; grey line: target {target:.2f}",
    )
    return sheet


if __name__ == "__main__":
    commands.run(main, Args)
