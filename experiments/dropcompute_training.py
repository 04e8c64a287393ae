"""Training with DropCompute: figure 5, table 1 and figures 10 to 12 of its paper.

    python -m experiments.dropcompute_training
    python -m experiments.dropcompute_training --problem text --out results/dropcompute_text

64 workers compute 12 micro-batches each, with the delays of B.1. Shows the time to the same loss if
the threshold is chosen after some rounds, and the final quality over drop rates, with and without
compensation for the drops. On digits it also shows corrections of the step if whole batches are
dropped, and local SGD with stragglers on all servers or on a single one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from dsgd import plots, problems, records
from experiments.dropcompute import convergence, corrections, local_sgd, quality
from experiments.dropcompute.training import (
    ACCURACY,
    BITS,
    COMPENSATED,
    LAMB,
    SGD,
    Histories,
    Setting,
)
from experiments.shared import commands, figures, statistics, tables


class Usual(NamedTuple):
    """Default settings of a problem."""

    steps: int
    learning_rate: float
    seeds: int


USUAL = {"digits": Usual(180, 0.02, 6), "text": Usual(135, 0.04, 3)}


@dataclass(frozen=True)
class Args(commands.Common):
    """Trains with DropCompute."""

    problem: Literal["digits", "text"] = "digits"
    """An MLP on digits; or the byte-level language model, for figure 5 and table 1 only."""
    text: str = "grammar"
    """Text of the language model: grammar, docstrings, or a file or folder."""
    width: commands.Count = 16
    """Width of its transformer, which has one layer and two heads."""
    context: commands.Count = 16
    """Number of bytes of its context."""
    workers: commands.Count = 64
    """N of figure 5 and table 1."""
    micro_batches: commands.Count = 12
    """M, number of micro-batches."""
    batch_size: commands.Count = 1
    """Number of samples, or windows of the text, of a micro-batch."""
    steps: commands.Count | None = None
    """Number of rounds of table 1; figure 5 has its extra steps in addition. Default: 180; for the
    text 135.
    """
    rounds: commands.Count = 10
    """Number of rounds in which workers measure their micro-batches before the threshold is chosen.
    """
    communications: tuple[commands.NotNegative, ...] = (0.0, 7.5)
    """T^c, seconds; the paper does not state it."""
    drop_rates: tuple[commands.Rate, ...] = (0.0, 0.03, 0.06, 0.1, 0.2)
    """Drop rates of table 1 (a)."""
    learning_rate: commands.Positive | None = None
    """Initial step size of LAMB, which decreases to 0; figure 5 uses the mean step size throughout.
    Default: 0.02; for the text 0.04.
    """
    sgd_learning_rate: commands.Positive = 0.3
    """Step size of SGD with momentum 0.9 for dropped whole batches; in the other experiments a
    third of it.
    """
    corrected_workers: commands.Count = 128
    """Number of workers of figures 10 and 11, with one batch each."""
    corrected_rates: tuple[commands.Rate, ...] = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5)
    """Probabilities that a worker's batch is dropped in these figures."""
    local_workers: commands.Count = 32
    """Number of workers of figure 12."""
    local_batch_size: commands.Count = 4
    """Number of samples that each of them draws."""
    local_steps: commands.Count = 256
    """Number of local steps in figure 12."""
    periods: commands.Counts = (1, 2, 4, 8, 16, 32)
    """H, number of local steps between two averagings."""
    straggling: float = 0.04
    """Probability that a worker waits one second in a local step."""
    server: commands.Count = 8
    """Number of workers of a server. If only one server has stragglers, their probability is larger
    by the ratio of the numbers of workers.
    """
    local_step: commands.Positive = 0.15
    """Seconds of a local step without waiting, which the paper does not state."""
    local_drop_rate: commands.Rate = 0.062
    """Largest share of dropped local steps."""
    seeds: commands.Count | None = None
    """Independent runs; by default 6, for the text 3."""
    out: Path = Path("results/dropcompute_training")
    """Folder for config.json, history.csv and figures."""


def main(args: Args) -> None:
    check(args)
    setting = setting_of(args)
    commands.begin(args)
    found: Histories = {}
    with commands.keep(records.write_histories, args.out / "history.csv", found):
        found.update(train(args, setting))  # trained one after the other
    tables.notes(notes(args, setting, found))
    sheets = {"training": draw(args, setting, found)}
    shown = {
        "convergence": convergence.table(setting, found, args.rounds, args.communications),
        "quality": quality.table(setting, found, args.drop_rates),
    }
    if args.problem == "digits":
        corrected, local, both = corrected_setting(args), local_setting(args), stragglers(args)
        sheets["corrections"] = corrections.draw(corrected, found, args.corrected_rates)
        sheets["local_sgd"] = local_sgd.draw(local, found, both, args.periods)
        shown["corrections"] = corrections.table(corrected, found, args.corrected_rates)
        shown["local_sgd"] = local_sgd.table(local, found, both, args.periods, args.local_drop_rate)
    commands.finish(args, sheets, shown)


def check(args: Args) -> None:
    """Raises a ValueError if flags do not fit together."""
    for flag, rates in (
        ("--drop-rates", args.drop_rates),
        ("--corrected-rates", args.corrected_rates),
    ):
        if 0.0 not in rates:
            raise ValueError(f"{flag} {rates}: must contain 0, the baseline of the comparison")
    if COMPENSATED not in args.drop_rates:
        raise ValueError(
            f"--drop-rates {args.drop_rates}: must contain {COMPENSATED:g}, the rate at which "
            "compensations are compared"
        )
    if 1 not in args.periods or any(args.local_steps % period for period in args.periods):
        raise ValueError(
            f"--periods {args.periods}: expected 1, synchronous training, and divisors of "
            f"--local-steps {args.local_steps}"
        )
    stragglers(args)  # raises a ValueError if the server is too small
    least = convergence.WINDOW + args.rounds - 1
    if args.steps is not None and args.steps < least:
        raise ValueError(f"--steps {args.steps}: expected {least}, with --rounds {args.rounds}")


def setting_of(args: Args) -> Setting:
    """Returns the setting of figure 5 and table 1."""
    usual = USUAL[args.problem]
    steps, rates = args.steps or usual.steps, {LAMB: args.learning_rate or usual.learning_rate}
    if args.problem == "digits":
        return make_digits(
            args, args.workers, args.batch_size, steps, {**rates, SGD: args.sgd_learning_rate / 3}
        )
    problem = problems.language_model(
        args.text,
        args.workers,
        context=args.context,
        width=args.width,
        layers=1,
        heads=2,
        batch_size=args.batch_size,
        seed=args.seed,
        evaluation_size=None,
    )
    name = f"bytes of {Path(args.text).name}"
    return Setting(
        name,
        problem,
        BITS,
        args.micro_batches,
        steps,
        rates,
        args.seeds or usual.seeds,
        args.seed,
        args.progress,
    )


def make_digits(
    args: Args, workers: int, batch_size: int, steps: int, rates: dict[str, float]
) -> Setting:
    """Returns the MLP on this number of workers."""
    problem = problems.neural_network(
        "mlp", "digits", workers, batch_size=batch_size, seed=args.seed
    )
    seeds = args.seeds or USUAL["digits"].seeds
    return Setting(
        "MLP on digits",
        problem,
        ACCURACY,
        args.micro_batches,
        steps,
        rates,
        seeds,
        args.seed,
        args.progress,
    )


def corrected_setting(args: Args) -> Setting:
    """Returns the setting of figures 10 and 11."""
    steps, learning_rate, _ = USUAL["digits"]
    rates = {SGD: args.sgd_learning_rate, LAMB: args.learning_rate or learning_rate}
    return make_digits(args, args.corrected_workers, args.batch_size, args.steps or steps, rates)


def local_setting(args: Args) -> Setting:
    """Returns the setting of figure 12."""
    return make_digits(
        args,
        args.local_workers,
        args.local_batch_size,
        args.local_steps,
        {SGD: args.sgd_learning_rate / 3},
    )


def stragglers(args: Args) -> tuple[local_sgd.Stragglers, local_sgd.Stragglers]:
    """Returns the stragglers of figure 12."""
    return local_sgd.scenarios(args.local_workers, args.server, args.straggling, args.local_step)


def train(args: Args, setting: Setting) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Returns all histories with their names."""
    yield from quality.runs(setting, args.drop_rates)
    yield from convergence.runs(setting, args.rounds, args.communications)
    if args.problem == "digits":
        yield from corrections.runs(corrected_setting(args), args.corrected_rates)
        yield from local_sgd.runs(
            local_setting(args), stragglers(args), args.periods, args.local_drop_rate
        )


def draw(args: Args, setting: Setting, histories: Histories) -> Figure:
    """Draws figure 5 and table 1."""
    sheet = Figure(figsize=(figures.WIDTH, 6.6), layout="constrained")
    above, below = sheet.subfigures(2, 1, squeeze=False, height_ratios=(1.1, 1))[:, 0]
    losses, seconds = plots.panels(above, 2, sharey=False)
    convergence.draw(losses, seconds, setting, histories, args.communications)
    quality.draw(plots.panels(below, 1)[0], setting, histories, args.drop_rates)
    figures.title(
        sheet,
        f"{setting.name}, {setting.workers} workers x {setting.micro_batches} "
        f"micro-batches, {LAMB}; {statistics.errors('bands', setting.seeds)}; grey lines: losses "
        "compared",
    )
    return sheet


def notes(args: Args, setting: Setting, histories: Histories) -> list[str]:
    """Explains the differences between our results and the paper's."""
    names = [quality.name_history(rate) for rate in args.drop_rates if rate]
    names += [quality.EXTRA, quality.LARGER, quality.AGAIN]
    sure = quality.significant(setting, histories, names)
    communication = convergence.needed_communication(setting)
    return [
        f"The paper's 3 % more steps and 13 % less time are steps of {convergence.RATIO:.3f} of "
        "the seconds. Workers that are preempted at the best threshold save this much if T^c is "
        f"{communication:.1f} s; with less communication they save more.",
        f"Significantly different from 0 % (95 % level), of {len(names)} runs: "
        f"{', '.join(sure) or 'none'}.",
    ]


if __name__ == "__main__":
    commands.run(main, Args)
