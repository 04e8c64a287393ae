"""Training of each system on a simulated cluster, epoch by epoch, until a quality is reached.

A smaller problem has a smaller noise scale, so that smaller total batches are relatively large:
each of its samples is slowed down by the factor by which its largest total batch is smaller than
the workload's. A smaller model has proportionally slower links. Thus the seconds are those of the
workload.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import jax
import numpy as np
import optax

import dsgd
from algorithms import cannikin
from dsgd import clusters

DDP, LB_BSP, ADAPTDL, CANNIKIN = SYSTEMS = ("DDP", "LB-BSP", "AdaptDL", "Cannikin")
ACCURACY, BITS = "test_accuracy", "test_bits_per_byte"
Name = Literal["cnn", "mlp", "mlp-adam", "text", "cifar-10"]


class Task(NamedTuple):
    """A training task.

    Args:
        words: description for titles.
        workload: a key of `devices.WORKLOADS`, which determines the seconds.
        first, last: the smallest total batch, which DDP and LB-BSP keep, and the largest.
        optimizer: optimizer of optax.
        scaling: scaling of the step size.
        quality: name in the history.
        target: target quality.
        piece: samples of a micro-batch, in which local batches are simulated.
    """

    words: str
    workload: str
    first: int
    last: int
    optimizer: optax.GradientTransformation
    scaling: Callable
    quality: str
    target: float
    piece: int = 4

    def good(self, quality: float, target: float) -> bool:
        """Returns whether the quality is at least as good as the target."""
        return quality >= target if self.quality == ACCURACY else quality <= target


_MOMENTUM = optax.sgd(0.05, momentum=0.9)
TASKS: dict[Name, Task] = {
    "cnn": Task(
        "CNN on digits, SGD", "ResNet-18", 32, 512, _MOMENTUM, cannikin.adascale, ACCURACY, 0.96
    ),
    "mlp": Task(
        "MLP on digits, SGD",
        "DeepSpeech2",
        32,
        1024,
        optax.sgd(0.02, momentum=0.9),
        cannikin.adascale,
        ACCURACY,
        0.96,
    ),
    "mlp-adam": Task(
        "MLP on digits, Adam",
        "NeuMF",
        32,
        1024,
        optax.adam(1e-3),
        cannikin.square_root,
        ACCURACY,
        0.93,
    ),
    "text": Task(
        "transformer on a text, Adam",
        "BERT",
        32,
        384,
        optax.adam(3e-3),
        cannikin.square_root,
        BITS,
        1.0,
    ),
    "cifar-10": Task(
        "ResNet-18 on CIFAR-10, SGD",
        "ResNet-18",
        64,
        4096,
        _MOMENTUM,
        cannikin.adascale,
        ACCURACY,
        0.8,
        16,
    ),
}


class Setting(NamedTuple):
    """A task on a cluster.

    Args:
        task: the task.
        problem: problem with one worker per node.
        method: the same for all systems and seeds, so that all share one program.
        cluster: the cluster with the clock.
        model: its exact model.
        stands_for: number of samples of the workload that take as long as one of the task.
        totals: total batches to choose from.
        target: target quality.
    """

    task: Task
    problem: dsgd.Problem
    method: dsgd.Algorithm
    cluster: clusters.Cluster
    model: cannikin.ClusterModel
    stands_for: float
    totals: np.ndarray
    target: float


class Run(NamedTuple):
    """A run of one system and seed, `[epochs]` each.

    Args:
        seconds: seconds since the start.
        totals: total batches.
        factors: factors of the step size.
        noise_scales: in samples.
        losses, qualities: after each epoch.
        reached: whether the last quality is as good as the target.
    """

    seconds: np.ndarray
    totals: np.ndarray
    factors: np.ndarray
    noise_scales: np.ndarray
    losses: np.ndarray
    qualities: np.ndarray
    reached: bool


Runs = dict[str, list[Run]]  # by system, one run for each seed


def stretch(cluster: clusters.Cluster, factor: float) -> clusters.Cluster:
    """Returns the cluster with samples that take longer by this factor."""
    assert cluster.overlap is not None
    assert cluster.per_sample is not None
    backward = factor * cluster.overlap.backward_per_sample
    return replace(
        cluster,
        per_sample=factor * cluster.per_sample,
        overlap=replace(cluster.overlap, backward_per_sample=backward),
    )


def stretched_model(model: cannikin.ClusterModel, factor: float) -> cannikin.ClusterModel:
    """Returns the model with samples that take longer by this factor."""
    limits = np.floor(np.asarray(model.limits) / factor)
    return replace(
        model, q=factor * np.asarray(model.q), k=factor * np.asarray(model.k), limits=limits
    )


def make_system(name: str, setting: Setting) -> cannikin.System:
    """Returns one of `SYSTEMS`."""
    first = setting.task.first
    return {
        DDP: cannikin.equal_split(first),
        LB_BSP: cannikin.lb_bsp(first),
        ADAPTDL: cannikin.adaptdl(setting.totals, first),
        CANNIKIN: cannikin.cannikin(setting.totals, first),
    }[name]


def race(setting: Setting, system: str, *, epochs: int, key: jax.Array) -> Run:
    """Runs epochs until the target is reached.

    Args:
        setting: the task on its cluster.
        system: one of `SYSTEMS`.
        epochs: maximal number of epochs.
        key: key of all random numbers.
    """
    task = setting.task
    # The number of pieces suffices for 1.5 times the fastest node's part of the largest batch,
    # because measurements have errors.
    most = min(1.5 * setting.model.optperf(task.last).batches.max(), task.last)
    found = cannikin.train(
        setting.method,
        setting.problem,
        make_system(system, setting),
        cluster=setting.cluster,
        epochs=epochs,
        key=key,
        micro_batches=math.ceil(most / task.piece),
        limits=np.asarray(setting.model.limits).astype(int),
        scaling=task.scaling,
        until=lambda done: task.good(done[-1].scalars[task.quality], setting.target),
    )
    each = found.epochs
    qualities = np.array([epoch.scalars[task.quality] for epoch in each])
    return Run(
        found.clock(),
        np.array([epoch.total for epoch in each]),
        np.array([epoch.factor for epoch in each]),
        np.array([epoch.noise_scale for epoch in each]),
        np.array([epoch.scalars["loss"] for epoch in each]),
        qualities,
        task.good(qualities[-1], setting.target),
    )
