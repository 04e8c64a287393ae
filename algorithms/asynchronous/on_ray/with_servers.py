"""Methods with asynchronous servers, and synchronous SGD, in real processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from algorithms import optimizers
from algorithms.asynchronous.asynchronous_server import Rule
from algorithms.asynchronous.asynchronous_sgd import asynchronous_sgd
from algorithms.asynchronous.on_ray.actors import actor, kill
from algorithms.asynchronous.on_ray.server import Server, Settings, Update
from algorithms.asynchronous.on_ray.trained import Trained, evaluate, first_params, select_records
from algorithms.asynchronous.on_ray.worker import Delay, Task, Worker, join, split
from algorithms.asynchronous.on_ray.worker_pool import StallTimeout, WorkerPool
from dsgd import Algorithm, checks, communication
from dsgd.base import Key, Params, Problem
from dsgd.engine import oracle, pooled, run_keys
from dsgd.machines.ray_session import session
from dsgd.records import user_path
from dsgd.runs import fingerprint


@checks.arguments
def run(
    method: Algorithm,
    problem: Problem,
    *,
    steps: int,
    key: Key,
    record_every: int = 1,
    delay: Delay | None = None,
    address: str = "local",
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    restarts: int = 3,
    patience: float = 120.0,
) -> Trained:
    r"""Runs a method with an asynchronous server in real processes: the server applies the method's
    rule to every gradient that arrives.

    $$ x_{t+1} = \text{step}(x_t, g_t(x_{D(t)}), t - D(t), x_{D(t)}) $$

    The rule is that of the simulation, `dsgd.run(method, problem, ...)`, but nothing is simulated:
    each worker is a Ray actor that has only its own data, sends its gradient (with local runs, its
    change) when it is computed, and continues at the model that it receives in return. A worker's
    gradient k uses batch k of its stream (`LocalWork.first_batch`), so that only the order of the
    arrivals depends on the machines: with `Trained.updates` a run can be recomputed with the same
    result.

    With several servers, each is an actor with one shard of the model, its own state of the rule,
    and its own order of the arrivals; shards do not wait for each other.

    A worker cannot be interrupted: if the rule stops its computation, its gradient is discarded
    when it arrives, and the worker continues at the model that is current then.

    Args:
        method: a method of `algorithms.asynchronous_server`, such as `algorithms.asynchronous_sgd`
            or `algorithms.rennala_sgd`.
        problem: with N workers.
        steps: T, arrivals to which the rule is applied, also those that it ignores; with several
            servers, of each shard.
        key: for the initial model and the batches.
        record_every: arrivals between two records. The servers keep a model for each record; the
            models are evaluated after the run.
        delay: (worker, gradient) -> seconds for which the worker sleeps in this gradient, counted
            as computing time, to emulate stragglers; None: no delay.
        address: "local": processes on this machine; otherwise the address of a Ray cluster,
            "10.0.0.1:6379" or "auto". If Ray is already initialized, that instance is used.
        checkpoint: a folder that all servers' machines can access. A server whose process dies
            resumes from it, and so does a repeated call; all workers then begin at its model. None:
            the run ends if a server dies.
        checkpoint_seconds: seconds between two checkpoints. A server writes them between two
            updates.
        restarts: how often each worker and server may be restarted after its process died. A worker
            that died is left out until it has been restarted; its gradient is then lost.
        patience: seconds without an update, or for the start, after which the run ends with an
            error.

    Returns:
        The final model, the history (with `clock` in real seconds), and every arrival; see
        `Trained`.

    Raises:
        ValueError: if the method has no asynchronous server, or has given delays or time-outs; a
            number is out of range, the bound is below N - 1, Ray is not installed or cannot be
            reached, or the checkpoint belongs to another run.
        ChildProcessError: if all workers, or a server, died and cannot be restarted.
        TimeoutError: if no update was made for `patience` seconds.
        Diverged: if the loss became infinite or NaN.

    Source: Liu and Zhang, section 4.1; Li et al., "Scaling distributed machine learning with the
    parameter server", 2014; of a rule: its method.
    """
    rule = getattr(method.init, "__self__", None)
    if not isinstance(rule, Rule) or method.update != rule.update:
        raise ValueError(
            f"run: {method.name} has no asynchronous server; expected a method of "
            "algorithms.asynchronous_server, such as algorithms.asynchronous_sgd (for pairs of "
            "workers: on_ray.asynchronous_gossip_sgd; with rounds: on_ray.minibatch_sgd)"
        )
    for option, why in (
        ("delays", "the delays of real processes result from their times"),
        ("timeouts", "a gradient that a process computes cannot be interrupted"),
        ("concurrency", "all processes begin at once"),
    ):
        if getattr(rule, option) is not None:
            raise ValueError(f"run: {method.name} has {option}, but {why}; expected {option}=None")
    settings = Settings(rule, steps, record_every, False, checkpoint_seconds)
    name = f"run({method.name})"
    return _train(name, problem, settings, key, delay, address, checkpoint, restarts, patience)


@checks.arguments
def minibatch_sgd(
    problem: Problem,
    optimizer: optax.GradientTransformation,
    *,
    steps: int,
    key: Key,
    record_every: int = 1,
    delay: Delay | None = None,
    address: str = "local",
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    restarts: int = 3,
    patience: float = 120.0,
) -> Trained:
    r"""Mini-batch SGD in real processes: the server waits for the gradients of all workers.

    $$ x_{t+1} = x_t - \frac{\gamma}{N} \sum_n g_n(x_t) $$

    The server does not wait for a worker that has died; the mean is then over the others.

    Args:
        problem, key, record_every, delay, address: see `on_ray.run`.
        checkpoint, checkpoint_seconds, restarts, patience: see `on_ray.run`.
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.
        steps: T, number of rounds.

    Returns:
        As `on_ray.run`; in `updates` each round has N gradients.

    Raises:
        ValueError: as `on_ray.run`.

    Source: Liu and Zhang, section 2.2, with one server.
    """
    name, rule = (
        "minibatch_sgd(on_ray)",
        getattr(asynchronous_sgd(optimizer).init, "__self__", None),
    )
    assert isinstance(rule, Rule)
    settings = Settings(rule, steps, record_every, True, checkpoint_seconds)
    return _train(name, problem, settings, key, delay, address, checkpoint, restarts, patience)


def validate_numbers(
    name: str,
    steps: int,
    record_every: int,
    restarts: int,
    patience: float,
    checkpoint_seconds: float = 0.0,
) -> None:
    """Raises a ValueError if one of the numbers of a real run is out of range."""
    checks.positive_int(f"{name}: steps", steps)
    checks.positive_int(f"{name}: record_every", record_every)
    checks.natural(f"{name}: restarts", restarts)
    if not 0 < patience < math.inf:
        raise ValueError(f"{name}: patience = {patience:g}; expected finite seconds > 0")
    if not 0 <= checkpoint_seconds < math.inf:
        raise ValueError(
            f"{name}: checkpoint_seconds = {checkpoint_seconds:g}; expected finite seconds >= 0"
        )


def tasks(
    problem: Problem, key: jax.Array, like: Params, delay: Delay | None
) -> Callable[[int], Task]:
    """Returns a function worker -> `Task`, with the worker's own data."""
    sent = key_to_numbers(run_keys.stream(run_keys.split(key)[1]))
    shapes = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), like)

    def task(worker: int) -> Task:
        return Task(
            oracle.worker_problem(problem, worker)._replace(
                data=pooled.worker_data(problem.data, worker)
            ),
            sent,
            shapes,
            delay,
        )

    return task


def key_to_numbers(key: jax.Array) -> tuple[np.ndarray, str]:
    """Returns a key as its data and its implementation's name, which can be sent to processes."""
    return np.asarray(jax.random.key_data(key)), str(jax.random.key_impl(key))


def _train(
    name: str,
    problem: Problem,
    settings: Settings,
    key: Key,
    delay: Delay | None,
    address: str,
    checkpoint: str | Path | None,
    restarts: int,
    patience: float,
) -> Trained:
    validate_numbers(
        name, settings.steps, settings.record_every, restarts, patience, settings.seconds
    )
    rule, N, P = settings.rule, problem.workers, settings.rule.servers
    key = checks.typed_key(key)
    folder = None if checkpoint is None else user_path("checkpoint", checkpoint).absolute()
    params = first_params(problem, key)
    jax.eval_shape(partial(rule.init, N=N), params)  # raises an error if the rule refuses them
    task, steps = tasks(problem, key, params, delay), rule.options(N).steps
    steps = np.ones(N, int) if steps is None else steps
    with session(N + P, address) as ray:
        servers: list[Any] = []
        workers: list[Any] = []
        try:
            parts = list(map(ray.put, split(params, P)))
            given = [
                ray.put(task(worker)._replace(local=rule.local, steps=int(steps[worker])))
                for worker in range(N)
            ]
            for p, part in enumerate(parts):
                own = settings._replace(
                    folder=folder and folder / f"server{p}",
                    about=_about(name, problem, settings, key, p),
                    key=key_to_numbers(jax.random.fold_in(run_keys.split(key)[0], p)),
                )
                servers.append(
                    actor(
                        ray,
                        Server,
                        part,
                        own,
                        N,
                        restarts=restarts if checkpoint else 0,
                        retries=-1,
                    )
                )
            workers.extend(
                actor(ray, Worker, worker, each, restarts=restarts)
                for worker, each in enumerate(given)
            )
            restored = ray.get([each.restore.remote() for each in servers], timeout=patience)
            if any(each.version < settings.steps for each in restored):
                pool = WorkerPool(
                    ray,
                    workers,
                    lambda worker, incarnation: workers[worker].run.remote(servers, incarnation),
                )
                _run(ray, name, servers, pool, patience)
            histories = ray.get([each.history.remote() for each in servers], timeout=patience)
        except ray.exceptions.ActorDiedError as error:
            why = "a server died and cannot be restarted; pass checkpoint=, or more restarts"
            raise ChildProcessError(f"{name}: {why} ({str(error).splitlines()[0]})") from error
        except ray.exceptions.RayTaskError as error:  # of a server, or of the rule in it
            raise error.cause from error
        finally:
            kill(ray, [*servers, *workers])
    return _combine(name, problem, settings, params, histories)


def _about(
    name: str, problem: Problem, settings: Settings, key: jax.Array, p: int
) -> dict[str, str]:
    """Returns a description of the run by name, for its checkpoints."""
    rule = settings.rule
    used = [rule.optimizer] if rule.local is None else [rule.optimizer, rule.local.optimizer]
    return {
        "method": name,
        "step size": ", ".join(f"{optimizers.require_descent(each):.9g}" for each in used),
        "problem": problem.name,
        "workers": str(problem.workers),
        "batch_size": str(problem.batch_size),
        "data": fingerprint.digest(
            (problem.data, problem.evaluation.replicated), fingerprint.weights_text(problem)
        ),
        "record_every": str(settings.record_every),
        "steps": str(settings.steps),
        "key": fingerprint.digest(key),
        "server": str(p),
        "jax": jax.__version__,
    }


def _run(ray: Any, name: str, servers: list[Any], pool: WorkerPool, patience: float) -> None:
    """Waits until all servers have made enough updates."""
    pool.start(patience)
    ray.get([server.begin.remote() for server in servers], timeout=patience)
    waiting = StallTimeout(patience)
    while pool.runs:
        pool.look()
        found = ray.get(
            [server.progress.remote(pool.incarnations) for server in servers], timeout=patience
        )
        if not any(each.finite for each in found):
            return
        waiting.need(
            [(each.server_incarnation, each.version) for each in found], f"{name}: no update"
        )


def _combine(
    name: str, problem: Problem, settings: Settings, params: Params, parts: list[Any]
) -> Trained:
    """Combines the results of all servers."""
    P, N = len(parts), problem.workers
    # a server may have stopped at a non-finite model, or have missed a gradient of a dead worker
    least = min(len(updates) for updates, *_ in parts)

    def column(field: str) -> np.ndarray:
        """Returns a field of the updates, `[least, P]`, and for `read` `[least, P, P]`; works
        without any update.
        """
        each = np.array(
            [[getattr(update, field) for update in updates[:least]] for updates, *_ in parts]
        )
        return each.reshape(P, least, *[P] * (field == "read")).swapaxes(0, 1)

    columns = {field: column(field) for field in Update._fields}
    counts = ("worker", "draw", "read", "delay", "server_steps")
    updates = {field: columns[field].astype(int) for field in counts}
    updates["staleness"] = (columns["step"] - columns["version"]).astype(int)
    updates |= {
        "clock": columns["at"],
        **{field: columns[field] for field in ("computed", "round_trip", "busy")},
    }
    count = min(len(records) for _, records, *_ in parts)
    models = [join([records[i] for _, records, *_ in parts], params) for i in range(count)]
    done = min(max((int(update.step) + 1 for update in taken), default=0) for taken, *_ in parts)
    step = (
        np.append(np.arange(count - 1) * settings.record_every, done)
        if count > 1
        else np.zeros(1, int)
    )
    bits = communication.bits.row_bits(jax.tree.map(lambda leaf: leaf[None], params))
    # The last gradient of each record's last update.
    last = np.searchsorted(columns["step"][:, 0], step - 1, side="right") - 1
    messages = np.append(columns["messages"][:, 0], 0)[last]  # 0 before the first update
    history = {
        "step": step,
        "bits": float(bits) * messages / N,
        "consensus": np.zeros(count),
        **select_records(
            step,
            last,
            {
                "worker": updates["worker"][:, 0],
                "server_steps": updates["server_steps"][:, 0],
                **{name: updates[name].max(axis=1) for name in ("staleness", "delay", "clock")},
            },
        ),
    }
    last_model = join([model for *_, model in parts], params)
    flat = (
        updates
        if P > 1
        else {field: values[:, 0] for field, values in updates.items() if field != "read"}
    )
    return Trained(last_model, evaluate(name, problem, models, history), flat, N, int(bits))
