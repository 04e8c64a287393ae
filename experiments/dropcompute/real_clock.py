"""One training twice in the same real processes, without a threshold and with the one that they choose, among B.1's stragglers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import optax

import dsgd
from algorithms import dropcompute
from dsgd import problems
from experiments.dropcompute.dropcompute_noises import ALPHA, MOST
from experiments.shared import common, intervals

TRIAL = 6  # steps in which a micro-batch is timed; the first does not count
History = dict[str, np.ndarray]


class Setting(NamedTuple):
    """What is trained, and how late who is.

    Args:
        processes: N, one worker each.
        slow: the one whose micro-batches take `factor` times as long; None: none does.
        factor: at least 1.
        micro_batches, batch_size: M, and the samples of each.
        steps: of each of the two runs.
        rounds: of these, in which times are measured before the threshold is chosen.
        learning_rate: of SGD.
        width: of the network's hidden layer.
        seed: of everything random.
    """

    processes: int
    slow: int | None
    factor: float
    micro_batches: int
    batch_size: int
    steps: int
    rounds: int
    learning_rate: float
    width: int
    seed: int


class Pair(NamedTuple):
    """Both runs' histories (`dropcompute.train_processes`), on the same batches and delays; and the seconds of a micro-batch without."""

    alone: float
    without: History
    with_threshold: History

    def histories(self) -> dict[str, History]:
        """Both, by name."""
        return {"without": self.without, "with": self.with_threshold}


def check(setting: Setting) -> None:
    """Raises a ValueError for a slow process that is not there, a factor below 1, or too few steps after those that are measured."""
    if setting.slow is not None and not 0 <= setting.slow < setting.processes:
        raise ValueError(f"--slow {setting.slow} of {setting.processes} processes: need one from 0 to {setting.processes - 1}, or None")
    if not setting.factor >= 1:
        raise ValueError(f"--factor {setting.factor:g}: need at least 1, how many times as long the slow one takes")
    if not setting.rounds < setting.steps - 1:
        raise ValueError(f"--rounds {setting.rounds} of {setting.steps} steps: need at least two more steps, with the threshold")


def compare(setting: Setting) -> Pair:
    """Starts the processes, and ends them; a ChildProcessError where one fails."""
    return dsgd.loopback(setting.processes, partial(_train_twice, setting), timeout=math.inf)[0]


def _train_twice(setting: Setting) -> Pair:
    """In each process."""
    model, optimizer, key = problems.MLP(10, (setting.width,)), optax.sgd(setting.learning_rate), jax.random.key(setting.seed)
    problem = problems.neural_network(model, workers=setting.processes, batch_size=setting.batch_size, seed=setting.seed)

    def train(threshold, steps: int, delay: Callable[[int, int], float] | None) -> History:
        return dropcompute.train_processes(problem, optimizer, threshold, setting.micro_batches, steps=steps, key=key, delay=delay).history

    alone = float(np.median(train(math.inf, TRIAL, None)["latencies"][1:]))
    late = delays(setting, jax.process_index(), alone)

    def delay(step, m):
        return float(late[step, m])

    return Pair(alone, train(math.inf, setting.steps, delay), train(dropcompute.chosen_after(setting.rounds), setting.steps, delay))


def delays(setting: Setting, process: int, alone: float) -> np.ndarray:
    r"""Seconds that a process sleeps in each micro-batch, `[steps, M]`: so that it takes $f \mu (1 + \epsilon)$ instead of $\mu$.

    $$ \epsilon = \min(Z / \alpha, 5.5), \qquad Z \sim \mathrm{LogNormal}(4, 1), \qquad \alpha = 2 e^{4.5} $$

    Args:
        setting: with f, the factor of the slow process; of others it is 1.
        process: which.
        alone: mu, seconds.

    Source: Giladi et al., "DropCompute", appendix B.1.
    """
    draws = np.random.default_rng((setting.seed, process)).lognormal(4, 1, (setting.steps, setting.micro_batches))
    factor = setting.factor if process == setting.slow else 1.0
    return alone * (factor * (1 + np.minimum(draws / ALPHA, MOST)) - 1)


class Found(NamedTuple):
    """One number in three ways: what the planner expects from the steps that it measured; what it expects, at the same threshold, from the
    later steps of the run without; and of the same steps, what was measured, with half its 95 % interval over steps."""

    planned: float
    hindsight: float
    measured: float
    half: float


def judge(setting: Setting, pair: Pair) -> dict[str, Found]:
    """Seconds of a step without and with the threshold, drop rate, effective speedup, by name."""
    before, after = slice(setting.rounds), slice(setting.rounds, None)
    tau = float(pair.with_threshold["threshold"][-1])
    planned, hindsight = of_plan(pair.with_threshold, before, tau), of_plan(pair.without, after, tau)
    without, with_it = (run["seconds"][after] for run in pair.histories().values())
    dropped = pair.with_threshold["dropped"][after]
    measured = {"without": without, "with": with_it, "dropped": dropped, "speedup": (1 - dropped) * without / with_it}
    return {
        name: Found(planned[name], hindsight[name], float(values.mean()), intervals.half_interval(values))
        for name, values in measured.items()
    }


def of_plan(history: History, steps: slice, tau: float) -> dict[str, float]:
    """What the planner expects where all was computed."""
    latencies, communication = history["latencies"][steps], history["communication"][steps]
    serial = communication.mean()
    numbers = {
        "without": dropcompute.step_time(latencies, math.inf, stop="between") + serial,
        "with": dropcompute.step_time(latencies, tau, stop="between") + serial,
        "dropped": dropcompute.drop_rate(latencies, tau, stop="between"),
        "speedup": dropcompute.effective_speedup(latencies, communication, tau, stop="between"),
    }
    return {name: float(value) for name, value in numbers.items()}


class Race(NamedTuple):
    """To the loss that both runs reach, the larger of those at their ends: steps and seconds, without and with the threshold. And the
    losses at the same time, when the first of the runs has ended."""

    loss: float
    steps: tuple[int, int]
    seconds: tuple[float, float]
    end: float
    losses: tuple[float, float]


def race(setting: Setting, pair: Pair) -> Race:
    """Losses are means over the last twentieth of the steps, at least one."""
    runs = pair.histories().values()
    smooth, clocks = [smoothed(run["loss"], setting.steps) for run in runs], [np.cumsum(run["seconds"]) for run in runs]
    target, end = max(loss[-1] for loss in smooth), min(clock[-1] for clock in clocks)
    at = [common.first_reaching(loss[None], target) or 0 for loss in smooth]
    seen = [int(np.searchsorted(clock, end, side="right")) - 1 for clock in clocks]
    return Race(
        float(target),
        (at[0] + 1, at[1] + 1),
        (float(clocks[0][at[0]]), float(clocks[1][at[1]])),
        float(end),
        (float(smooth[0][seen[0]]), float(smooth[1][seen[1]])),
    )


def smoothed(loss: np.ndarray, steps: int) -> np.ndarray:
    """Each step's mean over itself and those before it, a twentieth of all steps, `[steps]`."""
    width = max(1, steps // 20)
    sums = np.cumsum(np.concatenate([[0.0], loss]))
    counts = np.minimum(np.arange(1, len(loss) + 1), width)
    return (sums[1:] - sums[np.arange(1, len(loss) + 1) - counts]) / counts
