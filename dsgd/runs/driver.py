"""`run`: one method on one problem; `compile_round`: one round of it to look into; `exchanges`:
what its rounds send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
from jax.sharding import Mesh

from dsgd import checks, modes
from dsgd.base import Algorithm, Key, Pattern, Problem, PyTree, Result, State
from dsgd.clusters import Cluster
from dsgd.engine import loop, pooled, programs, protocol
from dsgd.runs import chunks, plans, starts
from dsgd.runs.feed import Feed
from dsgd.runs.history import History
from dsgd.runs.jobs import Job
from dsgd.runs.plans import Always


@checks.arguments
@modes.outermost
def run(
    algorithm: Algorithm,
    problem: Problem,
    *,
    steps: int,
    key: Key,
    seeds: int | None = None,
    batches: Iterable[PyTree] | None = None,
    cluster: Cluster | None = None,
    record_every: int = 1,
    evaluate_every: int = 1,
    mesh: Mesh | int | None = None,
    checkpoint: str | Path | None = None,
    start: Result | State | None = None,
    until: Annotated[Callable[[History], bool], "(history)"] | None = None,
    train_loss: bool = False,
    progress: bool = False,
) -> Result:
    """Runs a method on a problem for `steps` rounds, on every device of the mesh.

    In several processes (`dsgd.join`) all make the same call, and the mesh is by default over the
    devices of all. Each process puts its own workers' data on its devices; the history and the
    model are in all of them, the leaves of `state.workers` where their workers are.

    Args:
        algorithm: from `algorithms`, or your own.
        problem: from `dsgd.problems`, or your own.
        steps: rounds.
        key: of everything random: the start, the samples, the compression. Also of the old type,
            `jax.random.PRNGKey(0)`, with the same draws. Random bits of the implementations "rbg"
            and "unsafe_rbg" depend on the number of devices: they are refused.
        seeds: R independent runs as one compiled program, with the keys `jax.random.split(key, R)`;
            None: one run with `key`.
        batches: for data that do not fit on the device: an iterator whose items are worker-stacked
            batches, leaves `[N, ...]`, one a round and the same for all seeds. The problem's own
            data then serve only the history's loss. Batches of the built-in data sets are
            `problems.Examples`. The batches between two records, at least 16, are on the devices at
            a time, and as many ahead. Each is copied before the next is asked for, so that an
            iterator may refill its arrays.
        cluster: from `dsgd.clusters`, whose clock the history then shows, and whose events drive
            asynchronous methods (which take one worker's gradient in a round, of batches from
            outside one worker's row).
        record_every: rounds between two records.
        evaluate_every: records between two evaluations of the problem, where they cost more than
            the rounds. The start, the last record and those after a multiple of record_every x
            evaluate_every rounds are evaluated; in all others the loss, `grad_sqnorm` and the
            problem's own scalars are NaN, and not computed. Where it is not 1, the history has
            `evaluated`, whether a record was, and `dsgd.evaluated(history)` are those that were. A
            run that `until` ends may end between two of them.
        mesh: from `dsgd.workers.mesh`, or a number of devices as there; None: all devices.
        checkpoint: a folder in which the run saves itself every half minute, when it is
            interrupted, and at its end. The same call goes on from there, with the same result as
            if it had not stopped, also on another number of devices and processes, of which process
            0 has the folder; with more `steps`, a finished run goes on. It is the same if it
            computes the same (the hash of the lowered program) from the same data, keys and
            hyperparameters. Batches from outside are skipped up to there, and must tell who they
            are by an attribute `identity` (`dsgd.Batches`).
        start: where another run ended, from which this one goes on with its own hyperparameters,
            batches or topology; None: the method's own start. Rounds count on from its
            `state.step`, for schedules and for draws: with the same key, two stages are the run of
            both. `steps` are this run's, and so are the history, which begins with a record of the
            start state, its bits and its clock, which begin at 0. What `start` is stays as it is.
        until: of the history so far, whether the run may end there. Asked after each chunk of about
            half a second, at least one record, and never within; one that comes to an evaluated
            record ends with such a one. So how far a run goes depends on the machine. The history,
            the state and the checkpoint are of where it ended.
        train_loss: have the loss on the drawn batches in the history, too: the mean over the
            workers that computed, each at its own model, or, where the method says how much each
            computes, over the samples that count. Losses are multiplied by the workers' weights, if
            the problem has any. It is the gradients' own forward pass, and costs little; where the
            problem has its own `gradient`, a loss a round.
        progress: show a bar with rounds a second and the current loss.

    Returns:
        The last state, the history, and the model to take home. The history's arrays are
        `[seeds?, records]`: `loss`, `grad_sqnorm` (of the whole objective, at the model to take
        home), `consensus` ((1/N) sum |x_n - x|^2, 0 where there is one model), `bits` (sent and
        received so far, per worker), with a cluster `clock` (simulated seconds so far, when the
        last worker was done, or the last update was), the problem's and the method's own numbers
        (of the record's last round, as `train_loss`; NaN before the first); and `step` `[records]`.
        Where workers are away or messages are lost, `present` is the share of workers in the
        record's last round, and `arrived` the share of the messages that were sent since the record
        before which arrived (of all-reduces and servers, of the workers' parts; NaN where none was
        sent). What has one number for each worker is `[seeds?, records, N]`: metrics of some
        methods, and `samples`, how many each worker computed (in whole draws where the problem has
        no batch size), where the method says how much that is. The first record is the start, the
        last is after the last round.

    Raises:
        ValueError: several keys, or one whose draws depend on the number of devices, steps, seeds,
            record_every or evaluate_every < 1, 2^31 rounds or more, N that the devices do not
            divide, a method built for another N, parameters of which none can be trained or one is
            complex, batches that end early or do not fit, a checkpoint's folder that cannot be
            written to or is in use, a checkpoint of another run or of more rounds, or a damaged
            one, a cluster for another N, or whose clock stops being finite or goes back, a start of
            other shapes, processes that do not all run the same, or a call inside a transformation
            of JAX (jit, vmap, grad).
        Diverged: the loss became infinite or NaN; it says where data, batches or the start were not
            finite. JAX's own checks of them (jax_debug_nans, jax_debug_infs) do not apply: NaN
            stands for what a record has not.
        Interrupted: Ctrl-C, or SIGTERM, with the history so far. It waits for the chunk in
            progress, about half a second or one record.
        OSError: a checkpoint cannot be written, on a full disk say; the one before is as it was.
        Lost: another process of the run was killed, or is not heard of; it says which.
        Elsewhere: another process left the run, by an error of its own; it says which.
    """
    state = start.state if isinstance(start, Result) else start
    before = 0 if state is None else starts.rounds_of(state)
    steps, size = (
        plans.check_steps(steps, before),
        1 if seeds is None else checks.positive_int("seeds", seeds),
    )
    options: dict[str, Any] = {
        "record_every": record_every,
        "cluster": cluster,
        "train_loss": train_loss,
        "evaluate_every": evaluate_every,
    }
    plan = plans.make_plan(
        Always(algorithm),
        algorithm,
        problem,
        mesh,
        runs=0 if seeds is None else 1,
        size=size,
        **options,
    )
    keys = key if seeds is None else jax.random.split(key, size)
    feed = None if batches is None else Feed(plan, batches, steps)
    job = Job(plan, (algorithm,), problem, {}, keys, steps, feed, state, before, progress, until)
    plans.warn_if_drawn_again(job)
    result = chunks.execute(job, checkpoint)
    plans.warn_if_silent(job, result.history["bits"])
    return result


@checks.arguments
@modes.outermost
def compile_round(
    algorithm: Algorithm,
    problem: Problem,
    mesh: Mesh | int | None = None,
    cluster: Cluster | None = None,
) -> jax.stages.Compiled:
    """One round of a run, compiled on its own, to look into: `dsgd.workers.traffic` reads in it
    what really crosses devices.

    Args:
        algorithm, problem, mesh, cluster: as in `run`; the clock is at 0.

    Returns:
        The program of (state, key, data) -> (state, statistics of the communication).

    Raises:
        ValueError: as `run`.
    """
    key = checks.default_key()
    plan = plans.make_plan(
        Always(algorithm), algorithm, problem, mesh, runs=0, size=1, record_every=1, cluster=cluster
    )
    state = jax.eval_shape(
        lambda: protocol.Method(algorithm, problem, plan.N).init(problem.init(key))
    )
    data = jax.eval_shape(lambda: pooled.laid_out(problem.data, plan.mesh.size))
    return programs.traceable(loop.one_round, plan).lower(state, key, data).compile()


class Exchange(NamedTuple):
    """One exchange of messages in the rounds of a method.

    Args:
        call: the call of the round, in words: "mix on ring(8)".
        pattern: how the messages flow.
        period: rounds from one such exchange to the next; 0: the method decides in each round.
        turns: exchanges after which a schedule of topologies repeats.
        simulated: whether other collectives stand for the messages on several devices (one server,
            pairs of workers).
    """

    call: str
    pattern: Pattern
    period: int = 1
    turns: int = 1
    simulated: bool = False


@checks.arguments
@modes.outermost
def exchanges(
    algorithm: Algorithm, problem: Problem, *, cluster: Cluster | None = None
) -> tuple[Exchange, ...]:
    r"""The exchanges of a method's rounds, in order. Nothing is compiled or run.

    A round of N workers takes on average

    $$ \sum_e \frac{c_e(N, l, r)}{H_e} $$

    seconds on a network with latency l and transfer time r, where $c_e$ is `dsgd.network.cost` of
    the pattern of exchange e, and $H_e$ its period:

        sum(network.cost(each.pattern, N, l, r) / each.period for each in dsgd.exchanges(method,
        problem))

    Args:
        algorithm: the method.
        problem: that it runs on, which has the number of workers.
        cluster: that it runs on, of methods that look at it.

    Returns:
        One for each call that sends, or for each `round.joint`; () if the method sends nothing.

    Raises:
        ValueError: the method and the problem, or the cluster, do not fit together.
    """
    plan = plans.make_plan(
        Always(algorithm), algorithm, problem, 1, runs=0, size=1, record_every=1, cluster=cluster
    )
    return tuple(
        Exchange(
            sending.call, sending.pattern, int(sending.period), sending.turns, sending.simulated
        )
        for sending in loop.describe(plan, algorithm).sendings
    )
