"""Effect speedup of DropCompute: on latencies drawn as in a run, and by the clock of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import algorithms
import dsgd
from algorithms import dropcompute
from algorithms.dropcompute import Effect
from algorithms.dropcompute.stopping import Stop
from dsgd import clusters, network, problems
from experiments.dropcompute.exact import Sums
from experiments.dropcompute.noises import Noise
from experiments.shared import resuming
from theory_checks.statements.dropcompute_speedup import equation_4, equation_11

NEVER = 1e6  # seconds: a threshold without drops, as a finite number for sweeps

Draw = Callable[[int], np.ndarray]  # a seed -> seconds `[I, N, M]`


@dataclass(frozen=True)
class Setting:
    """Settings of the measurements.

    Args:
        micro_batches: M.
        communication: T^c, seconds.
        stop: "preempt" or "between".
        iterations: I, the number of iterations from which the threshold is chosen, and of those on
            which it is evaluated.
        seeds: seeds of the independent measurements.
    """

    micro_batches: int
    communication: float
    stop: Stop
    iterations: int
    seeds: Sequence[int]


class Sampled(NamedTuple):
    """Simulated results of a noise, with its exact sums."""

    noise: Noise
    sums: Sums
    draw: Draw
    found: Mapping[int, Effect]


def choose_and_apply(setting: Setting, draw: Draw, counts: Sequence[int]) -> dict[int, Effect]:
    """Returns effects `[seeds]` by number of workers, with thresholds chosen by Algorithm 2 from
    other iterations; the first N of the drawn workers are used.

    Args:
        setting: the settings.
        draw: draws at least 2 I iterations of at least as many workers as the largest of `counts`.
        counts: values of N.
    """
    rows: dict[int, list[Effect]] = {N: [] for N in counts}
    for seed in setting.seeds:
        both = draw(seed)
        for N in counts:
            known, fresh = both[: setting.iterations, :N], both[setting.iterations :, :N]
            tau = dropcompute.threshold(known, setting.communication, setting.stop)
            rows[N].append(apply(setting, fresh, tau))
    return {N: stack_seeds(found) for N, found in rows.items()}


def apply(setting: Setting, latencies: np.ndarray, thresholds: Any) -> Effect:
    """Returns the effect of thresholds on latencies `[I, N, M]`."""
    return dropcompute.measured_effect(latencies, thresholds, setting.communication, setting.stop)


def stack_seeds(found: Sequence[Effect]) -> Effect:
    """Stacks the results of all seeds, `[seeds, ...]`."""
    return Effect(*(np.array(each, float) for each in zip(*found, strict=True)))


def rates(setting: Setting, found: Mapping[int, Effect]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the micro-batches per second of all workers, without and with a threshold, `[seeds,
    counts]` each.
    """
    both = []
    for N, each in found.items():
        whole = N * setting.micro_batches
        with_it = whole * (1 - each.drop_rate) / (each.step_time + setting.communication)
        both.append((whole / (each.without + setting.communication), with_it))
    without, with_it = zip(*both, strict=True)
    return np.stack(without, axis=-1), np.stack(with_it, axis=-1)


def sweep_thresholds(setting: Setting, draw: Draw, workers: int, thresholds: np.ndarray) -> Effect:
    """Returns the simulated effects of thresholds `[K]` on the first N workers, `[seeds, K]`."""
    return stack_seeds(
        [apply(setting, draw(seed)[:, :workers], thresholds) for seed in setting.seeds]
    )


def sweep_drop_rates(
    setting: Setting, draw: Draw, workers: int, micro_batches: int, shares: np.ndarray
) -> np.ndarray:
    """Returns S_eff at thresholds with the given drop rates, `[seeds, K]`.

    Args:
        setting: the settings; `micro_batches` is not used.
        draw: draws at least the given workers and micro-batches.
        workers, micro_batches: numbers of the first workers and micro-batches to use.
        shares: drop rates in [0, 1), increasing, `[K]`.
    """
    rows = []
    for seed in setting.seeds:
        latencies = draw(seed)[:, :workers, :micro_batches]
        ends = np.quantile(np.cumsum(latencies, axis=-1), np.linspace(1, 0.5, 201))
        effect = apply(setting, latencies, ends)
        # If whole steps are cut off at once, no threshold has a drop rate in between.
        rows.append(np.interp(shares, np.append(0, effect.drop_rate), np.append(1, effect.speedup)))
    return np.array(rows)


def measure_runs(
    setting: Setting, seconds: clusters.Quantity, workers: int, threshold: float
) -> Effect:
    """Returns the effects `[seeds]` from the clock and history of runs with and without the
    threshold. The method is mini-batch SGD on a quadratic; the clock does not depend on it.

    Args:
        setting: the settings; a run has as many rounds as iterations.
        seconds: seconds of a micro-batch.
        workers: N.
        threshold: tau, seconds.
    """
    plain, T_c = algorithms.minibatch_sgd(optax.sgd(0.1)), setting.communication
    problem = problems.random_quadratic(workers, 2)
    latency = T_c / sum(
        network.cost(each.pattern, workers, 1.0, 0.0) for each in dsgd.exchanges(plain, problem)
    )
    history = resuming.sweep(
        lambda threshold: algorithms.drop_compute(
            plain, threshold, setting.micro_batches, stop=setting.stop
        ),
        problem,
        steps=setting.iterations,
        key=jax.random.key(setting.seeds[0]),
        seeds=len(setting.seeds),
        cluster=clusters.Cluster(seconds, latency=latency),
        mesh=1,
        threshold=[threshold, NEVER],
    ).history
    # with T^c, `[thresholds, seeds, rounds]`
    rounds = np.diff(np.asarray(history["clock"], float), axis=-1)
    computed = 1 - np.asarray(history["dropped"], float)[..., 1:]
    speedup = (computed[0] * rounds[1] / rounds[0]).mean(axis=-1)
    step, without = (each.mean(axis=-1) - T_c for each in rounds)
    return Effect(
        np.full(len(speedup), threshold), speedup, 1 - computed[0].mean(axis=-1), step, without
    )


class Prediction(NamedTuple):
    """Predictions of the normal model, `[counts]`: S_eff at the best threshold, and E T in
    seconds.
    """

    speedup: np.ndarray
    without: np.ndarray


def predict(
    setting: Setting, mean: float, std: float, counts: Sequence[int] | np.ndarray
) -> Prediction:
    """Returns the predictions of equations 4, 5 and 11, for the best threshold of at least M mu / 2
    (assumption C.3).
    """
    M, N = setting.micro_batches, np.asarray(counts)
    thresholds = np.linspace(M * mean / 2, M * mean + 5 * np.sqrt(M) * std, 301)[:, None]
    speedups = equation_11(mean, std, M, N, thresholds, setting.communication, setting.stop)
    return Prediction(speedups.max(axis=0), equation_4(mean, std, M, N))
