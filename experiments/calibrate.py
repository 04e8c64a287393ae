"""Calibration of the cost model: measures this machine's collectives, fits the switch model to
them, and compares predicted with measured rounds.

    python -m experiments.calibrate
    python -m experiments.calibrate --shape 30mbit --sizes 1024 16384 262144 1048576
    python -m experiments.calibrate --shape 30mbit --shape-latency 0.005
    python -m experiments.calibrate --shape 30mbit:10mbit --period 5

Uses real processes, one per worker: those that a launcher started, on one or several machines, or
else processes on this machine.

    srun -n 4 python -m experiments.calibrate
    python -m experiments.calibrate --coordinator node1:12345 --processes 4 --process-id 0

The fitted latency and bandwidth, and the time
of a gradient, are written as a cluster that other experiments accept
(`--cluster results/calibrate/cluster.json`). With `--shape` (Linux, as root) the processes run in
separate network namespaces, connected by links with this rate and the latency `--shape-latency`. If
the rate changes, Kimad is trained over these links instead, and compared with fixed ratios: loss
over real seconds.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax

import dsgd
from dsgd import clusters, records
from dsgd.machines import agreement, links, subprocess_call
from experiments.kimad import links as kimad_links
from experiments.kimad.links import Setting
from experiments.shared import commands
from experiments.survey import calibrate_measuring as measuring
from experiments.survey import calibrate_results as results
from experiments.survey import calibrate_switch as switch

LOCAL = 2  # processes on this machine by default
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True)
class Args(commands.Flags):
    """Measures collectives and rounds of this machine, or of several ones."""

    processes: commands.Several | None = None
    """Number of processes, one worker each; by default those of the launcher, or 2 on this machine,
    where more than it has cores slow each other down.
    """
    coordinator: str | None = None
    """Address host:port of process 0, if another launcher than Slurm or mpirun starts the
    processes.
    """
    process_id: commands.Natural | None = None
    """Number of this process, from 0; only process 0 prints and writes."""
    lost_after: commands.Positive = 30.0
    """Seconds without a heartbeat after which a process counts as lost, and the others end."""
    shape: str | None = None
    """Rate of every process's link in both directions, for example 30mbit (kbit, mbit, gbit);
    several rates, which alternate: 30mbit:10mbit.
    """
    shape_latency: commands.NotNegative = 0.0
    """Seconds that a packet takes from one process to another over the links of --shape."""
    period: commands.Positive = 5.0
    """Seconds in which each of several rates is used once."""
    sizes: Annotated[commands.Counts, commands.increasing(2)] = tuple(4**k for k in range(5, 14))
    """Sizes of the vectors in bytes, increasing, at least two."""
    widths: Annotated[commands.Counts, commands.increasing(1)] = (
        16,
        128,
        1024,
        8192,
        65536,
    )
    """Widths of the hidden layer of the networks whose rounds are measured, increasing; 75 float32
    per unit.
    """
    batch_size: commands.Count = 16
    """Number of samples that each worker draws in a round."""
    repeats: commands.Count = 25
    """Maximal number of repetitions of each measurement."""
    longest: commands.Positive = 3.0
    """Maximal seconds for the repetitions of one measurement; sizes at which three repetitions take
    longer are skipped.
    """
    width: commands.Count = 1024
    """Width of the network that Kimad trains."""
    ratios: tuple[commands.Share, ...] = (0.01, 0.1, 1.0)
    """Shares of elements that the fixed compressors send, for comparison with Kimad."""
    round_times: commands.Positives = (0.03, 0.06, 0.15)
    """Round times of Kimad, seconds; one training run for each."""
    learning_rates: commands.Positives = (0.1, 0.3)
    """Candidate step sizes of Kimad and of the fixed ratios."""
    seconds: commands.Positive = 20.0
    """Seconds of each training run over links whose rate changes."""
    out: Path = Path("results/calibrate")
    """Folder for config.json, cluster.json, collectives.csv, rounds.csv and figure.png; of Kimad,
    kimad.csv and kimad.png.
    """


def main(args: Args) -> None:
    if is_launched():
        refuse_local(args)
    else:
        args = replace(args, processes=args.processes or LOCAL)
    check(args)
    rate = None if args.shape is None else parse(args.shape, args.period)
    if rate is not None:
        links.require_allowed(args.shape_latency)
    commands.begin(args)
    if rate is not None and len(rate.bits) > 1:
        train(args, rate)
    else:
        calibrate(args, rate)


def is_launched() -> bool:
    """Returns whether the workers are the devices that JAX has: those of several processes, or
    several accelerators of this one.
    """
    return agreement.process_count() > 1 or (
        jax.device_count() > 1 and jax.devices()[0].platform != "cpu"
    )


def refuse_local(args: Args) -> None:
    """Raises a ValueError if a flag is for processes that this command starts."""
    if args.shape is not None:
        raise ValueError(
            f"--shape {args.shape} with {jax.device_count()} workers of a launcher: expected one "
            "process, which starts processes over emulated links"
        )
    if args.processes not in (None, agreement.process_count()):
        raise ValueError(
            f"--processes {args.processes}, but the launcher started {agreement.process_count()}; "
            "pass their number, or none"
        )


def check(args: Args) -> None:
    """Raises a ValueError if there is a latency of links that are not emulated, or all sizes round
    to the same one.
    """
    if args.shape_latency and args.shape is None:
        raise ValueError(
            f"--shape-latency {args.shape_latency:g} without --shape: expected emulated links; "
            "pass their rate as well, for example --shape 30mbit"
        )
    for name, N in itertools.product(measuring.COLLECTIVES, count_workers(args)):
        collective = measuring.COLLECTIVES[name]
        if len({collective.columns(size, N) for size in args.sizes}) < 2:
            least = measuring.ELEMENT * N / collective.own(N)
            given = " ".join(map(str, args.sizes))
            raise ValueError(
                f"--sizes {given}: all round to the same size for {name}, whose vectors are "
                f"multiples of {least:g} bytes; expected at least two different sizes"
            )


def count_workers(args: Args) -> list[int]:
    """Returns the numbers of workers of the collectives: all workers first."""
    if not is_launched():
        return [args.processes or LOCAL]
    machines, size = measuring.find_places().devices.shape
    return [machines * size, *(each for each in (machines, size) if machines > 1 and size > 1)]


def parse(shape: str, period: float) -> links.Rate:
    """Parses `30mbit` or `30mbit:10mbit`; raises a ValueError for anything else."""

    def one(text: str) -> float:
        for unit, bits in UNITS.items():
            number = text.removesuffix(unit)
            if number != text and number.replace(".", "", 1).isdecimal() and float(number) > 0:
                return bits * float(number)
        raise ValueError(
            f"--shape {shape}: {text!r} is not a rate; expected a number and one of "
            f"{', '.join(UNITS)}, for example 30mbit or 30mbit:10mbit"
        )

    return links.Rate(tuple(one(text) for text in shape.lower().split(":")), period)


def run_processes(
    args: Args, rate: links.Rate | None, count: int, function: Any, free: tuple[int, ...] = ()
) -> list[Any]:
    """Calls the function in the given number of processes, over links of this rate if it is given,
    and removes both afterwards.
    """
    if rate is None:
        return dsgd.run_local_processes(count, function, timeout=math.inf)
    return links.shaped(
        count, function, rate, latency=args.shape_latency, free=free, timeout=math.inf
    )


def calibrate(args: Args, rate: links.Rate | None) -> None:
    """Measures collectives and rounds."""
    N, words = count_workers(args)[0], where(args)
    what = f"{words}: collectives, and rounds of {len(measuring.METHODS)} methods"
    with commands.waiting(args, what):
        found = measure(args, rate, N)
    result = switch.make_calibration(found, N, args.seed)
    write(args.out, result, words, args.batch_size)
    of_machines = {"machines": results.tabulate_machines(result)}
    shown = {
        "switch": results.tabulate_collectives(result, words),
        **(of_machines if len(found.devices) > 1 else {}),
        "predicted": results.tabulate_rounds(result, words),
        "crossovers": results.tabulate_crossovers(result),
    }
    commands.finish(args, {"figure": results.draw(result, words)}, shown)


def measure(args: Args, rate: links.Rate | None, N: int) -> measuring.Found:
    """Returns the measurements: of the workers of the launcher, or of N processes."""
    sizes, repeats, longest = args.sizes, args.repeats, args.longest
    if not is_launched():
        work = measuring.tasks(args.widths, N, args.batch_size)
        function = partial(measuring.measure_all, work, sizes, repeats, longest)
        return run_processes(args, rate, N, function)[0]
    # A process that has joined others would only make the data of its own workers.
    work = subprocess_call.call(1, measuring.tasks, args.widths, N, args.batch_size)
    return measuring.measure_all(work, sizes, repeats, longest)


def where(args: Args) -> str:
    """Describes the connection, for titles."""
    if is_launched():
        machines = len(measuring.find_places().hosts)
        return f"{jax.device_count()} workers on {machines} machine{'s' * (machines > 1)}"
    return f"{args.processes} processes of one machine" + (
        f", {links_of(args)}" if args.shape else ""
    )


def links_of(args: Args) -> str:
    """Describes the emulated links."""
    latency = f" and {args.shape_latency * 1e3:g} ms" if args.shape_latency else ""
    return f"links of {args.shape}{latency}"


def write(out: Path, result: switch.Calibration, words: str, batch_size: int) -> None:
    """Writes the cluster and all measured times; `words` describe the connection."""
    intervals = {
        name: {
            "latency": fit.switch.alpha[1:],
            "bandwidth": fit.switch.beta.inverse(switch.BITS)[1:],
        }
        for name, fit in result.levels.items()
    }
    about = {
        "what": words,
        "95 %": intervals,
        "machines": [device.host for device in result.found.devices],
        "compute": "a gradient of logistic regression on digits; seconds = compute + samples x "
        f"per_sample, batches of {batch_size}",
    }
    clusters.save(out / "cluster.json", result.hardware, about)
    rows = [
        (level, name, f"{size:.0f}", i, f"{seconds:.6g}")
        for level, fit in result.levels.items()
        for name, by_size in fit.times.items()
        for size, repeats in by_size.items()
        for i, seconds in enumerate(repeats)
    ]
    columns = ("among", "collective", "bytes", "repeat", "seconds")
    records.write_rows(out / "collectives.csv", columns, rows)
    names = ("compute", "codec", "bits", "arrays")
    heading = ("method", "bytes", *names, "predicted", "measured", "low", "high")
    lines = []
    for (name, _), parts in result.found.rounds.items():
        expected = switch.predict_round(name, parts, result.whole.N, result.whole.switch)
        numbers = (
            *(getattr(parts, each) for each in names),
            expected,
            *switch.median(parts.seconds),
        )
        size = measuring.ELEMENT * parts.elements
        lines.append((name, size, *(f"{number:.6g}" for number in numbers)))
    records.write_rows(out / "rounds.csv", heading, lines)


def train(args: Args, rate: links.Rate) -> None:
    """Trains Kimad and fixed ratios over links whose rate changes."""
    setting = Setting(**{name: getattr(args, name) for name in Setting._fields})
    function = partial(kimad_links.train, setting, kimad_links.task(setting), rate)
    assert args.processes is not None
    seconds = len(kimad_links.methods(setting)) * len(args.learning_rates) * args.seconds
    what = f"a server and {args.processes} workers, {seconds:.0f} s of training"
    with commands.waiting(args, what):
        runs = run_processes(args, rate, args.processes + 1, function, free=(0,))[0]
    kimad_links.write(args.out / "kimad.csv", runs)
    best = kimad_links.best(runs)
    table = kimad_links.tabulate(setting, best, f"{links_of(args)}, period {args.period:g} s")
    commands.finish(
        args, {"kimad": kimad_links.draw(setting, rate, best)}, {"kimad-methods": table}
    )


def launch(args: Args) -> None:
    """Runs the command as one of several processes if a launcher or the flags say so."""
    given = args.processes if args.process_id is not None else None
    machines = commands.Machines(
        args.coordinator, given, args.process_id, args.lost_after, resume=False
    )
    commands.launch(main, args, machines)


if __name__ == "__main__":
    launch(commands.parse(Args))
