"""`run` executes a method on a problem, `compile_round` compiles one round of it, and `exchanges`
lists the messages of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
from jax.sharding import Mesh

from dsgd import checks, modes
from dsgd.base import Algorithm, Key, Pattern, Problem, PyTree, State
from dsgd.clusters import Cluster
from dsgd.engine import loop, pooled, programs, protocol
from dsgd.engine.probe import Probe
from dsgd.runs import chunks, hosting, plans, starts
from dsgd.runs.feed import Feed
from dsgd.runs.history import History
from dsgd.runs.observers import Observers, OnRecord
from dsgd.runs.plans import ConstantFactory
from dsgd.runs.results import Result
from dsgd.runs.run_spec import RunSpec


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
    store: str | Path | None = None,
    start: Result | State | dict[str, Any] | None = None,
    until: Annotated[Callable[[History], bool], "(history)"] | None = None,
    on_record: OnRecord = (),
    train_loss: bool = False,
    progress: bool | None = None,
    taped: bool = False,
) -> Result:
    """Runs a method on a problem for `steps` rounds, on every device of the mesh.

    In a run of several processes (`dsgd.join`), all of them make the same call, and the default
    mesh consists of the devices of all processes. Each process places its own workers' data on its
    devices. The history and the final model are available in every process; the leaves of
    `state.workers` stay on the devices of their workers.

    Args:
        algorithm: a method from `algorithms`, or a custom one.
        problem: a problem from `dsgd.problems`, or a custom one.
        steps: number of rounds.
        key: JAX key from which all random numbers derive: initial parameters, samples, compression.
            An old-style key, `jax.random.PRNGKey(0)`, and an integer i, for `jax.random.key(i)`,
            yield the same draws. Keys of the implementations "rbg" and "unsafe_rbg" raise an error,
            because their random bits depend on the number of devices.
        seeds: R: executes R independent runs as one compiled program, with the keys
            `jax.random.split(key, R)`; None: one run with `key`.
        batches: streamed batches, for data that do not fit on the device: an iterable of
            worker-stacked batches with leaves `[N, ...]`, one per round and shared by all seeds.
            The problem's own data are then used only to evaluate the loss for the history. Batches
            of the built-in data sets are `problems.Examples`. The devices hold the batches between
            two records (at least 16), and as many again that are prefetched. Each batch is copied
            before the next one is requested, so the iterator may reuse its arrays.
        cluster: a cluster from `dsgd.clusters`. Its clock is recorded in the history, and its
            events drive asynchronous methods. (In an asynchronous method each round uses the
            gradient of one worker, and of a streamed batch only that worker's row.)
        record_every: number of rounds between two records.
        evaluate_every: number of records between two evaluations of the problem, for problems whose
            evaluation is more expensive than the rounds. The initial state, the last record, and
            the records after a multiple of record_every x evaluate_every rounds are evaluated. In
            all other records the loss, `grad_sqnorm` and the problem's own scalars are NaN and are
            not computed. If `evaluate_every` is not 1, the history contains `evaluated`, which
            marks the evaluated records; `dsgd.history.evaluated_records(history)` returns only
            these. A run that `until` ends may end between two of them.
        mesh: a mesh from `dsgd.workers.mesh`, or a number of devices as accepted there; None: as
            many of JAX's devices as divide the number of workers that have rows (N, unless few
            participate at a time); in several processes, all devices.
        checkpoint: a folder in which the run saves its state every 30 seconds, when it is
            interrupted, and at its end. The same call then resumes the run, with the same result as
            an uninterrupted run, also on a different number of devices and processes. (In a run of
            several processes only process 0 accesses the folder.) With more `steps`, a finished run
            continues. A run counts as the same if it executes the same computation (compared by the
            hash of the lowered program) on the same data, keys and hyperparameters. Streamed
            batches that were already used are skipped, and need an attribute `fingerprint`
            (`dsgd.Batches`).
        store: a folder for files that hold what workers keep while they do not participate (control
            variates, error memories), if only some of them have rows in a round. The rows of the
            next round are read while the devices compute. The files have no names and disappear
            with the result. None: the memory of the devices if it fits, else that of the host.
        start: result or final state of an earlier run, from which this run continues with its own
            hyperparameters, batches or topology; or a state that orbax restored, with dictionaries
            in place of named tuples; None: the method's initial state. The round number continues
            from that of the state, for schedules and for random draws: with the same key, two
            stages reproduce one longer run. `steps` counts the rounds of this run only, and so does
            the history, which begins with a record of `start`, 0 bits and clock 0. `start` is not
            modified.
        until: (history so far) -> whether to stop. It is called after each chunk of about half a
            second (at least one record), never within a chunk. A chunk that reaches an evaluated
            record ends with one. The number of rounds therefore depends on the speed of the
            machine. The returned history, state and checkpoint are those of the last completed
            round.
        on_record: a function of a record, or a list of such functions, for example `dsgd.loggers`.
            A record is a dictionary with the entries of the history at one record, and is passed
            once. The functions are called after each chunk; in a run that resumes from a
            checkpoint, first with the records of the checkpoint; in a run of several processes,
            only in process 0. An error of a function ends the run, and has an attribute `history`.
        train_loss: whether the history also contains `train_loss`, the loss on the drawn batches:
            its mean over the workers that computed, each at its own model; or, if the method sets
            the local work, the mean over the samples that count; with several queries, that of the
            first one. Losses are multiplied by the
            workers' weights, if the problem has any. The forward pass of the gradients computes it
            at little cost; problems with a custom `gradient` need one additional evaluation of the
            loss per round.
        progress: whether to show a progress bar on stderr, with rounds, remaining time and the
            current loss; None: after two seconds, if stderr is a terminal or a notebook. In a run
            of several processes, only process 0 shows it.
        taped: whether the result keeps the bits of each round, exchange and worker, from which
            `dsgd.replay` computes the seconds on any cluster. Needs `record_every=1`, and a method
            with iterates that do not depend on the clock.

    Returns:
        A `Result` with the last state, the history, and the final model. Arrays of the history are
        `[seeds?, records]`, `step` is `[records]`. Always included are `loss` and `grad_sqnorm` (of
        the full objective, at the final model), `consensus` ((1/N) sum |x_n - x|^2; 0 for methods
        with a single model) and, cumulative and per worker, `bits_up`, `bits_down`, their sum
        `bits`, `communications` (exchanges) and `gradients` (of single samples). Problems with a
        known solution add `gap` and `distance` (|x - x*|^2). Runs on a cluster add `clock`
        (simulated seconds so far, until the last worker finished, or until the last update of an
        asynchronous method). Metrics of the problem and of the method, and `train_loss`, refer to
        the last round before the record; metrics of rounds are NaN in the first record. With
        partial participation or message loss, `present` is the fraction of workers that
        participated in the last round before the record, and `arrived` the fraction of delivered
        messages among those sent since the previous record (for all-reduces and servers, the
        workers' contributions; NaN if none was sent). Series with one number per worker are
        `[seeds?, records, N]`: metrics of some methods, and, if the method sets the local work,
        chooses samples or has several queries, `samples`, the number of samples that each worker
        computed (in full draws if the problem has no batch size). The first record is the initial
        state, the last one is after the last round.

    Raises:
        ValueError: if `key` is not a single key or its draws depend on the number of devices;
            `steps`, `seeds`, `record_every` or `evaluate_every` is less than 1; there are 2^31
            rounds or more; the number of devices does not divide N; the method was constructed for
            another N, or does not use the problem's regularizer; no parameter can be trained, or a
            trained one is complex; streamed batches end early or have wrong shapes; the checkpoint
            folder is not writable, in use, damaged, or contains another run or more rounds; the
            cluster has another N, or its clock becomes non-finite or decreases; `start` has other
            shapes; the processes execute different runs; or the call is inside a JAX transformation
            (jit, vmap, grad).
        Diverged: if the loss became infinite or NaN. The message reports whether data, batches or
            the start were not finite. JAX's own checks (jax_debug_nans, jax_debug_infs) are
            disabled during a run, because NaN marks entries that a record does not have.
        Interrupted: after Ctrl-C or SIGTERM, with the history so far. The chunk in progress (about
            half a second, or one record) is completed first.
        OSError: if a checkpoint cannot be written, for example on a full disk. The previous
            checkpoint, if there is one, stays intact.
        PeerLost: if another process of the run died or stopped responding. The message names it.
        PeerFailed: if another process left the run because of an error. The message names the
            process.

    Warns:
        UserWarning: if the gradient norm of a run in float32 has stopped decreasing at the
            resolution of float32; float64 then reaches smaller values.
    """
    state = starts.state_of(start.state if isinstance(start, Result) else start)
    before = 0 if state is None else starts.rounds_of(state)
    steps, size = (
        plans.check_steps(steps, before),
        1 if seeds is None else checks.positive_int("seeds", seeds),
    )
    folder = None if store is None else hosting.folder_of(store)
    options: dict[str, Any] = {
        "record_every": record_every,
        "cluster": cluster,
        "train_loss": train_loss,
        "evaluate_every": evaluate_every,
        "taped": taped,
    }
    plan = plans.make_plan(
        ConstantFactory(algorithm),
        algorithm,
        problem,
        mesh,
        runs=0 if seeds is None else 1,
        size=size,
        methods=(algorithm,),
        start=state,
        streamed=batches is not None,
        folder=folder,
        **options,
    )
    keys = checks.typed_key(key) if seeds is None else jax.random.split(key, size)
    feed = None if batches is None else Feed(plan, batches, steps)
    job = RunSpec(
        plan, (algorithm,), problem, {}, keys, steps, feed, state, before, progress, until
    )
    settings = job.settings(key)
    job = job._replace(observers=Observers(job.name, on_record, settings), folder=folder)
    plans.warn_if_drawn_again(job)
    result = chunks.execute(job, checkpoint)
    plans.warn_if_silent(job, result.history["bits"])
    plans.warn_if_stalled(job, result)
    return result._replace(settings=settings)


@checks.arguments
@modes.outermost
def compile_round(
    algorithm: Algorithm,
    problem: Problem,
    mesh: Mesh | int | None = None,
    cluster: Cluster | None = None,
) -> jax.stages.Compiled:
    """Compiles one round of a run, for inspection.

    `dsgd.workers.traffic` reads the traffic between devices from the compiled program.

    Args:
        algorithm, problem, mesh, cluster: as in `run`. The clock is 0.

    Returns:
        The compiled program, a function (state, key, data) -> (state, communication statistics).

    Raises:
        ValueError: as in `run`.
    """
    key = checks.typed_key()
    plan = plans.make_plan(
        ConstantFactory(algorithm),
        algorithm,
        problem,
        mesh,
        runs=0,
        size=1,
        record_every=1,
        cluster=cluster,
    )
    state = jax.eval_shape(
        lambda: protocol.Method(algorithm, problem, plan.N).init(problem.init(key))
    )
    data = jax.eval_shape(lambda: pooled.lay_out(problem.data, plan.mesh.size))
    return programs.compile_alone(loop.one_round, plan, state, key, data)


class Exchange(NamedTuple):
    """One exchange of messages in the rounds of a method.

    Args:
        call: the call of the communicator as text, for example "mix on ring(8)".
        pattern: how the messages pass through the network.
        period: number of rounds from one such exchange to the next; 0: the method decides in each
            round whether it takes place.
        turns: number of exchanges after which a schedule of topologies repeats.
        simulated: whether the simulation on several devices uses collectives that differ from the
            modelled messages (for one server, or for pairs of workers), so that the traffic between
            devices differs from the recorded bits.
        delay: number of rounds that the workers go on with before they need the messages.
        arrays: number of arrays of one message; the mean of a message and its reply, if there is
            one. On a cluster with a `bucket`, up to so many are sent one after the other.
    """

    call: str
    pattern: Pattern
    period: int = 1
    turns: int = 1
    simulated: bool = False
    delay: int = 0
    arrays: float = 1


@checks.arguments
@modes.outermost
def exchanges(
    algorithm: Algorithm, problem: Problem, *, cluster: Cluster | None = None
) -> tuple[Exchange, ...]:
    r"""Returns the exchanges of a method's rounds, in order. Nothing is compiled or run.

    A round of N workers takes on average

    $$ \sum_e \frac{c_e(N, l, r)}{H_e} $$

    seconds on a network with latency l and transfer time r, where $c_e$ is the `dsgd.network.cost`
    of the pattern of exchange e and $H_e$ is its period, if the workers wait for all messages:

        sum(
            network.cost(each.pattern, N, l, r) / each.period
            for each in dsgd.exchanges(method, problem)
        )

    Args:
        algorithm: the method.
        problem: the problem, which determines the number of workers.
        cluster: the cluster, for methods that read it; None: no cluster.

    Returns:
        One `Exchange` for each call that sends, or for each `round.joint`; () if the method sends
        nothing.

    Raises:
        ValueError: if the method, the problem and the cluster do not fit together.
    """
    return exchanges_of(plans.probe_on(algorithm, problem, cluster))


def exchanges_of(found: Probe) -> tuple[Exchange, ...]:
    """Returns the exchanges of the rounds that were traced."""
    return tuple(
        Exchange(
            sending.call,
            sending.pattern,
            int(sending.period),
            sending.turns,
            sending.simulated,
            int(sending.delay),
            sending.arrays,
        )
        for sending in found.sendings
    )
