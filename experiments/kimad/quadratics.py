"""Comparison of fixed compressors with Kimad on small quadratics at equal simulated seconds; shared
by the commands on Kimad.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.axes import Axes

import algorithms
import dsgd
from algorithms import kimad
from dsgd import clusters, compressors, plots, problems
from experiments.shared import commands, resuming, statistics, tuning

DIMENSION = 30  # as in section 4.1 of Kimad
ELEMENT = 32  # bits of a float32
TIMES = 200  # number of times at which losses are compared
FREE = clusters.constant(1e15)  # bits per second of the downlink, whose time is neglected
NEGLIGIBLE = 1.05  # smaller speedups are neglected


@dataclass(frozen=True, kw_only=True)
class Flags(commands.Common, commands.Tasks):
    """Flags of the commands on quadratics."""

    period: commands.Positive = 50.0
    """Period of the bandwidth, seconds."""
    compute: commands.Positive = 1.0
    """Computation time of a gradient, seconds."""
    seconds: commands.Positive = 300.0
    """Simulated seconds of every run."""
    condition: commands.Factor = 100.0
    """Condition number: the largest a_i, which is 1, divided by the smallest."""
    problems: commands.Count = 16
    """Number of problems, with independent spectra, initial points and random numbers."""
    learning_rates: commands.Positives = (
        0.125,
        0.18,
        0.25,
        0.35,
        0.5,
        0.7,
        0.85,
        1.0,
        1.2,
        1.4,
        1.55,
        1.7,
        1.85,
        1.95,
    )
    """Candidate step sizes; gradient descent needs less than 2."""
    round_times: commands.Positives = (
        1.02,
        1.03,
        1.05,
        1.07,
        1.1,
        1.15,
        1.25,
        1.4,
        1.6,
        1.8,
        2.0,
        2.5,
        3.0,
        4.0,
        5.0,
        7.0,
        10.0,
        15.0,
        23.0,
    )
    """Candidate round times of Kimad, seconds."""


def quadratics(number: int, condition: float, seed: int) -> list[dsgd.Problem]:
    r"""Returns problems $f(x) = \frac12 \sum a_i x_i^2$ of one worker that share their programs.
    Each has its own spectrum from 1 / condition to 1 with uniform logarithms, and starts from N(0,
    I).
    """

    def one(i: int) -> dsgd.Problem:
        a = np.exp(-np.random.default_rng((seed, i)).uniform(0, math.log(condition), DIMENSION))
        a[:2] = 1, 1 / condition
        return problems.quadratic(a[None], np.zeros((1, DIMENSION)))._replace(init=_normal)

    return [one(i) for i in range(number)]


def _normal(key: jax.Array) -> jax.Array:
    return jax.random.normal(key, (DIMENSION,))


def top_k(places: Literal["sent", "free"]) -> kimad.CompressorSet:
    """Returns Top-K for K from 1 to all elements, whose messages count all bits, or only those of
    the values.
    """
    choices = kimad.top_k([k / DIMENSION for k in range(1, DIMENSION + 1)])
    if places == "sent":
        return choices

    def sizes(d, dtype):
        whole = ELEMENT * d
        return [
            bits if bits == whole else ELEMENT * k
            for k, bits in enumerate(choices.sizes(d, dtype), start=1)
        ]

    return choices._replace(sizes=sizes, number=1)


def check_times(compute: float, round_times: Sequence[float]) -> None:
    """Raises a ValueError if rounds are too short for a gradient and a message."""
    if not min(round_times) > compute:
        raise ValueError(
            f"--round-times {min(round_times):g} with --compute {compute:g}: expected longer "
            "rounds, with time for messages"
        )


def make_cluster(compute: float, up: clusters.Quantity) -> clusters.Cluster:
    """Returns one worker, for which only the gradient and the uplink take time."""
    return clusters.Cluster(clusters.constant(compute), up=up, down=FREE)


def fix_choice(choices: kimad.CompressorSet, warm_up: int) -> Callable[..., dsgd.Algorithm]:
    """Returns EF21 as a function of the step size and of the number of its compressor, which is
    known to both sides and not sent.
    """

    def build(learning_rate, choice):
        def always(errors, sizes, budget):
            # the server's messages have only one choice
            return jnp.full(len(sizes), jnp.minimum(choice, errors.shape[1] - 1), jnp.int32)

        one = choices._replace(number=1)
        return algorithms.kimad_sgd(
            optax.sgd(learning_rate),
            one,
            1.0,
            computation=0.0,
            rule=always,
            warm_up=warm_up,
            **_uplink(),
        )

    return build


def adapt_choice(
    choices: kimad.CompressorSet, warm_up: int, compute: float
) -> Callable[..., dsgd.Algorithm]:
    """Returns Kimad as a function of the step size, the seconds of a round, and whether (1 or 0) it
    knows the future bandwidth.
    """

    def build(learning_rate, round_time, oracle):
        options: dict[str, Any] = {
            "computation": compute,
            "monitor": last_or_oracle(oracle),
            "warm_up": warm_up,
            **_uplink(),
        }
        return algorithms.kimad_sgd(optax.sgd(learning_rate), choices, round_time, **options)

    return build


def last_or_oracle(oracle: jax.Array | float) -> kimad.Monitor:
    """Returns `kimad.oracle` if the flag, which may be swept, is above 0; otherwise
    `kimad.last`.
    """

    def estimate(memory, true):
        return jnp.where(
            oracle > 0, kimad.oracle.estimate((), true), kimad.last.estimate(memory, true)
        )

    return kimad.last._replace(estimate=estimate, name="last or oracle")


def _uplink() -> dict[str, Any]:
    """Returns a compressor set for the server, whose messages are sent uncompressed."""
    return {"down": [compressors.identity], "congestion": 0.0}


class Best(NamedTuple):
    """A method at its best point.

    Args:
        point: the hyperparameters.
        losses: log10 f(x) / f(x_0), `[problems, TIMES]`.
        history: history of the first problem, `[records]` each.
    """

    point: dict[str, float]
    losses: np.ndarray
    history: dict[str, np.ndarray]

    @property
    def end(self) -> np.ndarray:
        """Mean of the losses over the last tenth of the seconds, `[problems]`."""
        return dsgd.history.tail_mean(self.losses)


def all_of(names: Sequence[str], found: Sequence[Best | None]) -> dict[str, Best] | None:
    """Returns the methods by name; None if one of them diverged at every point."""
    there = {name: best for name, best in zip(names, found, strict=True) if best is not None}
    return there if len(there) == len(names) else None


class Race(NamedTuple):
    """All points of a grid on all problems.

    Args:
        grid: the values by name.
        losses: as in `Best`, `[grid ..., problems, TIMES]`.
        history: history of the first problem, `[grid ..., records]`.
    """

    grid: dict[str, np.ndarray]
    losses: np.ndarray
    history: dict[str, np.ndarray]

    def best(self, **given: float) -> Best | None:
        """Returns the grid point with the smallest mean of the log losses over problems and over
        the last tenth of the seconds, among the points with the given hyperparameters; None if all
        of them diverged.
        """
        score = dsgd.history.tail_mean(self.losses).mean(axis=-1)
        axes = np.meshgrid(*self.grid.values(), indexing="ij")
        for (name, _), axis in zip(self.grid.items(), axes, strict=True):
            if name in given:
                score = np.where(axis == given[name], score, np.inf)
        if not np.isfinite(score).any():
            return None
        index = np.unravel_index(np.argmin(score), score.shape)
        point = {
            name: values[i].item()
            for (name, values), i in zip(self.grid.items(), index, strict=True)
        }
        return Best(
            point,
            self.losses[index],
            {name: values[index] for name, values in self.history.items()},
        )


def race(
    build: Callable[..., dsgd.Algorithm],
    tasks: Sequence[dsgd.Problem],
    cluster: clusters.Cluster,
    *,
    seconds: float,
    compute: float,
    seed: int,
    **grid: Any,
) -> Race:
    """Runs every point on every problem for at least the given simulated seconds; no round is
    shorter than its gradient.

    Args:
        build: hyperparameters -> method.
        tasks: problems that share a program.
        cluster: the cluster with the clock.
        seconds: simulated seconds.
        compute: seconds of a gradient.
        seed: seed of the initial points and of the cluster's noise.
        grid: as for `dsgd.sweep`.
    """
    losses, first = [], {}
    for i, task in enumerate(tasks):
        key = jax.random.fold_in(jax.random.key(seed), i)
        options: dict[str, Any] = {
            "steps": math.ceil(seconds / compute),
            "cluster": cluster,
            "mesh": tuning.devices_for(1),
        }
        history = resuming.sweep(build, task, key=key, **options, **grid).history
        losses.append(
            interpolate_losses(history["loss"], history["clock"], times(seconds))[..., 0, :]
        )
        if i == 0:
            first = {name: history[name][..., 0, :] for name in ("clock", "loss")}
            first |= {name: history[name][..., 0, :, 0] for name in ("message_up", "bandwidth_up")}
    return Race(
        {name: np.asarray(values) for name, values in grid.items()},
        np.stack(losses, axis=-2),
        first,
    )


def races(
    args: Any,
    choices: kimad.CompressorSet,
    places: Sequence[int],
    warm_up: int,
    tasks: Sequence[dsgd.Problem],
    cluster: clusters.Cluster,
) -> tuple[Race, Race]:
    """Runs the fixed compressors, and Kimad without and with the oracle.

    Args:
        args: arguments of the command, with `seconds`, `compute`, `seed`, `learning_rates` and
            `round_times`.
        choices, places: the compressors, and the numbers of those that are used as fixed ones.
        warm_up: number of uncompressed messages at the start.
        tasks, cluster: as for `race`.
    """
    options: dict[str, Any] = {
        "seconds": args.seconds,
        "compute": args.compute,
        "seed": args.seed,
        "learning_rate": args.learning_rates,
    }
    still = race(fix_choice(choices, warm_up), tasks, cluster, **options, choice=places)
    build = adapt_choice(choices, warm_up, args.compute)
    return still, race(build, tasks, cluster, **options, round_time=args.round_times, oracle=(0, 1))


def adapting(moving: Race) -> tuple[Best | None, Best | None]:
    """Returns the best Kimad, without and with the oracle."""
    return moving.best(oracle=0), moving.best(oracle=1)


def times(seconds: float) -> np.ndarray:
    """Returns the times at which losses are compared, `[TIMES]`."""
    return seconds * np.arange(1, TIMES + 1) / TIMES


def interpolate_losses(loss: np.ndarray, clock: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Returns log10 f(x) / f(x_0) of the model at the given times, `[..., records]` to `[...,
    times]`; inf after it has diverged.
    """
    relative = np.where(np.isfinite(loss), loss, np.inf) / loss[..., :1]
    done = np.empty((*loss.shape[:-1], len(at)), int)
    for index in np.ndindex(loss.shape[:-1]):
        done[index] = np.searchsorted(clock[index], at, side="right") - 1
    return np.log10(np.take_along_axis(relative, done, axis=-1))


def draw_messages(
    axes: Axes, seconds: np.ndarray, level: np.ndarray, shown: dict[str, tuple[Best, str]]
) -> None:
    """Draws the first problem's messages, in bits, and the bandwidth, in bits per second.

    Args:
        axes: the panel.
        seconds, level: times and values of the bandwidth.
        shown: the methods by label, with their colours.
    """
    axes.plot(seconds, level, color="black", linestyle="--", linewidth=1, label="bandwidth")
    for label, (best, colour) in shown.items():
        clock, bits = best.history["clock"], best.history["message_up"]
        axes.step(clock, bits, where="pre", color=colour, linewidth=1.2, label=label)
    plots.log_scale(axes, "y")
    axes.set_xlim(0, seconds[-1])


def speedups(slow: Best, fast: Best) -> np.ndarray:
    """Returns the ratio of the seconds of two methods to the larger of their final losses,
    `[problems]`.
    """
    target = np.maximum(slow.end, fast.end)[:, None]
    reached = [np.argmax(best.losses <= target, axis=1) + 1 for best in (slow, fast)]
    return reached[0] / reached[1]


def interval(ratios: np.ndarray) -> tuple[float, float, float]:
    """Returns the geometric mean over problems and its 95 % interval, by Student's t of the
    logarithms; infinite for a single problem.
    """
    logs = np.log(ratios)
    half = statistics.half_interval(logs)
    return tuple(np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]).tolist())


def format_interval(ratios: np.ndarray) -> str:
    """Formats the mean and its interval."""
    middle, low, high = interval(ratios)
    return f"{middle:.2f} ({low:.2f}–{high:.2f})" if len(ratios) > 1 else f"{middle:.2f}"


def is_faster(ratios: np.ndarray) -> bool:
    """Returns whether the speedup exceeds both its interval over problems and a negligible
    factor.
    """
    middle, low, _ = interval(ratios)
    return low > 1 and middle >= NEGLIGIBLE
