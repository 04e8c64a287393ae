"""How often a plan's intervals, its order and its ties are right.

Plans of three problems on ten clusters are repeated, each with fresh seeds: methods with settings
that other seeds chose, ranked by the code of `dsgd.plan`, by their seconds to a target and by their
loss within a budget of seconds. Each interval is compared with the mean of the runs of all other
plans on its cluster, which has an error of its own: the interval of one of R plans contains the
mean m of the others if it contains its own value plus the difference of m from it, divided by
sqrt(1 + 1 / (R - 1)). With normally distributed results, a 95 % interval does so in exactly 95 % of
the plans. Failed runs count as in the plan: each is followed by one with another seed.

Rounds of synchronous methods do not depend on the cluster, and are replayed; others run on each of
them. No run is in two plans.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.table import Table

import dsgd
from algorithms import CANDIDATES, registry
from dsgd import Candidate, clusters, problems, records
from dsgd.planning import finals, training
from dsgd.planning.goals import Goal, Scores, score
from dsgd.planning.training import Contender, Setting, Trained, select
from experiments.planning import plane
from experiments.shared import commands, tables, tuning

METHODS = tuple(dict.fromkeys(candidate.name for candidate in CANDIDATES))
WORKERS, SAMPLES, INPUTS, HIDDEN, CLASSES = 4, 160, 8, 6, 4
GRADIENT = 0.01  # seconds, without random delays
# Bandwidth in bits/s, of messages of a thousand bits; latency, seconds; by how much the gradients
# of the last worker are slower than those of the first, and mean random delay, both in gradients.
NETWORKS = np.array(
    [
        *([1e6, 1e-4, 0, 0], [1e5, 1e-4, 0, 0], [1e4, 1e-4, 0, 0], [1e6, 1e-2, 0, 0]),
        *([1e5, 1e-2, 0.5, 0], [1e4, 1e-3, 1, 0], [1e6, 1e-4, 2, 0], [1e6, 1e-3, 0, 1]),
        *([1e5, 1e-3, 0.5, 1], [1e4, 1e-2, 0, 3]),
    ]
)
LARGE = 0.1  # relative difference of two methods that are not tied
ROUNDING = 1e-6
ASKED = (0.90, 0.98)  # share of the intervals
GOALS = ("seconds to the target", "loss within the budget")


@dataclass(frozen=True)
class Args(commands.Tuning):
    """Counts how often the intervals, the order and the ties of repeated plans are right."""

    methods: tuple[str, ...] = METHODS
    """Which methods besides mini-batch SGD, by name; the first candidate of each is used, with the
    first two values of its other settings.
    """
    repeats: commands.Several = 10
    """Number of plans on each of the ten clusters, for each of the three problems."""
    steps: commands.Several = 60
    """Number of rounds; one gradient of each worker each, on average."""
    out: Path = Path("results/coverage")
    """Folder for config.json, coverage.csv and pairs.csv."""


class Task(NamedTuple):
    """A problem.

    Args:
        name: in tables.
        problem: the problem.
        target: the loss that mini-batch SGD reaches in a third of the rounds.
    """

    name: str
    problem: dsgd.Problem
    target: float


class Row(NamedTuple):
    """A method in one plan.

    Args:
        problem, cluster, plan, goal: the plan; the numbers of the cluster and the plan from 0.
        method, settings: the method.
        rank: place of the first row of its group.
        value, low, high: its result, with the interval.
        others: the same result of the runs of all other plans on the cluster.
        runs: the number of these.
        reached: share of these that reach the target.
    """

    problem: str
    cluster: int
    plan: int
    goal: str
    method: str
    settings: str
    rank: int
    value: float
    low: float
    high: float
    others: float
    runs: int
    reached: float

    def covers(self, repeats: int) -> bool:
        """Returns whether the interval contains the result of the other runs, up to its error.

        Args:
            repeats: number of plans on the cluster.
        """
        error = np.sqrt(1 + 1 / (repeats - 1))
        mean = self.value + (self.others - self.value) / error
        rounding = ROUNDING * abs(self.value)  # equal results have an empty interval
        return self.low - rounding <= mean <= self.high + rounding


class Pair(NamedTuple):
    """What a plan declares of the first row of a group.

    Args:
        one: the first row.
        other: a row of its group or of one after it.
        is_tied: whether both are in one group.
        in_order: whether the first one is better in the other plans.
        gap: relative difference of the results of the other plans' runs.
    """

    one: Row
    other: Row
    is_tied: bool
    in_order: bool
    gap: float


def main(args: Args) -> None:
    given = [registry.full_name(name.lower()) for name in args.methods]
    commands.require_known("--methods", given, METHODS)
    first = {each.name: each for each in reversed(CANDIDATES)}
    candidates = [first[name] for name in METHODS if name in (METHODS[0], *given)]
    commands.begin(args)
    tasks = list(make_tasks(args, candidates[0]))
    items = [(task, each) for task in tasks for each in candidates]
    found = dict(commands.run_each(args, "training", partial(train, args), items))
    rows, pairs = list[Row](), list[Pair]()
    for task in tables.bar(tasks, "ranking", args.progress):
        trained = [one for i, (of, _) in enumerate(items) if of is task for one in found[i]]
        for cluster, runs in enumerate(zip(*trained, strict=True)):
            for of_plan, compared in plans(args, task, cluster, runs):
                rows += of_plan
                pairs += compared
    records.write_rows(args.out / "coverage.csv", Row._fields, rows)
    commands.finish(args, {}, {"intervals": tabulate(args, rows), "order": tabulate_order(pairs)})
    tables.notes(notes(args, rows))


def apply_network(params: jax.Array, inputs: jax.Array) -> jax.Array:
    """Returns the logits of a network with one hidden layer and with one vector of parameters."""
    first, second = jnp.split(params, [INPUTS * HIDDEN])
    hidden = jax.nn.tanh(inputs @ first.reshape(INPUTS, HIDDEN))
    return hidden @ second.reshape(HIDDEN, CLASSES)


NETWORK = problems.Model(
    lambda key: jax.random.normal(key, (HIDDEN * (INPUTS + CLASSES),)) / np.sqrt(INPUTS),
    apply_network,
)


def make_tasks(args: Args, baseline: Candidate) -> Iterator[Task]:
    """Yields the problems: logistic regression with iid and with different data, and a network."""
    rng = np.random.default_rng(args.seed)
    classes = np.arange(SAMPLES) % CLASSES
    means = rng.normal(size=(CLASSES, INPUTS))
    data = (means[classes] + rng.normal(size=(SAMPLES, INPUTS)), classes)
    options: dict[str, Any] = {"batch_size": 4, "seed": args.seed}
    for name, problem in {
        "convex, iid": problems.logistic_regression(data, WORKERS, "iid", **options),
        "convex, by label": problems.logistic_regression(data, WORKERS, "by-label", **options),
        "network, iid": problems.finite_sum(
            NETWORK,
            optax.softmax_cross_entropy_with_integer_labels,
            tuple(map(np.asarray, data)),
            WORKERS,
            "iid",
            **options,
        ),
    }.items():
        setting = make_setting(args, problem)
        contender, _ = training.all_points(setting, baseline, args.learning_rates, args.steps)
        history = training.train(setting, contender, args.steps, "").history
        yield Task(name, problem, plane.default_target(history))


def make_setting(args: Args, problem: dsgd.Problem) -> Setting:
    """Returns what the runs by which settings are chosen share: those on the first cluster."""
    mesh, key = tuning.devices_for(WORKERS), jax.random.key(args.seed)
    return Setting(problem, _FIRST, key, args.seeds, mesh, optax.sgd, 1, None)


def place(number: Any) -> clusters.Cluster:
    """Returns one of the clusters."""
    bandwidth, latency, spread, delay = (select(column, number) for column in NETWORKS.T)
    slower = clusters.constant(GRADIENT * np.linspace(0, 1, WORKERS))
    compute = clusters.constant(GRADIENT) + spread * slower
    compute += delay * clusters.exponential(GRADIENT)
    return clusters.Cluster(compute, up=clusters.constant(bandwidth), latency=latency)


_FIRST = place(0)


def place_traced(number: Any) -> clusters.Cluster:
    """Returns one of the clusters; the first one for a Python number, so that a program that is
    compiled for one cluster, with this one as its example, is that of all.
    """
    return place(number) if isinstance(number, jax.Array) else _FIRST


def train(args: Args, item: tuple[Task, Candidate]) -> list[list[Trained]]:
    """Returns, for each of the settings, the runs of all plans on each cluster, as if the method
    had run there, at the step size that other seeds chose. Settings that do not reach the target
    with all of these are left out.
    """
    task, candidate = item
    some = {name: grid[:2] for name, grid in candidate.swept.items()}
    setting = make_setting(args, task.problem)
    contender, _ = training.all_points(
        setting, replace(candidate, grids=some), args.learning_rates, args.steps
    )
    tried = training.train(setting, contender, args.steps, "")
    best = [i for i, _ in plane.best_points(tried, task.target)]
    if not best:
        return []
    chosen = contender.take(best)
    on_each = [train_on(args, setting, chosen, number) for number in range(len(NETWORKS))]
    return [[take(each, point=i) for each in on_each] for i in range(len(best))]


def train_on(args: Args, setting: Setting, chosen: Contender, number: int) -> Trained:
    """Returns the fresh runs of all plans on a cluster."""
    fresh = setting._replace(
        key=jax.random.fold_in(setting.key, 1 + number),
        seeds=args.repeats * finals.FRESH * args.seeds,
    )
    if chosen.on_cluster:
        on = training.train(fresh, chosen, args.steps, "", place_traced, number=[number]).on((0,))
        history = on.sweep.history
    else:
        on = training.train(fresh, chosen, args.steps, "")
        seconds = dsgd.replay(on.sweep, place, number=[number])[0]
        history = {**on.sweep.history, "clock": seconds}
        on = on._replace(contender=chosen._replace(on_cluster=True))
    kept = {name: history[name] for name in ("step", "bits", "clock")}
    return on._replace(sweep=on.sweep._replace(history=kept, state=None, params=None, tape=None))


def take(trained: Trained, point: int = 0, seeds: Any = slice(None)) -> Trained:
    """Returns the runs at a point, with some of the seeds."""

    def pick(history: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        at = (slice(point, point + 1), seeds)
        return {name: x if name == "step" else x[at] for name, x in history.items()}

    one = trained.contender.take([point])
    sweep = trained.sweep._replace(history=pick(trained.sweep.history))
    return trained._replace(contender=one, history=pick(trained.history), sweep=sweep)


def plans(
    args: Args, task: Task, cluster: int, trained: Sequence[Trained]
) -> Iterator[tuple[list[Row], list[Pair]]]:
    """Yields the rows and the pairs of all plans on a cluster, for both goals. Rows without a
    run that reaches the target are left out.

    Args:
        args: the command's arguments.
        task: the problem.
        cluster: its number.
        trained: the runs of all plans with each method, mini-batch SGD first.
    """
    setting = make_setting(args, task.problem)
    to_target = Goal("loss", 1, target=task.target)
    budget = float(to_target.result(final(to_target, trained[0]).here.scores).mean())
    number = finals.FRESH * args.seeds
    for name, goal in zip(GOALS, (to_target, Goal("loss", 1, seconds=budget)), strict=True):
        for plan in range(args.repeats):
            seeds = np.arange(plan * number, (plan + 1) * number)
            others = np.setdiff1d(np.arange(args.repeats * number), seeds)
            finalists = [final(goal, take(each, seeds=seeds)) for each in trained]
            best_first = sorted(finalists, key=lambda each: each.place(goal))
            fresh = {
                describe(each): final(goal, take(all_runs, seeds=others)).here.scores
                for each, all_runs in zip(finalists, trained, strict=True)
            }
            rows = [
                make_row((task.name, cluster, plan, name), each, goal, fresh)
                for each in finals.rows(setting, goal, best_first)
            ]
            known = [row for row in rows if np.isfinite([row.value, row.others]).all()]
            yield known, list(compare(known))


def describe(finalist: finals.Final) -> tuple[str, str]:
    """Returns the method and its settings."""
    candidate, (point,) = finalist.contender.candidate, finalist.contender.points
    return candidate.name, plane.describe(candidate.settings, point)


def final(goal: Goal, trained: Trained) -> finals.Final:
    """Returns runs at a point on a cluster as a finalist of a plan."""
    values, costs = goal.values(trained), trained.take_ends(trained.sweep.history["clock"])[None]
    scores = score(goal, values, costs, np.full(1, goal.budget))
    run = finals.Run(trained, 0, Scores(*(each[:, 0] for each in scores)), costs[0, 0])
    return finals.Final(trained.contender, np.zeros(1, int), {0: run}, {})


def make_row(
    plan: tuple[str, int, int, str],
    planned: finals.Planned,
    goal: Goal,
    fresh: Mapping[tuple[str, str], Scores],
) -> Row:
    """Returns a row of a plan, with the mean of the runs of all others.

    Args:
        plan: problem, cluster, plan and goal.
        planned: the row.
        goal: of the plan.
        fresh: the runs of all other plans, by method and settings.
    """
    named = planned.method, plane.describe(planned.settings, planned.values)
    others = goal.result(fresh[named])[0]
    result = planned.metric if goal.target is None else planned.seconds
    share = float(goal.reached(fresh[named]).mean())
    return Row(*plan, *named, planned.rank, *result, float(others.mean()), len(others), share)


def compare(rows: Sequence[Row]) -> Iterator[Pair]:
    """Yields what a plan declares: that the first row of a group is better than each row of the
    groups after, and tied with the others of its own.
    """
    groups = itertools.groupby(rows, key=lambda row: row.rank)
    first = [next(group) for _, group in groups]
    for one in first:
        for other in rows:
            if other.rank >= one.rank and other is not one:
                gap = abs(one.others - other.others) / min(one.others, other.others)
                is_tied = other.rank == one.rank
                yield Pair(one, other, is_tied, one.others < other.others, gap)


def tabulate(args: Args, rows: Sequence[Row]) -> Table:
    """Tabulates the share of the intervals of each method that contain the mean of other runs."""
    table = tables.table(
        "95 % intervals of repeated plans",
        ("", *("seconds to\nthe target", "half\nwidth", "loss within\nthe budget", "half\nwidth")),
        f"Share of the plans with an interval, of {finals.FRESH * args.seeds} runs, that contains "
        "the mean of\nthe other plans' runs, with its standard error. half width: median,\n"
        "relative to the result.",
    )
    for method in (*sorted({row.method for row in rows}, key=METHODS.index), None):
        cells = []
        for goal in GOALS:
            some = [row for row in rows if row.goal == goal and method in (None, row.method)]
            cells += [
                share([row.covers(args.repeats) for row in some]),
                f"{width(some):.1%}" if some else "-",
            ]
        if method is None:
            table.add_section()
        table.add_row(tables.wrap(method or "all", 24), *cells)
    return table


def share(happened: Sequence[bool]) -> str:
    """Returns a share with its standard error, in percent."""
    if not happened:
        return "-"
    mean = float(np.mean(happened))
    error = np.sqrt(mean * (1 - mean) / len(happened))
    return f"{100 * mean:.1f} ± {100 * error:.1f} %"


def width(rows: Sequence[Row]) -> float:
    """Returns the median of half the widths of the intervals, relative to the results."""
    return float(np.median([(row.high - row.low) / 2 / row.value for row in rows]))


def tabulate_order(pairs: Sequence[Pair]) -> Table:
    """Tabulates how often two methods that a plan declares different are in the wrong order, and
    two that it declares tied are not equal.
    """
    table = tables.table(
        "Order and ties of repeated plans",
        ("", "different", "in the\nwrong order", "tied", f"differ by\nover {LARGE:.0%}"),
        "Pairs of the first row of a group and a row after it (different) or in it (tied). In the "
        "wrong\norder, and differ: the results of the other plans' runs.",
    )
    names = dict.fromkeys(pair.one.problem for pair in pairs)
    for goal in GOALS:
        table.add_row(goal, *4 * [""])
        for name in (*names, None):
            some = [x for x in pairs if x.one.goal == goal and name in (None, x.one.problem)]
            tied, apart = ([x for x in some if x.is_tied is which] for which in (True, False))
            table.add_row(
                name or "all",
                f"{len(apart):,}",
                share([not x.in_order for x in apart]),
                f"{len(tied):,}",
                share([x.gap > LARGE for x in tied]),
            )
        table.add_section()
    return table


def notes(args: Args, rows: Sequence[Row]) -> list[str]:
    """Returns the sentences below the tables: the methods outside of what is asked."""
    lines, (low, high) = [], ASKED
    for goal in GOALS:
        some = [row for row in rows if row.goal == goal]
        shares = {
            method: float(
                np.mean([row.covers(args.repeats) for row in some if row.method == method])
            )
            for method in dict.fromkeys(row.method for row in some)
        }
        outside = [f"{name} {x:.1%}" for name, x in shares.items() if not low <= x <= high]
        lines.append(
            f"Intervals of {goal} outside {low:.0%} to {high:.0%}: "
            f"{', '.join(outside) or 'of no method'}."
        )
    return lines
