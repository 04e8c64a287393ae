"""The survey's timelines, drawn from the event simulation, and its communication costs compared
with the simulation.

    python -m experiments.switch_timelines

Figures 1.3 and 1.4 (three messages, then compressed), 1.6 (one parameter server, of which 1.5 is a
sketch), 1.7 (ring all-reduce), 3.4 and 3.5 (compression), 4.1 and 4.2 (asynchrony), 5.2 and 5.3
(gossip). The compute times are ours, because the survey states none. In the list of example 1.3.1
the last message goes to M2; in its text and figure, and here, it goes to M1. All numbers are
fractions, so that comparisons are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, get_args

from matplotlib.figure import Figure
from rich.table import Table

import topologies
from dsgd import network, plots, records
from dsgd.base import Pattern
from dsgd.network import Message, Passage
from experiments.shared import commands, figures, tables
from experiments.survey import switch_charts
from experiments.survey.switch_charts import Panel, format_units

CONVENTIONS: tuple[network.Convention, ...] = get_args(network.Convention)
EXAMPLE = [Message(0, 1, ready=5), Message(1, 0, ready=6), Message(2, 0, ready=6)]
COMPRESSION = 2  # factor by which messages are shorter in figures 1.4 and 3.5
DRAWN = 6  # maximal number of workers in a timeline
# columns of timeline.csv
TIMES = ("computing", "ready", "start", "sent", "receiving", "arrived")


@dataclass(frozen=True)
class Args:
    """Draws the survey's timelines, and checks its costs."""

    workers: commands.Several = 4
    """Number of workers of the patterns; timelines show at most 6."""
    latency: commands.NotNegative = 1.5
    """Time units that the switch adds to a message."""
    transfer: commands.NotNegative = 5.0
    """Time units that a full vector needs on a port."""
    compute: commands.NotNegative = 4.0
    """Time units of a gradient, in chapters 3 to 5."""
    slow: commands.Factor = 5.0
    """Factor by which the third of three workers is slower, in figures 4.1 and 4.2."""
    convention: network.Convention = "blocking"
    """Convention of the timelines. blocking: latency holds both ports; pipelined: it holds none."""
    out: Path = Path("results/switch_timelines")
    """Folder for config.json, timeline.csv and figure.png."""


class Row(NamedTuple):
    """A cost with its closed form, as simulated under each of the conventions."""

    figure: str
    what: str
    formula: str
    closed: Sequence[Fraction]
    simulated: Sequence[Fraction]


def main(args: Args) -> None:
    if not args.latency + args.transfer:
        raise ValueError(
            "--latency 0 --transfer 0: expected one above 0, or there is nothing to see"
        )
    pictures, costs = panels(args), rows(args)
    commands.begin(args)
    lines = [
        (
            panel.figure,
            *(panel.names[i] for i in passage.message[:2]),
            *(float(getattr(passage, time)) for time in TIMES),
        )
        for panel in pictures
        for passage in panel.passages
        if passage.computing < panel.end
    ]
    records.write_rows(args.out / "timeline.csv", ("figure", "sender", "receiver", *TIMES), lines)
    commands.finish(
        args,
        {"figure": draw(args, pictures)},
        {"costs": tabulate(args, costs), "pictures": tabulate_pictures(args, pictures)},
    )


def exact(args: Args) -> tuple[Fraction, Fraction, Fraction]:
    """Returns latency, transfer and compute time exactly as typed: 0.1 is one tenth."""
    return Fraction(str(args.latency)), Fraction(str(args.transfer)), Fraction(str(args.compute))


def make_rounds(pattern: Pattern, compute: Sequence[Fraction], rounds: int = 1) -> list[Message]:
    """Simulates rounds in which every worker computes for the given time, then sends; the next
    round starts when all messages of the last one have arrived.
    """
    assert pattern.messages, f"{pattern.name} has no list of messages"
    one, messages = pattern.messages(len(compute)), []
    for _ in range(rounds):
        first = len(messages)
        last_round = tuple(range(first - len(one), first)) if first else ()
        for message in one:
            after = tuple(first + i for i in message.after) or last_round
            messages.append(
                message._replace(
                    after=after, compute=0 if message.after else compute[message.sender]
                )
            )
    return messages


def panels(args: Args) -> list[Panel]:
    """Returns all timelines; those to compare come in pairs."""
    latency, transfer, compute = exact(args)
    N, half = min(args.workers, DRAWN), transfer / COMPRESSION

    def panel(figure, title, messages, workers=N, transfer=transfer):
        timeline = network.simulate(messages, latency, transfer, args.convention)
        return Panel(figure, title, workers, timeline.passages, timeline.seconds)

    idle, equal, unequal = (
        [Fraction(0)] * N,
        [compute] * N,
        [compute, compute, compute * Fraction(str(args.slow))],
    )
    ring = make_rounds(network.ring_all_reduce, equal)
    two_rounds = make_rounds(network.parameter_server, unequal, rounds=2)
    synchronous = panel(
        "4.1", "synchronous server: 2 updates of 3 gradients", two_rounds, workers=3
    )
    return [
        panel("1.3", "three messages", EXAMPLE, workers=3),
        panel(
            "1.4", f"three messages, {COMPRESSION}x compressed", EXAMPLE, workers=3, transfer=half
        ),
        panel("1.6", "one parameter server", make_rounds(network.parameter_server, idle)),
        panel("1.7", "ring all-reduce", make_rounds(network.ring_all_reduce, idle)),
        panel("3.4", "ring all-reduce", ring),
        panel("3.5", f"ring all-reduce, {COMPRESSION}x compressed", ring, transfer=half),
        synchronous,
        asynchronous(args, unequal, synchronous.end),
        panel("5.2", "ring all-reduce", ring),
        panel("5.3", "gossip on a ring", make_rounds(network.gossip(topologies.ring(N)), equal)),
    ]


def asynchronous(args: Args, compute: Sequence[Fraction], end: Fraction) -> Panel:
    """Simulates an asynchronous server for at least the given time."""
    latency, transfer, _ = exact(args)
    gradients = math.ceil(end / (min(compute) + 2 * (latency + transfer)))
    messages = network.asynchronous_server_messages([[each] * gradients for each in compute])
    passages = network.simulate(messages, latency, transfer, args.convention).passages
    ages = staleness(passages, len(compute), end)
    title = f"asynchronous server: {len(ages)} updates, staleness up to {max(ages, default=0)}"
    return Panel("4.2", title, len(compute), passages, end)


def staleness(passages: Sequence[Passage], server: int, end: Fraction) -> list[int]:
    """Returns the staleness of each update until the end: the number of updates since the server
    started to send the model at which the gradient was computed.
    """
    updates = sorted(
        (p for p in passages if p.message.receiver == server and p.arrived <= end),
        key=lambda p: p.arrived,
    )
    ages = list(range(len(updates)))  # initially all workers have the first model
    for t, update in enumerate(updates):
        for model in (passages[i] for i in update.message.after):
            own = passages[model.message.after[0]]
            ages[t] = sum(
                other is not own and other.arrived >= model.start for other in updates[:t]
            )
    return ages


def rows(args: Args) -> list[Row]:
    """Returns every cost, in closed form and simulated."""
    N, (latency, transfer, _) = args.workers, exact(args)
    half = transfer / COMPRESSION

    def simulate(messages, transfer):
        return [network.simulate(messages, latency, transfer, each) for each in CONVENTIONS]

    def row(figure, what, formula, pattern, transfer=transfer):
        closed = [network.cost(pattern, N, latency, transfer, each) for each in CONVENTIONS]
        if pattern is network.asynchronous_server:
            found = [update_interval(N, latency, transfer, each) for each in CONVENTIONS]
        else:
            found = [each.seconds for each in simulate(pattern.messages(N), transfer)]
        return Row(figure, what, formula, closed, found)

    def example(figure, what, formula, transfer):
        # M1 receives both its messages from 6 on
        closed = [1 + 2 * (latency + transfer), 1 + latency + 2 * transfer]
        found = [each.seconds - each.start for each in simulate(EXAMPLE, transfer)]
        return Row(figure, what, formula, closed, found)

    plain = example("1.3", "three messages", "1 + 2(l + r)", transfer)
    short = example("1.4", f"{COMPRESSION}x compressed", f"1 + 2(l + r/{COMPRESSION})", half)
    ratios = (
        [a / b for a, b in zip(*pair, strict=True)]
        for pair in ((plain.closed, short.closed), (plain.simulated, short.simulated))
    )
    return [
        plain,
        short,
        Row("1.4", "speedup", "their ratio", *ratios),
        row("1.6", "parameter server", "2N(l + r)", network.parameter_server),
        row("1.7", "ring all-reduce", "2(N-1)(l + r/N)", network.ring_all_reduce),
        row("-", "ring, one piece", "2(N-1)(l + r)", network.ring_all_reduce_unpartitioned),
        row("3.2", "N servers", "2(N-1)(l + r/N)", network.multi_server),
        row(
            "3.5",
            f"ring, {COMPRESSION}x compr.",
            f"2(N-1)(l + r/{COMPRESSION}N)",
            network.ring_all_reduce,
            half,
        ),
        row("4.2", "asynchronous", "max(1, 2/N)(l+r)", network.asynchronous_server),
        row(
            "5.3", "gossip on a ring", f"{min(N - 1, 2)}(l + r)", network.gossip(topologies.ring(N))
        ),
    ]


def update_interval(
    N: int, latency: Fraction, transfer: Fraction, convention: network.Convention
) -> Fraction:
    """Returns the mean time between two updates of an asynchronous server, from update 3 N to 6 N
    of 8 N.
    """
    messages = network.asynchronous_server_messages([[0] * 8] * N)
    passages = network.simulate(messages, latency, transfer, convention).passages
    updates = sorted(passage.arrived for passage in passages if passage.message.receiver == N)
    return (updates[6 * N] - updates[3 * N]) / (3 * N)


def tabulate(args: Args, costs: Sequence[Row]) -> Table:
    """Tabulates closed forms and simulation."""
    N, (latency, transfer, _) = args.workers, exact(args)
    wrong = sum(a != b for row in costs for a, b in zip(row.closed, row.simulated, strict=True))
    caption = (
        "The survey prints 14, 9 and 1.55 for 1.3 and 1.4, with l = 1.5 and r = 5.\nFor the ring "
        "and N servers it prints 2N l + 2r with N + 1 workers,\nthat is "
        f"{format_units(2 * (N - 1) * latency + 2 * transfer)} with {N}: too large by 2r/N = "
        f"{format_units(2 * transfer / N)}.\n4.2: time between two updates, if computation takes "
        "no time.\n"
    )
    caption += (
        f"≠: {wrong} differ from their closed form."
        if wrong
        else "The closed forms of both conventions agree exactly with the simulation."
    )
    headings = (
        "fig.",
        "messages",
        "blocking is",
        "value",
        "blocking\nsimulated",
        "pipelined\nsimulated",
    )
    table = tables.table(
        f"{N} workers, l = {args.latency:g}, r = {args.transfer:g}: units of time",
        headings,
        caption,
        left=3,
    )
    for row in costs:
        cells = (
            format_units(b) if a == b else f"{format_units(b)} ≠ {format_units(a)}"
            for a, b in zip(row.closed, row.simulated, strict=True)
        )
        table.add_row(row.figure, row.what, row.formula, format_units(row.closed[0]), *cells)
    return table


def tabulate_pictures(args: Args, pictures: Sequence[Panel]) -> Table:
    """Tabulates the duration of each timeline."""
    table = tables.table(
        f"the timelines ({args.convention}); those of chapters 3 to 5 include computation",
        ("fig.", "messages", "units"),
        left=2,
    )
    for panel in pictures:
        table.add_row(panel.figure, panel.title, format_units(panel.end - panel.begin))
    return table


def draw(args: Args, pictures: Sequence[Panel]) -> Figure:
    """Draws all timelines, two next to each other on the same scale."""
    pairs = [pictures[i : i + 2] for i in range(0, len(pictures), 2)]
    heights = [
        0.9 + max(len(panel.names) * (0.2 * len(panel.lanes) + 0.08) for panel in pair)
        for pair in pairs
    ]
    sheet = Figure(figsize=(figures.WIDTH, sum(heights) + 1.2), layout="constrained")
    parts = sheet.subfigures(len(pairs), 1, height_ratios=heights, squeeze=False)[:, 0]
    for pair, part in zip(pairs, parts, strict=True):
        longest = max(float(panel.end - panel.begin) for panel in pair)
        for panel, axes in zip(pair, plots.panels(part, 2, sharey=False), strict=True):
            switch_charts.chart(axes, panel, longest)
    sheet.legend(
        handles=switch_charts.legend(),
        loc="outside lower center",
        ncols=len(switch_charts.LOOKS),
        frameon=False,
    )
    holds = "holds both ports" if args.convention == "blocking" else "holds no port"
    gradient = (
        f"a gradient {args.compute:g} (worker 3 of 4.1 and 4.2: {args.slow * args.compute:g})"
    )
    figures.title(
        sheet,
        f"The survey's timelines: latency {args.latency:g}, transfer "
        f"{args.transfer:g}, {gradient}\n{args.convention}: latency {holds}; wait: a message is "
        "ready, a port is not; ▸3: to worker 3, ◂S: from the server",
    )
    return sheet


if __name__ == "__main__":
    commands.run(main, Args)
