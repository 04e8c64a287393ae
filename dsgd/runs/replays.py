"""`replay` computes the seconds that the rounds of a finished run take on other clusters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.typing import ArrayLike

from dsgd import causes, checks, modes
from dsgd.clusters import Cluster
from dsgd.engine import clock, programs, queries, rounds, run_keys, tape
from dsgd.engine.plan import Plan
from dsgd.engine.probe import probe, probe_at
from dsgd.runs import traced
from dsgd.runs.plans import ConstantFactory
from dsgd.runs.results import Result
from dsgd.runs.run_spec import Tape
from dsgd.runs.sweeps import FromPoint, Sweep, all_points, examples, grid_values

_ALL_PARTICIPATE = (None, 1, None, None)


@checks.arguments
@modes.outermost
def replay(
    result: Result | Sweep,
    cluster: Cluster | Callable[..., Cluster],
    *,
    rounds: ArrayLike | None = None,
    **grids: Any,
) -> np.ndarray:
    """Returns the seconds that the rounds of a run take on a cluster, from the recorded bits of
    each worker in each round. Nothing is trained again.

    They equal `history["clock"]` of the same run on that cluster, with the same random computation
    times and bandwidths: the iterates of a taped run do not depend on the clock.

        result = dsgd.run(method, problem, steps=1_000, key=key, taped=True)
        seconds = dsgd.replay(result, cluster)

    A function of numbers replays on many clusters at once:

        dsgd.replay(
            result,
            lambda mbit, latency: clusters.Cluster(
                clusters.constant(0.01), clusters.constant(mbit * 1e6), latency=latency
            ),
            mbit=np.logspace(0, 4, 50), latency=np.logspace(-5, -1, 50),
        )

    Args:
        result: result of a run or a sweep with `taped=True`.
        cluster: the cluster; or a function (numbers by name) -> cluster, which receives traced
            numbers. The latency, `clusters.constant` and multiples of quantities accept them.
        rounds: the number of rounds after which the clock is read: an integer, or for each run one,
            `[grid?, seeds?]`; None: after every round.
        grids: values by argument name of `cluster`, each a sequence of numbers.

    Returns:
        Seconds, float64: one axis for each of `grids`, then the axes of the history of `result`, of
        which the last, `[records]`, is omitted if `rounds` is given.

    Raises:
        ValueError: if the run was not taped; the cluster is for another number of workers; its
            participation, message loss and noise differ from those of the run; a grid is missing,
            empty or contains non-finite numbers, or a number of it is used as a Python value; or
            `rounds` are not numbers of rounds of the run.
    """
    if result.tape is None:
        raise ValueError(
            "replay: the result has no tape; expected one of dsgd.run(..., taped=True) or "
            "dsgd.sweep(..., taped=True)"
        )
    return seconds_of(result.tape, cluster, rounds, **grids)


def seconds_of(
    of: Tape,
    cluster: Cluster | Callable[..., Cluster],
    rounds: ArrayLike | None = None,
    **grids: Any,
) -> np.ndarray:
    """Returns the seconds of the rounds of a tape, as `replay`."""
    values = {name: grid_values(name, each) for name, each in grids.items()}
    build = _factory(cluster, values, of)
    points = jax.tree.map(jnp.asarray, all_points(values))
    ends = None if rounds is None else _ends(rounds, of)
    plan = _Replay(of.plan, build, of.steps)
    arguments = (of.points, *_runs(of), np.int32(of.before), ends)

    def trace(build, values):
        jax.eval_shape(partial(_all_clocks, plan._replace(build=build)), values, *arguments)

    try:
        found = programs.call(_all_clocks, plan, points, *arguments)
    except (TypeError, ValueError) as error:
        if callable(cluster):
            traced.require_arithmetic("replay", cluster, values, trace, error)
        if isinstance(error, causes.TRACING):
            raise ValueError(causes.note_on(error) or f"replay: {causes.remedy(error)}") from error
        raise
    seconds = clock.to_seconds(np.asarray(jax.device_get(found)))
    shape = (*map(len, values.values()), *of.shape)
    return seconds.reshape((*shape, *seconds.shape[2:]))


class _Replay(NamedTuple):
    """Everything that the compiled program depends on besides shapes.

    Args:
        run: plan of the taped run.
        build: numbers by name -> Cluster.
        steps: number of rounds.
    """

    run: Plan
    build: Callable[[dict[str, jax.Array]], Cluster]
    steps: int

    @property
    def mesh(self) -> Mesh:
        """The devices of the replay: one."""
        return Mesh(np.array(jax.local_devices()[:1]), ("workers",))


def _all_clocks(
    plan: _Replay,
    clusters: dict[str, jax.Array],
    points: dict[str, jax.Array],
    keys: jax.Array,
    series: dict[str, jax.Array],
    before: jax.Array,
    ends: jax.Array | None,
) -> jax.Array:
    """Returns the digits of the clocks of all runs on all clusters, `[clusters, runs, ..., 2]`.

    Args:
        plan: static.
        clusters: numbers by name, `[clusters]` each; {} for a single cluster.
        points: hyperparameters of the runs; only their types are read.
        keys: one key for each run, `[runs]`.
        series: those of the tape, `[runs, steps, ...]`.
        before: number of rounds before the run.
        ends: number of rounds after which each run's clock is read, int32 `[runs]`, or None.
    """
    # a probe without hyperparameters is kept from the run
    found = probe_at(plan.run, points) if points else probe(plan.run, plan.run.build({}))
    read, delayed = tape.reader(found.clock_inputs), found.delayed_exchanges

    def cluster_clocks(numbers):
        cluster = plan.build(numbers)
        run = plan.run._replace(cluster=cluster, delayed_exchanges=delayed)

        def run_clock(key, series, end):
            def one_round(now, step_and_series):
                i, series = step_and_series
                after = _tick(run, key, now, before + i, read(series))
                if end is None:
                    return after, clock.digits(after)
                return jax.tree.map(lambda a, b: jnp.where(i < end, a, b), after, now), None

            start = clock.start(run.N, (), delayed)
            last, digits = lax.scan(one_round, start, (jnp.arange(plan.steps), series))
            if digits is None:
                return clock.digits(last)
            return jnp.concatenate([clock.digits(start)[None], digits])

        return jax.vmap(run_clock, (0, 0, None if ends is None else 0))(keys, series, ends)

    if not clusters:
        return cluster_clocks({})[None]
    return jax.vmap(cluster_clocks)(clusters)


def _tick(
    plan: Plan, key: jax.Array, now: clock.Clock, step: jax.Array, inputs: tape.ClockInputs
) -> clock.Clock:
    """Returns the clock after a round; `key` is that of the run's rounds."""
    asked, exchanges = inputs
    work = queries.local_work(asked, plan.problem, plan.N)
    this_round = rounds.make_round(plan, key, now, step)._replace(work=work)
    return clock.tick(now, "replay", plan.problem, this_round, asked, exchanges)


def _factory(cluster: Any, values: dict[str, np.ndarray], of: Tape) -> Any:
    """Returns the function from the numbers of a grid point to the cluster, after validation of
    the cluster of the first and of each other value.
    """
    if isinstance(cluster, Cluster):
        if values:
            raise ValueError(
                f"replay: cluster is a Cluster, with values for {', '.join(values)}; expected a "
                "function of these numbers that returns a cluster"
            )
        all_clusters, build = (cluster,), ConstantFactory(cluster)
    else:
        if not values:
            raise ValueError(
                "replay: cluster is a function, but there are no values for its arguments; "
                "expected at least one, such as latency=[1e-4, 1e-3]"
            )
        build = FromPoint("replay: cluster", cluster, Cluster)
        all_clusters = examples(build, values)
    for example in all_clusters:
        _require_replays(example, of)
    return build


def _require_replays(cluster: Cluster, of: Tape) -> None:
    """Raises ValueError if the rounds of the run could differ on this cluster."""
    cluster.require_workers(of.plan.N)
    taped = of.plan.cluster
    of_run = _ALL_PARTICIPATE if taped is None else taped.participation
    if of_run != cluster.participation:
        raise ValueError(
            f"replay: the cluster ({cluster.name}) has another participation, message loss "
            f"or noise than that of the run "
            f"({'no cluster' if taped is None else taped.name}), on which its "
            "iterates depend; expected the same: pass it to dsgd.run(..., cluster=..., taped=True)"
        )


def _runs(of: Tape) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the key of the rounds of each run, and its series, with all runs along one axis."""
    seeds = jnp.broadcast_to(of.keys, of.shape).ravel()
    keys = jax.vmap(lambda key: run_keys.split(key)[1])(seeds)
    series = {
        name: jnp.asarray(each.reshape(len(seeds), *each.shape[of.plan.runs :]))
        for name, each in of.series.items()
    }
    return keys, series


def _ends(rounds: ArrayLike, of: Tape) -> jax.Array:
    """Validates the rounds after which the clocks are read; returns them as int32 `[runs]`."""
    given = np.asarray(rounds)
    fits = np.issubdtype(given.dtype, np.integer) and given.shape in ((), of.shape)
    if not fits or (given < 0).any() or (given > of.steps).any():
        raise ValueError(
            f"replay: rounds = {checks.show(rounds)}; expected an integer from 0 to {of.steps}, "
            f"or an array of them of shape {of.shape}"
        )
    return jnp.broadcast_to(jnp.asarray(given, jnp.int32), of.shape).ravel()
