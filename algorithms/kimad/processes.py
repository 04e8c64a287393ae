"""Kimad on the real clock: one server, and workers that send it packed messages over TCP, each as
long as its link is thought to carry.
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
from dsgd.engine import leaves, loop, oracle, randomness
from dsgd.machines import agreement, local_processes

_START = b"s"
_BOUND = 60.0  # seconds without a byte, after which a process is thought to be dead


class Trained(NamedTuple):
    """What `train_processes` gives back.

    Args:
        params: the server's model at the end.
        history: numpy arrays by name, `[rounds]`, of the server; None in the workers.
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
    r"""Algorithm 1 in real time, with the k largest elements of the whole model: process 0 is the
    server, process n + 1 is worker n.

    Every process of an initialised `jax.distributed` calls it with the same arguments
    (`dsgd.loopback`, `links.shaped`). Messages are the packed ones of `compressors.top_k`, over a
    TCP connection of each worker to the server. Whoever receives one measures its bandwidth, from
    its first byte to its last, and tells the sender with its own next message; $T_{comp}$ is what a
    worker measured of its last update, with its compression. Draws are those of `dsgd.run`, where
    the iterates are those of `kimad_sgd(..., whole_model(top_k(ratios)))` when it chooses the same.
    With one ratio it is EF21 with that, and nothing is chosen.

    Args:
        problem: of N workers; of its data, worker n looks at its own, the server at all, for the
            history.
        optimizer: the server's step.
        ratios: k / d, of which each message has the largest that its budget has room for, or the
            smallest.
        round_time: t, seconds.
        seconds: after which no round begins.
        key: of everything random.
        congestion: a, as of `kimad.budget`.
        monitor: of the links.
        rounds: after which it ends in any case; None: no limit.
        wait: called in the server when all are ready, and before the clock begins.

    Returns:
        The model; in the server the history, from the first round on: `seconds` from the start to
        the end of the round, `loss` of the whole objective at the model then, which is evaluated
        after the end; `bits_up` and `bits_down` of a message, the former the workers' mean,
        `rate_up` and `rate_down`, bits per second that were measured, of the slowest worker.

    Raises:
        ValueError: another number of processes than workers and a server; ratios outside (0, 1];
            times that are not positive.
        OSError: a process that is gone.

    Source: Xin et al., "Kimad", Algorithm 1.
    """
    N, processes = problem.workers, jax.process_count()
    if processes != N + 1:
        raise ValueError(
            f"train_processes: {N} workers in {processes} processes: need {N + 1}, of which the "
            "first is the server"
        )
    leaves.need_all("train_processes", problem)
    budgets.need_times("train_processes", round_time, congestion)
    if not 0 < seconds < math.inf:
        raise ValueError(f"train_processes: seconds = {seconds:g}: need finite seconds > 0")
    start_key, rounds_key = loop.split(key)
    flat, unravel = ravel_pytree(problem.init(start_key))
    plan = _Plan(N, Wire(ratios, flat.shape[0]), float(round_time), float(congestion), monitor)
    most = math.inf if rounds is None else checks.positive_int("train_processes: rounds", rounds)
    if jax.process_index():
        x = _Worker(plan, jax.process_index() - 1, problem, rounds_key, flat, unravel).run()
        return Trained(unravel(x), None)
    return _Server(plan, problem, optimizer, start_key, flat, unravel).run(seconds, most, wait)


class _Plan(NamedTuple):
    """What all have agreed on."""

    N: int
    wire: Wire
    round_time: float
    congestion: float
    monitor: Monitor


class _Link:
    """The budget of one end of a link, from the bandwidths that were measured."""

    def __init__(self, plan: _Plan, down: bool) -> None:
        self.plan, self.down, self.memory = plan, down, plan.monitor.start(1)
        self.observe(1.0)  # a rehearsal
        self.budget(0.0)
        self.memory = plan.monitor.start(1)

    def observe(self, rate: float) -> None:
        """Records what the receiver measured, bits per second of the last message."""
        self.memory = self.plan.monitor.observe(self.memory, jnp.full(1, rate, jnp.float32))

    def budget(self, computing: float) -> float:
        """Bits; infinite where nothing is known."""
        rate = float(self.plan.monitor.estimate(self.memory, jnp.full(1, jnp.nan))[0])
        both = budgets.message_seconds(self.plan.round_time, computing, self.plan.congestion)
        if math.isnan(rate) or (self.down and not self.plan.congestion):
            return math.inf
        return rate * float(both.down if self.down else both.up)


class _Worker:
    """Worker n, who knows the estimate of the model, and that of its own update."""

    def __init__(
        self, plan: _Plan, n: int, problem: Problem, key: jax.Array, flat: jax.Array, unravel
    ) -> None:
        self.plan, self.n = plan, n
        self.model, self.known = flat, jnp.zeros_like(flat)
        data = jax.tree.map(lambda leaf: leaf[self.n], problem.data)
        functions = oracle.of_worker(problem, self.n)
        gradient = functions.gradient or jax.grad(functions.loss)

        def update(x, known, step, data):
            batch = loop.batch_of(functions, key, step, self.n, data)
            return ravel_pytree(gradient(unravel(x), batch))[0] - known

        self.update = partial(jax.jit(update), data=data)

    def run(self) -> jax.Array:
        """Until the server says that it is over; the model then."""
        plan, link = self.plan, _Link(self.plan, down=False)
        plan.wire.rehearse()
        jax.block_until_ready(self.update(self.model, self.known, np.int32(0)) + self.known)
        with _connected(plan.N)[0] as server:
            step, computing, heard = 0, 0.0, math.nan
            server.settimeout(None)  # what the server waits for before it starts is the caller's
            if server.recv(1) != _START:
                raise OSError("the server is gone")
            server.settimeout(_BOUND)
            while True:
                began = time.monotonic()
                news = jax.block_until_ready(self.update(self.model, self.known, np.int32(step)))
                message = plan.wire.message(news, plan.wire.choice(link.budget(computing)))
                computing = time.monotonic() - began
                send(server, Frame(message.choice, False, computing, heard), message.packed)
                self.known = self.known + message.decoded
                frame, packed, heard = receive(server, plan.wire)
                link.observe(frame.heard)
                self.model = self.model + plan.wire.decoded(frame.choice, packed)
                step += 1
                if frame.last:
                    return self.model


class _Server:
    """Who knows the model, its estimate, and the mean of the estimates of all updates."""

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
            randomness.of_owner(optimizers.start(optimizer, flat), key),
            jnp.zeros_like(flat),
            flat,
        )
        self.step = jax.jit(partial(optimizers.step, optimizer))

    def run(self, seconds: float, rounds: float, wait: Callable[[], Any] | None) -> Trained:
        """So many rounds, or for so long. The workers begin when they hear of the start."""
        plan, link, rows, models = self.plan, _Link(self.plan, down=True), [], []
        plan.wire.rehearse()
        jax.block_until_ready(
            (
                self.step(self.model, self.total / plan.N),
                self.model.params - self.estimate + self.total,
            )
        )
        connections = _connected(plan.N)
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
                        self.total = self.total + plan.wire.decoded(frame.choice, packed) / plan.N
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
        """f at these models."""
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


def _connected(N: int) -> list[socket.socket]:
    """The server's connections, by worker; a worker's to the server. All are ready when they are
    there.
    """
    if jax.process_index():
        host, port = json.loads(agreement.exchange("the server's address", "")[0])
        connections = [socket.create_connection((host, port), timeout=_BOUND)]
        connections[0].sendall((jax.process_index() - 1).to_bytes(4, "big"))
    else:
        with socket.create_server((local_processes.here(), 0), backlog=N) as listening:
            listening.settimeout(_BOUND)
            agreement.exchange("the server's address", json.dumps(listening.getsockname()))
            accepted = [listening.accept()[0] for _ in range(N)]
        by_worker = {
            int.from_bytes(one.recv(4, socket.MSG_WAITALL), "big"): one for one in accepted
        }
        connections = [by_worker[n] for n in range(N)]
    for one in connections:
        one.settimeout(_BOUND)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connections
