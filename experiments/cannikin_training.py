"""Training to a target quality on heterogeneous machines, figures 5, 7 and 8 of Cannikin: DDP,
LB-BSP, AdaptDL and Cannikin.

    python -m experiments.cannikin_training --problem text --text docstrings --seeds 3

Real training on the clock of a simulated cluster, whose GPUs and their speeds are in
`experiments.cannikin.devices`. DDP and LB-BSP keep the first total batch; AdaptDL and Cannikin
choose the one with the largest goodput before each epoch. The step size grows with it: by AdaScale
for SGD, by the square root for Adam.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import numpy as np

import algorithms
from algorithms import cannikin
from dsgd import problems, records
from experiments.cannikin import devices, race, race_results
from experiments.cannikin.race import SYSTEMS, Runs, Setting
from experiments.shared import commands, tables, tuning


@dataclass(frozen=True)
class Args(commands.Common):
    """Compares systems that split a batch among machines."""

    problem: tuple[race.Name, ...] = ("cnn", "mlp", "mlp-adam")
    """Task: digits with a CNN, or with an MLP and SGD or Adam; a text; cifar-10 with a ResNet-18,
    for a GPU, with --data-dir.
    """
    data_dir: commands.DataDir = None
    text: str = "grammar"
    """Text of the task "text": "grammar", "docstrings", or a file or folder."""
    cluster: Literal["A", "B", "C"] = "B"
    """Cluster of the paper: A, B and C have 3, 16 and 16 nodes."""
    target: commands.Positive | None = None
    """Quality to be reached, accuracy or bits per byte, for all problems; by default the one of
    each problem.
    """
    epochs: commands.Count = 100
    """Maximal number of epochs."""
    choices: commands.Count = 8
    """Number of candidate total batches."""
    noise: commands.NotNegative = 0.05
    """Noise of the nodes' measurements: the standard deviation of their logarithm."""
    seeds: commands.Count = 5
    """Number of independent runs."""
    seed: commands.Natural = 22
    """Seed of all random numbers."""
    out: Path = Path("results/cannikin_training")
    """Folder for config.json, epochs.csv and figure.png."""


def main(args: Args) -> None:
    settings = {name: setting_of(args, name) for name in dict.fromkeys(args.problem)}
    commands.begin(args)
    found: dict[str, tuple[Setting, Runs]] = {}
    with commands.keep(write, args.out / "epochs.csv", found):
        for name, setting in settings.items():
            found[name] = setting, {system: [] for system in SYSTEMS}
            train(args, name, *found[name])
    for setting, runs in found.values():
        tables.notes(race_results.notes(setting, runs))
    shown = {
        name: race_results.tabulate(setting, args.cluster, runs)
        for name, (setting, runs) in found.items()
    }
    commands.finish(args, {"figure": race_results.draw(args.cluster, found)}, shown)


def setting_of(args: Args, name: race.Name) -> Setting:
    """Returns the task on the cluster, with samples slowed down by the factor by which its largest
    total batch is smaller than the workload's.
    """
    task, N = race.TASKS[name], len(devices.CLUSTERS[args.cluster])
    if name == "text":
        problem = problems.language_model(
            args.text,
            N,
            context=32,
            width=32,
            layers=1,
            batch_size=task.piece,
            evaluation_size=None,
        )
    elif name == "cifar-10":
        problem = problems.neural_network(
            "resnet-18", "cifar-10", N, batch_size=task.piece, data_dir=args.data_dir
        )
    else:
        problem = problems.neural_network(
            name.partition("-")[0], "digits", N, batch_size=task.piece
        )
    d = tuning.elements(problem)
    stands_for = float(devices.batches(args.cluster, task.workload, 2)[-1] / task.last)
    return Setting(
        task,
        problem,
        algorithms.minibatch_sgd(cannikin.scalable(task.optimizer)),
        race.stretch(
            devices.make_cluster(args.cluster, task.workload, parameters=d, noise=args.noise),
            stands_for,
        ),
        race.stretched_model(devices.make_model(args.cluster, task.workload), stands_for),
        stands_for,
        np.unique(np.round(np.geomspace(task.first, task.last, args.choices)).astype(int)),
        args.target or task.target,
    )


def train(args: Args, name: str, setting: Setting, runs: Runs) -> None:
    """Trains all systems and seeds, one after the other; all systems start from the same model for
    a seed.
    """
    keys = jax.random.split(jax.random.key(args.seed), args.seeds)
    for system, i in tables.bar(
        [(system, i) for i in range(args.seeds) for system in SYSTEMS], name, args.progress
    ):
        runs[system].append(race.race(setting, system, epochs=args.epochs, key=keys[i]))


def write(path: Path, found: dict[str, tuple[Setting, Runs]]) -> None:
    """Writes the results of all epochs as CSV."""
    names = ("seconds", "totals", "factors", "noise_scales", "losses", "qualities")
    rows = (
        (name, system, seed, epoch + 1, *(f"{getattr(run, column)[epoch]:.6g}" for column in names))
        for name, (_, runs) in found.items()
        for system, each in runs.items()
        for seed, run in enumerate(each)
        for epoch in range(len(run.seconds))
    )
    heading = (
        "problem",
        "system",
        "seed",
        "epoch",
        "seconds",
        "total_batch",
        "factor",
        "noise_scale",
        "loss",
        "quality",
    )
    records.write_rows(path, heading, rows)


if __name__ == "__main__":
    commands.run(main, Args)
