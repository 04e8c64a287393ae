"""Kimad on a neural network, sections 4.2 and 4.3 of its paper: what each worker sends as the
bandwidth changes, and the time that this saves.

    python -m experiments.kimad_deep --model resnet-18 --data-dir cifar-10 --communication-times 1
    --seeds 1

The links' bandwidth oscillates between 30 and 330 Mbit/s for a ResNet-18, with independent noise
for each worker; smaller models have proportionally slower links, so that messages take the same
seconds. In the first 20th of the rounds nothing is compressed. EF21 has one ratio, at which it
sends as many bits as Kimad. Kimad+, and the K largest elements of the whole model, have Kimad's
budgets, T_comm times the bandwidth in each direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import numpy as np
import optax

from dsgd import problems, records
from dsgd.problems.finite_sum import right
from experiments.kimad import deep_results
from experiments.kimad.deep_runs import (
    RESNET_18,
    WARM_UP,
    Case,
    Setting,
    across_layers,
    across_times,
    among_5,
    make_cluster,
    with_oracle,
)
from experiments.shared import commands, tables


class Usual(NamedTuple):
    """Default settings of a model."""

    data: str
    batch_size: int
    epochs: int
    learning_rate: float


USUAL = {
    "mlp": Usual("digits", 32, 60, 0.1),
    "cnn": Usual("digits", 32, 60, 0.1),
    "resnet-18": Usual("cifar-10", 128, 100, 0.01),  # the paper's settings
}


@dataclass(frozen=True)
class Args(commands.Common):
    """Compares EF21, Kimad and Kimad+ on a neural network."""

    model: Literal["mlp", "cnn", "resnet-18"] = "mlp"
    """Model to train; resnet-18 uses the paper's settings and needs a GPU."""
    data: Literal["digits", "mnist", "cifar-10"] | None = None
    """Data set; mnist and cifar-10 are read from --data-dir. By default digits, for resnet-18
    cifar-10.
    """
    data_dir: commands.DataDir = None
    workers: commands.Count = 4
    """Number of workers, except in table 2."""
    worker_counts: commands.Counts = (2, 4, 8, 16)
    """Numbers of workers in table 2."""
    communication_times: commands.Positives = (2.0, 1.0, 0.5, 0.2, 0.1)
    """T_comm, seconds of a message in each direction."""
    shown: float = 1.0
    """The T_comm at which compression errors and accuracies are compared."""
    batch_size: commands.Count | None = None
    """Samples that each worker draws in a round; by default 32, for resnet-18 128."""
    epochs: commands.Count | None = None
    """Number of passes over the data of all workers together; by default 60, for resnet-18 100."""
    learning_rate: commands.Positive | None = None
    """Step size; by default 0.1, for resnet-18 0.01."""
    period: commands.Positive = 100.0
    """Period of the bandwidth, seconds, which covers many steps."""
    noise: commands.NotNegative = 0.1
    """Noise of each worker's bandwidth, drawn in each round: the standard deviation of its
    logarithm.
    """
    seeds: commands.Count = 5
    """Number of independent runs."""
    seed: commands.Natural = 21
    """Seed of all random numbers."""
    out: Path = Path("results/kimad_deep")
    """Folder for config.json, history.csv and figure.png."""


def main(args: Args) -> None:
    if args.shown not in args.communication_times:
        raise ValueError(
            f"--shown {args.shown:g}: expected one of --communication-times "
            f"{args.communication_times}"
        )
    setting = setting_of(args, args.workers)
    others = [setting_of(args, count) for count in sorted(set(args.worker_counts) - {args.workers})]
    commands.begin(args)
    histories: dict[Case, dict[str, np.ndarray]] = {}
    with commands.keep(write, args.out / "history.csv", histories):
        histories.update(train(args, setting, others))  # trained one after the other
    tables.notes(deep_results.notes(setting, histories, args.shown))
    shown = {
        "steps": deep_results.steps(setting, histories),
        "messages": deep_results.messages(setting, histories),
        "accuracies": deep_results.accuracies(setting, histories, args.shown),
        "errors": deep_results.compression_errors(setting, histories, args.shown),
    }
    commands.finish(
        args,
        {"figure": deep_results.draw(setting, histories, args.shown, args.period, args.noise)},
        shown,
    )


def write(path: Path, histories: dict[Case, dict[str, np.ndarray]]) -> None:
    """Writes the histories by the cases' names."""
    records.write_histories(path, {str(case): each for case, each in histories.items()})


def setting_of(args: Args, workers: int) -> Setting:
    """Returns the model with its data distributed over the workers at random, and links that are
    slower by the factor by which it is smaller than a ResNet-18.
    """
    from dsgd.problems.models import MODELS  # noqa: PLC0415 (flax takes a quarter of a second)

    usual = USUAL[args.model]
    batch_size, epochs = args.batch_size or usual.batch_size, args.epochs or usual.epochs
    images = problems.load(args.data or usual.data, args.data_dir)
    problem = problems.finite_sum(
        MODELS[args.model](images.classes),
        optax.softmax_cross_entropy_with_integer_labels,
        (images.train_inputs, images.train_targets.astype(np.int32)),
        workers,
        batch_size=batch_size,
        seed=args.seed,
        test=(images.test_inputs, images.test_targets.astype(np.int32)),
        metrics={"top_1": right, "top_5": among_5},
        name=f"{args.model} on {images.name}",
    )
    layers = tuple(
        leaf.size for leaf in jax.tree.leaves(jax.eval_shape(problem.init, jax.random.key(0)))
    )
    steps = max(2, round(epochs * len(images.train_inputs) / (workers * batch_size)))
    learning_rate = args.learning_rate or usual.learning_rate
    cluster = make_cluster(32 * sum(layers) / RESNET_18, args.period, args.noise)
    return Setting(
        problem,
        cluster,
        layers,
        steps,
        round(WARM_UP * steps),
        learning_rate,
        args.seeds,
        args.seed,
        args.progress,
    )


def train(
    args: Args, setting: Setting, others: list[Setting]
) -> Iterator[tuple[Case, dict[str, np.ndarray]]]:
    """Returns the history of each case."""
    times = sorted(set(args.communication_times), reverse=True)
    yield from across_times(setting, times)
    yield from with_oracle(setting, times)
    yield from across_layers(setting, args.shown)
    for other in others:
        yield from across_times(other, [args.shown])


if __name__ == "__main__":
    commands.run(main, Args)
