"""The forecast: seconds per round, tokens per second, memory and, with the rounds of a pilot, hours
and price of the training of a given model.

Seconds, messages and memory are those of the model with the given shapes, by `dsgd.forecast`. The
number of rounds is that of recorded runs, the pilot, which the command names.
"""

from __future__ import annotations

import math
import runpy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from rich.table import Table

import algorithms
import dsgd
from dsgd import Candidate, clusters, planning, records
from dsgd.planning import Estimate
from dsgd.planning.forecasts import as_shapes, count_elements
from dsgd.planning.pilots import PilotRounds
from experiments.planning import choosing
from experiments.shared import commands, tables, tuning

FLAG = "--model-shapes"
MEGABYTE = 8e6  # bits
HOUR = 3600.0
TIMES = (
    ("seconds", 3600.0),
    ("minutes", 60.0),
    ("hours", 1.0),
    ("days", 1 / 24),
    ("years", 1 / 8766),
)
COPIED = 8  # bytes that the copy of a float32 reads and writes


@dataclass(frozen=True)
class Args(commands.Common, commands.Workers):
    """Forecasts the training of a given model on a cluster."""

    model_shapes: Path | None = None
    """The model: a JSON file of shapes by name, a file of safetensors, or a Python file that
    defines `shapes` (jax.eval_shape of a flax model).
    """
    workers: commands.Count = 8
    """Number of workers."""
    batch_size: commands.Count = 1
    """Number of samples in a worker's gradient."""
    tokens: commands.Count | None = None
    """Number of tokens in a sample, to show tokens per second in place of samples."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of gradients, messages and the state; by default that of the shapes."""
    node_size: commands.Count | None = None
    """Number of workers in a machine, which share its network card (--bandwidth, --latency)."""
    node_bandwidth: commands.Positive = 1e12
    """Bits per second of a worker's port inside its machine."""
    node_latency: commands.NotNegative = 5e-6
    """Seconds of latency of a message inside a machine."""
    bucket: commands.NotNegative | None = None
    """Megabytes of the buckets in which a message is sent, with one latency for each bucket (0: for
    each array); by default a message has one latency.
    """
    backward: commands.Share | None = None
    """Share of a gradient's seconds in which its buckets are already sent: the backward pass."""
    memory_bandwidth: commands.Positive | None = None
    """Bytes per second that a worker's device reads or writes, to count the seconds of the
    optimizer and of compression; they are measured on this machine in multiples of a copy.
    """
    methods: tuple[str, ...] | None = None
    """Names of candidates, or of registered methods; by default those for language models."""
    periods: commands.Counts | None = None
    """Numbers of local steps between two exchanges."""
    pilot: Path | None = None
    """Recorded runs, from which the numbers of rounds are taken (experiments.pilot)."""
    target: float | None = None
    """Value of the metric up to which rounds are counted."""
    metric: str = "loss"
    """Name of the metric in the pilot."""
    price: commands.Positive | None = None
    """Price of a worker per hour."""
    between_failures: commands.Positive | None = None
    """Mean seconds between two failures of any machine, after which all workers restart."""
    checkpoint: commands.NotNegative = 30.0
    """Seconds in which the training waits for a checkpoint."""
    restart: commands.NotNegative = 300.0
    """Seconds from a failure to the next round."""
    out: Path = Path("results/plan")
    """Folder for config.json, methods.csv and the table."""


class Row(NamedTuple):
    """A method with one setting.

    Args:
        name: the candidate's name, with its hyperparameters.
        found: its forecast.
        speed: tokens, or samples, of all workers per second.
        rounds: number of rounds to the target; None without a pilot.
        hours: until then, with restarts.
        price: of these hours.
    """

    name: str
    found: dsgd.Forecast
    speed: float
    rounds: Estimate | None = None
    hours: Estimate | None = None
    price: float | None = None


def main(args: Args) -> None:
    check(args)
    hardware = None if args.cluster is None else clusters.load(args.cluster)
    if hardware is not None:
        args = add_hardware(args, hardware)
    assert args.model_shapes is not None
    shapes = read_shapes(args.model_shapes, args.dtype)
    elements = count_elements(shapes)
    cluster = make_cluster(args, elements)
    candidates = choose(args)
    pilot = None
    if args.pilot is not None and args.target is not None:
        known = (*candidates, *algorithms.FOR_MODELS, *algorithms.CANDIDATES)
        curves = dsgd.Pilot.read(args.pilot, candidates=known, metric=args.metric)
        pilot = curves.rounds(args.target, elements)
    commands.begin(args)
    copy = planning.copy_seconds() if args.memory_bandwidth else 0.0
    rows, left_out = list[Row](), list[str]()
    settings = [*points(candidates, pilot)]
    for candidate, values in tables.bar(settings, "tracing rounds", args.progress):
        try:
            rows.append(make_row(args, shapes, cluster, pilot, copy, candidate, values))
        except ValueError as error:
            left_out.append(f"Left out: {label(candidate, values)} ({error}).")
    if pilot is not None:
        recorded = {row.method for row in pilot.rows}
        if without := [each.name for each in candidates if str(each) not in recorded]:
            left_out.append(f"Without a curve in the pilot: {', '.join(without)}.")
    if hardware is not None and hardware.memory is not None:
        large = [row.name for row in rows if row.found.memory.total > hardware.memory]
        if large:
            left_out.append(f"More than the memory of a worker's device: {', '.join(large)}.")
    if not rows:
        raise ValueError(f"{FLAG}: no candidate accepts the model and the cluster. {left_out[0]}")
    rows.sort(key=lambda row: row.hours.value if row.hours else -row.speed)
    lines = [describe(args, shapes, elements), describe_rounds(pilot), *describe_rest(args)]
    tables.notes(lines)
    write(args.out, rows)
    commands.finish(args, {}, tabulate(args, rows))
    tables.notes(left_out)


def check(args: Args) -> None:
    """Raises a ValueError if flags are missing or do not fit together."""
    if args.model_shapes is None:
        raise ValueError(
            "--forecast: expected --model-shapes FILE, the shapes of the model by name as JSON or "
            "safetensors, or a Python file that defines `shapes`"
        )
    if (args.pilot is None) != (args.target is None):
        raise ValueError(
            f"--pilot {args.pilot} and --target {args.target}: expected both, the recorded runs "
            "and the value up to which their rounds are counted, or none of them"
        )
    if args.node_size is not None and args.workers % args.node_size:
        raise ValueError(
            f"--node-size {args.node_size}: expected a divisor of --workers {args.workers}"
        )


def add_hardware(args: Args, hardware: clusters.Hardware) -> Args:
    """Returns the arguments with the price and the memory bandwidth of the file of the cluster, if
    the flags do not have them.
    """
    price = hardware.hourly_price(args.workers)
    return replace(
        args,
        price=args.price or (price and price / args.workers),
        memory_bandwidth=args.memory_bandwidth or hardware.memory_bandwidth,
    )


def read_shapes(path: Path, dtype: str | None = None) -> Any:
    """Returns the shapes of a model, in another type if it is given.

    Raises:
        ValueError: if the file does not describe a model.
    """
    if path.suffix == ".py":
        shapes = runpy.run_path(str(path), run_name=path.stem).get("shapes")
        if shapes is None:
            raise ValueError(
                f"{FLAG} {path}: it defines no `shapes`; expected a file that does, such as "
                "shapes = jax.eval_shape(model.init, key, inputs)"
            )
        shapes = as_shapes(f"{FLAG} {path}: shapes", shapes)
    else:
        shapes = dsgd.load_shapes(path)
    if dtype is None:
        return shapes

    def cast(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.ShapeDtypeStruct(leaf.shape, dtype if is_float else leaf.dtype)

    return jax.tree.map(cast, shapes)


def make_cluster(args: Args, elements: int) -> clusters.Cluster:
    """Returns the cluster of the flags, or of the file with the flags' changes."""
    cluster = tuning.make_cluster(args)
    if cluster.per_sample is not None:  # a round of the forecast has one sample
        cluster = replace(cluster, per_sample=args.batch_size * cluster.per_sample)
    if args.node_size is not None:
        nodes = clusters.Nodes(args.node_size, args.node_bandwidth, args.node_latency)
        cluster = replace(cluster, nodes=nodes)
    bucket = cluster.bucket if args.bucket is None else MEGABYTE * args.bucket
    cluster = replace(cluster, bucket=bucket)
    if args.backward is None:
        return cluster
    if math.isinf(bucket):
        raise ValueError(
            f"--backward {args.backward:g} without buckets: a message begins when its first bucket "
            "is ready; pass --bucket as well, for example 25"
        )
    share = min(1.0, bucket / (32 * elements))
    per_sample = cluster.per_sample or clusters.constant(0.0)
    overlap = clusters.Overlap(
        args.backward * cluster.compute, args.backward * per_sample, share, share
    )
    return replace(cluster, overlap=overlap)


def choose(args: Args) -> list[Candidate]:
    """Returns the candidates of the flags."""
    known = algorithms.FOR_MODELS
    found = list(known)
    if args.methods is not None:
        found = [each for name in args.methods for each in choosing.find(name, known)]
    if args.periods is not None:
        found = [choosing.set_periods(each, args.periods) for each in found]
    return list({str(each): each for each in found}.values())


def points(
    candidates: Sequence[Candidate], pilot: PilotRounds | None
) -> Iterator[tuple[Candidate, dict[str, float]]]:
    """Yields the candidates with their hyperparameters: those of the pilot, or without one their
    largest ones.
    """
    for each in candidates:
        if pilot is None:
            yield each, {name: max(grid) for name, grid in each.swept.items()}
            continue
        for row in pilot.rows:
            if row.method != str(each):
                continue
            if missing := [name for name in each.swept if name not in row.values]:
                raise ValueError(
                    f"--pilot: the curve of {each} has no {', '.join(missing)}; expected a column "
                    "for each hyperparameter"
                )
            yield each, {name: int(row.values[name]) for name in each.swept}


def make_row(
    args: Args,
    shapes: Any,
    cluster: clusters.Cluster,
    pilot: PilotRounds | None,
    copy: float,
    candidate: Candidate,
    values: Mapping[str, float],
) -> Row:
    """Returns the row of a candidate at one setting.

    Args:
        args: the command's arguments.
        shapes: of the model.
        cluster: the cluster.
        pilot: the numbers of rounds, or None.
        copy: seconds in which this machine copies a float32.
        candidate: the candidate.
        values: its hyperparameters.

    Raises:
        ValueError: if the method refuses the model or the cluster.
    """
    N, name = args.workers, label(candidate, values)
    optimizer = (candidate.optimizer or optax.sgd)(candidate.rates((1e-3,))[0])
    method = candidate.build(optimizer, N, **values)
    update = 0.0
    if args.memory_bandwidth is not None:
        here = planning.update_seconds(method, shapes, workers=N)
        update = here * COPIED / args.memory_bandwidth / copy
    found = dsgd.forecast(method, shapes, cluster, workers=N, update=update, key=args.seed)
    speed = found.gradients * args.batch_size * (args.tokens or 1) / found.seconds
    if pilot is None:
        return Row(name, found, speed)
    rounds = pilot.of(candidate, values).rounds
    each = found.seconds * N / found.gradients / HOUR * slowdown(args)
    hours = Estimate(*(each * number for number in rounds))
    price = None if args.price is None else args.price * N * hours.value
    return Row(name, found, speed, rounds, hours, price)


def label(candidate: Candidate, values: Mapping[str, float]) -> str:
    """Returns the name of a candidate with its hyperparameters."""
    return ", ".join([candidate.name, *(f"{name} = {x:g}" for name, x in values.items())])


def slowdown(args: Args) -> float:
    """Returns how much longer the training takes because of checkpoints and failures."""
    if args.between_failures is None:
        return 1.0
    return planning.Restarts(args.between_failures, args.checkpoint, args.restart).slowdown


def describe(args: Args, shapes: Any, elements: int) -> str:
    """Describes what the seconds are those of."""
    assert args.model_shapes is not None
    kinds = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(shapes)})
    return (
        f"Seconds, memory: of {args.model_shapes.name}, {elements:,} elements in "
        f"{' and '.join(kinds)}, on {args.workers} workers{describe_nodes(args)}."
    )


def describe_nodes(args: Args) -> str:
    """Describes the machines of the flags."""
    return "" if args.node_size is None else f" in {args.workers // args.node_size} machines"


def describe_rounds(pilot: PilotRounds | None) -> str:
    """Describes what the numbers of rounds are those of."""
    if pilot is not None:
        return f"{pilot.description}."
    return (
        "Rounds: unknown, so the table has costs of a round only; pass --pilot and --target "
        "(recorded runs of the model or of smaller ones), or train a smaller problem: the same "
        "without --forecast."
    )


def describe_rest(args: Args) -> Iterator[str]:
    """Yields sentences on the optimizer and on restarts."""
    if args.memory_bandwidth is None:
        yield (
            "The seconds of optimizers and compression are not counted; pass --memory-bandwidth, "
            "bytes per second of a worker's device."
        )
    if (factor := slowdown(args)) > 1:
        yield f"Checkpoints and restarts: hours are {factor - 1:.1%} longer than the training."


def tabulate(args: Args, rows: Sequence[Row]) -> dict[str, Table]:
    """Tabulates the costs of a round, and with a pilot the hours to the target."""
    unit = "samples/s" if args.tokens is None else "tokens/s"
    table = tables.table(
        "a round of the training",
        ("method", "s of\na round", unit, "wait", "limit", "GB"),
        "wait: share of a round in which workers wait for messages.\n"
        "limit: what takes most of the time.\n"
        "GB: memory of a worker, without activations.",
    )
    for row in rows:
        table.add_row(
            tables.wrap(row.name, 26),
            f"{row.found.seconds:.3g}",
            tables.plain(row.speed),
            f"{row.found.communication:.0%}",
            row.found.dominant.replace("computation", "compute"),
            f"{row.found.memory.total / 1e9:.3g}",
        )
    if args.pilot is None:
        return {"rounds": table}
    known = [row.hours.value for row in rows if row.hours and math.isfinite(row.hours.value)]
    unit, hour = next(
        each for each in TIMES if max(known, default=0.0) * each[1] < 200 or each is TIMES[-1]
    )
    hours = tables.table(
        f"the training to {args.metric} {args.target:g}",
        ("method", "rounds", unit, "95 %", *(["price"] if args.price else [])),
        f"rounds: those of the pilot.\n95 %: interval of the {unit}. -: not reached.",
    )
    for row in rows:
        assert row.rounds is not None
        assert row.hours is not None
        price = [] if row.price is None else [_number(row.price)]
        rounds, time = _number(round(row.rounds.value, 1)), _number(hour * row.hours.value)
        cells = rounds, time, _interval(Estimate(*(hour * each for each in row.hours)))
        hours.add_row(tables.wrap(row.name, 26), *cells, *price)
    return {"rounds": table, "hours": hours}


def _number(number: float) -> str:
    return tables.plain(number) if math.isfinite(number) else "-"


def _interval(hours: Estimate) -> str:
    if not math.isfinite(hours.high - hours.low):
        return "-"
    return f"{tables.plain(hours.low)}-{tables.plain(hours.high)}"


def write(out: Path, rows: Sequence[Row]) -> None:
    """Writes all numbers."""
    parts = ("seconds", "compute", "latency", "transfer", "up", "down", "messages")
    heading = ("method", *parts, *planning.Memory._fields, "speed", "rounds", "hours", "price")
    lines = [
        (
            row.name,
            *(f"{getattr(row.found, name):.6g}" for name in parts),
            *row.found.memory,
            f"{row.speed:.6g}",
            *("" if each is None else f"{each.value:.6g}" for each in (row.rounds, row.hours)),
            "" if row.price is None else f"{row.price:.6g}",
        )
        for row in rows
    ]
    records.write_rows(out / "methods.csv", heading, lines)
