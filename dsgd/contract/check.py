"""`check`: any method held to the contract that all registered ones hold."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dsgd import causes, checks, modes, workers
from dsgd.base import Algorithm, Key, Problem, Result, State
from dsgd.clusters import Cluster
from dsgd.contract import collectives, elsewhere
from dsgd.engine import loop, pooled, programs, protocol, randomness
from dsgd.findings import Finding, Findings
from dsgd.machines import agreement, arrays
from dsgd.runs import driver, plans
from dsgd.wire import counts

STEPS = 6, 24  # rounds of one run, at least and at most
DEVICES = 16  # at most
# what results on other numbers of devices may differ by: sums in another order, over some rounds
RELATIVE, ABSOLUTE = 2e-4, 2e-5


@partial(checks.arguments, members=False)
@modes.outermost
def check(
    algorithm: Algorithm,
    problem: Problem,
    *,
    key: Key | None = None,
    cluster: Cluster | None = None,
) -> Findings:
    """Holds a method to the whole contract: it runs it a few rounds, alone, twice, with seeds, and
    on several devices.

    Looked at are: the members' parameters; what they return (as every run does); that a run is the
    same when the method is made anew, and is not compiled again; that a run among several seeds is
    the run alone; that types stay as they are where JAX has 64 bits enabled; that random numbers
    depend on the run's key, and random keys in `State.workers` differ by worker; that one device
    and several give the same, and every device the same `State.server`; and that the bits that it
    tells are those that its compiled round sends where each worker has a device of its own.

    Several devices are those of the process, or of all processes of a run, which then all call it;
    where there are too few, another process simulates them on the CPU (seconds).

    Args:
        algorithm: any, registered or not.
        problem: small, with noise: its N is the number of workers, best at most 16.
        key: of the runs; None: `jax.random.key(0)`.
        cluster: that they are simulated on, for methods that look at one; None: without a clock.

    Returns:
        What was found: it prints as a table, `.holds` says whether all of it does, `.require()`
            raises where it does not.

    Raises:
        ValueError: no method, no problem, or the two do not fit.
    """
    with agreement.together("check"):
        return _findings(algorithm, problem, checks.default_key() if key is None else key, cluster)


def _findings(
    algorithm: Algorithm, problem: Problem, key: jax.Array, cluster: Cluster | None
) -> Findings:
    """As `check`; what is looked at on one device, each process looks at."""
    problem = (
        problem._replace(data=jax.tree.map(arrays.on_host, problem.data))
        if agreement.count() > 1
        else problem
    )
    plans.check_runnable(problem, cluster)
    findings, case = [_parameters(algorithm)], Case(algorithm, problem, cluster)
    described = _attempt("returns", lambda: [Finding("returns", True, str(period(case)))])
    if not described[0].holds:
        return Findings(f"{algorithm.name} on {problem.name}", (*findings, *described))
    steps = min(max(STEPS[0], 2 * period(case)), STEPS[1])
    twice = _attempt("returns", lambda: _twice(case, key, steps))
    findings += twice
    if twice[0].holds:
        several = _everywhere(case, key, steps, _among_seeds)
        seeds = _attempt("seeds", lambda: [_seeds(case, key, steps, several)])
        if not seeds[0].holds:  # several devices were held to what is itself wrong
            several = _attempt("devices", lambda: _everywhere(case, key, steps, _alone))
        traced = _attempt("64 bits", lambda: [_types(case, key)]) + _attempt(
            "random keys", lambda: [_random_keys(case, key)]
        )
        findings += [*seeds, *traced, *several]
    return Findings(f"{algorithm.name} on {problem.name}", tuple(findings))


class Case(NamedTuple):
    """What is run."""

    algorithm: Algorithm
    problem: Problem
    cluster: Cluster | None

    def run(self, **options: Any) -> Result:
        """As `dsgd.run`."""
        return driver.run(self.algorithm, self.problem, cluster=self.cluster, **options)

    def plan(self, devices: int) -> loop.Plan:
        """Of rounds on so many devices."""
        build, cluster = plans.Always(self.algorithm), self.cluster
        return plans.make_plan(
            build,
            self.algorithm,
            self.problem,
            devices,
            runs=0,
            size=1,
            record_every=1,
            cluster=cluster,
        )

    def description(self) -> loop.Description:
        """What an update sends."""
        return loop.describe(self.plan(1), self.algorithm)


def period(case: Case) -> int:
    """Rounds after which the method's messages repeat."""
    return max(
        [1, *(int(sending.period) * sending.turns for sending in case.description().sendings)]
    )


def _attempt(what: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    """What was found; an error is a finding, too."""
    try:
        return look()
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        cause = causes.of(error)
        where = f" ({cause})" if cause and str(error) not in cause else ""
        return [Finding(what, False, f"{kind}{error}{where}")]


def _parameters(algorithm: Algorithm) -> Finding:
    expected = {"init": ("params", "workers"), "query": ("state", "round"), "model": ("state",)}
    expected["update"] = ("state", "gradients", "round")
    for member, names in expected.items():
        try:
            inspect.signature(getattr(algorithm, member)).bind(*names)
        except TypeError as error:
            return Finding(
                "parameters", False, f"{member} is called as {member}({', '.join(names)}): {error}"
            )
    return Finding("parameters", True, ", ".join(expected))


def _twice(case: Case, key: jax.Array, steps: int) -> list[Finding]:
    """What `run` refuses, it names: the shapes and types of all that members return. Then runs of
    the method made anew, as by a cell of a notebook that runs twice: it is traced again, must lower
    to the same programs, and give the same bits."""
    algorithm = case.algorithm
    first = case.run(steps=steps, key=key, seeds=2, mesh=1)
    before = programs.compiled()
    anew = algorithm._replace(update=partial(algorithm.update))  # another object
    second = case._replace(algorithm=anew).run(steps=steps, key=key, seeds=2, mesh=1)
    compiled = programs.compiled() - before
    differ = _different(first, second, 0, 0)
    more = (
        f"made anew it is another: {compiled} programs compiled"
        if compiled
        else "made anew, it compiles nothing"
    )
    return [
        Finding("returns", True, f"shapes and types kept over {steps} rounds"),
        Finding(
            "again", not differ, f"not the same bits in {differ}" if differ else "the same bits"
        ),
        Finding("compiled once", not compiled, more),
    ]


def _among_seeds(case: Case, key: jax.Array, steps: int) -> Result:
    """On one device, the second of two runs."""
    both = case.run(steps=steps, key=key, seeds=2, mesh=1)
    state, params = jax.tree.map(lambda leaf: arrays.on_host(leaf)[1], (both.state, both.params))
    return Result(
        state,
        {name: values if name == "step" else values[1] for name, values in both.history.items()},
        params,
    )


def _second(key: jax.Array) -> jax.Array:
    """The key of that run."""
    return jax.random.split(key, 2)[1]


def _alone(case: Case, key: jax.Array, steps: int) -> Result:
    """The same run by itself."""
    return case.run(steps=steps, key=_second(key), mesh=1)


def _seeds(case: Case, key: jax.Array, steps: int, several: list[Finding]) -> Finding:
    """Where a run alone on several devices has been that among seeds, it is on one device, too, and
    no program is compiled for it.
    """
    if all(finding.holds for finding in several if finding.what != "bits"):
        differ = ""
    else:
        differ = _different(_alone(case, key, steps), _among_seeds(case, key, steps))
    found = (
        f"a run among seeds is not the run alone in {differ}"
        if differ
        else "a run among seeds is the run alone"
    )
    return Finding("seeds", not differ, found)


def _types(case: Case, key: jax.Array) -> Finding:
    """Traced only: members that leave float32 behind are refused by the protocol."""
    problem, plan = case.problem, case.plan(1)
    state = jax.eval_shape(
        lambda: protocol.Method(case.algorithm, problem, plan.N).init(problem.init(key))
    )
    with jax.enable_x64(True):
        data = pooled.laid_out(problem.data, plan.mesh.size)
        jax.eval_shape(lambda state: loop.one_round(plan, state, key, data), state)
    return Finding("64 bits", True, "types stay where JAX has 64 bits enabled")


def _random_keys(case: Case, key: jax.Array) -> Finding:
    """Keys in the state of two runs at their start, and where a round, which is only traced, has
    its random numbers from.
    """
    alone, N = case.plan(1), case.problem.workers
    both = alone._replace(runs=1)
    state = jax.tree.map(
        arrays.on_host, programs.call(loop.first_carry, both, {}, jax.random.split(key, 2)).state
    )
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state)
    used = randomness.uses(
        lambda state, key: loop.one_round(alone, state, key, case.problem.data), one, key
    )
    for (path, leaf), is_key in zip(
        jax.tree_util.tree_leaves_with_path(state), used.keys, strict=False
    ):
        if is_key:
            name = f"State{jax.tree_util.keystr(path)}"
            first, second = (
                jax.random.key_data(run) if jnp.issubdtype(run.dtype, jax.dtypes.prng_key) else run
                for run in leaf
            )
            if (
                path[0] == jax.tree_util.GetAttrKey("workers")
                and N > 1
                and (first == first[0]).all()
            ):
                fix = "fold the worker's id into each row"
                return Finding(
                    "random keys",
                    False,
                    f"{name} is the same random key in all workers, which draw the same numbers; "
                    f"{fix}",
                )
            if (first == second).all():
                fix = "use round.next_key(), or an optimizer of algorithms.optimizers.start"
                return Finding(
                    "random keys", False, f"{name} is the same random key in all runs; {fix}"
                )
    if used.constant:
        return Finding(
            "random keys",
            False,
            "a round draws random numbers from a constant key, the same in all workers, seeds and "
            "runs",
        )
    return Finding("random keys", True, "random numbers depend on the run's key")


def _everywhere(
    case: Case, key: jax.Array, steps: int, one: Callable[[Case, jax.Array, int], Result]
) -> list[Finding]:
    """On several devices, here or in another process, beside that run on one."""
    wanted = max(devices_of(case.problem.workers))
    if wanted == 1:
        return [
            Finding(
                "devices",
                None,
                f"{case.problem.workers} workers cannot be spread evenly over 2 to {DEVICES} "
                "devices",
            )
        ]
    if len(jax.devices()) >= wanted and all(
        D % jax.process_count() == 0 for D in devices_of(case.problem.workers) if D > 1
    ):
        return on_devices(case, key, steps, one)
    try:
        return elsewhere.call(wanted, on_devices, case, key, steps, one)
    except elsewhere.Unreachable as error:
        return [Finding("devices", None, f"not looked at, {error}")]


def devices_of(N: int) -> list[int]:
    """Numbers of devices to run N workers on: as many as there are workers, and fewer; at most
    `DEVICES`.
    """
    divisors = [D for D in range(1, min(N, DEVICES) + 1) if N % D == 0]
    return divisors[-2:]


def on_devices(
    case: Case, key: jax.Array, steps: int, one: Callable[[Case, jax.Array, int], Result]
) -> list[Finding]:
    """What is to be found on several devices, of this process or of all of a run, beside the run on
    `one`.
    """
    alone, key = one(case, key, steps), _second(key)
    N, findings = case.problem.workers, list[Finding]()
    several = [D for D in devices_of(N) if D > 1]
    # a run's clock and metrics are looked at on fewer devices
    brief = several[1:] == [N] and not case.cluster
    for D in several[:1] if brief else several:
        spread = partial(case.run, steps=steps, key=key, mesh=D)
        findings += _attempt(
            f"{D} devices", lambda D=D, spread=spread: [_as_alone(D, spread(), alone)]
        )
    if brief:
        return findings + _attempt(
            f"{N} devices", lambda: _each_on_its_own(case, key, steps, alone)
        )
    if N > DEVICES:
        return [
            *findings,
            Finding(
                "bits", None, f"not looked at: {N} workers, need a problem of at most {DEVICES}"
            ),
        ]
    return findings + _attempt(
        "bits", lambda: [*_bits(case, _rounds(case, key, min(period(case), STEPS[1])))]
    )


def _each_on_its_own(case: Case, key: jax.Array, steps: int, alone: Result) -> list[Finding]:
    """One worker a device: the program in which bits are counted runs all rounds, and no other is
    compiled.
    """
    rounds, N = _rounds(case, key, steps), case.problem.workers
    bits = np.cumsum([0, *(rounds.up + rounds.down).sum(axis=1)]) / N
    data = case.problem.data if case.problem.statistics else ()
    spread = Result(
        rounds.state,
        {"bits": bits},
        programs.call(loop.models, rounds.plan, rounds.state, {}, data),
    )
    return [_as_alone(N, spread, alone), *_bits(case, rounds)]


def _as_alone(D: int, spread: Result, alone: Result) -> Finding:
    server = jax.tree_util.tree_leaves_with_path(spread.state.server)
    apart = [jax.tree_util.keystr(path) for path, leaf in server if not _equal_everywhere(leaf)]
    if apart:
        wrong = (
            f"State.server{apart[0]} is not the same on every device: a mean over a block is no "
            "mean over all workers; use round.mean(g)"
            " for g.mean(0), round.sum(g) for g.sum(0)"
        )
        return Finding(f"{D} devices", False, wrong)
    differ = _different(spread, alone)
    return Finding(
        f"{D} devices",
        not differ,
        f"not the results of one device in {differ}" if differ else "the results of one device",
    )


def _equal_everywhere(leaf: jax.Array) -> bool:
    first, *others = (np.asarray(shard.data) for shard in leaf.addressable_shards)
    if (
        not leaf.is_fully_addressable
        and len({*agreement.exchange("the same state", arrays.row_digest(first))}) > 1
    ):
        return False
    return all(
        np.array_equal(first, other, equal_nan=np.issubdtype(first.dtype, np.inexact))
        for other in others
    )


class Rounds(NamedTuple):
    """Some rounds with each worker on a device of its own, so that whatever it sends another
    crosses devices.

    Args:
        plan: of them.
        program: of one, without its metrics.
        unrecorded: collectives of the update that are no recorded messages, in words.
        state: after them.
        up, down: the bits that each of them recorded, `[rounds, N]`.
    """

    plan: loop.Plan
    program: jax.stages.Compiled
    unrecorded: list[str]
    state: State
    up: np.ndarray
    down: np.ndarray


def _bits(case: Case, rounds: Rounds) -> list[Finding]:
    """Whether all that an update sends is recorded, and is what crosses devices."""
    if rounds.unrecorded:
        fix = "use the calls of the round (round.mean, round.mix, ...), or round.unrecorded() for numbers that are no messages"
        return [
            Finding(
                "bits",
                False,
                f"update calls {', '.join(rounds.unrecorded)}, which is not recorded; {fix}",
            )
        ]
    description = case.description()
    if stands := [sending.call for sending in description.sendings if sending.simulated]:
        return [
            Finding(
                "bits", None, f"recorded for {', '.join(stands)}, for which other collectives stand"
            )
        ]
    if description.asks_some:
        return [
            Finding(
                "bits",
                None,
                "not compared: gradients of some workers cross devices in the simulation",
            )
        ]
    up = rounds.up.astype(float)
    crossing = 8 * sum(workers.traffic(rounds.program).values())
    recorded = up.mean(axis=1).max()
    ways = f"{recorded:,.10g} bits recorded per worker, {crossing:,.10g} cross"
    if recorded > crossing * (1 + 1e-9):
        return [Finding("bits", False, f"{ways}: records more than it sends")]
    equal = len({*up[up.any(axis=1)].ravel().tolist()}) <= 1
    if recorded < crossing * (1 - 1e-9) and equal:
        return [Finding("bits", False, f"{ways}: sends more than it records")]
    return [Finding("bits", True, ways if equal else f"{ways} (in room for the largest messages)")]


def _rounds(case: Case, key: jax.Array, steps: int) -> Rounds:
    plan = case.plan(case.problem.workers)

    def one_round(state, key, data):
        state, statistics = loop.one_round(plan, state, key, data)
        return state, statistics.bits[:2]

    state, recorded = programs.call(loop.first_carry, plan, {}, key).state, []
    arguments = (
        loop.split(key)[1],
        arrays.place(
            pooled.laid_out(case.problem.data, plan.mesh.size),
            NamedSharding(plan.mesh, P(workers.AXIS)),
        ),
    )
    traced = jax.jit(one_round).trace(state, *arguments)
    program = traced.lower().compile()
    for _ in range(steps):
        state, bits = program(state, *arguments)
        recorded.append([counts.to_int(arrays.on_host(each)) for each in bits])
    up, down = np.array(recorded).swapaxes(0, 1)
    return Rounds(plan, program, collectives.unrecorded(traced.jaxpr), state, up, down)


def _different(
    one: Result, other: Result, relative: float = RELATIVE, absolute: float = ABSOLUTE
) -> str:
    """Where two results differ by more than that; bits by anything at all. Empty: nowhere."""
    return ", ".join(_differences(one, other, relative, absolute))


def _differences(one: Result, other: Result, relative: float, absolute: float) -> Iterator[str]:
    for name, mine, others in (
        ("State", one.state, other.state),
        ("params", one.params, other.params),
    ):
        for (path, leaf), leaf_of_other in zip(
            jax.tree_util.tree_leaves_with_path(mine), jax.tree.leaves(others), strict=True
        ):
            if not _close(leaf, leaf_of_other, relative, absolute):
                yield f"{name}{jax.tree_util.keystr(path)}"
    for name, values in one.history.items():
        exact = name == "bits"
        if name != "step" and not _close(
            values, other.history[name], 0 if exact else relative, 0 if exact else absolute
        ):
            yield f"history[{name!r}]"


def _close(one: Any, other: Any, relative: float, absolute: float) -> bool:
    a, b = (arrays.on_host(x).astype(float) for x in (one, other))
    scale = max(1.0, float(np.max(np.abs(a), initial=0, where=np.isfinite(a))))
    return a.shape == b.shape and np.allclose(
        a, b, rtol=relative, atol=absolute * scale, equal_nan=True
    )
