"""Calibration of the cost model: measures this machine's collectives, fits the switch model to
them, and compares predicted with measured rounds.

    python -m experiments.calibrate
    python -m experiments.calibrate --shape 30mbit --sizes 1024 16384 262144 1048576
    python -m experiments.calibrate --shape 30mbit --shape-latency 0.005
    python -m experiments.calibrate --shape 30mbit:10mbit --period 5

Uses real processes on this machine, one per worker. The fitted latency and bandwidth, and the time
of a gradient, are written as a cluster that other experiments accept
(`--cluster results/calibrate/cluster.json`). With `--shape` (Linux, as root) the processes run in
separate network namespaces, connected by links with this rate and the latency `--shape-latency`. If
the rate changes, Kimad is trained over these links instead, and compared with fixed ratios: loss
over real seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import dsgd
from dsgd import clusters, records
from dsgd.machines import links
from experiments.kimad import links as kimad_links
from experiments.kimad.links import Setting
from experiments.shared import commands
from experiments.survey import calibrate_measuring as measuring
from experiments.survey import calibrate_results as results
from experiments.survey import calibrate_switch as switch

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True)
class Args(commands.Flags):
    """Measures this machine's collectives and rounds."""

    processes: commands.Several = 2
    """N, one worker each; more than the machine has cores slow each other down."""
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
    check(args)
    rate = None if args.shape is None else parse(args.shape, args.period)
    if rate is not None:
        links.require_allowed(args.shape_latency)
    commands.begin(args)
    if rate is not None and len(rate.bits) > 1:
        train(args, rate)
    else:
        calibrate(args, rate)


def check(args: Args) -> None:
    """Raises a ValueError if there is a latency of links that are not emulated, or all sizes round
    to the same one.
    """
    if args.shape_latency and args.shape is None:
        raise ValueError(
            f"--shape-latency {args.shape_latency:g} without --shape: expected emulated links; "
            "pass their rate as well, for example --shape 30mbit"
        )
    for name, collective in measuring.COLLECTIVES.items():
        if len({collective.columns(size, args.processes) for size in args.sizes}) < 2:
            least = measuring.ELEMENT * args.processes / collective.own(args.processes)
            given = " ".join(map(str, args.sizes))
            raise ValueError(
                f"--sizes {given}: all round to the same size for {name}, whose vectors are "
                f"multiples of {least:g} bytes; expected at least two different sizes"
            )


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
    methods = len(measuring.METHODS)
    what = f"{args.processes} processes: collectives, and rounds of {methods} methods"
    work = measuring.tasks(args.widths, args.processes, args.batch_size)
    function = partial(measuring.measure_all, work, args.sizes, args.repeats, args.longest)
    with commands.waiting(args, what):
        found = run_processes(args, rate, args.processes, function)[0]
    result = switch.make_calibration(found, args.processes, args.seed)
    words = where(args)
    write(args.out, result, words, args.batch_size)
    shown = {
        "switch": results.tabulate_collectives(result, words),
        "predicted": results.tabulate_rounds(result, words),
        "crossovers": results.tabulate_crossovers(result),
    }
    commands.finish(args, {"figure": results.draw(result, words)}, shown)


def where(args: Args) -> str:
    """Describes the connection, for titles."""
    return f"{args.processes} processes of one machine" + (
        f", {links_of(args)}" if args.shape else ""
    )


def links_of(args: Args) -> str:
    """Describes the emulated links."""
    latency = f" and {args.shape_latency * 1e3:g} ms" if args.shape_latency else ""
    return f"links of {args.shape}{latency}"


def write(out: Path, result: switch.Calibration, words: str, batch_size: int) -> None:
    """Writes the cluster and all measured times; `words` describe the connection."""
    link = result.switch
    about = {
        "what": words,
        "latency, 95 %": link.alpha[1:],
        "bandwidth, 95 %": link.beta.inverse(switch.BITS)[1:],
        "compute": "a gradient of logistic regression on digits; seconds = compute + samples x "
        f"per_sample, batches of {batch_size}",
    }
    clusters.save(out / "cluster.json", result.cluster, about)
    rows = [
        (name, f"{size:.0f}", i, f"{seconds:.6g}")
        for name, by_size in result.found.collectives.items()
        for size, repeats in by_size.items()
        for i, seconds in enumerate(repeats)
    ]
    records.write_rows(out / "collectives.csv", ("collective", "bytes", "repeat", "seconds"), rows)
    names = ("compute", "codec", "bits", "arrays")
    heading = ("method", "bytes", *names, "predicted", "measured", "low", "high")
    lines = []
    for (name, _), parts in result.found.rounds.items():
        expected = switch.predict_round(name, parts, result.N, link)
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


if __name__ == "__main__":
    commands.run(main, Args)
