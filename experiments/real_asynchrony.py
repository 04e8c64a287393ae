"""Asynchronous methods on real machines: synchronous, asynchronous and bounded-staleness SGD, and
AD-PSGD, in processes of which some are slowed down.

    python -m experiments.real_asynchrony --workers 4 --slow 1 --factor 8

Needs Ray: pip install 'dsgd[ray]'. Logistic regression; each process computes its gradients and
sleeps in addition, some of them longer. Shows the loss over real seconds, updates per second, and
the staleness, as measured and as simulated on a cluster made from the measured times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
import topologies
from algorithms import on_ray
from dsgd import plots, problems, records
from experiments.shared import commands, figures, statistics, tables

# step size of the simulation, whose clock alone is used: it must not diverge when the real problem
# does not
STILL = optax.sgd(1e-6)
# share of the updates, at the start, whose staleness is not counted, because all workers start from
# the first model
WARM = 0.1


@dataclass(frozen=True)
class Args(commands.Flags):
    """Measures asynchronous SGD in real processes."""

    workers: commands.Count = 4
    """N, number of workers, one process each; more than the machine has cores slow each other down.
    """
    servers: commands.Count = 2
    """Number of servers, one process each, of the method with several servers."""
    data: Literal["digits", "breast-cancer"] = "digits"
    """Data for logistic regression."""
    batch_size: commands.Count = 16
    """Number of samples of one gradient."""
    learning_rate: commands.Positive = 0.2
    """Step size of a server's step with one gradient; synchronous SGD (with the mean of N
    gradients) and AD-PSGD (on one of N models) use N times this.
    """
    seconds: commands.Positive = 10.0
    """Approximate seconds of each method: the number of updates is that of workers which only
    sleep.
    """
    delay: commands.Positive = 0.02
    """Seconds for which a process sleeps in each gradient."""
    slow: int = 1
    """Number of processes that sleep longer."""
    factor: commands.Factor = 8.0
    """Factor by which they sleep longer."""
    bound: int = 8
    """Largest staleness of the bounded method, at least N - 1."""
    methods: tuple[str, ...] = (
        "synchronous",
        "asynchronous",
        "bounded",
        "staleness-aware",
        "servers",
        "AD-PSGD",
    )
    """Methods to compare."""
    address: str = "local"
    """Address of a Ray cluster; local: processes of this machine."""
    out: Path = Path("results/real_asynchrony")
    """Folder for config.json, history.csv, staleness.csv and figure.png."""


class Method(NamedTuple):
    """A method: how it is run, how it is simulated (None: it has no staleness), and the number of
    gradients of an update.
    """

    run: Callable[..., on_ray.Trained]
    simulated: dsgd.Algorithm | None
    gradients: int = 1


class Measured(NamedTuple):
    """A real run; its staleness as measured and as simulated, `[updates]`, both without the first
    updates; updates per simulated second.
    """

    trained: on_ray.Trained
    measured: np.ndarray
    predicted: np.ndarray
    rate: float


def main(args: Args) -> None:
    commands.require_slow(args.slow, args.workers)
    chosen = methods(args)
    problem = problems.logistic_regression(
        args.data, args.workers, "iid", batch_size=args.batch_size, seed=args.seed
    )
    with on_ray.session(args.workers + args.servers, args.address):
        commands.begin(args)
        found: dict[str, Measured] = {}
        with commands.keep(write, args.out, found):
            for name, method in chosen.items():
                with commands.waiting(args, f"{name}, {args.workers} processes"):
                    found[name] = measure(args, problem, method)
    commands.finish(args, {"figure": draw(args, found)}, {"methods": tabulate(args, found)})


def methods(args: Args) -> dict[str, Method]:
    """Returns the methods by name."""
    step, bound, graph = optax.sgd(args.learning_rate), args.bound, topologies.ring(args.workers)
    together = optax.sgd(args.learning_rate * args.workers)
    simulated = algorithms.asynchronous_sgd

    def asynchronous(**options):
        return Method(partial(on_ray.run, simulated(step, **options)), simulated(STILL, **options))

    known = {
        "synchronous": Method(
            partial(on_ray.minibatch_sgd, optimizer=together), None, args.workers
        ),
        "asynchronous": asynchronous(),
        "bounded": asynchronous(bound=bound),
        "staleness-aware": asynchronous(staleness_aware=True),
        "servers": asynchronous(servers=args.servers),
        "AD-PSGD": Method(
            partial(on_ray.asynchronous_gossip_sgd, optimizer=together, topology=graph),
            algorithms.asynchronous_gossip_sgd(STILL, graph),
        ),
    }
    if args.bound < args.workers - 1:
        raise ValueError(
            f"--bound {args.bound} of {args.workers} workers: expected at least "
            f"{args.workers - 1}, since all read the first model"
        )
    commands.require_known("--methods", args.methods, known)
    return {
        f"{args.servers} servers" if name == "servers" else name: known[name]
        for name in args.methods
    }


def sleep(delay: float, slow: int, factor: float, worker: int, gradient: int) -> float:
    """Returns the seconds of sleep; the first workers are the slow ones."""
    return delay * (factor if worker < slow else 1.0)


def updates(args: Args, method: Method) -> int:
    """Returns the number of updates that workers which only sleep make in the given time."""
    if method.gradients > 1:
        return max(2, round(args.seconds / (args.delay * (args.factor if args.slow else 1.0))))
    return max(
        20, round(args.seconds / args.delay * (args.workers - args.slow + args.slow / args.factor))
    )


def measure(args: Args, problem: dsgd.Problem, method: Method) -> Measured:
    """Runs the method, and simulates it on the measured cluster."""
    steps = updates(args, method)
    delay = partial(sleep, args.delay, args.slow, args.factor)
    trained = method.run(
        problem=problem,
        steps=steps,
        key=jax.random.key(args.seed),
        record_every=max(1, steps // 100),
        delay=delay,
    )
    if method.simulated is None:
        return Measured(trained, np.zeros(0), np.zeros(0), float("nan"))
    stale = trained.updates["staleness"].reshape(len(trained.updates["staleness"]), -1).max(axis=1)
    history = simulate(args, method.simulated, trained, len(stale))
    warm = int(WARM * len(stale))
    rate = (len(stale) - warm) / (history["clock"][-1] - history["clock"][warm])
    return Measured(trained, stale[warm:], history["staleness"][1 + warm :], rate)


def simulate(
    args: Args, method: dsgd.Algorithm, trained: on_ray.Trained, steps: int
) -> dict[str, np.ndarray]:
    """Returns the history of every update. Its clock and staleness do not depend on the model,
    which is therefore one number for each server.
    """
    cluster = on_ray.measured_cluster(trained, bits=32 * args.servers)
    problem = problems.random_quadratic(
        args.workers, args.servers, strong_convexity=1.0, heterogeneity=0.0
    )
    return dsgd.run(
        method, problem, steps=steps, key=jax.random.key(args.seed), cluster=cluster, mesh=1
    ).history


def write(out: Path, found: dict[str, Measured]) -> None:
    """Writes the histories, and the staleness of each update without the first ones."""
    histories = {
        name: {
            column: values if column == "step" else values[None]
            for column, values in one.trained.history.items()
        }
        for name, one in found.items()
    }
    records.write_histories(out / "history.csv", histories)
    rows = (
        [name, what, int(value)]
        for name, one in found.items()
        for what, values in (("measured", one.measured), ("predicted", one.predicted))
        for value in values
    )
    records.write_rows(out / "staleness.csv", ["method", "what", "staleness"], rows)


def rate(one: Measured) -> float:
    """Returns updates per real second."""
    return one.trained.history["step"][-1] / one.trained.history["clock"][-1]


def target(found: dict[str, Measured]) -> float:
    """Returns a loss that all methods reach."""
    return 1.02 * max(one.trained.history["loss"].min() for one in found.values())


def tabulate(args: Args, found: dict[str, Measured]) -> Table:
    """Tabulates one row per method."""
    loss = target(found)
    slower = (
        f"{args.slow} of {args.workers} processes sleep {args.factor:g} times as long"
        if args.slow
        else f"{args.workers} processes"
    )
    table = tables.table(
        f"{slower}; cost to reach loss {loss:.2g}",
        ("method", "seconds", "updates/s", "sim.", "stale", "sim.", "max", "sim."),
        "Real seconds to that loss; mean and largest staleness after the first tenth.\nsim.: "
        "simulated on a cluster with the measured seconds.",
    )
    for name, one in found.items():
        history = one.trained.history
        at = statistics.first_reaching(history["loss"][None], loss)
        seconds = "-" if at is None else f"{history['clock'][at]:.2f}"
        if not one.measured.size:
            table.add_row(name, seconds, f"{rate(one):.0f}", "-", "0", "-", "0", "-")
            continue
        means, most = ([values.mean(), values.max()] for values in (one.measured, one.predicted))
        stale = (f"{means[0]:.1f}", f"{most[0]:.1f}", f"{means[1]:.0f}", f"{most[1]:.0f}")
        table.add_row(name, seconds, f"{rate(one):.0f}", f"{one.rate:.0f}", *stale)
    return table


def draw(args: Args, found: dict[str, Measured]) -> Figure:
    """Draws the loss over seconds and over updates, and the measured and simulated staleness, with
    a panel for each method.
    """
    late = {name: one for name, one in found.items() if one.measured.size}
    columns = 3
    rows = math.ceil(len(late) / columns)
    heights = (4.0, 2.4 * rows)[: 1 + bool(late)]
    sheet = Figure(figsize=(figures.WIDTH, sum(heights)), layout="constrained")
    above, *below = sheet.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, cost, label in zip(
        plots.panels(above, 2), ("clock", "step"), ("real seconds", "updates"), strict=True
    ):
        lines = {
            name: (one.trained.history[cost], one.trained.history["loss"][None])
            for name, one in found.items()
        }
        figures.curves(lines, xlabel=label)(axes)
    above.axes[0].set_ylabel("loss f(x)")
    figures.legend(above, 3, above.axes[0])
    for part in below:
        panels = plots.panels(part, columns, rows)
        for axes, (name, one) in zip(panels, late.items(), strict=False):
            histogram(axes, one, name)
        for axes in panels[len(late) :]:
            axes.set_axis_off()
        for axes in panels[::columns]:
            axes.set_ylabel("share of updates")
        figures.legend(part, 2, panels[0])
    figures.title(
        sheet,
        f"logistic regression, {args.data}, on real processes; {args.slow} of {args.workers} "
        f"processes sleep {args.factor:g} x {1e3 * args.delay:g} ms in a gradient, the others "
        f"once; bounded by {args.bound}",
    )
    return sheet


def histogram(axes: Axes, one: Measured, name: str) -> None:
    """Draws the share of updates by their staleness: bars as measured, a line as simulated."""
    most = int(max(one.measured.max(), one.predicted.max()))
    edges = np.unique(np.round(np.linspace(0, most + 1, min(most + 2, 30)))) - 0.5
    for what, values, style in (
        ("measured", one.measured, {"fill": True, "alpha": 0.35, "color": plots.COLOURS[0]}),
        ("predicted", one.predicted, {"color": plots.COLOURS[1], "linewidth": 1.8}),
    ):
        axes.stairs(np.histogram(values, edges)[0] / values.size, edges, label=what, **style)
    figures.describe(axes, "staleness, updates", title=name, log="y", ylim=(5e-4, 1))


if __name__ == "__main__":
    commands.launch(main, commands.parse(Args))
