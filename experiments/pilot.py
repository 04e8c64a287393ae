"""Pilots of a plan: small language models of growing sizes, trained with all methods for models.

    python -m experiments.pilot
    python -m experiments.plan --forecast --model-shapes gpt2.json --pilot pilot.csv --target 3.2

Trains each candidate of `algorithms.candidates.FOR_MODELS` with a transformer for bytes at three
widths, each at the step size with the smallest loss at the end; the grid is extended until the
best one is at no edge of it. The step size grows linearly in the first twentieth of the rounds and
is constant afterwards, so that the rounds to a loss do not depend on the length of a run. The file
pilot.csv has the loss of each seed, for `dsgd.Pilot.read`; of methods with a period H, after
exchanges only. The table has the rounds to a loss that all of them reach, and how well the largest
model is predicted from the others.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import optax

import dsgd
from algorithms.candidates import FOR_MODELS
from dsgd import problems, records
from experiments.shared import commands, figures, statistics, studies, tables, tuning
from experiments.shared.studies import RATE

WARM_UP = 0.05  # share of the rounds
END = 0.1  # last part of a run on which step sizes are compared
WINDOWS = 128  # of an evaluation, which costs about as much as ten rounds
PERIOD = "H"
FILE = "pilot.csv"


class Key(NamedTuple):
    """A curve: the candidate's name, its hyperparameters as text, and the size of the model."""

    method: str
    values: str
    elements: int


@dataclass(frozen=True)
class Args(commands.Common, commands.Tasks):
    """Trains small language models of growing sizes with all methods for models."""

    text: str = "docstrings"
    """Text: docstrings, grammar, or a file or folder."""
    widths: Annotated[commands.Counts, commands.increasing(1)] = (16, 32, 64)
    """Widths of the transformers, multiples of 4; with three or more, a plan extrapolates."""
    layers: commands.Count = 1
    """Number of layers of the transformers."""
    context: commands.Count = 32
    """Number of bytes of a window."""
    workers: commands.Several = 8
    """Number of workers."""
    batch_size: commands.Count = 2
    """Number of windows that each worker draws in a round."""
    steps: commands.Count = 240
    """Number of rounds of each run."""
    periods: Annotated[commands.Counts, commands.increasing(1)] = (10, 30)
    """Numbers of local steps H between two exchanges, of methods that have them. The loss is
    recorded every periods[0] rounds.
    """
    methods: tuple[str, ...] | None = None
    """Names of candidates, for example diloco demo; by default all of them."""
    learning_rates: commands.Positives | None = None
    """First step sizes of all methods, at least two; by default the two largest of each candidate,
    since small models have larger step sizes.
    """
    seeds: commands.Count = 3
    """Independent runs at the best step size, which is that of the first one."""
    target: commands.Positive | None = None
    """Loss of the table; by default the smallest, up to two digits, that all methods reach."""
    out: Path = Path("results/pilot")
    """Folder for config.json, pilot.csv, the table and the figure."""


def main(args: Args) -> None:
    check(args)
    cases = make_cases(args)
    # one of each method, since tracing takes a second
    studies.check(args, {key.method: case for key, case in reversed(cases.items())})
    commands.begin(args, (case.problem for case in cases.values()))
    write = partial(write_pilot, args)
    path = args.out / FILE
    found = commands.collect(args, "pilots", cases, partial(studies.tune, args), write, path)
    pilot = dsgd.Pilot.read(path)
    target = args.target or statistics.round_up(max(end(one) for one in found.values()))
    sheet = figures.sheet(
        [partial(draw, found, size, target) for size in sizes(found)],
        len(args.widths),
        f"{describe(args)}, {statistics.runs(args.seeds)}; grey line: loss {target:g}",
    )
    commands.finish(args, {"figure": sheet}, {"rounds": tabulate(args, found, pilot, target)})
    tables.notes([pilot.rounds(target).description])


def check(args: Args) -> None:
    """Raises a ValueError if flags do not fit together, or a method is not known."""
    if args.steps % args.periods[0]:
        raise ValueError(
            f"--steps {args.steps}: expected a multiple of --periods {args.periods[0]}, after "
            "which the loss is recorded"
        )
    if args.periods[-1] > args.steps // 2:
        raise ValueError(
            f"--periods {args.periods[-1]}: expected at most half of --steps {args.steps}"
        )
    if args.methods is not None:
        commands.require_known("--methods", args.methods, [each.name for each in FOR_MODELS])


def make_cases(args: Args) -> dict[Key, studies.Case]:
    """Returns the runs of all candidates with all their hyperparameters, at all sizes."""
    models = [
        problems.language_model(
            args.text,
            args.workers,
            context=args.context,
            width=width,
            layers=args.layers,
            batch_size=args.batch_size,
            seed=args.seed,
            evaluation_size=WINDOWS,
        )
        for width in args.widths
    ]
    chosen = [each for each in FOR_MODELS if args.methods is None or each.name in args.methods]
    cases = dict[Key, studies.Case]()
    for candidate, problem in itertools.product(chosen, models):
        build = partial(make_method, candidate, args)  # one program for all values
        for values in points(candidate, args):
            grid = {RATE: args.learning_rates or candidate.rates(())[-2:]}
            named = ", ".join(f"{name} = {value:g}" for name, value in values.items())
            key = Key(str(candidate), named, tuning.elements(problem))
            cases[key] = studies.Case(
                build,
                problem,
                records=args.steps // args.periods[0],
                share=END,
                grid=grid | {name: (value,) for name, value in values.items()},
                over=(RATE,),
                convert=partial(after_exchanges, values.get(PERIOD, 1)),
            )
    return cases


def make_method(
    candidate: dsgd.Candidate, args: Args, learning_rate: Any, **values: Any
) -> dsgd.Algorithm:
    """Returns the method of a candidate at a step size that is constant after a linear warm-up."""
    rounds = math.ceil(WARM_UP * args.steps)

    def schedule(step):
        return learning_rate * optax.linear_schedule(1 / rounds, 1.0, rounds - 1)(step)

    optimizer = (candidate.optimizer or optax.sgd)(schedule)
    return candidate.build(optimizer, args.workers, **values)


def points(candidate: dsgd.Candidate, args: Args) -> Iterator[dict[str, float]]:
    """Yields the hyperparameters of the candidate's curves: the periods of the flags, and the
    values of its other grids, such as numbers of rounds, that are below the number of rounds.
    """
    grids = {
        name: args.periods if name == PERIOD else [value for value in grid if value < args.steps]
        for name, grid in candidate.swept.items()
    }
    for point in itertools.product(*grids.values()):
        yield dict(zip(grids, point, strict=True))


def after_exchanges(period: float, history: studies.History) -> studies.History:
    """Returns the loss in the records after an exchange."""
    kept = history["step"] % period == 0
    return {"step": history["step"][kept], "loss": history["loss"][:, kept]}


def write_pilot(args: Args, path: Path, found: Mapping[Key, studies.Tuned]) -> None:
    """Writes the curves, one row for each record of each seed; see `dsgd.Pilot.read`."""
    names = list(dict.fromkeys(name for one in found.values() for name in one.values))
    columns = ["method", *names, "elements", "seed", "step", "loss"]
    with records.replacing(path) as temporary, temporary.open("w", newline="") as file:
        file.write(f"## {describe(args)}\n")  # "# " begins the tables that pages show
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for key, one in found.items():
            values = [f"{one.values[name]:g}" if name in one.values else "" for name in names]
            for seed, losses in enumerate(one.history["loss"]):
                for step, loss in zip(one.history["step"], losses, strict=True):
                    writer.writerow([key.method, *values, key.elements, seed, step, f"{loss:.4f}"])


def describe(args: Args) -> str:
    """Returns what is trained."""
    return f"transformer on {Path(args.text).name}, {args.workers} workers"


def sizes(found: Mapping[Key, Any]) -> list[int]:
    """Returns the numbers of elements, increasing."""
    return sorted({key.elements for key in found})


def end(one: studies.Tuned) -> float:
    """Returns the mean loss over seeds in the last record."""
    return float(one.history["loss"][:, -1].mean())


def tabulate(
    args: Args, found: Mapping[Key, studies.Tuned], pilot: dsgd.Pilot, target: float
) -> Any:
    """Returns the table of the rounds to the target by size."""
    each = sizes(found)
    made = tables.table(
        f"{describe(args)}:\nrounds to loss {target:g}",
        ("method", *(f"{size:,}" for size in each), "pre-\ndicted", "step\nsize", "loss"),
        f"Means of {statistics.runs(args.seeds)}, by number of elements. Predicted: rounds of the "
        "largest\nmodel by a power law from the others, relative to the recorded ones. Step\nsize, "
        f"loss after {args.steps} rounds: of the largest model. *: at an edge of the grid.",
    )
    by_size = [pilot.rounds(target, size) for size in each]
    for row in by_size[-1].rows:
        named = ", ".join(f"{name} = {value:g}" for name, value in row.values.items())
        one = found[Key(row.method, named, each[-1])]
        rounds = [at.of(row.method, row.values).rounds.value for at in by_size]
        made.add_row(
            tables.wrap(f"{row.method}, {named}" if named else row.method, 18),
            *(f"{number:.0f}" if math.isfinite(number) else "-" for number in rounds),
            f"{row.predicted:.2f}" if math.isfinite(row.predicted) else "-",
            one.cell(),
            f"{end(one):.3f}",
        )
    return made


def draw(found: Mapping[Key, studies.Tuned], size: int, target: float, axes: Any) -> None:
    """Draws the losses of all methods with a model of one size, at the first period."""
    chosen = dict[str, studies.Tuned]()
    for key, one in found.items():
        if key.elements == size:
            chosen.setdefault(key.method, one)
    figures.curves(
        studies.lines(chosen, "rounds"),
        target,
        xlabel="rounds",
        ylabel="loss f, nats",
        title=f"{size:,} elements",
        log="",
    )(axes)
    top = np.median([one.history["loss"][:, 0].mean() for one in chosen.values()])
    axes.set_ylim(top=top)


if __name__ == "__main__":
    commands.run(main, Args)
