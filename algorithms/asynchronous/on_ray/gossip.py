"""AD-PSGD in real processes: pairs of workers average their models, without synchronized rounds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

from algorithms import gossip
from algorithms.asynchronous.on_ray.actors import actor, kill
from algorithms.asynchronous.on_ray.peer import Exchange, Peer, Report
from algorithms.asynchronous.on_ray.trained import Trained, evaluate, first_params, select_records
from algorithms.asynchronous.on_ray.with_servers import tasks, validate_numbers
from algorithms.asynchronous.on_ray.worker import Delay
from algorithms.asynchronous.on_ray.worker_pool import StallTimeout, WorkerPool
from dsgd import checks, communication
from dsgd.base import Key, Params, Problem, PyTree
from dsgd.graphs.topology import Topology
from dsgd.machines.ray_session import session


@checks.arguments
def asynchronous_gossip_sgd(
    problem: Problem,
    optimizer: optax.GradientTransformation,
    topology: Topology,
    *,
    steps: int,
    key: Key,
    record_every: int = 1,
    delay: Delay | None = None,
    address: str = "local",
    restarts: int = 3,
    patience: float = 120.0,
) -> Trained:
    r"""AD-PSGD in real processes: a worker that has computed a gradient averages its model with one
    neighbour and makes its step, without synchronized rounds.

    $$ X_{t+1} = X_t W_t - \gamma\, g_{i_t}(\hat x_t^{(i_t)})\, e_{i_t}^\top $$

    The update is that of `algorithms.asynchronous_gossip_sgd`. Exchanges are atomic and free of
    deadlocks on any connected graph (see `on_ray.peer`). Neighbours leave out a worker that died;
    after its restart it continues with the model of one of them.

    Args:
        problem, optimizer, key, delay, address, restarts, patience: see `on_ray.run`.
        topology: determines the neighbours; its weights are not used.
        steps: number of updates after which the workers are stopped; they make a few more until the
            stop reaches them.
        record_every: approximate number of updates between two records; records are taken by
            Lamport's logical clock, which every worker has.

    Returns:
        As `on_ray.run`; the model is the workers' mean, and `consensus` is (1/N) sum
        |x_n - x|^2.

    Raises:
        ValueError: if the topology is a schedule, a directed graph or has another number of
            workers, a number is out of range, or Ray is not available.
        ChildProcessError, TimeoutError, Diverged: see `on_ray.run`.

    Source: Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", 2018,
    algorithm 1.
    """
    name = f"asynchronous_gossip_sgd(on_ray, {topology.name})"
    gossip.require_topology(name, topology, symmetric=True, fixed=True)
    N = problem.workers
    if topology.n != N:
        raise ValueError(
            f"{name}: the topology has {topology.n} nodes but the problem has {N} workers; "
            "expected the same number"
        )
    validate_numbers(name, steps, record_every, restarts, patience)
    return _train(
        name,
        problem,
        optimizer,
        topology,
        checks.typed_key(key),
        steps,
        max(1, record_every // N),
        delay,
        address,
        restarts,
        patience,
    )


def _train(
    name: str,
    problem: Problem,
    optimizer: optax.GradientTransformation,
    topology: Topology,
    key: jax.Array,
    steps: int,
    every: int,
    delay: Delay | None,
    address: str,
    restarts: int,
    patience: float,
) -> Trained:
    """Runs the actors, with a record every `every` stamps."""
    N = problem.workers
    params = first_params(problem, key)
    task = tasks(problem, key, params, delay)
    with session(N, address) as ray:
        peers: list[Any] = []
        try:
            given = (optimizer, params, every, patience)
            mine = [ray.put(task(worker)) for worker in range(N)]
            peers.extend(
                actor(ray, Peer, worker, each, *given, restarts=restarts)
                for worker, each in enumerate(mine)
            )
            run = _Run(ray, name, peers, topology, steps, patience)
            last = run.wait_for_updates()
        finally:
            kill(ray, peers)
    return _combine(name, problem, params, run, last, every)


class _Run:
    """The driver's view of a run.

    Args:
        ray: the module.
        name: of the method.
        peers: the workers, in order.
        topology: determines the neighbours.
        steps: number of updates to wait for.
        patience: the longest time without an update, seconds.
    """

    def __init__(
        self,
        ray: Any,
        name: str,
        peers: Sequence[Any],
        topology: Topology,
        steps: int,
        patience: float,
    ) -> None:
        self.ray, self.name, self.peers, self.steps, self.patience = (
            ray,
            name,
            peers,
            steps,
            patience,
        )
        self.neighbours = {
            n: {int(other): peers[int(other)] for one, other in topology.links[0] if one == n}
            for n in range(topology.n)
        }
        self.exchanges: list[Exchange] = []
        self.records: dict[int, dict[int, PyTree]] = {}  # by stamp and worker
        self.requests: dict[
            Any, tuple[int, int]
        ] = {}  # pending requests for reports: (worker, incarnation)
        self.ready: set[int] = set(range(len(peers)))  # workers that have a model
        self.began: float | None = None

    def begin(self, worker: int, incarnation: int) -> Any:
        """Starts a worker's run; called by the pool."""
        self.began = self.began or time.monotonic()
        draw = 1 + max((each.draw for each in self.exchanges if each.worker == worker), default=-1)
        return self.peers[worker].run.remote(
            self.neighbours[worker], draw, time.monotonic() - self.began
        )

    def wait_for_updates(self) -> dict[int, tuple[PyTree, int]]:
        """Waits for enough updates, and returns the workers' last models with their stamps."""
        pool = WorkerPool(self.ray, self.peers, self.begin)
        pool.start(self.patience)
        waiting = StallTimeout(self.patience)
        while len(self.exchanges) < self.steps:
            self.ready -= set(pool.look())
            if not self.ready:
                raise ChildProcessError(
                    f"{self.name}: all workers have died, so that no model is left to continue "
                    "from; pass more restarts"
                )
            self._collect(pool)
            waiting.need(len(self.exchanges), f"{self.name}: no update")
        there = {worker: self.peers[worker] for worker in sorted(self.ready)}
        self.ray.get([peer.stop.remote() for peer in there.values()], timeout=self.patience)
        last = dict(
            zip(
                there,
                self.ray.get(
                    [peer.look.remote() for peer in there.values()], timeout=self.patience
                ),
                strict=True,
            )
        )
        # A pending answer contains a report that its worker does not send again.
        asked = [
            (worker, answer)
            for answer, (worker, incarnation) in self.requests.items()
            if worker in there and incarnation == pool.incarnations[worker]
        ]
        asked += [(worker, peer.report.remote()) for worker, peer in there.items()]
        for worker, answer in asked:
            self._keep(worker, self.ray.get(answer, timeout=self.patience))
        return last

    def _collect(self, pool: WorkerPool) -> None:
        """Collects the reports that workers have sent. A worker is not asked again before it has
        answered.
        """
        for worker in set(pool.runs.values()) - {
            worker
            for worker, incarnation in self.requests.values()
            if incarnation == pool.incarnations[worker]
        }:
            self.requests[self.peers[worker].report.remote()] = (worker, pool.incarnations[worker])
        done, _ = self.ray.wait(list(self.requests), num_returns=len(self.requests), timeout=0.02)
        for answer in done:
            worker, incarnation = self.requests.pop(answer)
            try:
                report: Report = self.ray.get(answer)
            except self.ray.exceptions.RayActorError:  # the pool handles it
                continue
            self._keep(worker, report)
            if report.ready and incarnation == pool.incarnations[worker]:
                self.ready.add(worker)

    def _keep(self, worker: int, report: Report) -> None:
        self.exchanges.extend(report.exchanges)
        for stamp, model in report.records:
            self.records.setdefault(stamp, {})[worker] = model


def _combine(
    name: str,
    problem: Problem,
    params: Params,
    run: _Run,
    last: dict[int, tuple[PyTree, int]],
    every: int,
) -> Trained:
    """Combines and orders the results of all workers."""
    order = sorted(run.exchanges, key=lambda each: (each.stamp, each.partner))
    columns = {
        field: np.array([getattr(each, field) for each in order]) for field in Exchange._fields
    }
    updates = {field: columns[field] for field in ("worker", "partner", "draw")}
    updates |= {
        "staleness": _staleness(columns["worker"], columns["stamp"], columns["read"]),
        "clock": np.maximum.accumulate(columns["at"]),
    }
    updates |= {"computed": columns["computed"], "round_trip": columns["round_trip"]}
    stamps = np.arange(every, columns["stamp"][-1], every)
    step = np.concatenate(
        [[0], np.searchsorted(columns["stamp"], stamps, side="right"), [len(order)]]
    )
    states = [dict.fromkeys(range(problem.workers), params)]
    for stamp in stamps.tolist():
        ended = {worker: model for worker, (model, at) in last.items() if at <= stamp}
        states.append({**run.records.get(stamp, {}), **ended})
    states.append({worker: model for worker, (model, _) in last.items()})
    kept = [i for i, state in enumerate(states) if state and (i == 0 or step[i] > step[i - 1])]
    states, step = [states[i] for i in kept], step[kept]
    stacked = [jax.tree.map(lambda *leaves: np.stack(leaves), *state.values()) for state in states]
    means = [jax.tree.map(lambda leaf: leaf.mean(axis=0), rows) for rows in stacked]
    bits = communication.bits.row_bits(jax.tree.map(lambda leaf: leaf[None], params))
    history = {
        "step": step,
        "bits": 4.0 * bits * step / problem.workers,
        "consensus": np.array(
            [_consensus(rows, mean) for rows, mean in zip(stacked, means, strict=True)]
        ),
        **select_records(
            step, step - 1, {name: updates[name] for name in ("clock", "staleness", "worker")}
        ),
    }
    return Trained(
        means[-1], evaluate(name, problem, means, history), updates, problem.workers, int(bits)
    )


def _staleness(worker: np.ndarray, stamp: np.ndarray, read: np.ndarray) -> np.ndarray:
    """Returns the staleness of each update, `[T]`: the number of updates since the model at which
    its gradient was computed. That is the model of its worker's last update, or, if the worker had
    died, the model that it took over at stamp `read`.
    """
    before: dict[int, int] = {}
    found = np.zeros(len(worker), int)
    taken_over = np.searchsorted(stamp, read, side="right")
    for t, one in enumerate(worker.tolist()):
        found[t] = t - (taken_over[t] if read[t] else before.get(one, 0))
        before[one] = t + 1
    return found


def _consensus(rows: PyTree, mean: PyTree) -> float:
    each = jax.tree.map(lambda many, one: float(((many - one) ** 2).sum()) / len(many), rows, mean)
    return sum(jax.tree.leaves(each))
