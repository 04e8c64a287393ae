"""Kimad in real time: one server, and workers that send it packed messages over TCP whose sizes
follow the measured bandwidth.
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from algorithms import optimizers
from algorithms.kimad import budgets, monitors
from algorithms.kimad.monitors import Monitor
from algorithms.kimad.wire import Frame, Wire, receive, send
from dsgd import checks
from dsgd.base import Key, Params, Problem
from dsgd.engine import leaves, oracle, randomness, run_keys
from dsgd.machines import agreement, local_processes

_START = b"s"
_BOUND = 60.0  # seconds without a byte after which a process counts as dead


class Trained(NamedTuple):
    """Result of `train_processes`.

    Args:
        params: the server's final model.
        history: in the server, NumPy arrays by name, `[rounds]`; None in the workers.
    """

    params: Params
    history: dict[str, np.ndarray] | None


@checks.arguments
def train_processes(
    problem: Problem,
    optimizer: optax.GradientTransformation,
    ratios: Sequence[float] | np.ndarray,
    round_time: float,
    *,
    seconds: float,
    key: Key,
    congestion: float = 1.0,
    monitor: Monitor = monitors.last,
    rounds: int | None = None,
    wait: Callable[[], Any] | None = None,
) -> Trained:
    """Runs Algorithm 1 in real time with top-k compression of the whole model. Process 0 is the
    server, process n + 1 is worker n.

    Every process of an initialized `jax.distributed` makes this call with the same arguments
    (`dsgd.run_local_processes`, `links.shaped`). Messages are the packed messages of
    `compressors.top_k`, over one TCP connection between each worker and the server. The receiver of
    a message measures its bandwidth, from the first byte to the last, and reports it to the sender
    with its own next message. $T_{comp}$ is the time that a worker measured for its last update,
    including compression. Random draws are those of `dsgd.run`, and the iterates are those of
    `kimad_sgd(..., whole_model(top_k(ratios)))` if the same choices are made. With one ratio the
    method is EF21, without a choice.

    Args:
        problem: with N workers. Worker n uses only its own data; the server uses all data, for the
            history.
        optimizer: the server's step.
        ratios: k / d; each message uses the largest ratio that fits its budget, or the smallest
            ratio if none fits.
        round_time: t, seconds.
        seconds: time after which no round starts.
        key: JAX key from which all random numbers derive.
        congestion: a, see `kimad.budget`.
        monitor: estimates the bandwidths of the links.
        rounds: maximal number of rounds; None: no limit.
        wait: function that the server calls when all processes are ready, before the clock starts.

    Returns:
        The model, and in the server the history, from the first round on: `seconds` from the start
        to the end of the round; `loss` of the full objective at the model at that time, evaluated
        after the run; `bits_up` and `bits_down` of a message, the former averaged over workers;
        `rate_up` and `rate_down`, the measured bits per second of the slowest worker.

    Raises:
        ValueError: if the number of processes is not N + 1, a ratio is not in (0, 1], or times are
            not positive.
        OSError: if another process died.

    Source: Xin et al., "Kimad", Algorithm 1.
    """
    N, processes = problem.workers, jax.process_count()
    if processes != N + 1:
        raise ValueError(
            f"train_processes: {N} workers in {processes} processes; expected {N + 1} processes: "
            "the server and one for each worker"
        )
    leaves.require_all("train_processes", problem)
    budgets.require_times("train_processes", round_time, congestion)
    if not 0 < seconds < math.inf:
        raise ValueError(f"train_processes: seconds = {seconds:g}; expected finite seconds > 0")
    start_key, rounds_key = run_keys.split(key)
    flat, unravel = ravel_pytree(problem.init(start_key))
    plan = _Plan(N, Wire(ratios, flat.shape[0]), float(round_time), float(congestion), monitor)
    most = math.inf if rounds is None else checks.positive_int("train_processes: rounds", rounds)
    if jax.process_index():
        x = _Worker(plan, jax.process_index() - 1, problem, rounds_key, flat, unravel).run()
        return Trained(unravel(x), None)
    return _Server(plan, problem, optimizer, start_key, flat, unravel).run(seconds, most, wait)


class _Plan(NamedTuple):
    """The options that all processes share."""

    N: int
    wire: Wire
    round_time: float
    congestion: float
    monitor: Monitor


class _Link:
    """The budget of one end of a link, from the measured bandwidths."""

    def __init__(self, plan: _Plan, down: bool) -> None:
        self.plan, self.down, self.memory = plan, down, plan.monitor.start(1)
        self.observe(1.0)  # compiles the monitor's functions; the state is reset below
        self.budget(0.0)
        self.memory = plan.monitor.start(1)

    def observe(self, rate: float) -> None:
        """Records the receiver's measurement, bits per second of the last message."""
        self.memory = self.plan.monitor.observe(self.memory, jnp.full(1, rate, jnp.float32))

    def budget(self, computing: float) -> float:
        """Returns the budget in bits; infinite if the bandwidth is unknown."""
        rate = float(self.plan.monitor.estimate(self.memory, jnp.full(1, jnp.nan))[0])
        both = budgets.message_seconds(self.plan.round_time, computing, self.plan.congestion)
        if math.isnan(rate) or (self.down and not self.plan.congestion):
            return math.inf
        return rate * float(both.down if self.down else both.up)


class _Worker:
    """Worker n, with the estimates of the model and of its own update."""

    def __init__(
        self, plan: _Plan, n: int, problem: Problem, key: jax.Array, flat: jax.Array, unravel
    ) -> None:
        self.plan, self.n = plan, n
        self.model, self.known = flat, jnp.zeros_like(flat)
        data = jax.tree.map(lambda leaf: leaf[self.n], problem.data)
        functions = oracle.worker_problem(problem, self.n)
        gradient = functions.gradient or jax.grad(functions.loss)

        def update(x, known, step, data):
            batch = oracle.draw_batch(functions, key, step, self.n, data)
            return ravel_pytree(gradient(unravel(x), batch))[0] - known

        self.update = partial(jax.jit(update), data=data)

    def run(self) -> jax.Array:
        """Runs rounds until the server ends the run; returns the final estimate of the model."""
        plan, link = self.plan, _Link(self.plan, down=False)
        plan.wire.compile()
        jax.block_until_ready(self.update(self.model, self.known, np.int32(0)) + self.known)
        with _connect(plan.N)[0] as server:
            step, computing, heard = 0, 0.0, math.nan
            server.settimeout(None)  # no time limit, because the caller's `wait` may take any time
            if server.recv(1) != _START:
                raise OSError(
                    "train_processes: the server closed the connection; expected all processes "
                    "until "
                    "the end"
                )
            server.settimeout(_BOUND)
            while True:
                began = time.monotonic()
                change = jax.block_until_ready(self.update(self.model, self.known, np.int32(step)))
                message = plan.wire.message(change, plan.wire.choice(link.budget(computing)))
                computing = time.monotonic() - began
                send(server, Frame(message.choice, False, computing, heard), message.packed)
                self.known = self.known + message.decoded
                frame, packed, heard = receive(server, plan.wire)
                link.observe(frame.heard)
                self.model = self.model + plan.wire.decode(frame.choice, packed)
                step += 1
                if frame.last:
                    return self.model


class _Server:
    """The server, with the model, its estimate, and the mean of the estimates of all updates."""

    def __init__(
        self,
        plan: _Plan,
        problem: Problem,
        optimizer: optax.GradientTransformation,
        key: jax.Array,
        flat: jax.Array,
        unravel,
    ) -> None:
        self.plan, self.problem, self.unravel = plan, problem, unravel
        self.model, self.total, self.estimate = (
            randomness.fold_owner(optimizers.init(optimizer, flat), key),
            jnp.zeros_like(flat),
            flat,
        )
        self.step = jax.jit(partial(optimizers.step, optimizer))

    def run(self, seconds: float, rounds: float, wait: Callable[[], Any] | None) -> Trained:
        """Runs the rounds up to the given number or time. The workers start when they receive the
        start message.
        """
        plan, link, rows, models = self.plan, _Link(self.plan, down=True), [], []
        plan.wire.compile()
        jax.block_until_ready(
            (
                self.step(self.model, self.total / plan.N),
                self.model.params - self.estimate + self.total,
            )
        )
        connections = _connect(plan.N)
        with ThreadPoolExecutor(plan.N) as threads:
            try:
                if wait is not None:
                    wait()
                began = time.monotonic()
                for one in connections:
                    one.sendall(_START)
                while True:
                    arrived = list(threads.map(lambda one: receive(one, plan.wire), connections))
                    frames = [frame for frame, _, _ in arrived]
                    for frame, packed, _ in arrived:
                        self.total = self.total + plan.wire.decode(frame.choice, packed) / plan.N
                    self.model = self.step(self.model, self.total)
                    if rows:
                        link.observe(min(frame.heard for frame in frames))
                    budget = link.budget(max(frame.computing for frame in frames))
                    message = plan.wire.message(
                        self.model.params - self.estimate, plan.wire.choice(budget)
                    )
                    self.estimate = self.estimate + message.decoded
                    last = time.monotonic() - began >= seconds or len(rows) + 1 >= rounds
                    answers = [Frame(message.choice, last, 0.0, rate) for _, _, rate in arrived]
                    list(
                        threads.map(
                            lambda one, frame, packed=message.packed: send(one, frame, packed),
                            connections,
                            answers,
                        )
                    )
                    bits = np.mean([plan.wire.sizes[frame.choice] for frame in frames])
                    rates = (
                        min(rate for _, _, rate in arrived),
                        min(frame.heard for frame in frames),
                    )
                    rows.append(
                        (time.monotonic() - began, bits, plan.wire.sizes[message.choice], *rates)
                    )
                    models.append(np.asarray(self.model.params))
                    if last:
                        break
            finally:
                for connection in connections:
                    connection.close()
        names = ("seconds", "bits_up", "bits_down", "rate_up", "rate_down")
        history = dict(zip(names, np.array(rows, float).T, strict=True))
        return Trained(self.unravel(self.model.params), {**history, "loss": self._losses(models)})

    def _losses(self, models: list[np.ndarray]) -> np.ndarray:
        """Returns f at these models."""
        weights = (
            np.ones(self.plan.N)
            if self.problem.weights is None
            else np.asarray(self.problem.weights)
        )
        whole = jax.jit(
            lambda x: jnp.mean(
                weights * jax.vmap(self.problem.loss, (None, 0))(self.unravel(x), self.problem.data)
            )
        )
        return np.array([float(whole(x)) for x in models])


def _connect(N: int) -> list[socket.socket]:
    """Returns the server's connections, ordered by worker, or a worker's connection to the server.
    A process connects when it is ready.
    """
    if jax.process_index():
        host, port = json.loads(agreement.all_gather("the server's address", "")[0])
        connections = [socket.create_connection((host, port), timeout=_BOUND)]
        connections[0].sendall((jax.process_index() - 1).to_bytes(4, "big"))
    else:
        with socket.create_server((local_processes.here(), 0), backlog=N) as listening:
            listening.settimeout(_BOUND)
            agreement.all_gather("the server's address", json.dumps(listening.getsockname()))
            accepted = [listening.accept()[0] for _ in range(N)]
        by_worker = {
            int.from_bytes(one.recv(4, socket.MSG_WAITALL), "big"): one for one in accepted
        }
        connections = [by_worker[n] for n in range(N)]
    for one in connections:
        one.settimeout(_BOUND)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connections
