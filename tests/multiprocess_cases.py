"""The work of processes of one run in tests, in a separate module, which each of them imports. All
are started as by `dsgd.run_local_processes`.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import numpy as np
import optax

import algorithms
import dsgd
import topologies
from dsgd import clusters, problems
from dsgd.machines import agreement, arrays, heartbeat, runtime
from dsgd.runs import checkpoints, progress

N, STEPS, FOREVER = 4, 5, 2_000_000_000
SGD = optax.sgd(0.1, momentum=0.5)
CLUSTER = clusters.Cluster(
    clusters.constant([1.0, 1.5, 2.25, 0.7]), up=clusters.constant(1e6), latency=1e-3
)
# One method of each exchange.
METHODS = {
    "all-reduce": "minibatch_sgd",
    "servers": "error_compensated_sgd",
    "ring": "compressed_sgd_ring",
    "permutes": "decentralized_sgd",
    "edges": "relay_sgd",
    "gather": "",  # on a star, which is not registered
    "schedule": "stochastic_gradient_push",
    "one at a time": "asynchronous_sgd",
    "pairs": "asynchronous_gossip_sgd",
}
OF_FOUR = ("all-reduce", "servers", "permutes", "gather")
ASYNCHRONOUS = {"one at a time", "pairs"}
BRIEFLY = {"servers", "permutes"}  # exchanges that run without --long


@cache
def quadratic() -> dsgd.Problem:
    return problems.random_quadratic(N, 5, noise=0.3, seed=0)


@cache
def method(exchange: str) -> dsgd.Algorithm:
    """Returns the same object each time, and so are the problems: repeated runs are not traced
    again.
    """
    return (
        algorithms.make(METHODS[exchange], SGD, N)
        if METHODS[exchange]
        else algorithms.decentralized_sgd(SGD, topologies.star(N))
    )


def host_values(result: Any) -> dict[str, Any]:
    """Returns the part of a result that is in all processes, on the host."""
    state = [arrays.fetch(leaf) for leaf in jax.tree.leaves(result.state)]
    return {
        "state": state,
        "params": jax.tree.map(np.asarray, result.params),
        "history": result.history,
    }


def iterates(exchange: str, devices: int | None = None) -> dict[str, Any]:
    """Returns a run of one method, as long as a full cycle of its exchange."""
    options = {"cluster": CLUSTER} if exchange in ASYNCHRONOUS else {}
    mesh = dsgd.workers.mesh(devices)
    return host_values(
        dsgd.run(
            method(exchange),
            quadratic(),
            steps=STEPS,
            key=jax.random.key(0),
            mesh=mesh,
            record_every=2,
            **options,
        )
    )


@cache
def digits() -> dsgd.Problem:
    inputs, classes = np.linspace(-1, 1, 40 * 3).reshape(40, 3), np.arange(40) % 3
    return problems.logistic_regression((inputs, classes), N, "by-label", batch_size=4)


def run_by_worker(devices: int | None = None) -> tuple[dict[str, Any], list[int]]:
    """Returns a run on data that are loaded by worker, and the workers whose data were loaded."""
    loaded = []

    def load(n: int):
        loaded.append(n)
        rng = np.random.default_rng(n)
        return rng.normal(size=(4 + n, 3)), rng.normal(size=4 + n)

    model = problems.Model(lambda key: jax.numpy.zeros(3), lambda params, inputs: inputs @ params)
    problem = problems.finite_sum(model, optax.l2_loss, problems.ByWorker(load), N, batch_size=2)
    options = {"key": jax.random.key(3), "mesh": dsgd.workers.mesh(devices)}
    return host_values(dsgd.run(method("permutes"), problem, steps=3, **options)), loaded


def swept(devices: int | None = None) -> dict[str, Any]:
    """Returns a sweep on a problem of whose data each process has its own rows."""
    return host_values(
        dsgd.sweep(
            lambda learning_rate: algorithms.decentralized_sgd(
                optax.sgd(learning_rate), topologies.ring(N)
            ),
            digits(),
            steps=3,
            key=jax.random.key(1),
            seeds=2,
            mesh=dsgd.workers.mesh(devices),
            learning_rate=[0.1, 0.2],
        )
    )


def run_with_checkpoint(folder: Path, steps: int, devices: int | None = None) -> dict[str, Any]:
    """Returns a run with a checkpoint, up to the given number of steps."""
    options = {"key": jax.random.key(2), "mesh": dsgd.workers.mesh(devices), "seeds": 2}
    return host_values(
        dsgd.run(method("permutes"), digits(), steps=steps, checkpoint=folder, **options)
    )


def error_of(act) -> str:
    """Returns the message of an error that another process may have raised."""
    try:
        act()
    except (ValueError, OSError, agreement.PeerFailed) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def differently() -> dict[str, str]:
    """Returns runs that differ between the processes, by the difference."""
    i = jax.process_index()

    def run(exchange="permutes", steps=3):
        return lambda: dsgd.run(method(exchange), quadratic(), steps=steps, key=jax.random.key(0))

    found = {
        "method": run("gather" if i else "permutes"),
        "steps": run(steps=3 + i),
        "calls": run_by_worker if i else run(),
    }
    return {name: error_of(act) for name, act in found.items()}


def own_rows() -> tuple[Any, ...]:
    """Returns the rows of a problem's data that this process has on its devices, and their
    values.
    """
    inputs = digits().data.inputs
    return inputs.is_fully_addressable, [
        (shard.index[0], np.asarray(shard.data)) for shard in inputs.addressable_shards
    ]


def interrupt(folder: Path) -> tuple[str, int, list[int]]:
    """Only process 1 receives the signal; process 0 would continue forever."""
    update, read = progress.Progress.update, itertools.count(1)

    def send_signal(self, *args):
        update(self, *args)
        if next(read) == 2 and jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGINT)

    progress.Progress.update = send_signal
    try:
        dsgd.run(
            method("permutes"),
            quadratic(),
            steps=FOREVER,
            key=jax.random.key(0),
            record_every=20,
            checkpoint=folder,
        )
    except dsgd.Interrupted as stopped:
        return str(stopped), signal.SIGINT, stopped.history["step"].tolist()
    finally:
        progress.Progress.update = update
    return "no error", 0, []


def batches() -> str:
    """Batches end in the middle of a run, only in process 1."""

    def items():
        everybody = jax.tree.map(
            np.asarray, quadratic().data._replace(noise=np.zeros((N, 5), np.float32))
        )
        yield from itertools.repeat(everybody, 20 if jax.process_index() else 1000)

    return error_of(
        lambda: dsgd.run(
            method("permutes"), quadratic(), steps=1000, key=jax.random.key(0), batches=items()
        )
    )


def run_until() -> int:
    """Process 0 decides when the run ends, independently of the other process."""
    enough = itertools.count(1)

    def ask(history):
        return next(enough) == 3 if jax.process_index() == 0 else next(enough) == 2

    result = dsgd.run(
        method("permutes"),
        quadratic(),
        steps=FOREVER,
        key=jax.random.key(0),
        record_every=10,
        until=ask,
    )
    return int(result.history["step"][-1])


def folders(folder: Path) -> dict[str, str]:
    """Invalid checkpoints: in a folder that cannot be created, and on a disk that is full for
    process 0.
    """
    found = {"nowhere": error_of(lambda: run_with_checkpoint(Path("/proc/nowhere"), 1))}
    run_with_checkpoint(folder / "full", 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if jax.process_index() == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, hard))
    try:
        found["full"] = error_of(lambda: run_with_checkpoint(folder / "full", 4))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return found


def check_methods() -> list[Any]:
    """Runs `dsgd.check` on a method whose server has only the data of this device's workers, and on
    a correct one.
    """
    good = method("all-reduce")

    def update(state, gradients, round):
        after = good.update(state, gradients, round)
        own = jax.tree.map(lambda x, g: x - 0.1 * g.mean(axis=0), state.server.params, gradients)
        return after._replace(server=after.server._replace(params=own))

    wrong = good._replace(update=update)
    return [dsgd.check(each, quadratic()) for each in (wrong, good)]


def two(folder: Path, exchanges: list[str], whole: bool) -> dict[str, Any]:
    """Returns the results of two processes, with methods of these exchanges.

    Args:
        whole: includes a sweep, and checks of the contract, which take long.
    """
    found: dict[str, Any] = {exchange: iterates(exchange) for exchange in exchanges}
    found["sweep"] = swept() if whole else None
    found["by worker"] = run_by_worker()
    found["own rows"] = own_rows()
    found["saved"] = run_with_checkpoint(folder / "two", 6)
    found["resumed"] = run_with_checkpoint(folder / "one", 12)
    found["differently"] = differently()
    found["interrupted"] = interrupt(folder / "interrupted")
    found["batches"] = batches()
    found["until"] = run_until()
    found["workers"] = error_of(
        lambda: dsgd.run(
            method("all-reduce"), problems.random_quadratic(3, 2), steps=1, key=jax.random.key(0)
        )
    )
    found["rows"] = error_of(lambda: problems.logistic_regression("digits", 3))
    found["mesh"] = error_of(
        lambda: dsgd.run(method("all-reduce"), digits(), steps=1, key=jax.random.key(0), mesh=1)
    )
    found["folders"] = folders(folder)
    found["checked"] = check_methods() if whole else []
    found["again"] = iterates("permutes")
    return found


def four() -> dict[str, Any]:
    """Returns the results of four processes."""
    return {exchange: iterates(exchange) for exchange in OF_FOUR} | {
        "mesh": error_of(lambda: dsgd.workers.mesh(2))
    }


ROUNDS, EVERY = 400, 10  # of the run that is killed repeatedly


def run_killed(
    folder: Path, port: int, i: int, victim: int, at: int, by: int, lost_after: float
) -> None:
    """Runs one of two processes of a run that saves a checkpoint after every chunk; the victim gets
    a signal when it has read round `at`, the other ends by itself. For forked processes: the
    function does not return.
    """
    with (folder / f"{i}.log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        dsgd.join(f"127.0.0.1:{port}", 2, i, lost_after=lost_after)
        dsgd.cache.enable(folder / "programs")
        checkpoints._SECONDS = 0.0
        update = progress.Progress.update

        def notice(self, done, loss):
            update(self, done, loss)
            if i == victim and done >= at:
                os.kill(os.getpid(), by)

        progress.Progress.update = notice
        options = {"key": jax.random.key(0), "record_every": EVERY, "checkpoint": folder / "run"}
        result = host_values(dsgd.run(method("permutes"), quadratic(), steps=ROUNDS, **options))
        (folder / f"{i}.result").write_bytes(cloudpickle.dumps(result))
        heartbeat.end()
    except heartbeat.PeerLost as error:
        runtime.leave(f"PeerLost: {error}", heartbeat.STATUS)
    except BaseException:
        heartbeat.leave_at_once(traceback.format_exc(), 1)
    os._exit(0)


def nursery(folder: Path, lost_after: float) -> None:
    """Forks pairs of processes, one after the other, until none is killed: they share the imported
    modules.

    A line of input has the victim, the round and the signal; a line of output the statuses of both,
    and the seconds that they took.
    """
    for line in sys.stdin:
        victim, at, by = map(int, line.split())
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("127.0.0.1", 0))
            began = time.monotonic()
            children = {}
            for i in range(2):
                if (child := os.fork()) == 0:
                    run_killed(folder, held.getsockname()[1], i, victim, at, by, lost_after)
                children[i] = child
            statuses = {}
            for i in sorted(children, key=lambda i: i == victim):
                if i == victim and by == signal.SIGSTOP:
                    os.kill(children[i], signal.SIGKILL)
                statuses[i] = os.waitstatus_to_exitcode(os.waitpid(children[i], 0)[1])
        print(json.dumps([statuses[0], statuses[1], time.monotonic() - began]), flush=True)
