"""Training of a language model over slow links: seven methods at equal tokens, each at its best
rates, against tokens, megabits and simulated seconds.

    python -m experiments.slow_links
    python -m experiments.slow_links --model gpt2-small --text texts/ --period 100 --compute 0.5

Synchronous AdamW, DeMo and PowerSGD send messages in every step; local AdamW, DiLoCo, Streaming
DiLoCo and SparseLoCo every H steps. All make one gradient per worker and step, on the same number
of tokens, with the same schedule of the step size (linear warm-up, then a cosine to a tenth). The
rates of each method are those with the smallest loss at the end; a grid is extended until the best
rate is at no edge of it. The iterates of these
methods do not depend on time, so that one run yields the seconds on all links: computation, plus
the messages that the workers wait for on the survey's switch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import optax
from matplotlib.axes import Axes

import algorithms
import dsgd
from algorithms.local_updates.streaming_diloco import fragment_leaves
from dsgd import network, problems
from experiments.shared import commands, figures, statistics, studies, tables, tuning
from experiments.shared.studies import RATE, Case

WARM_UP, FINAL = 0.05, 0.1  # share of the steps, and the last step size relative to the largest
BITS = "test_bits_per_byte"
THOUSANDS, MEGABITS = "thousand tokens", "megabits per worker"
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
class Args(commands.Common, commands.Tasks):
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
    learning_rates: commands.Positives = (3e-3, 1e-2)
    """First step sizes of AdamW, at least two."""
    outer_rates: commands.Positives = (0.35, 0.7)
    """First outer step sizes of DiLoCo, Streaming DiLoCo and SparseLoCo, at least two."""
    sign_rates: commands.Positives = (3e-3, 1e-2)
    """First step sizes of DeMo, at least two."""
    powersgd_rates: commands.Positives = (0.3, 1.0)
    """First step sizes of PowerSGD, at least two."""
    compute: commands.Positive = 0.02
    """Seconds of a worker's gradient."""
    latency: commands.NotNegative = 1e-3
    """Seconds of latency of a message."""
    bandwidths: commands.Positives = (1e9, 1e8, 1e7)
    """Bits per second of the links."""
    target: commands.Positive | None = None
    """Target in bits per byte on held-out text; by default the highest last value of a method."""
    seeds: commands.Count = 3
    """Independent runs of each method at its best rates, which are those of the first one."""
    out: Path = Path("results/slow_links")
    """Folder for config.json, history.csv and figure.png."""


def main(args: Args) -> None:
    check(args)
    problem = make_problem(args)
    cases = make_cases(args, problem)
    found = studies.run(args, "methods", cases)
    target = args.target or max(one.history[BITS][:, -1].mean() for one in found.values())
    title = (
        f"{args.model} transformer on {Path(args.text).name}, {args.workers} workers, "
        f"H = {args.period}, {statistics.runs(args.seeds)}"
    )
    ends = tables.table(
        f"{title}:\nafter {args.steps} steps",
        ("method", "step size", "outer", "loss", "bits\nper byte", "Mbit\nper step"),
        "Outer: outer step size. *: at an edge of the grid. Mbit: sent and received per worker.",
    )
    links = list(map(name_link, args.bandwidths))
    costs = tables.table(
        f"cost to reach {target:.2f} bits per byte on held-out text",
        ("method", "tokens", "Mbit", *(link.replace("seconds, ", "min,\n") for link in links)),
        "Mbit: sent and received per worker. min: simulated minutes on links of\nthis bandwidth, "
        f"with {args.compute * 1e3:g} ms for a gradient and {args.latency * 1e3:g} ms of latency."
        "\n-: not reached.",
    )

    def end_cells(one: studies.Tuned) -> list[str]:
        """Returns the rates, the quality after all steps, and the bits of a step."""
        outer = one.cell("outer_rate") if "outer_rate" in one.values else "-"
        last = {column: values[:, -1] for column, values in one.history.items() if column != "step"}
        quality = [
            statistics.format_with_error(last[column], digits=2) for column in ("loss", BITS)
        ]
        return [one.cell(), outer, *quality, f"{last[MEGABITS].mean() / args.steps:.3g}"]

    def cost_cells(one: studies.Tuned) -> list[str]:
        """Returns the tokens, the megabits and the minutes to the target."""
        at = statistics.first_reaching(one.history[BITS], target)
        if at is None:
            return ["-"] * (2 + len(links))
        cost = {x: one.history[x][:, at].mean() for x in (THOUSANDS, MEGABITS, *links)}
        minutes = [f"{cost[link] / 60:,.3g}" for link in links]
        return [f"{1e3 * cost[THOUSANDS]:,.0f}", f"{cost[MEGABITS]:,.3g}", *minutes]

    rows = {name: found.get(name) for name in cases}
    studies.fill(ends, rows, end_cells)
    studies.fill(costs, rows, cost_cells)
    axes = [(THOUSANDS, "loss"), *((x, BITS) for x in (THOUSANDS, MEGABITS, *links))]
    sheet = figures.sheet(
        [partial(draw, found, x, y, target) for x, y in axes],
        3,
        f"{title}; {tuning.elements(problem):,} parameters, {args.compute * 1e3:g} ms for a "
        f"gradient; grey line: target {target:.2f}",
        height=2.6,
        sharey=False,
    )
    commands.finish(args, {"figure": sheet}, {"ends": ends, "costs": costs})


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
        args.text, args.workers, batch_size=args.batch_size, seed=args.seed, **size._asdict()
    )


def make_cases(args: Args, problem: dsgd.Problem) -> dict[str, Case]:
    """Returns the methods by name, with the grids of their rates."""
    shape = optax.warmup_cosine_decay_schedule(
        0.0, 1.0, math.ceil(WARM_UP * args.steps), args.steps, FINAL
    )

    def schedule(rate):
        return lambda step: rate * shape(step + 1)

    def adamw(rate):
        return optax.adamw(schedule(rate), weight_decay=0.1)

    def nesterov(rate):
        return optax.sgd(rate, momentum=0.9, nesterov=True)

    H, both = args.period, {"outer_rate": args.outer_rates}
    methods: dict[str, tuple[studies.Build, dict[str, Any]]] = {
        "minibatch_sgd, AdamW": (
            lambda learning_rate: algorithms.minibatch_sgd(adamw(learning_rate)),
            {},
        ),
        "local_sgd, AdamW": (
            lambda learning_rate: algorithms.local_sgd(adamw(learning_rate), H),
            {},
        ),
        "diloco": (
            lambda learning_rate, outer_rate: algorithms.diloco(
                adamw(learning_rate), H, nesterov(outer_rate)
            ),
            both,
        ),
        "streaming_diloco": (
            lambda learning_rate, outer_rate: algorithms.streaming_diloco(
                adamw(learning_rate), args.fragments, H, nesterov(outer_rate)
            ),
            both,
        ),
        "sparse_loco": (
            lambda learning_rate, outer_rate: algorithms.sparse_loco(
                adamw(learning_rate), H, outer=optax.sgd(outer_rate)
            ),
            both,
        ),
        "demo": (
            lambda learning_rate: algorithms.demo(optax.sgd(schedule(learning_rate))),
            {RATE: args.sign_rates},
        ),
        "powersgd": (
            lambda learning_rate: algorithms.powersgd(
                algorithms.powersgd_momentum(schedule(learning_rate)), args.rank
            ),
            {RATE: args.powersgd_rates},
        ),
    }
    return {
        name: Case(
            build,
            problem,
            records=args.steps // args.period,
            share=END,
            grid=grid,
            over=tuple({RATE: ()} | grid),
            convert=partial(add_costs, args, problem, build, grid),
        )
        for name, (build, grid) in methods.items()
    }


def add_costs(
    args: Args,
    problem: dsgd.Problem,
    build: studies.Build,
    grid: dict[str, Any],
    history: studies.History,
) -> studies.History:
    """Returns the history with columns of the tokens of all workers, of the megabits, and of the
    seconds on each link.
    """
    rates = {name: values[0] for name, values in ({RATE: args.learning_rates} | grid).items()}
    tokens = history["step"] * args.workers * args.batch_size * MODELS[args.model].context
    costs = {THOUSANDS: tokens / 1e3, MEGABITS: history["bits"] / 1e6}
    for bandwidth in args.bandwidths:
        costs[name_link(bandwidth)] = seconds_on_link(
            build(**rates), problem, history, args.compute, args.latency, bandwidth
        )
    shape = history["loss"].shape
    return history | {name: np.broadcast_to(values, shape) for name, values in costs.items()}


def seconds_on_link(
    method: dsgd.Algorithm,
    problem: dsgd.Problem,
    history: studies.History,
    compute: float,
    latency: float,
    bandwidth: float,
) -> np.ndarray:
    r"""Returns the simulated seconds of the records on links with this latency and bandwidth,
    `[records]`.

    $$ t c + \sum_e k_e(t) \max(0, s_e - \tau_e c) $$

    c are the seconds of a gradient (`compute`), $k_e(t)$ is the number of exchanges e that the
    workers have waited for by step t, $s_e$ their seconds on the network, and $\tau_e$ the number
    of gradients that workers compute meanwhile.
    """
    exchanges = dsgd.exchanges(method, problem)
    # A worker sends as many bits as it receives in these patterns.
    volume = sum(each.pattern.volume(problem.workers) / each.period for each in exchanges)
    sent = history["bits"][:, -1].mean() / 2 / history["step"][-1]
    streams = any(each.delay for each in exchanges)
    shares = fragment_sizes(problem, len(exchanges)) if streams else np.ones(len(exchanges))
    mean_size = sent / volume  # of a message with a share of 1
    steps = history["step"]
    seconds = steps * compute
    for i, (each, share) in enumerate(zip(exchanges, shares, strict=True)):
        transfer = mean_size * share / bandwidth
        cost = float(network.cost(each.pattern, problem.workers, latency, transfer))
        first = (i + 1) * each.period // len(exchanges) if each.delay else each.period
        count = np.maximum(0, (steps - each.delay - first) // each.period + 1)
        seconds = seconds + count * max(0.0, cost - each.delay * compute)
    return seconds


def fragment_sizes(problem: dsgd.Problem, fragments: int) -> np.ndarray:
    """Returns the number of elements of each fragment of Streaming DiLoCo, relative to their
    mean.
    """
    params = jax.eval_shape(problem.init, jax.random.key(0))
    leaves = jax.tree.leaves(params)
    sizes = [sum(leaves[i].size for i in member) for member in fragment_leaves(params, fragments)]
    return np.array(sizes) / np.mean(sizes)


def name_link(bandwidth: float) -> str:
    """Returns the name of the seconds on links of a bandwidth."""
    rate = f"{bandwidth / 1e9:g} G" if bandwidth >= 1e9 else f"{bandwidth / 1e6:g} M"
    return f"seconds, {rate}bit/s"


def draw(found: dict[str, studies.Tuned], x: str, y: str, target: float, axes: Axes) -> None:
    """Draws the loss or the bits per byte against a cost."""
    lines, by_tokens = studies.lines(found, x, y), x == THOUSANDS
    figures.curves(
        lines,
        target if y == BITS else None,
        xlabel=x,
        ylabel="bits per byte" if y == BITS else "loss f, nats",
        log="" if by_tokens else "x",
    )(axes)
    axes.set_ylim(top=SHOWN * max(values[:, -1].mean() for _, values in lines.values()))


if __name__ == "__main__":
    commands.run(main, Args)
