"""Seconds to E|f'(x)|^2 <= epsilon of asynchronous and synchronous methods, against the profile of
the cluster, next to the theorems.

    python -m experiments.time_complexity

On a noisy quadratic: compute times that spread as i^p over the workers i, some slow workers, delays
of messages, and speeds that change with time, for workers with equal data; and the spread for
different data. Then logistic regression with equal and with different data, and a small network, at
one spread. Each method has the step size of the grid with which it reaches epsilon first. epsilon
is a share of |f'|^2 at the start, and the noise of the quadratic such that a batch of B gradients
has a variance of epsilon, for which the theorems recommend B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

import algorithms
import dsgd
import topologies
from dsgd import clusters, plots, problems, records
from dsgd.engine.literals import lift
from experiments.published import libsvm
from experiments.shared import commands, figures, statistics, studies, tables
from experiments.shared.studies import Case, with_sgd
from theory_checks import bounds

PERIOD = 10.0  # seconds of a period of the speeds
# Records of a run; each evaluates the full gradient, which costs more with data.
RECORDS, DATA_RECORDS = 250, 100
BASE = 0.5  # spread p of the clusters with delays, and of those whose speeds change
DATA_SPREAD = 1.0
DATA = "data"  # instead of a panel's name


@dataclass(frozen=True)
class Args(commands.Data, commands.Common, commands.Tasks):
    """Compares the seconds of methods on clusters of unequal workers."""

    data: str = "breast-cancer"
    """Data of logistic regression and the network: digits, breast-cancer, images of --data-dir, or
    a LIBSVM file (a9a) there or in the folder DSGD_DATA of the environment.
    """
    batch_size: commands.Count = 4
    """Samples of a gradient."""
    workers: commands.Several = 16
    """Number of workers N."""
    dimension: commands.Several = 20
    """Dimension of the quadratic."""
    batch: commands.Count = 8
    """B of Rennala, S of Malenia and R of Ringmaster; B gradients have a variance of epsilon."""
    accuracy: commands.Share = 0.05
    """epsilon, as a share of |f'|^2 at the start."""
    data_accuracy: commands.Share = 0.005
    """The same for logistic regression and the network, whose gradients have less noise."""
    gradients: commands.Count = 2000
    """Number of gradients of a run that may be computed."""
    learning_rates: commands.Positives = (0.03, 0.1, 0.3, 1.0)
    """Candidate step sizes; L = 1 on the quadratic."""
    spreads: tuple[commands.NotNegative, ...] = (0.0, 0.5, 1.5)
    """p: worker i needs i^p seconds for a gradient."""
    slows: tuple[commands.Rate, ...] = (0.25, 0.75)
    """Shares of slow workers, if the others need one second."""
    factor: commands.Factor = 10.0
    """Seconds of a gradient of a slow worker."""
    delays: tuple[commands.NotNegative, ...] = (0.0, 1.0)
    """Seconds of a message."""
    swings: tuple[commands.Rate, ...] = (0.0, 0.9)
    """s: the speed of worker n changes as 1 + s sin(2 pi (t / 10 s + n / N))."""
    problems: tuple[Literal["equal", "different", "network"], ...] = (
        "equal",
        "different",
        "network",
    )
    """Problems with data: logistic regression with equal and with different data, a network."""
    methods: tuple[str, ...] = (
        "minibatch_sgd",
        "backup_workers_sgd",
        "asynchronous_sgd",
        "rennala_sgd",
        "ringmaster_sgd",
        "malenia_sgd",
        "ringleader_sgd",
    )
    """Methods to compare; also: "ringmaster, stops", delay_adaptive_sgd, dc_asgd, picky_sgd,
    fed_buff, fed_async, "fragile, ring", "amelie, ring", "as_grad, shuffled".
    """
    seeds: commands.Several = 10
    """Independent runs of each step size."""
    out: Path = Path("results/time_complexity")
    """Folder for config.json, history.csv, seconds.csv, table.csv and figure.png."""


class Method(NamedTuple):
    """A method to compare.

    Args:
        build: arguments -> (learning_rate -> method).
        seconds: the theorem, of `bounds`, with the batch sizes and thresholds of `build`; None:
            there is none with constants.
        gradients: arguments -> number of gradients of a round, of all workers.
        at_most: whether the theorem holds if workers are faster at times.
        data: whether the method is for workers with equal data, with different data, or for both.
    """

    build: Callable[[Args], studies.Build]
    seconds: Callable[..., float] | None = None
    gradients: Callable[[Args], int] = lambda args: 1
    at_most: bool = True
    data: Literal["equal", "different", "both"] = "equal"


def _backups(args: Args) -> int:
    return args.workers // 2


def _fastest_half(times: Sequence[float], **constants: float) -> float:
    """Returns the seconds of `backup_workers_sgd` with as many backups as `_backups`."""
    return bounds.backup_workers_seconds(**constants, times=times, backups=len(times) // 2)


METHODS = {
    "minibatch_sgd": Method(
        lambda args: with_sgd(algorithms.minibatch_sgd),
        bounds.minibatch_seconds,
        lambda args: args.workers,
        data="both",
    ),
    "backup_workers_sgd": Method(
        lambda args: with_sgd(algorithms.backup_workers_sgd, _backups(args)),
        _fastest_half,
        lambda args: args.workers - _backups(args),
    ),
    "asynchronous_sgd": Method(
        lambda args: with_sgd(algorithms.asynchronous_sgd),
        bounds.asynchronous_seconds,
        at_most=False,
    ),
    "rennala_sgd": Method(
        lambda args: with_sgd(algorithms.rennala_sgd, args.batch), bounds.rennala_seconds
    ),
    "ringmaster_sgd": Method(
        lambda args: with_sgd(algorithms.ringmaster_sgd, args.batch), bounds.ringmaster_seconds
    ),
    "malenia_sgd": Method(
        lambda args: with_sgd(algorithms.malenia_sgd, args.batch),
        bounds.malenia_seconds,
        data="different",
    ),
    "ringleader_sgd": Method(
        lambda args: with_sgd(algorithms.ringleader_sgd),
        bounds.ringleader_seconds,
        at_most=False,
        data="different",
    ),
    "ringmaster, stops": Method(
        lambda args: with_sgd(algorithms.ringmaster_sgd, args.batch, stops=True),
        bounds.ringmaster_seconds,
    ),
    "delay_adaptive_sgd": Method(lambda args: with_sgd(algorithms.delay_adaptive_sgd)),
    "fed_buff": Method(lambda args: with_sgd(algorithms.fed_buff, 2, max(1, args.batch // 2))),
    "fragile, ring": Method(
        lambda args: with_sgd(
            algorithms.fragile_sgd, topologies.ring(args.workers), batch=args.batch
        )
    ),
    "amelie, ring": Method(
        lambda args: with_sgd(
            algorithms.amelie_sgd, topologies.ring(args.workers), batch=args.batch
        ),
        data="different",
    ),
    "picky_sgd": Method(lambda args: with_sgd(algorithms.picky_sgd, 0.1)),
    "dc_asgd": Method(lambda args: with_sgd(algorithms.dc_asgd, 0.04)),
    "fed_async": Method(lambda args: with_sgd(algorithms.fed_async, 2)),
    "as_grad, shuffled": Method(
        lambda args: with_sgd(algorithms.as_grad, "shuffled"), data="different"
    ),
}
"""Methods by name; a new one is one entry."""


class Profile(NamedTuple):
    """A cluster of N workers.

    Args:
        spread: p; worker i needs i^p seconds for a gradient.
        slow: share of workers that need `factor` times as long.
        delay: seconds of a message.
        swing: s, see `Args.swings`.
    """

    spread: float = 0.0
    slow: float = 0.0
    delay: float = 0.0
    swing: float = 0.0


class Panel(NamedTuple):
    """A set of clusters, which is a panel of the figure.

    Args:
        label: of the quantity that differs between the clusters.
        clusters: profiles by this quantity.
        different: whether the workers have different data.
    """

    label: str
    clusters: Mapping[float, Profile]
    different: bool = False


class Cost(NamedTuple):
    """Seconds to epsilon.

    Args:
        seconds: until the mean over seeds of |f'|^2 is at most epsilon; infinite if never.
        error: its standard error, by leaving out one seed after the other.
    """

    seconds: float
    error: float


Key = tuple[str, str, str]  # panel, value, method


def main(args: Args) -> None:
    commands.require_known("--methods", args.methods, METHODS)
    panels = make_panels(args)
    cases = make_cases(args, panels)
    found = studies.run(args, "methods", cases)
    costs = {
        key: cost(args.data_accuracy if key[0] == DATA else args.accuracy, one.history)
        for key, one in found.items()
    }
    rows = [(*key, one.values[studies.RATE], *costs[key]) for key, one in found.items()]
    heading = ("cluster", "value", "method", "step size", "seconds", "standard error")
    records.write_rows(args.out / "seconds.csv", heading, rows)
    drawn = [partial(draw, args, name, panel, costs) for name, panel in panels.items()]
    sheet = figures.sheet(
        [*drawn, partial(draw_data, args, costs)],
        3,
        f"{args.workers} workers, seconds to |f'|² ≤ ε = {args.accuracy:g} |f'(x₀)|² (data: "
        f"{args.data_accuracy:g}), best step size; B = S = R = {args.batch}; "
        f"{statistics.errors('bars', args.seeds)}; dashed: theorems",
        height=3.4,
        sharey=False,
    )
    commands.finish(args, {"figure": sheet}, {"table": tabulate(args, costs)})


def make_panels(args: Args) -> dict[str, Panel]:
    """Returns the sets of clusters that are not empty, by name."""
    spread = {p: Profile(p) for p in args.spreads}
    panels = {
        "spread": Panel("spread p of hᵢ = iᵖ", spread),
        "slow": Panel(
            f"share of workers {args.factor:g} times slower",
            {share: Profile(slow=share) for share in args.slows},
        ),
        "delay": Panel(
            f"seconds of a message, p = {BASE:g}",
            {delay: Profile(BASE, delay=delay) for delay in args.delays},
        ),
        "swing": Panel(
            f"swing s of the speeds, p = {BASE:g}",
            {swing: Profile(BASE, swing=swing) for swing in args.swings},
        ),
        "different": Panel("spread p of hᵢ = iᵖ, different data", spread, different=True),
    }
    return {name: panel for name, panel in panels.items() if panel.clusters}


def make_cases(args: Args, panels: Mapping[str, Panel]) -> dict[Key, Case]:
    """Returns the runs by panel, value and method; equal ones are one case."""
    cases: dict[Key, Case] = {}
    same: dict[tuple[bool, Profile, str], Case] = {}
    quadratics = {different: make_quadratic(args, different) for different in (False, True)}
    for name, panel in panels.items():
        suitable = ("different", "both") if panel.different else ("equal", "both")
        for value, profile in panel.clusters.items():
            for method in (one for one in args.methods if METHODS[one].data in suitable):
                which = panel.different, profile, method
                if which not in same:
                    problem = quadratics[panel.different]
                    same[which] = make_case(args, method, problem, profile)
                cases[name, f"{value:g}", method] = same[which]
    for name, problem in make_problems(args).items():
        for method in args.methods:
            if name == "different" or METHODS[method].data != "different":
                profile = Profile(DATA_SPREAD)
                cases[DATA, name, method] = make_case(args, method, problem, profile, data=True)
    return cases


def make_case(
    args: Args, name: str, problem: dsgd.Problem, profile: Profile, *, data: bool = False
) -> Case:
    """Returns the runs of a method, which compute the same number of gradients for all."""
    method = METHODS[name]
    accuracy = args.data_accuracy if data else args.accuracy
    return Case(
        method.build(args),
        problem,
        make_cluster(args, profile),
        steps=max(1, args.gradients // method.gradients(args)),
        records=DATA_RECORDS if data else RECORDS,
        cost=lambda history: (
            cost(accuracy, history).seconds,
            history["grad_sqnorm"][:, -1].mean(),
        ),
    )


def make_quadratic(args: Args, different: bool) -> dsgd.Problem:
    """Returns a quadratic with L = 1, whose stochastic gradients have a variance of B epsilon."""
    make = partial(
        problems.random_quadratic,
        args.workers,
        args.dimension,
        strong_convexity=0.1,
        heterogeneity=float(different),
        equal_hessians=True,
        distance=1.0,
        seed=args.seed,
    )
    at_start = np.mean(np.asarray(make().data.b), axis=0)  # -f'(0)
    return make(noise=math.sqrt(args.batch * args.accuracy * float(at_start @ at_start)))


def make_problems(args: Args) -> dict[str, dsgd.Problem]:
    """Returns the problems with data by name."""
    data = args.data
    if data in libsvm.SIZES and args.data_dir is None:
        data = libsvm.load(data)
    options = {"batch_size": args.batch_size, "seed": args.seed, "data_dir": args.data_dir}
    logistic = partial(problems.logistic_regression, data, args.workers, **options)
    make = {
        "equal": partial(logistic, "iid"),
        "different": partial(logistic, "by-label"),
        "network": partial(problems.neural_network, "mlp", data, args.workers, "iid", **options),
    }
    return {name: make[name]() for name in args.problems}


def seconds_of(args: Args, profile: Profile) -> np.ndarray:
    """Returns h_i, the seconds of a gradient of each worker at speed 1, `[N]`."""
    i = np.arange(1, args.workers + 1)
    return np.where(i > first_slow(args, profile), args.factor, 1.0) * i**profile.spread


def first_slow(args: Args, profile: Profile) -> int:
    """Returns the number of workers that are not slow, which come first."""
    return args.workers - round(profile.slow * args.workers)


def make_cluster(args: Args, profile: Profile) -> clusters.Cluster:
    """Returns a cluster. Clusters that differ in the spread and the share of slow workers have
    the same compiled programs, those with changing speeds others; `lift` sees to this, for numbers
    that are not whole.
    """
    rate, fast = profile.spread + 1e-9, first_slow(args, profile) + 0.5
    tens, slower = math.log(10), args.factor - 1 + 1e-9

    def compute(key, clock, worker):
        def seconds(i):
            late = jnp.clip(1e9 * (i - fast), 0.0, 1.0)
            return (1 + slower * late) * jnp.exp(rate * tens * (jnp.log(i) / tens))

        return lift(seconds, jnp.asarray(worker + 1, jnp.float32))

    def phase(clock, worker):
        return 2 * math.pi * (clock / PERIOD + worker / args.workers)

    def speed(key, clock, worker):
        return lift(lambda at: 1 + profile.swing * jnp.sin(at), phase(clock, worker))

    def work(key, clock, seconds, worker):
        begin, end = phase(clock, worker), phase(clock + seconds, worker)
        scale = profile.swing * PERIOD / (2 * math.pi)
        return seconds + lift(lambda at, to: scale * (jnp.cos(at) - jnp.cos(to)), begin, end)

    settings = f"{profile}, {args.workers} workers, factor {args.factor:g}"
    power = None
    if profile.swing:
        power = clusters.Quantity(speed, f"speed({settings})", positive=True, integral=work)
    return clusters.Cluster(
        clusters.Quantity(compute, f"seconds({settings})", positive=True, time_invariant=True),
        latency=profile.delay,
        convention="pipelined",
        power=power,
    )


def cost(accuracy: float, history: Mapping[str, np.ndarray]) -> Cost:
    """Returns the seconds until the mean over seeds of |f'|^2 is at most the share `accuracy` of
    its first value.
    """
    clock, norms = history["clock"], np.asarray(history["grad_sqnorm"], float)
    epsilon, at = accuracy * norms[:, 0].mean(), clock.mean(axis=0)
    with np.errstate(invalid="ignore"):  # the gradients of runs that diverge
        each = np.array([np.interp(at, *one) for one in zip(clock, norms, strict=True)])
        others = [np.delete(each, s, axis=0).mean(axis=0) for s in range(len(each))]
        means = [each.mean(axis=0), *others]
    seconds, *without = statistics.crossing(
        np.broadcast_to(at, (len(means), len(at))), np.array(means), epsilon, never=math.inf
    )
    reached = np.isfinite(without).all()
    error = math.sqrt((len(without) - 1) * np.var(without)) if reached else math.nan
    return Cost(float(seconds), error)


def theorem(args: Args, name: str, profile: Profile, problem: dsgd.Problem) -> float:
    """Returns the seconds of a method's theorem on a quadratic; NaN if there is none.

    A message of d seconds makes each gradient of an asynchronous method take 2 d seconds longer,
    since messages do not wait for each other; a computation takes at most 1 / (1 - s) times as long
    if speeds change.
    """
    constants, method = problem.constants, METHODS[name]
    rounds = method.gradients(args) > 1
    if method.seconds is None:
        return math.nan
    if (rounds and profile.delay) or (profile.swing and not method.at_most):
        return math.nan
    assert constants is not None
    assert constants.minimum is not None
    assert constants.noise is not None
    times = seconds_of(args, profile) / (1 - profile.swing) + 2 * profile.delay
    return method.seconds(
        gap=-constants.minimum,  # f(0) = 0
        smoothness=constants.smoothness,
        noise=constants.noise,
        epsilon=constants.noise**2 / args.batch,
        times=times.tolist(),
    )


def draw(args: Args, name: str, panel: Panel, costs: Mapping[Key, Cost], axes: Axes) -> None:
    """Draws the seconds of all methods against the clusters of a panel."""
    problem, values = make_quadratic(args, panel.different), list(panel.clusters)
    for i, method in enumerate(args.methods):
        found = [costs.get((name, f"{value:g}", method)) for value in values]
        draw_line(axes, i, method, values, found)
        if any(found):
            lines = [theorem(args, method, one, problem) for one in panel.clusters.values()]
            axes.plot(values, lines, color=plots.COLOURS[i % 8], linestyle="--", linewidth=0.9)
    describe(axes, panel.label)


def draw_line(
    axes: Axes, i: int, method: str, at: Sequence[float], found: Sequence[Cost | None]
) -> None:
    """Draws the seconds of a method, in its colour and with its marker."""
    seconds = [one.seconds if one and np.isfinite(one.seconds) else math.nan for one in found]
    error = [one.error if one else math.nan for one in found]
    axes.errorbar(
        at,
        seconds,
        np.nan_to_num(error),
        color=plots.COLOURS[i % 8],
        marker=plots.MARKERS[1 + i],
        label=method,
        linewidth=1.2,
        markersize=5,
    )


def draw_data(args: Args, costs: Mapping[Key, Cost], axes: Axes) -> None:
    """Draws the seconds of all methods on the problems with data."""
    known = list(dict.fromkeys(problem for panel, problem, _ in costs if panel == DATA))
    for i, method in enumerate(args.methods):
        at = [j + 0.08 * (i - len(args.methods) / 2) for j in range(len(known))]
        draw_line(axes, i, method, at, [costs.get((DATA, one, method)) for one in known])
        axes.lines[-1].set_linestyle("none")
    axes.set_xticks(range(len(known)), known)
    axes.set_xlim(-0.6, len(known) - 0.4)
    describe(axes, f"data, p = {DATA_SPREAD:g}")


def describe(axes: Axes, x: str) -> None:
    """Labels a panel, whose y axis is logarithmic if there are numbers."""
    drawn = [np.asarray(line.get_ydata(), float) for line in axes.lines]
    log = "y" * any(np.isfinite(values).any() for values in drawn)
    figures.describe(axes, x, "seconds to ε", log=log)


def tabulate(args: Args, costs: Mapping[Key, Cost]) -> Table:
    """Tabulates which method is the fastest on each cluster."""
    table = tables.table(
        f"which method when: seconds to epsilon, {args.workers} workers, "
        f"{statistics.runs(args.seeds)}",
        ("cluster", "fastest", "seconds", "second", "times", "mini-\nbatch"),
        "seconds: ± standard error. times: seconds of the second,\nmini-batch: of "
        "minibatch_sgd, in multiples of the fastest.\n-: epsilon is not reached.",
        left=2,
    )
    for panel, value in dict.fromkeys(key[:2] for key in costs):
        found = {
            name: costs[panel, value, name]
            for name in args.methods
            if (panel, value, name) in costs
        }
        ranked = sorted(found, key=lambda name, found=found: found[name].seconds)
        first, second = found[ranked[0]], ranked[1] if len(ranked) > 1 else None
        ratios = [
            found[name].seconds / first.seconds if name in found else math.inf
            for name in (second, "minibatch_sgd")
        ]
        cells = [
            tables.wrap(ranked[0].removesuffix("_sgd"), 12),
            f"{tables.plain(first.seconds)} ± {float(f'{first.error:.1g}'):g}",
            tables.wrap((second or "-").removesuffix("_sgd"), 12),
            *(f"{ratio:.2f}" if math.isfinite(ratio) else "-" for ratio in ratios),
        ]
        reached = math.isfinite(first.seconds)
        table.add_row(f"{panel} {value}", *(cells if reached else ["-"] * 5))
    return table


if __name__ == "__main__":
    commands.run(main, Args)
