"""`check` verifies that a method satisfies the interface contract of the registered methods."""

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
from dsgd.base import Algorithm, Key, Problem, State
from dsgd.clusters import Cluster
from dsgd.contract import collectives
from dsgd.engine import loop, pooled, programs, protocol, randomness, run_keys
from dsgd.engine.plan import Plan
from dsgd.engine.probe import Probe, probe
from dsgd.findings import Finding, Findings
from dsgd.machines import agreement, arrays, subprocess_call
from dsgd.runs import driver, plans
from dsgd.runs.results import Result
from dsgd.wire import counts

STEPS = 6, 24  # minimum and maximum number of rounds of one run
DEVICES = 16  # maximum number of devices
# Tolerances between numbers of devices: sums in another order, accumulated over some rounds
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
    """Verifies that a method satisfies the interface contract.

    It runs the method for a few rounds: alone, twice, with several seeds, and on several devices.
    It checks:

    - the parameters of the members, and the values that they return (as every run does);
    - that a run is equal bit by bit, and compiles nothing, when the method is constructed again;
    - that a run among several seeds equals the single run;
    - that types stay the same when JAX has 64 bits enabled;
    - that random numbers depend on the run's key, and that random keys in `State.workers` differ
      between workers;
    - that one device and several give equal results, and that `State.server` is equal on every
      device;
    - that the recorded bits are those that the compiled round sends when each worker has its own
      device.

    Several devices are those of this process, or of all processes of a run, which must then all
    call `check`. If there are too few, a subprocess simulates them on the CPU, which takes some
    seconds.

    Args:
        algorithm: the method, registered or not.
        problem: a small problem with stochastic gradients. It determines the number of workers,
            best at most 16.
        key: JAX key of the runs; None: `jax.random.key(0)`.
        cluster: the cluster to simulate, for methods that read it; None: no clock.

    Returns:
        The findings. They print as a table, `.holds` is whether all checks passed, and `.require()`
        raises ValueError if not.

    Raises:
        ValueError: if `algorithm` is not a method, `problem` is not a problem, or the two do not
            fit together.
    """
    with agreement.all_or_none("check"):
        return _findings(algorithm, problem, checks.typed_key(0 if key is None else key), cluster)


def _findings(
    algorithm: Algorithm, problem: Problem, key: jax.Array, cluster: Cluster | None
) -> Findings:
    """Returns the findings of `check`. In a run of several processes, each process executes the
    checks on one device.
    """
    problem = (
        problem._replace(data=jax.tree.map(arrays.fetch, problem.data))
        if agreement.process_count() > 1
        else problem
    )
    plans.check_runnable(problem, cluster)
    findings, case = [_parameters(algorithm)], Case(algorithm, problem, cluster)
    described = _attempt("returns", lambda: [Finding("returns", True, str(period(case)))])
    if not described[0].holds:
        return Findings(f"{algorithm.name} on {problem.name}", (*findings, *described))
    steps = min(max(STEPS[0], 2 * period(case)), STEPS[1])
    twice = _attempt("returns", lambda: _run_twice(case, key, steps))
    findings += twice
    if twice[0].holds:
        several = _check_devices(case, key, steps, _run_among_seeds)
        seeds = _attempt("seeds", lambda: [_seeds(case, key, steps, several)])
        if not seeds[0].holds:  # the reference for several devices was itself wrong
            several = _attempt("devices", lambda: _check_devices(case, key, steps, _run_alone))
        traced = _attempt("64 bits", lambda: [_types(case, key)]) + _attempt(
            "random keys", lambda: [_random_keys(case, key)]
        )
        findings += [*seeds, *traced, *several]
    return Findings(f"{algorithm.name} on {problem.name}", tuple(findings))


class Case(NamedTuple):
    """A method, a problem and a cluster to check."""

    algorithm: Algorithm
    problem: Problem
    cluster: Cluster | None

    def run(self, **options: Any) -> Result:
        """Runs the case, with options as in `dsgd.run`."""
        return driver.run(self.algorithm, self.problem, cluster=self.cluster, **options)

    def plan(self, devices: int) -> Plan:
        """Returns the plan of rounds on `devices` devices."""
        build, cluster = plans.ConstantFactory(self.algorithm), self.cluster
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

    def description(self) -> Probe:
        """Returns the description of what an update sends."""
        return probe(self.plan(1), self.algorithm)


def period(case: Case) -> int:
    """Returns the number of rounds after which the method's messages repeat."""
    return max(
        [1, *(int(sending.period) * sending.turns for sending in case.description().sendings)]
    )


def _attempt(what: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    """Returns the findings of `look`; an error becomes a failed finding."""
    try:
        return look()
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        cause = causes.note_on(error)
        where = f" ({cause})" if cause and str(error) not in cause else ""
        return [Finding(what, False, f"{kind}{error}{where}")]


def _parameters(algorithm: Algorithm) -> Finding:
    """Checks the parameters of the method's members."""
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


def _run_twice(case: Case, key: jax.Array, steps: int) -> list[Finding]:
    """Runs the method, constructs it again and repeats the run.

    The first run validates the shapes and types of all return values. The second one corresponds to
    a notebook cell that is executed twice: the method is traced again, and must lower to the same
    programs and give the same bits.
    """
    algorithm = case.algorithm
    first = case.run(steps=steps, key=key, seeds=2, mesh=1)
    before = programs.count_compiled()
    rebuilt = algorithm._replace(update=partial(algorithm.update))  # a different object
    second = case._replace(algorithm=rebuilt).run(steps=steps, key=key, seeds=2, mesh=1)
    compiled = programs.count_compiled() - before
    differ = _list_differences(first, second, 0, 0)
    recompiled = (
        f"constructed again, it lowers to other programs: {compiled} programs compiled"
        if compiled
        else "constructed again, it compiles nothing"
    )
    return [
        Finding("returns", True, f"shapes and types stay the same over {steps} rounds"),
        Finding(
            "again",
            not differ,
            f"a second run differs in {differ}" if differ else "a second run is equal bit by bit",
        ),
        Finding("compiled once", not compiled, recompiled),
    ]


def _run_among_seeds(case: Case, key: jax.Array, steps: int) -> Result:
    """Returns the second of two runs with different seeds, on one device."""
    both = case.run(steps=steps, key=key, seeds=2, mesh=1)
    state, params = jax.tree.map(lambda leaf: arrays.fetch(leaf)[1], (both.state, both.params))
    return Result(
        state,
        {name: values if name == "step" else values[1] for name, values in both.history.items()},
        params,
    )


def _second_key(key: jax.Array) -> jax.Array:
    """Returns the key of the second run."""
    return jax.random.split(key, 2)[1]


def _run_alone(case: Case, key: jax.Array, steps: int) -> Result:
    """Executes the second run alone, on one device."""
    return case.run(steps=steps, key=_second_key(key), mesh=1)


def _seeds(case: Case, key: jax.Array, steps: int, several: list[Finding]) -> Finding:
    """Compares the single run with the same run among several seeds.

    If the single run on several devices equalled the run among seeds, no additional program is
    compiled.
    """
    if all(finding.holds for finding in several if finding.what != "bits"):
        differ = ""
    else:
        differ = _list_differences(_run_alone(case, key, steps), _run_among_seeds(case, key, steps))
    found = (
        f"a run among several seeds differs from the single run in {differ}"
        if differ
        else "a run among several seeds equals the single run"
    )
    return Finding("seeds", not differ, found)


def _types(case: Case, key: jax.Array) -> Finding:
    """Traces a round with 64 bits enabled. The protocol raises an error if a member does not keep
    float32.
    """
    problem, plan = case.problem, case.plan(1)
    state = jax.eval_shape(
        lambda: protocol.Method(case.algorithm, problem, plan.N).init(problem.init(key))
    )
    with jax.enable_x64(True):
        data = pooled.lay_out(problem.data, plan.mesh.size)
        jax.eval_shape(lambda state: loop.one_round(plan, state, key, data), state)
    return Finding("64 bits", True, "types stay the same when JAX has 64 bits enabled")


def _random_keys(case: Case, key: jax.Array) -> Finding:
    """Checks the random keys in the initial states of two runs, and from which keys a traced round
    draws.
    """
    alone, N = case.plan(1), case.problem.workers
    both = alone._replace(runs=1)
    state = jax.tree.map(
        arrays.fetch, programs.call(loop.first_carry, both, {}, jax.random.split(key, 2)).state
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
                return Finding(
                    "random keys",
                    False,
                    f"{name} is the same random key in all workers, so they draw the same numbers; "
                    "fold the worker's id into each row",
                )
            if (first == second).all():
                fix = "use round.next_key(), or an optimizer of algorithms.optimizers.init"
                return Finding(
                    "random keys", False, f"{name} is the same random key in all runs; {fix}"
                )
    if used.constant:
        return Finding(
            "random keys",
            False,
            "a round draws random numbers from a constant key, so they are equal in all workers, "
            "seeds and runs; use round.next_key()",
        )
    return Finding("random keys", True, "random numbers depend on the run's key")


def _check_devices(
    case: Case, key: jax.Array, steps: int, one: Callable[[Case, jax.Array, int], Result]
) -> list[Finding]:
    """Compares a run on several devices, in this process or a subprocess, with the run `one` on one
    device.
    """
    wanted = max(devices_of(case.problem.workers))
    if wanted == 1:
        return [
            Finding(
                "devices",
                None,
                f"not checked: {case.problem.workers} workers cannot be distributed evenly over 2 "
                f"to {DEVICES} devices",
            )
        ]
    if len(jax.devices()) >= wanted and all(
        D % jax.process_count() == 0 for D in devices_of(case.problem.workers) if D > 1
    ):
        return check_on_devices(case, key, steps, one)
    try:
        return subprocess_call.call(wanted, check_on_devices, case, key, steps, one)
    except subprocess_call.SubprocessError as error:
        return [Finding("devices", None, f"not checked: {error}")]


def devices_of(N: int) -> list[int]:
    """Returns the two largest numbers of devices that divide N, at most `DEVICES`."""
    divisors = [D for D in range(1, min(N, DEVICES) + 1) if N % D == 0]
    return divisors[-2:]


def check_on_devices(
    case: Case, key: jax.Array, steps: int, one: Callable[[Case, jax.Array, int], Result]
) -> list[Finding]:
    """Returns the findings on several devices of this process, or of all processes of a run.

    Runs are compared with the run `one` on one device.
    """
    alone, key = one(case, key, steps), _second_key(key)
    N, findings = case.problem.workers, list[Finding]()
    several = [D for D in devices_of(N) if D > 1]
    # The clock and the metrics of a run are compared on fewer devices.
    brief = several[1:] == [N] and not case.cluster
    for D in several[:1] if brief else several:
        spread = partial(case.run, steps=steps, key=key, mesh=D)
        findings += _attempt(
            f"{D} devices",
            lambda D=D, spread=spread: [_compare_with_one_device(D, spread(), alone)],
        )
    if brief:
        return findings + _attempt(
            f"{N} devices", lambda: _check_one_worker_per_device(case, key, steps, alone)
        )
    if N > DEVICES:
        return [
            *findings,
            Finding(
                "bits",
                None,
                f"not checked: {N} workers; expected a problem of at most {DEVICES} workers",
            ),
        ]
    return findings + _attempt(
        "bits", lambda: [*_bits(case, _rounds(case, key, min(period(case), STEPS[1])))]
    )


def _check_one_worker_per_device(
    case: Case, key: jax.Array, steps: int, alone: Result
) -> list[Finding]:
    """Checks one worker per device: the program in which bits are counted runs all rounds, so no
    other program is compiled.
    """
    rounds, N = _rounds(case, key, steps), case.problem.workers
    up, down = (np.cumsum([0, *each.sum(axis=1)]) / N for each in (rounds.up, rounds.down))
    data = case.problem.data if case.problem.evaluation.statistics else ()
    spread = Result(
        rounds.state,
        {"bits_up": up, "bits_down": down},
        programs.call(loop.models, rounds.plan, rounds.state, {}, data),
    )
    return [_compare_with_one_device(N, spread, alone), *_bits(case, rounds)]


def _compare_with_one_device(D: int, spread: Result, alone: Result) -> Finding:
    """Compares a run on D devices, whose `State.server` must be equal on all of them, with the
    same run on one.
    """
    server = jax.tree_util.tree_leaves_with_path(spread.state.server)
    unequal = [
        jax.tree_util.keystr(path) for path, leaf in server if not _is_equal_everywhere(leaf)
    ]
    if unequal:
        wrong = (
            f"State.server{unequal[0]} differs between devices: a mean over one device's block is "
            "not the mean over all workers; use round.mean(g) for g.mean(0), round.sum(g) for "
            "g.sum(0)"
        )
        return Finding(f"{D} devices", False, wrong)
    differ = _list_differences(spread, alone)
    return Finding(
        f"{D} devices",
        not differ,
        f"results differ from one device in {differ}"
        if differ
        else "results equal those of one device",
    )


def _is_equal_everywhere(leaf: jax.Array) -> bool:
    """Whether a leaf is equal on all devices."""
    first, *others = (np.asarray(shard.data) for shard in leaf.addressable_shards)
    if (
        not leaf.is_fully_addressable
        and len({*agreement.all_gather("the same state", arrays.row_digest(first))}) > 1
    ):
        return False
    return all(
        np.array_equal(first, other, equal_nan=np.issubdtype(first.dtype, np.inexact))
        for other in others
    )


class Rounds(NamedTuple):
    """Rounds in which each worker has its own device, so that every message is sent between
    devices.

    Args:
        plan: plan of the rounds.
        program: one round, without its metrics.
        unrecorded: collectives of the update that are not recorded messages, as text.
        state: the state after the rounds.
        up, down: recorded bits of each round, `[rounds, N]`.
        exchanges: recorded bits that each exchange of each round sends, `[rounds, exchanges, N]`.
    """

    plan: Plan
    program: jax.stages.Compiled
    unrecorded: list[str]
    state: State
    up: np.ndarray
    down: np.ndarray
    exchanges: np.ndarray


def _bits(case: Case, rounds: Rounds) -> list[Finding]:
    """Checks that everything an update sends is recorded, and that the records equal the traffic
    between devices.
    """
    if rounds.unrecorded:
        return [
            Finding(
                "bits",
                False,
                f"update calls {', '.join(rounds.unrecorded)}, which is not recorded; use the "
                "calls of the round (round.mean, round.mix, ...), or round.unrecorded() for "
                "numbers that are not messages",
            )
        ]
    description = case.description()
    if simulated := [sending.call for sending in description.sendings if sending.simulated]:
        return [
            Finding(
                "bits",
                None,
                f"not compared: {', '.join(simulated)} is simulated by other collectives",
            )
        ]
    if description.asks_some:
        return [
            Finding(
                "bits",
                None,
                "not compared: the simulation also sends the gradients of some workers between "
                "devices",
            )
        ]
    # Exchanges may take place in different rounds; the program contains all of them.
    exchanges = rounds.exchanges.astype(float).swapaxes(0, 1)
    crossing = 8 * sum(workers.traffic(rounds.program).values())
    recorded = sum(up.mean(axis=1).max() for up in exchanges)
    comparison = f"{recorded:,.10g} bits recorded per worker, {crossing:,.10g} sent"
    if recorded > crossing * (1 + 1e-9):
        return [Finding("bits", False, f"{comparison}: records more than it sends")]
    equal = all(len({*up[up.any(axis=1)].ravel().tolist()}) <= 1 for up in exchanges)
    if recorded < crossing * (1 - 1e-9) and equal:
        return [Finding("bits", False, f"{comparison}: sends more than it records")]
    padded = "" if equal else " (arrays have the size of the largest message)"
    return [Finding("bits", True, f"{comparison}{padded}")]


def _rounds(case: Case, key: jax.Array, steps: int) -> Rounds:
    """Runs rounds with one worker per device."""
    plan = case.plan(case.problem.workers)

    def one_round(state, key, data):
        state, statistics = loop.one_round(plan, state, key, data)
        return state, (*statistics.bits[:2], statistics.up_by_exchange)

    state, recorded = programs.call(loop.first_carry, plan, {}, key).state, list[Any]()
    arguments = (
        run_keys.split(key)[1],
        arrays.place(
            pooled.lay_out(case.problem.data, plan.mesh.size),
            NamedSharding(plan.mesh, P(workers.AXIS)),
        ),
    )
    traced = jax.jit(one_round).trace(state, *arguments)
    program = traced.lower().compile()
    for _ in range(steps):
        state, bits = program(state, *arguments)
        recorded.append(jax.tree.map(lambda each: counts.to_int(arrays.fetch(each)), bits))
    up, down, exchanges = (np.array(each) for each in zip(*recorded, strict=True))
    unrecorded = collectives.find_unrecorded(traced.jaxpr)
    return Rounds(plan, program, unrecorded, state, up, down, exchanges)


def _list_differences(
    one: Result, other: Result, relative: float = RELATIVE, absolute: float = ABSOLUTE
) -> str:
    """Returns where two results differ by more than the tolerances, as text; "" if nowhere. Bits
    are compared exactly.
    """
    return ", ".join(_differences(one, other, relative, absolute))


def _differences(one: Result, other: Result, relative: float, absolute: float) -> Iterator[str]:
    """Yields the names of the leaves and series in which two results differ."""
    for name, first, second in (
        ("State", one.state, other.state),
        ("params", one.params, other.params),
    ):
        for (path, leaf), leaf_of_other in zip(
            jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True
        ):
            if not _is_close(leaf, leaf_of_other, relative, absolute):
                yield f"{name}{jax.tree_util.keystr(path)}"
    for name, values in one.history.items():
        exact = name.startswith("bits")
        if name != "step" and not _is_close(
            values, other.history[name], 0 if exact else relative, 0 if exact else absolute
        ):
            yield f"history[{name!r}]"


def _is_close(one: Any, other: Any, relative: float, absolute: float) -> bool:
    """Whether two arrays are equal up to the tolerances; `absolute` is multiplied by the largest
    number, if it is above 1.
    """
    a, b = (arrays.fetch(x).astype(float) for x in (one, other))
    scale = max(1.0, float(np.max(np.abs(a), initial=0, where=np.isfinite(a))))
    return a.shape == b.shape and np.allclose(
        a, b, rtol=relative, atol=absolute * scale, equal_nan=True
    )
