"""The links of a model and the runs of each method, for sections 4.2 and 4.3 of Kimad.

A model that is smaller than the paper's ResNet-18 has proportionally smaller bandwidths, so that
all durations are the same: the paper's T_comm, the computation, and the period of the bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dsgd
from algorithms import kimad, kimad_sgd
from algorithms.kimad.exchange import header_bits
from dsgd import clusters
from experiments.kimad import quadratics
from experiments.shared import resuming, tuning

RESNET_18 = 32 * 11_173_962  # bits of the model
SLOWEST, FASTEST = 30e6, 330e6  # bits per second of a link to a ResNet-18
WARM_UP = 0.05  # share of the rounds: 5 of 100 epochs
ANY = np.arange(1, 1001) / 1000  # ratios K/d of {Top-K | K > 0}
RATIOS = 0.01 + 0.02 * np.arange(50)  # ratios of section 4.3
RESOLUTION = 1000
EVALUATIONS = 60  # number of evaluations in a run

EF21, KIMAD, ORACLE, COARSE, PLUS, WHOLE = (
    "EF21",
    "Kimad",
    "Kimad, oracle",
    "Kimad, coarse",
    "Kimad+",
    "whole model",
)


class Case(NamedTuple):
    """A method with a number of workers and a message time T_comm, seconds."""

    method: str
    workers: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.method}; {self.workers} workers; {self.seconds:g} s"


class Setting(NamedTuple):
    """The problem and the settings of its training.

    Args:
        problem: the problem of M workers.
        cluster: a cluster with the paper's pattern of bandwidths, scaled to the model.
        layers: number of elements of each layer.
        steps: number of rounds.
        warm_up: number of the first rounds, in which messages are not compressed.
        learning_rate: gamma.
        seeds: number of independent runs.
        seed: seed of all random numbers.
        progress: whether to show progress bars.
    """

    problem: dsgd.Problem
    cluster: clusters.Cluster
    layers: tuple[int, ...]
    steps: int
    warm_up: int
    learning_rate: float
    seeds: int
    seed: int
    progress: bool

    @property
    def bits(self) -> int:
        """Bits of the uncompressed model."""
        return 32 * sum(self.layers)


# T_comp, seconds: the model's bits over the mean bandwidth
COMPUTATION = RESNET_18 / ((SLOWEST + FASTEST) / 2)
Histories = dict[Case, dict[str, np.ndarray]]


def among_5(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns whether fewer than 5 logits, `[m, classes]`, are larger than the target's, bool
    `[m]`.
    """
    return jnp.sum(logits > jnp.take_along_axis(logits, targets[:, None], axis=1), axis=1) < 5


def make_cluster(scale: float, period: float, noise: float) -> clusters.Cluster:
    """Returns workers with the paper's computation time, on links whose bandwidth oscillates.

    Args:
        scale: the model's bits relative to a ResNet-18's.
        period: period of the bandwidth, seconds.
        noise: noise of each worker's bandwidth in each round, as for `clusters.sinusoid`.
    """
    link = clusters.sinusoid(scale * (FASTEST - SLOWEST), np.pi / period, scale * SLOWEST, noise)
    return clusters.Cluster(clusters.constant(COMPUTATION), up=link)


def pattern(period: float, clock: np.ndarray) -> np.ndarray:
    """Returns the bandwidth of a link to a ResNet-18 without noise, bits per second."""
    return SLOWEST + (FASTEST - SLOWEST) * np.sin(np.pi * clock / period) ** 2


def across_times(
    setting: Setting, times: Sequence[float]
) -> Iterator[tuple[Case, dict[str, np.ndarray]]]:
    """Yields the histories of Kimad, then of EF21 with the same number of bits; both share one
    program.

    Args:
        setting: the setting.
        times: values of T_comm, seconds.
    """
    N, round_times = setting.problem.workers, [COMPUTATION + 2 * seconds for seconds in times]
    run = partial(_sweep, setting, partial(_any_ratio, setting), oracle=[0.0])
    adapting = list(run(round_time=round_times, fixed=[-1.0]))
    yield from (
        (Case(KIMAD, N, seconds), history) for seconds, history in zip(times, adapting, strict=True)
    )
    choices = [
        float(fixed_choice(setting, traffic(setting, history).mean())) for history in adapting
    ]
    same = run(round_time=[max(round_times)], fixed=choices)
    yield from (
        (Case(EF21, N, seconds), history) for seconds, history in zip(times, same, strict=True)
    )


def with_oracle(
    setting: Setting, times: Sequence[float]
) -> Iterator[tuple[Case, dict[str, np.ndarray]]]:
    """Yields the histories of Kimad that knows the bandwidths; it shares the program of
    `across_times`.

    Args:
        setting, times: as for `across_times`.
    """
    round_times = [COMPUTATION + 2 * seconds for seconds in times]
    each = _sweep(
        setting, partial(_any_ratio, setting), round_time=round_times, fixed=[-1.0], oracle=[1.0]
    )
    yield from (
        (Case(ORACLE, setting.problem.workers, seconds), history)
        for seconds, history in zip(times, each, strict=True)
    )


def across_layers(setting: Setting, seconds: float) -> Iterator[tuple[Case, dict[str, np.ndarray]]]:
    """Yields the histories of Kimad and Kimad+ with the ratios of section 4.3, which share one
    program, and then of the K largest elements of the whole model.

    Args:
        setting: the setting.
        seconds: T_comm.
    """
    N, round_time = setting.problem.workers, COMPUTATION + 2 * seconds
    both = _sweep(setting, partial(_layer_by_layer, setting, round_time), plus=[0.0, 1.0])
    yield from (
        (Case(method, N, seconds), history)
        for method, history in zip((COARSE, PLUS), both, strict=True)
    )
    largest = kimad.whole_model(kimad.top_k(ANY))
    (history,) = _sweep(
        setting,
        lambda round_time: _method(setting, largest, round_time, kimad.uniform),
        round_time=[round_time],
    )
    yield Case(WHOLE, N, seconds), history


def _any_ratio(
    setting: Setting, round_time: jax.Array, fixed: jax.Array, oracle: jax.Array
) -> dsgd.Algorithm:
    """Returns Kimad if `fixed` is -1, otherwise EF21 with the ratio of index `fixed`."""

    def rule(errors, sizes, budget):
        return jnp.where(
            fixed < 0, kimad.uniform(errors, sizes, budget), jnp.asarray(fixed, jnp.int32)
        )

    return _method(setting, kimad.top_k(ANY), round_time, rule, quadratics.last_or_oracle(oracle))


def _layer_by_layer(setting: Setting, round_time: float, plus: jax.Array) -> dsgd.Algorithm:
    """Returns Kimad or Kimad+ with one compressor for each layer."""

    def rule(errors, sizes, budget):
        best = kimad.allocate(errors, sizes, budget, resolution=RESOLUTION)
        return jnp.where(plus > 0, best, kimad.uniform(errors, sizes, budget))

    return _method(setting, kimad.top_k(RATIOS), round_time, rule)


def _method(
    setting: Setting,
    choices: kimad.CompressorSet,
    round_time: float | jax.Array,
    rule: Callable,
    monitor: kimad.Monitor = kimad.last,
) -> dsgd.Algorithm:
    return kimad_sgd(
        optax.sgd(setting.learning_rate),
        choices,
        round_time,
        computation=COMPUTATION,
        rule=rule,
        monitor=monitor,
        warm_up=setting.warm_up,
    )


def _sweep(
    setting: Setting, factory: Callable[..., dsgd.Algorithm], **grids: Any
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the history of each point; of the workers' measurements, those of the first worker and
    their mean.
    """
    sweep = resuming.sweep(
        factory,
        setting.problem,
        steps=setting.steps,
        key=jax.random.key(setting.seed),
        seeds=setting.seeds,
        cluster=setting.cluster,
        evaluate_every=max(1, setting.steps // EVALUATIONS),
        mesh=tuning.devices_for(setting.problem.workers),
        progress=setting.progress,
        **grids,
    )
    for index in np.ndindex(*(len(values) for values in grids.values())):
        history = sweep.at(index)
        if not np.isfinite(dsgd.history.evaluated_records(history)["loss"]).all():
            raise ValueError(
                f"{setting.problem.name} diverged at a step size of {setting.learning_rate:g}; "
                "expected a smaller --learning-rate"
            )
        kept = {
            name: history[name]
            for name in ("step", "clock", "bits", "loss", "top_1", "top_5", "evaluated")
            if name in history
        }
        first = {"bandwidth": "bandwidth_up", "message": "message_up", "error": "error_up"}
        ours = {name: history[theirs][..., 0] for name, theirs in first.items()}
        yield {**kept, **ours, "mean_error": history["error_up"].mean(axis=-1)}


def traffic(setting: Setting, history: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the bits that a worker sends and receives in a round after the warm-up, `[seeds]`."""
    return _each_round(setting, history["bits"])


def step_time(setting: Setting, history: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the seconds of a round after the warm-up, `[seeds]`."""
    return _each_round(setting, history["clock"])


def _each_round(setting: Setting, sums: np.ndarray) -> np.ndarray:
    return (sums[:, -1] - sums[:, setting.warm_up]) / (setting.steps - setting.warm_up)


def fixed_choice(setting: Setting, bits: float) -> int:
    """Returns the number of the ratio at which two messages have most nearly the given bits."""
    return int(np.argmin(np.abs(2 * message_bits(setting) - bits)))


def message_bits(setting: Setting) -> np.ndarray:
    """Returns the bits of a message at each ratio."""
    return header_bits(len(setting.layers), len(ANY)) + np.sum(
        [kimad.top_k(ANY).sizes(d, np.float32) for d in setting.layers], axis=0
    )
