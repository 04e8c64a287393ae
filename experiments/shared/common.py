"""What the scripts share: step sizes that are tuned, statistics over seeds, timings, the console."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track

import dsgd
from dsgd import clusters
from dsgd.machines.arrays import own_mesh
from experiments.shared import resuming

SHARE = 0.5  # of a run, from its end, that decides between step sizes


COSTS: dict[str, Callable[[dict[str, np.ndarray]], np.ndarray]] = {
    "rounds": lambda history: history["step"].astype(float),
    "megabits sent and received per worker": lambda history: history["bits"].mean(axis=0) / 1e6,
    "simulated seconds": lambda history: history["clock"].mean(axis=0),
}
"""What is on the x axes of figures, `[records]`, of a history with seeds."""


def console() -> Console:
    """The terminal; 80 columns where there is none."""
    return Console(width=None if os.environ.get("COLUMNS") or Console().is_terminal else 80)


def equal_workers(seconds: float, bandwidth: float, latency: float, delay: float = 0.0, **more: Any) -> clusters.Cluster:
    """Equal workers on the survey's switch.

    Args:
        seconds: that each computes for one batch.
        bandwidth: bits per second of a port.
        latency: seconds of a message.
        delay: mean seconds of a random delay of each batch, exponentially distributed.
        more: of `clusters.Cluster`.
    """
    compute = clusters.constant(seconds)
    if delay:
        compute += clusters.exponential(delay)
    return clusters.Cluster(compute, up=clusters.constant(bandwidth), latency=latency, **more)


class Tuned(NamedTuple):
    """A method at its best step size. `history` is of all seeds, `[seeds, records]`."""

    learning_rate: float
    history: dict[str, np.ndarray]

    @property
    def with_step_size(self) -> dict[str, np.ndarray]:
        """The history, with a column that says which step size was chosen."""
        return {**self.history, "learning_rate": np.full(self.history["loss"].shape, self.learning_rate)}


def tune(
    build: Callable[..., dsgd.Algorithm],
    problem: dsgd.Problem,
    learning_rates: Sequence[float],
    *,
    steps: int,
    seeds: int,
    seed: int,
    progress: bool,
    cluster: clusters.Cluster | None = None,
    records: int = 200,
) -> Tuned | None:
    """The history at the step size with the smallest loss over the second half of the run; None where every one diverged.

    Args:
        build: (learning_rate) -> method.
        problem: on whose workers it runs, spread over as many devices as divide them.
        learning_rates: to choose from.
        steps, seeds: rounds, and independent runs.
        seed: of everything random.
        progress: show a bar.
        cluster: whose clock is in the history.
        records: of a run, about; each evaluates the whole objective.
    """
    sweep = resuming.sweep(
        build,
        problem,
        steps=steps,
        key=jax.random.key(seed),
        seeds=seeds,
        cluster=cluster,
        record_every=max(1, steps // records),
        mesh=devices_for(problem.workers),
        progress=progress,
        learning_rate=learning_rates,
    )
    if not np.isfinite(dsgd.tail_mean(sweep.history["loss"], SHARE)).all(axis=-1).any():
        return None
    with warnings.catch_warnings():  # of the grid's edges: tables have a star there
        warnings.simplefilter("ignore", UserWarning)
        best = sweep.best(share=SHARE)
    return Tuned(sweep.point(best)["learning_rate"], sweep.at(best))


def devices_for(workers: int) -> jax.sharding.Mesh:
    """As many of the devices as divide the workers."""
    return own_mesh(workers)


def edge(value: float, grid: Sequence[float]) -> str:
    """A star where the best value is the smallest or largest of its grid: one outside may be better."""
    return "*" * (value in (min(grid), max(grid)))


def step_size(value: float, grid: Sequence[float]) -> str:
    """A table's cell."""
    return f"{edge(value, grid)}{value:g}"


def with_error(values: np.ndarray, digits: int = 1) -> str:
    """The mean over seeds, `[seeds]`, and its standard error where there are several."""
    middle, error = dsgd.mean_and_error(values)
    return f"{middle:.{digits}f} ± {error:.{digits}f}" if len(values) > 1 else f"{middle:.{digits}f}"


def runs(seeds: int) -> str:
    """How many, for titles."""
    return f"{seeds} seeds" if seeds > 1 else "one seed"


def errors(what: str, seeds: int) -> str:
    """What bands, or bars, are, for titles; one seed has none."""
    return f"{what}: standard error over {seeds} seeds" if seeds > 1 else runs(seeds)


def first_reaching(values: np.ndarray, target: float) -> int | None:
    """Index of the first record whose mean over seeds is at most the target; None where there is none."""
    reached = np.flatnonzero(values.mean(axis=0) <= target)
    return int(reached[0]) if reached.size else None


def cost_to(history: dict[str, np.ndarray], target: float) -> list[str]:
    """Cells with the rounds, the megabits and the seconds to a loss, on average over seeds; "-": not reached."""
    at = first_reaching(history["loss"], target)
    if at is None:
        return ["-"] * len(COSTS)
    rounds, megabits, seconds = (cost(history)[at] for cost in COSTS.values())
    return [f"{rounds:,.0f}", f"{megabits:,.3g}", f"{seconds:,.3g}"]


def bar(items: Sequence[Any], what: str, shown: bool) -> Iterable[Any]:
    """The items, with a progress bar that goes when they are done."""
    return track(items, what, disable=not shown, transient=True)


def program(function: Callable, *args: Any) -> Callable[[], Any]:
    """The compiled function of these arguments, run once, as a function that waits for its result.

    The result takes the place of the last one: in fresh memory a large array would cost ten times as much, for its pages.
    """
    out = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, *args))
    compiled = jax.jit(lambda out, *args: function(*args), donate_argnums=0, keep_unused=True).lower(out, *args).compile()

    def run():
        nonlocal out
        out = jax.block_until_ready(compiled(out, *args))
        return out

    run()
    return run


def seconds(run: Callable[[], Any]) -> float:
    """That one call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
