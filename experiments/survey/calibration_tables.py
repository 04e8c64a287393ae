"""What was measured beside what the switch says, as tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.table import Table

from experiments.survey import real_rounds
from experiments.survey.collectives import COLLECTIVES, ELEMENT
from experiments.survey.link_fits import BITS, Estimate, Line
from experiments.survey.real_rounds import METHODS, Calibration

PLAIN = "mb-sgd"  # what others are compared with


def tables(result: Calibration, where: str) -> Iterator[Table]:
    """All of them."""
    yield tabulate_collectives(result, where)
    yield tabulate_rounds(result, where)
    yield tabulate_crossovers(result)


def tabulate_collectives(result: Calibration, where: str) -> Table:
    """Latency and bandwidth of the switch that explains each collective, and of the one that explains all."""
    formulas = "\n".join(f"{name}: {COLLECTIVES[name].formula}" for name in result.lines)
    table = Table(
        title=f"{where}:\nlatency and bandwidth of the switch that explains each collective",
        caption=f"{formulas}\nl: seconds of a message, r: of the vector on a port. [95 % interval].\nx: measured over explained, smallest"
        " to largest over sizes: of each\ncollective by its own switch, of all of them by the one for all.",
    )
    table.add_column("collective", no_wrap=True)
    for heading in ("l, µs", "Mbit/s", "x"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, line in result.lines.items():
        table.add_row(name, *_numbers(line), _off(result, line, [name]))
    table.add_section()
    table.add_row("all of them", *_numbers(result.switch), _off(result, result.switch, list(result.lines)))
    return table


def _numbers(line: Line) -> tuple[str, str]:
    return _within(line.alpha.times(1e6)), _within(line.beta.inverse(BITS / 1e6))


def _within(estimate: Estimate) -> str:
    value, low, high = (short(number) for number in estimate)
    return f"{value} [{low}, {high}]"


def short(number: float) -> str:
    """Three digits, without an exponent."""
    return f"{float(f'{number:.3g}'):,.12g}" if 1e-3 <= number < 1e9 else ("0" if number < 1e-3 else "∞")


def _off(result: Calibration, line: Line, names: list[str]) -> str:
    """How far the measured medians are from these."""
    explained = result._replace(switch=line).explained
    ratios = [
        float(np.median(seconds)) / explained(name, size) for name in names for size, seconds in result.found.collectives[name].items()
    ]
    return f"{short(float(f'{min(ratios):.2g}'))}-{short(float(f'{max(ratios):.2g}'))}"


def size_of(number: float) -> str:
    """Bytes."""
    unit = min(2, int(np.log10(number) // 3)) if number >= 1 else 0
    return f"{number / 1000**unit:.3g} {('B', 'KB', 'MB')[unit]}"


def seconds_of(result: Calibration, name: str) -> tuple[list[float], list[float], list[float]]:
    """Of a method: bytes of the models, seconds that are predicted, seconds that were measured."""
    mine = [parts for (method, _), parts in result.found.rounds.items() if method == name]
    predicted = [real_rounds.predicted(name, parts, result.N, result.switch) for parts in mine]
    return [float(ELEMENT * parts.elements) for parts in mine], predicted, [parts.measured for parts in mine]


def tabulate_rounds(result: Calibration, where: str) -> Table:
    """Predicted and measured milliseconds of a round, one model size after the other."""
    table = Table(
        title=f"{where}: ms of a round",
        caption="predicted: gradient and codec as measured, messages on the switch that\n"
        "explains all, a latency for each of their arrays. measured: medians.",
    )
    table.add_column("model", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in METHODS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fastest", no_wrap=True)
    by_method = {name: seconds_of(result, name) for name in METHODS}
    for i, size in enumerate(by_method[PLAIN][0]):
        for words, column in (("predicted", 1), ("measured", 2)):
            times = {name: found[column][i] for name, found in by_method.items()}
            fastest = min(times, key=times.__getitem__)
            cells = (short(1e3 * seconds) for seconds in times.values())
            table.add_row("" if column == 2 else size_of(size), words, *cells, fastest, end_section=column == 2)
    return table


def tabulate_crossovers(result: Calibration) -> Table:
    """From which model size on a method is faster than mini-batch SGD, predicted and measured."""
    table = Table(title=f"model size at which a method overtakes {PLAIN}, or falls behind again", caption="-: not among these sizes.")
    table.add_column("method", no_wrap=True)
    for heading in ("predicted", "measured"):
        table.add_column(heading, justify="right")
    _, *plain = seconds_of(result, PLAIN)
    for name in METHODS:
        if name != PLAIN:
            sizes, *mine = seconds_of(result, name)
            cells = (real_rounds.crossovers(sizes, first, second) for first, second in zip(plain, mine, strict=True))
            table.add_row(
                name, *(", ".join(map(size_of, found)) or f"- ({_always(a, b)})" for found, a, b in zip(cells, plain, mine, strict=True))
            )
    return table


def _always(plain: list[float], mine: list[float]) -> str:
    return "always faster" if mine[0] < plain[0] else "never faster"
