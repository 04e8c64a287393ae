"""Problems and clusters from the arguments of commands, and the choice of step sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

import dsgd
from dsgd import clusters, problems, records
from dsgd.machines.arrays import own_mesh
from experiments.shared import commands, resuming

K = TypeVar("K", bound=Hashable)

# default data and partition of most models; those of the language model
USUAL = (("digits", "by-label"), ("docstrings", "blocks"))
SHARE = 0.5  # last part of a run on which step sizes are compared


def equal_workers(
    seconds: float, bandwidth: float, latency: float, delay: float = 0.0, **more: Any
) -> clusters.Cluster:
    """Returns a cluster of equal workers on the survey's switch.

    Args:
        seconds: computation of each worker for one batch.
        bandwidth: of a port, bits per second.
        latency: of a message, seconds.
        delay: mean of an exponentially distributed random delay of each batch, seconds.
        more: other arguments of `clusters.Cluster`.
    """
    compute = clusters.constant(seconds)
    if delay:
        compute += clusters.exponential(delay)
    return clusters.Cluster(compute, up=clusters.constant(bandwidth), latency=latency, **more)


def logistic_regression(
    args: Any, workers: int, partition: str, micro_batches: int = 1
) -> dsgd.Problem:
    """Returns logistic regression on the data of the arguments (`data`, `data_dir`, `batch_size`,
    `seed`), with batches of `micro_batches` micro-batches.
    """
    options = {
        "batch_size": args.batch_size * micro_batches,
        "seed": args.seed,
        "data_dir": args.data_dir,
    }
    return problems.logistic_regression(args.data, workers, partition, **options)


def make_problem(args: Any) -> dsgd.Problem:
    """Returns the model on the partitioned data, from the flags `commands.Model`."""
    usual_data, usual_partition = USUAL[args.model == "language-model"]
    data, partition = args.data or usual_data, args.partition or usual_partition
    options: dict[str, Any] = {"batch_size": args.batch_size, "seed": args.seed}
    if args.model == "language-model":
        return problems.language_model(data, args.workers, partition, **options)
    options |= {"alpha": args.alpha, "data_dir": args.data_dir}
    if args.model == "logistic":
        return problems.logistic_regression(data, args.workers, partition, **options)
    return problems.neural_network(args.model, data, args.workers, partition, **options)


def elements(problem: dsgd.Problem) -> int:
    """Returns the number of elements of the model."""
    shapes = jax.eval_shape(problem.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


class Tuned(NamedTuple):
    """A method at its best step size. `history` contains all seeds, `[seeds, records]`, and
    `others` the values of the other swept hyperparameters.
    """

    learning_rate: float
    history: dict[str, np.ndarray]
    others: Mapping[str, float] = {}


def write_histories(path: Path, found: Mapping[Any, Tuned]) -> None:
    """Writes the histories by the names of the cases, with columns of the chosen step sizes and
    other hyperparameters.
    """
    histories = {}
    for case, (rate, history, others) in found.items():
        chosen = {"learning_rate": rate, **others}
        histories[str(case)] = history | {
            name: np.full(history["loss"].shape, value) for name, value in chosen.items()
        }
    records.write_histories(path, histories)


def compare(
    args: Any, what: str, cases: Iterable[K], run: Callable[[K], Tuned | None]
) -> dict[K, Tuned]:
    """Tunes each case, and writes history.csv; cases that diverged at every step size are left out.

    Args:
        args: a command's arguments.
        what: label of the progress bar.
        cases: their names, by `str`, are those of the histories.
        run: case -> the result of `tune`.

    Raises:
        ValueError: if all cases diverged.
    """
    return commands.collect(args, what, cases, run, write_histories, args.out / "history.csv")


def tune(
    args: Any,
    build: Callable[..., dsgd.Algorithm],
    problem: dsgd.Problem,
    *,
    steps: int | None = None,
    cluster: clusters.Cluster | None = None,
    progress: bool = False,
    records: int = 200,
    share: float = SHARE,
    rates: Sequence[float] | None = None,
    **others: Sequence[float],
) -> Tuned | None:
    """Returns the history at the step size with the smallest loss over the last part of the run;
    None if the method diverged at every step size.

    Args:
        args: of a command, with the candidates `learning_rates`, `steps`, `seeds` (number of
            independent runs) and `seed` (of all random numbers).
        build: (learning_rate, and the names of `others`) -> method.
        problem: the problem; its workers are distributed over as many devices as divide their
            number.
        steps: number of rounds; None: that of the arguments.
        cluster: cluster whose clock is recorded in the history.
        progress: whether to show a progress bar.
        records: approximate number of records of a run; each evaluates the full objective.
        share: the last part of the run, as a share.
        rates: candidate step sizes; None: those of the arguments.
        others: candidates of other hyperparameters by name; all combinations are tried.
    """
    steps = int(args.steps if steps is None else steps)
    sweep = resuming.sweep(
        build,
        problem,
        steps=steps,
        key=jax.random.key(args.seed),
        seeds=args.seeds,
        cluster=cluster,
        record_every=max(1, steps // records),
        mesh=devices_for(problem.workers),
        progress=progress,
        learning_rate=args.learning_rates if rates is None else rates,
        **others,
    )
    if not np.isfinite(dsgd.history.tail_mean(sweep.history["loss"], share)).all(axis=-1).any():
        return None
    # Tables mark the edges of the grid with a star, so the warnings about them are not shown.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        best = sweep.best(share=share)
    point = sweep.point(best)
    return Tuned(point.pop("learning_rate"), sweep.at(best), point)


def devices_for(workers: int) -> jax.sharding.Mesh:
    """Returns a mesh of as many devices as divide the number of workers."""
    return own_mesh(workers)
