"""Figure 12 of DropCompute: local SGD with uniform or single-server stragglers, without and with a
threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.table import Table
from scipy import stats

import algorithms
import dsgd
from dsgd import clusters, plots
from experiments.dropcompute.training import (
    SGD,
    Histories,
    Setting,
    dropping,
    falling,
    final,
    latencies,
    options,
    pick,
    select_columns,
)
from experiments.shared import figures, resuming, statistics, tables

WAIT = 1.0  # seconds of a straggler's wait
PERIODS_MEASURED = 400  # number of periods from which a threshold is chosen


class Stragglers(NamedTuple):
    """Workers that straggle.

    Args:
        name: name for titles.
        workers: number of the first workers, which straggle with the same probability.
        chance: probability in each local step.
        local_step: seconds of a local step without waiting.
    """

    name: str
    workers: int
    chance: float
    local_step: float

    @property
    def cluster(self) -> clusters.Cluster:
        """Returns the cluster of these workers."""

        def wait(key, clock, worker):
            straggles = jax.random.bernoulli(jax.random.fold_in(key, worker), self.chance) & (
                worker < self.workers
            )
            return jnp.where(straggles, jnp.float32(WAIT), 0)

        name = f"straggling({self.workers}, {self.chance:.9g})"
        return clusters.Cluster(
            clusters.constant(self.local_step)
            + clusters.Quantity(wait, name, positive=False, time_invariant=True)
        )

    def expected_step(self, period: int) -> float:
        r"""Returns the expected seconds of a local step without a threshold, $c + E \max_n B_n /
        H$, with B the number of waits of one worker in H steps.
        """
        below = stats.binom.cdf(np.arange(period), period, self.chance) ** self.workers
        return self.local_step + WAIT * float(np.sum(1 - below)) / period


def scenarios(
    workers: int, server: int, chance: float, local_step: float
) -> tuple[Stragglers, Stragglers]:
    """Returns two kinds of stragglers: all workers; or those of one server, with a probability that
    gives the same mean number of stragglers.

    Raises:
        ValueError: if a server cannot have as many stragglers.
    """
    if not 0 <= chance * workers <= server <= workers:
        raise ValueError(
            f"--straggling {chance:g} of {workers} workers with --server {server}: expected a "
            "server with fewer than all workers, but enough for the same mean number of stragglers"
        )
    return (
        Stragglers("uniform", workers, chance, local_step),
        Stragglers("single server", server, chance * workers / server, local_step),
    )


def name_history(stragglers: Stragglers, period: int, drops: bool) -> str:
    """Returns the name of the history."""
    return f"{stragglers.name} stragglers, period {period}{', DropCompute' if drops else ''}"


def runs(
    setting: Setting, both: Sequence[Stragglers], periods: Sequence[int], rate: float
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Runs every period without and with a threshold, as one program for each kind of
    stragglers.
    """
    N, learning_rate = setting.workers, setting.learning_rates[SGD]
    for stragglers in both:
        cases = [(period, drops) for period in periods for drops in (False, True)]
        thresholds = [
            threshold(stragglers, N, period, rate, setting.seed) if drops else math.inf
            for period, drops in cases
        ]
        lengths = [period for period, _ in cases]

        def method(case, thresholds=thresholds, lengths=lengths) -> dsgd.Algorithm:
            period = pick(lengths, case)
            local = algorithms.local_sgd(falling(SGD, learning_rate, setting.steps), period)
            return algorithms.drop_compute(local, pick(thresholds, case), 1, period=period)

        sweep = resuming.sweep(
            method,
            setting.problem,
            cluster=stragglers.cluster,
            case=np.arange(len(cases)),
            **options(setting, setting.steps),
        )
        for i, case in enumerate(cases):
            yield (
                name_history(stragglers, *case),
                select_columns(sweep.at((i,)), setting, learning_rate),
            )


def threshold(stragglers: Stragglers, workers: int, period: int, rate: float, seed: int) -> float:
    """Returns the threshold, seconds of computation in a period, at which at most this share of the
    local steps is dropped.
    """
    times = latencies(stragglers.cluster, workers, 1, seed, PERIODS_MEASURED * period)
    return dropping(times.reshape(PERIODS_MEASURED, period, workers).transpose(0, 2, 1), rate)


def speedup(histories: Histories, stragglers: Stragglers, period: int, drops: bool) -> np.ndarray:
    """Returns the seconds of synchronous training over those of this run, `[seeds]`."""
    return (
        histories[name_history(stragglers, 1, False)]["clock"][:, -1]
        / histories[name_history(stragglers, period, drops)]["clock"][:, -1]
    )


def table(
    setting: Setting,
    histories: Histories,
    both: Sequence[Stragglers],
    periods: Sequence[int],
    rate: float,
) -> Table:
    """Tabulates one row per period."""
    shown = tables.table(
        f"local SGD, {setting.name}, {setting.workers} workers,\n{setting.steps} local steps, "
        f"{statistics.runs(setting.seeds)}:\nspeedup over synchronous training",
        (
            "H",
            *(
                heading
                for kind in ("uniform", "server")
                for heading in (f"{kind}\nexact", "\nLS", "\n+DC", "\ndrop")
            ),
        ),
        "H: local steps between two averagings.\nexact: expected speedup of local SGD. LS: local "
        f"SGD.\n+DC: with DropCompute; drop: dropped local steps, %, at\nmost {100 * rate:g}, "
        "because waits are whole seconds.",
        left=0,
    )
    for period in periods:
        cells = []
        for stragglers in both:
            rates = histories[name_history(stragglers, period, True)]["dropped"][:, 1:]
            exact = stragglers.expected_step(1) / stragglers.expected_step(period)
            cells += [
                f"{exact:.2f}",
                *(
                    f"{speedup(histories, stragglers, period, drops).mean():.2f}"
                    for drops in (False, True)
                ),
                f"{100 * rates.mean():.1f}",
            ]
        shown.add_row(str(period), *cells)
    return shown


def draw(
    setting: Setting, histories: Histories, both: Sequence[Stragglers], periods: Sequence[int]
) -> Figure:
    """Draws a panel for each kind of stragglers, and below them the quality of the models."""
    sheet, panels = plots.figure(2, 2, width=figures.WIDTH / 2, height=3.2, sharey="row")
    x = np.array(periods, float)
    for column, stragglers in enumerate(both):
        speed, ends = panels[column], panels[2 + column]
        for axes in (speed, ends):
            axes.set_xscale("log", base=2)
            axes.set_xticks(periods, [str(period) for period in periods])
        lines, accuracies = {}, {}
        for label, drops in (("local SGD", False), ("local SGD with DropCompute", True)):
            speeds = [speedup(histories, stragglers, period, drops) for period in periods]
            those = (histories[name_history(stragglers, period, drops)] for period in periods)
            lines[label] = x, np.stack(speeds, axis=1)
            accuracies[label] = x, np.stack([final(setting, each) for each in those], axis=1)
        plots.draw_lines(speed, lines)
        plots.draw_lines(ends, accuracies)
        exact = [
            stragglers.expected_step(1) / stragglers.expected_step(period) for period in periods
        ]
        speed.plot(x, exact, "o", markersize=4, color="0.3", label="local SGD, expected")
        chance = (
            f"{stragglers.workers} of {setting.workers} workers, {100 * stragglers.chance:g}% each"
        )
        speed.set_title(f"{stragglers.name} ({chance})")
        ends.set_xlabel("local steps between two averagings")
    panels[0].set_ylabel("times as fast as synchronous")
    panels[2].set_ylabel(setting.quality.words)
    panels[0].legend(frameon=False, fontsize=9)
    what = f"{setting.name}; {both[0].local_step:g} s a local step, {WAIT:g} s more of a straggler"
    figures.title(sheet, f"Figure 12: {what}\n{statistics.errors('bands', setting.seeds)}")
    return sheet
