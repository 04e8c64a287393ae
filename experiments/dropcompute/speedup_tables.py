"""What DropCompute's paper states in numbers, beside ours; scale graphs and growth as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich.table import Table

from algorithms.dropcompute.stopping import Stop
from experiments.dropcompute.exact import Best, Common
from experiments.dropcompute.noises import ACCUMULATION, MEAN
from experiments.dropcompute.simulated import Measured, Sampled, Setting, predicted
from experiments.shared import statistics, tables

FIGURE_5, CLUSTER = 64, 196  # workers of the paper's figure 5, and of A.2


def summary(
    setting: Setting, of: Sampled, worst: Sampled, one_N: Common, natural: np.ndarray
) -> Table:
    """What the paper states in numbers, and what it does not.

    Args:
        setting: of it.
        of: B.1's delays.
        worst: the noise of the largest variance.
        one_N: the N of C.3.
        natural: speedups of `CLUSTER` workers where nothing is added, `[seeds]`.
    """
    T_c = setting.communication
    table = tables.table(
        "DropCompute's speedup: the paper's figures, and ours",
        ("", "paper", "ours"),
        f"{setting.micro_batches} micro-batches, T^c = {T_c:g} s, {setting.stop}, where nothing "
        "else is said.\n"
        "Figure 5: 3 % more steps in 13 % less time, so that a step is shorter\nby 1 - 0.87 / "
        "1.03. *: exact.\n"
        f"Others: {sureness(setting)}",
    )

    def rows(section: str, *lines: tuple[str, str, str]) -> None:
        table.add_section()
        table.add_row(section)
        for line in lines:
            table.add_row(f"  {line[0]}", *line[1:])

    def less(stop: Stop) -> str:
        return f"{100 * (1 - 1 / of.sums.best(FIGURE_5, T_c, stop).speedup):.1f} % *"

    gains = ", ".join(
        f"{of.sums.best(FIGURE_5, seconds, setting.stop).speedup:.2f}" for seconds in (0, 1, 2)
    )
    rows(
        "B.1's delays",
        ("seconds of a micro-batch / 0.45, mean", "1.5", f"{of.noise.mean / ACCUMULATION:.3f} *"),
        ("most", "6", f"{of.noise.longest / ACCUMULATION:.1f} *"),
    )
    rows(
        f"B.1's delays, {FIGURE_5} workers",
        ("less time for as many samples, preempting", "13 %", less("preempt")),
        ("the same, a check between micro-batches", "13 %", less("between")),
        (
            "steps shorter by, where 3 % are dropped",
            "15.5 %",
            f"{100 * of.sums.shorter(0.03, FIGURE_5, T_c):.1f} % *",
        ),
        ("effective speedup with T^c = 0, 1, 2 s", "-", f"{gains} *"),
    )
    both = (
        f"{worst.sums.best(one_N.workers, T_c, stop).speedup:.2f} *"
        for stop in ("preempt", "between")
    )
    rows(
        "C.3",
        ("N of E[T] / E[T_i]", "-", f"{one_N.workers} (within {100 * one_N.off:.1f} %)"),
        ("effective speedup in 14f, preempting", "-", next(both)),
        ("the same, a check between micro-batches", "-", next(both)),
    )
    rows(
        f"nothing added, {CLUSTER} workers",
        ("effective speedup (A.2)", "1.05", statistics.within(natural, 3)),
    )
    return table


def runs_beside(
    setting: Setting, clock: Measured, planned: Measured, exact: Best, workers: int
) -> Table:
    """What runs took, beside the plan."""
    table = tables.table(
        f"{workers} workers with B.1's delays, {setting.stop}, τ = {clock.threshold[0]:.3f} s",
        ("", "runs", "planned", "exact"),
        f"runs: their clock and history, {setting.iterations} rounds. planned: from other draws.\n"
        f"exact: with the best threshold, {exact.threshold:.3f} s.\n{sureness(setting)}",
    )
    for what, name, digits in (
        ("seconds of a step", "step_time", 2),
        ("without DropCompute", "without", 2),
        ("share of micro-batches dropped", "drop_rate", 3),
        ("effective speedup", "speedup", 3),
    ):
        found, expected, exactly = (getattr(each, name) for each in (clock, planned, exact))
        table.add_row(
            what,
            statistics.within(found, digits),
            statistics.within(expected, digits),
            f"{exactly:.{digits}f}",
        )
    return table


def scaling(setting: Setting, of: Sampled, further: Sequence[int]) -> Table:
    """Figure 1 in numbers."""
    table = tables.table(
        f"B.1's delays, {setting.stop}: seconds of a step, and the best speedup",
        (
            "N",
            "T\nsimulated",
            "T\nexact",
            "T\neq. 4",
            "S_eff\nsimulated",
            "S_eff\nexact",
            "S_eff\neq. 11",
            "drop",
        ),
        f"drop: % of micro-batches, of the exact one.\nSimulated: {sureness(setting)}",
        left=0,
    )
    for N in (*of.found, *further):
        exact = of.sums.best(N, setting.communication, setting.stop)
        normal = predicted(setting, of.noise.mean, of.noise.std, [N])
        found = of.found.get(N)
        T, S = (
            (statistics.within(found.without), statistics.within(found.speedup, 3))
            if found
            else ("-", "-")
        )
        whole, gain = normal.without[0], normal.speedup[0]
        both = (T, f"{exact.without:.2f}", f"{whole:.2f}", S, f"{exact.speedup:.3f}", f"{gain:.3f}")
        table.add_row(f"{N:,}", *both, f"{100 * exact.drop_rate:.1f}")
    return table


def ratios(noises: Mapping[str, tuple[Sampled, float, float]], one_N: Common) -> Table:
    """C.3's two tables.

    Args:
        noises: by the paper's panel, what was found; the ratio that is printed; and the N that
            alone would give it.
        one_N: the N of all.
    """
    N = one_N.workers
    table = tables.table(
        f"C.3: E[T] / E[T_i], of which the paper does not state N:\nwith N = {N} all are met "
        f"within {100 * one_N.off:.1f} %",
        ("fig.", "ε", "paper", "exact", "off", "simulated", "alone", "gain"),
        f"ε has the mean {MEAN:g} s. exact: for {N} workers. off: %, from the paper's.\n"
        "alone: the N that gives the printed ratio exactly. gain: S_eff, simulated.",
        left=2,
    )
    for panel, (of, paper, alone) in noises.items():
        if panel == "14b":
            table.add_section()
        exact, found = of.sums.ratio(N), of.found[N]
        off = f"{100 * (exact / paper - 1):+.1f}"
        measured, gain = (
            statistics.within(found.without / of.sums.mean, 3),
            f"{found.speedup.mean():.2f}",
        )
        table.add_row(
            panel,
            of.noise.name,
            f"{paper:.3f}",
            f"{exact:.3f}",
            off,
            measured,
            f"{alone:.0f}",
            gain,
        )
    return table


def sureness(setting: Setting) -> str:
    """What numbers of several seeds are."""
    seeds = len(setting.seeds)
    return f"mean ± half the 95 % interval over {seeds} seeds." if seeds > 1 else "one seed."
