"""The plan: which method, with which settings, is the fastest on your cluster.

    python -m experiments.plan --cluster results/calibrate/cluster.json --target 0.3
    python -m experiments.plan --problem mine.py --latency 1e-3 --bandwidth 1e7 --seconds 600

Ranks methods of all families by their seconds to a target, or by their result within a budget of
seconds or of bits, and lists the bandwidths and latencies at which the answer is another one.
Methods and settings (step size, period, compressor, topology) are chosen by successive halving, on
simulated seconds of the cluster: `dsgd.plan`.

The file of `--problem` defines `problem`, a `dsgd.Problem`. It may also define `optimizer`, a
function from the step size to an optimizer, and `candidates`, a list of `dsgd.Candidate`.

    python -m experiments.plan --forecast --model-shapes gpt2.json --pilot pilot.csv --target 3

tabulates seconds of a round, tokens per second, memory and hours of the training of a given model
instead, with the rounds of recorded runs (`experiments.planning.forecasting`, which has flags of
its own).

    python -m experiments.plan --verify

trains with real processes over emulated links instead, and compares their seconds with the
predicted ones (`experiments.planning.verification`, which has flags of its own).

    python -m experiments.plan --coverage

repeats plans with fresh seeds, and counts how often their intervals, their order and their ties are
right (`experiments.planning.coverage`, which has flags of its own).
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax

import algorithms
import dsgd
from dsgd import Candidate, clusters
from dsgd.planning.forecasts import count_elements
from dsgd.runs.sweeps import default_metric
from experiments.planning import choosing, coverage, forecasting, ranking, verification
from experiments.shared import commands, resuming, statistics, studies, tables, tuning

INSTEAD = {
    "--forecast": forecasting,
    "--verify": verification,
    "--coverage": coverage,
}  # of the plan, with flags of their own


@dataclass(frozen=True)
class Args(commands.Model, commands.Workers, commands.Tuning):
    """Ranks methods and their settings on a cluster."""

    problem: Path | None = None
    """Python file that defines `problem`, instead of --model and its data."""
    metric: str | None = None
    """What is compared: test_accuracy, or another metric of the problem; by default the loss, or
    the objective of a problem with a regularizer.
    """
    largest: bool | None = None
    """Whether the largest value of another metric is best."""
    target: float | None = None
    """Value of the metric to be reached in the fewest seconds; without it and a budget: the loss
    that mini-batch SGD reaches in a third of the rounds.
    """
    seconds: commands.Positive | None = None
    """Budget in seconds, instead of a target."""
    megabits: commands.Positive | None = None
    """Budget of megabits that a worker sends and receives, instead of a target."""
    methods: tuple[str, ...] | None = None
    """Names of candidates, of candidates for large models (demo), or of registered methods (dgd);
    by default all candidates of any problem.
    """
    periods: commands.Counts | None = None
    """Candidate numbers of local steps between two exchanges."""
    compressors: tuple[str, ...] | None = None
    """Compressors that replace those of the candidates, for example sign top_k(0.1)."""
    topologies: tuple[str, ...] | None = None
    """Topologies that replace those of the candidates, for example ring star."""
    steps: commands.Count = 600
    """Largest number of rounds; one gradient of each worker each."""
    seeds: commands.Count = 3
    """Independent runs at all settings; the finalists then make ten times as many others."""
    finalists: commands.Count = 8
    """Number of candidates that run for all rounds, at least."""
    size: commands.Positive | None = None
    """Number of elements of the model to which all bits are scaled, if the trained one is smaller.
    """
    model_shapes: Path | None = None
    """Shapes of the model to plan for, if a smaller one is trained: its messages are sent, and
    seconds are those of its gradients (--compute). A file as for --forecast.
    """
    forecast: bool = False
    """Tabulate seconds, memory and, with recorded runs, hours of the training of a given model
    instead; it has flags of its own (--forecast --help).
    """
    verify: bool = False
    """Compare predicted with measured seconds of real processes over emulated links instead; it has
    flags of its own (--verify --help).
    """
    coverage: bool = False
    """Repeat plans and count how often their intervals and ties are right instead; it has flags of
    its own (--coverage --help).
    """
    out: Path = Path("results/plan")
    """Folder for config.json, plan.csv, changes.csv and the figures."""


class Task(NamedTuple):
    """The problem, step size -> optimizer, and the candidates."""

    problem: dsgd.Problem
    optimizer: Callable[..., optax.GradientTransformation]
    candidates: Sequence[Candidate]


def main(args: Args) -> None:
    for flag, other in INSTEAD.items():
        if getattr(args, flag.removeprefix("--")):
            shared = {field.name: getattr(args, field.name) for field in fields(commands.Common)}
            other.main(other.Args(**shared, out=args.out))
            return
    task = make_task(args)
    scale = 1.0 if args.size is None else tuning.elements(task.problem) / args.size
    cluster, gradient = make_cluster(args, task.problem, scale)
    commands.begin(args)
    target, seconds, bits = goal(args, task, scale)
    plan = rank_candidates(
        task.candidates,
        task.problem,
        cluster,
        key=jax.random.key(args.seed),
        target=target,
        seconds=seconds,
        bits=bits,
        metric=args.metric,
        largest=args.largest,
        model=None if args.model_shapes is None else forecasting.read_shapes(args.model_shapes),
        optimizer=task.optimizer,
        learning_rates=args.learning_rates,
        steps=args.steps,
        seeds=args.seeds,
        finalists=args.finalists,
        mesh=tuning.devices_for(task.problem.workers),
        checkpoint=resuming.next_folder(),
        progress=args.progress,
        on=args.on,
        jobs=args.jobs,
    )
    tables.notes([describe_rounds(args, task)])
    shown = ranking.Shown(
        plan, args, scale, task.problem.workers, gradient, name_model(task.problem)
    )
    ranking.write(shown)
    commands.finish(args, ranking.draw(shown), {"ranking": ranking.tabulate(shown)})
    tables.notes(ranking.notes(shown))


def describe_rounds(args: Args, task: Task) -> str:
    """Describes which model the rounds, the metric and the messages are those of."""
    trained = f"Rounds, {args.metric or 'loss'}: of {name_model(task.problem)}, trained"
    if args.model_shapes is not None:
        shapes = forecasting.read_shapes(args.model_shapes)
        size = count_elements(shapes)
    elif args.size is not None:
        size = int(args.size)
    else:
        return f"{trained}. Seconds, bits: of the same model."
    return (
        f"{trained}. Seconds, bits: of a model of {size:,} elements, which may need another number "
        "of rounds."
    )


def name_model(problem: dsgd.Problem) -> str:
    """Returns the name of a problem with the size of its model."""
    return f"{problem.name}, {tuning.elements(problem):,} elements"


def rank_candidates(*args: Any, **options: Any) -> dsgd.Plan:
    """Returns the plan; if it is interrupted, the ranking so far is printed."""
    try:
        return dsgd.plan(*args, **options)
    except dsgd.Interrupted as stopped:
        tables.notes(str(stopped).splitlines())
        raise


def make_task(args: Args) -> Task:
    """Returns the problem and the candidates, from the file of `--problem` or the flags.

    Raises:
        ValueError: if the file does not define a problem, or a name is unknown.
    """
    found: dict[str, Any] = {}
    if args.problem is not None:
        refuse_others(args)
        found = runpy.run_path(str(args.problem), run_name=args.problem.stem)
        if not isinstance(found.get("problem"), dsgd.Problem):
            raise ValueError(
                f"--problem {args.problem}: problem = {found.get('problem')!r}; expected a file "
                "that defines `problem`, a dsgd.Problem"
            )
    problem = found["problem"] if found else tuning.make_problem(args)
    candidates = choosing.choose_candidates(
        args, problem, found.get("candidates", algorithms.CANDIDATES)
    )
    return Task(problem, found.get("optimizer", optax.sgd), candidates)


def refuse_others(args: Args) -> None:
    """Raises a ValueError if a flag is given that a problem in a file does not use."""
    for field in fields(commands.Model):
        if (given := getattr(args, field.name)) != field.default:
            raise ValueError(
                f"--problem {args.problem} and --{field.name.replace('_', '-')} {given}: the file "
                "defines the problem; pass only one of the two"
            )


def make_cluster(args: Args, problem: dsgd.Problem, scale: float) -> tuple[clusters.Cluster, float]:
    """Returns the workers, with random delays if given, and the seconds of a gradient of the
    slowest one without them.

    Args:
        args: the command's arguments.
        problem: the problem.
        scale: elements of the trained model, relative to those of the model to plan for.
    """
    samples = problem.batch_size or 1
    if args.cluster is None:
        per_sample = clusters.constant(args.compute)
        ports = scale * args.bandwidth, args.latency
        cluster = tuning.equal_workers(0.0, *ports, args.delay, per_sample=per_sample)
        return cluster, args.compute * samples
    cluster = tuning.workers_of_file(args, problem.workers, scale)
    kinds = clusters.load(args.cluster).kinds(problem.workers)
    return cluster, max(kind.compute + kind.per_sample * samples for _, kind in kinds)


def goal(args: Args, task: Task, scale: float) -> tuple[float | None, float | None, float | None]:
    """Returns the target, or the budget in seconds or in bits of the trained model."""
    bits = None if args.megabits is None else 1e6 * scale * args.megabits
    given = (args.target, args.seconds, bits)
    if any(number is not None for number in given):
        return given
    metric = args.metric or default_metric(task.problem.regularizer is not None)
    if metric != "loss":
        raise ValueError(
            f"--metric {metric}: expected --target, --seconds or --megabits with this metric"
        )
    return default_target(args, task), None, None


def default_target(args: Args, task: Task) -> float:
    """Returns the loss that mini-batch SGD reaches in a third of the rounds at its best step size,
    rounded up to two digits.
    """

    case = studies.Case(
        lambda learning_rate: algorithms.minibatch_sgd(task.optimizer(learning_rate)),
        task.problem,
        steps=max(1, args.steps // 3),
        share=0.05,
    )
    with commands.waiting(args, "mini-batch SGD, for the default target"):
        found = studies.tune(args, case)
    if found is None:
        raise ValueError(
            f"--learning-rates {' '.join(map(str, args.learning_rates))}: mini-batch SGD diverges "
            "with all of them; expected smaller ones, or a --target"
        )
    reached = float(dsgd.history.tail_mean(found.history["loss"], 0.05).mean())
    if reached <= 0:
        raise ValueError(f"mini-batch SGD reaches the loss {reached:g}; expected a --target")
    return statistics.round_up(reached)


if __name__ == "__main__":
    given = [flag for flag in INSTEAD if flag in sys.argv[1:]]
    if given:
        flag, other = given[0], INSTEAD[given[0]]
        sys.argv.remove(flag)
        name = f"{commands.program(Args)} {flag}"
        commands.launch(other.main, commands.parse(other.Args, name))
    else:
        commands.run(main, Args)
