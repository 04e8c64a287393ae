"""The problems trained with DropCompute, their compute times, and the runs of figure 5 and
table 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

import algorithms
import dsgd
from algorithms import dropcompute
from algorithms.dropcompute.stopping import Stop
from dsgd import clusters, network
from experiments.dropcompute import noises
from experiments.shared import resuming, statistics, tuning

# factor for float32 times, so that they are later than a sum in any order
JUST_AFTER = 1 + 1e-4
MEASURED = 200  # number of rounds from which thresholds for given drop rates are chosen
COMPENSATED = 0.1  # the drop rate of table 1 (b)
LAMB, SGD = "LAMB", "SGD"
MOMENTUM = 0.9

Histories = dict[str, dict[str, np.ndarray]]


class Quality(NamedTuple):
    """Quality of a model at the end.

    Args:
        metric: name in the history.
        factor: factor of the shown value.
        words: description with the unit.
        digits: decimals.
    """

    metric: str
    factor: float
    words: str
    digits: int


ACCURACY = Quality("test_accuracy", 100.0, "test accuracy, %", 2)
BITS = Quality("test_bits_per_byte", 1.0, "test bits per byte", 3)


class Setting(NamedTuple):
    """A problem and the settings of its training.

    Args:
        name: name for titles.
        problem: the problem of N workers.
        quality: quality of its models.
        micro_batches: M.
        steps: number of rounds, without compensation.
        learning_rates: step sizes of LAMB, and of SGD with momentum.
        seeds: number of independent runs.
        seed: seed of all random numbers.
        progress: whether to show progress bars.
    """

    name: str
    problem: dsgd.Problem
    quality: Quality
    micro_batches: int
    steps: int
    learning_rates: dict[str, float]
    seeds: int
    seed: int
    progress: bool

    @property
    def workers(self) -> int:
        """Number of workers N."""
        assert self.problem.workers is not None
        return self.problem.workers

    @property
    def rounds(self) -> int:
        """Number of rounds including the extra ones that compensate for the drop rate of table 1
        (b).
        """
        return self.steps + dropcompute.extra_steps(self.steps, COMPENSATED)


def delayed_cluster(workers: int, communication: float = 0.0) -> clusters.Cluster:
    """Returns a cluster with B.1's delays.

    Args:
        workers: N.
        communication: T^c, seconds of an all-reduce of N workers.
    """
    per_latency = network.cost(network.ring_all_reduce, workers, 1.0, 0.0)
    return clusters.Cluster(
        noises.delays().seconds, latency=communication / per_latency if per_latency else 0.0
    )


def latencies(
    cluster: clusters.Cluster, workers: int, micro_batches: int, seed: int, rounds: int = MEASURED
) -> np.ndarray:
    """Returns the seconds of micro-batches, `[rounds, N, M]`, from draws that are independent of
    those of the training runs.
    """
    return dropcompute.latencies(
        cluster,
        workers,
        micro_batches,
        iterations=rounds,
        key=jax.random.fold_in(jax.random.key(seed), 1),
    )


def dropping(times: np.ndarray, rate: float) -> float:
    """Returns the smallest threshold that drops at most this share of micro-batches; infinite if
    the share is 0.

    Args:
        times: seconds of each micro-batch, `[rounds, N, M]`.
        rate: in [0, 1).
    """
    ends = np.sort(np.cumsum(times, axis=-1), axis=None)
    return (
        math.inf if rate == 0 else JUST_AFTER * float(ends[math.ceil((1 - rate) * ends.size) - 1])
    )


def falling(optimizer: str, learning_rate: float, horizon: Any) -> optax.GradientTransformation:
    """Returns step sizes that decrease linearly to 0 at the horizon, a number of rounds, and stay
    there; constant with the same mean if it is infinite.
    """

    def rate(count):
        return learning_rate * jnp.where(
            jnp.isinf(horizon), 0.5, jnp.maximum(0.0, 1 - count / horizon)
        )

    return optax.lamb(rate) if optimizer == LAMB else optax.sgd(rate, momentum=MOMENTUM)


class Point(NamedTuple):
    """One run of those that share a program.

    Args:
        name: name of its history.
        threshold: tau, seconds.
        horizon: number of rounds until the step size is 0.
    """

    name: str
    threshold: float
    horizon: float


def pick(table: Sequence[float], case: Any) -> Any:
    """Returns an entry of a table by its index, which may be traced."""
    return jnp.asarray(table)[case] if isinstance(case, Tracer) else table[case]


def together(
    setting: Setting,
    optimizer: str,
    points: Sequence[Point],
    *,
    micro_batches: int | None = None,
    resample_dropped: bool = False,
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Returns the histories of these points, without communication time."""
    thresholds, horizons = (
        [point.threshold for point in points],
        [point.horizon for point in points],
    )
    learning_rate, M = setting.learning_rates[optimizer], micro_batches or setting.micro_batches

    def method(case) -> dsgd.Algorithm:
        steps = falling(optimizer, learning_rate, pick(horizons, case))
        return algorithms.drop_compute(
            algorithms.minibatch_sgd(steps),
            pick(thresholds, case),
            M,
            resample_dropped=resample_dropped,
        )

    N = setting.workers
    sweep = resuming.sweep(
        method,
        setting.problem,
        cluster=delayed_cluster(N),
        case=np.arange(len(points)),
        **options(setting, setting.rounds),
    )
    for i, point in enumerate(points):
        yield point.name, select_columns(sweep.at((i,)), setting, learning_rate)


def choose_and_run(
    setting: Setting, optimizer: str, measured: int, communication: float, stop: Stop
) -> dict[str, np.ndarray]:
    """Returns the history of DropCompute that chooses its threshold after the given rounds, at a
    constant step size.
    """
    N, learning_rate = setting.workers, setting.learning_rates[optimizer]
    steps = falling(optimizer, learning_rate, math.inf)
    chosen = dropcompute.auto_threshold(measured)
    method = algorithms.drop_compute(
        algorithms.minibatch_sgd(steps), chosen, setting.micro_batches, stop=stop
    )
    result = resuming.run(
        method,
        setting.problem,
        cluster=delayed_cluster(N, communication),
        **options(setting, setting.rounds),
    )
    return select_columns(result.history, setting, learning_rate)


def options(setting: Setting, rounds: int) -> dict[str, Any]:
    """Returns options of `dsgd.run`: the full objective is evaluated at the start and at the end,
    the batches' loss in each round.
    """
    return {
        "steps": rounds,
        "key": jax.random.key(setting.seed),
        "seeds": setting.seeds,
        "evaluate_every": rounds,
        "train_loss": True,
        "mesh": tuning.devices_for(setting.workers),
        "progress": setting.progress,
    }


def select_columns(
    history: dict[str, np.ndarray], setting: Setting, learning_rate: float
) -> dict[str, np.ndarray]:
    """Returns the columns of a history that figures, tables and files use."""
    if not np.isfinite(history["loss"][:, -1]).all():
        raise ValueError(
            f"{setting.name} diverged at a step size of {learning_rate:g}; expected a smaller one"
        )
    names = ("step", "clock", "loss", "train_loss", "dropped", "threshold", setting.quality.metric)
    return {name: history[name] for name in names}


def final(setting: Setting, history: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the quality of the last models, `[seeds]`."""
    return setting.quality.factor * history[setting.quality.metric][:, -1]


def format_difference(values: np.ndarray, digits: int) -> str:
    """Formats the mean of a difference with its sign, and the half-width of its 95 % interval."""
    return f"{'+' if values.mean() >= 0 else ''}{statistics.format_with_interval(values, digits)}"
