r"""Every round is the paper's: each method beside the recursion of its paper in `theory_checks.recursions`, symbol by symbol.

The recursion is told what the method draws (who is asked, with whom one averages), and what noise each gradient has follows from the
round's key and the worker's number: both sides are then equal up to rounding, models as well as what else the paper names (errors,
estimates, trackers, masses, control variates), and the model to take home. Compressors draw nothing: half of the elements, short mantissas,
signs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

import algorithms
import topologies
from algorithms import delays
from dsgd import clusters, compressors
from dsgd.base import Algorithm
from dsgd.graphs.topology import Topology
from theory_checks.machinery import cases, trajectories
from theory_checks.machinery.cases import Case, Method, Symbols, Told, on_server, on_workers
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.statement import Draws, Statement
from theory_checks.machinery.trajectories import LAYERS, D, N, Trajectory
from theory_checks.recursions import asynchronous, compressed, decentralized, synchronous
from theory_checks.recursions.compressed import Parts, clipped, largest_half, mean_size_times_sign
from theory_checks.recursions.shared import Matrices
from theory_checks.statements import bits

H, BACKUPS, ETA = 3, 2, 0.3
DOUBLE = 64  # bits of a number
BITS = DOUBLE * D  # of a model


# --- All together.


def _plainly(method: Method, optimizer: optax.GradientTransformation, of: Instance) -> Algorithm:
    return method(optimizer)


def _every_third(method: Method, optimizer: optax.GradientTransformation, of: Instance) -> Algorithm:
    return method(optimizer, H)


def _minibatch(told: Told) -> Iterator[Symbols]:
    return synchronous.minibatch(told.x, told.G, N, told.step)


def _exact(told: Told) -> Iterator[Symbols]:
    return synchronous.minibatch(told.x, told.exact, N, told.step)


def asked(found: Trajectory) -> np.ndarray:
    """The one worker whose gradient each round asked for, `[T]`; -1 where that is not one."""
    if found.asked is None or found.asked.shape[1] != 1:
        return np.full(len(found.home), -1)
    return found.asked[:, 0]


def _with_control(found: Trajectory, papers: Symbols) -> Symbols:
    workers = on_workers(found, {symbol: papers[symbol] for symbol in ("params", "control")})
    return {**workers, "c": trajectories.rows(found.states.server, 1)}


def _with_compute(found: Trajectory, papers: Symbols) -> Symbols:
    return {**on_server(found, papers), "compute": np.asarray(found.info.compute)}


def cluster(draws: Draws) -> asynchronous.Numbers:
    """Dyadic seconds of three laps, bandwidths powers of two: float32 has every time exactly. With many ties."""
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    most = draws.choice((3, 40))
    up, down = (BITS * 2.0 ** rng.integers(-1, 4, size=N) for _ in range(2))
    return asynchronous.Numbers((rng.integers(1, 41, size=(N, 3)) % most + 1) / 8.0, up, down)


def placed(of: Instance, **options: Any) -> clusters.Cluster:
    """The cluster of these numbers. Who begins to compute at a time takes one of its laps by that time."""
    numbers: Any = of.more

    def bandwidth(values):
        return clusters.Quantity(lambda key, clock, worker: values[worker], "bandwidth", positive=True, steady=True)

    def seconds(key, clock, worker):
        return numbers.compute[worker, jnp.floor(8 * clock).astype(jnp.int32) % numbers.compute.shape[1]]

    computing = clusters.Quantity(seconds, "seconds", positive=False)
    return clusters.Cluster(computing, bandwidth(numbers.up), bandwidth(numbers.down), **options)


def _backup(told: Told) -> Iterator[Symbols]:
    numbers = told.more
    return synchronous.backup(told.x, told.G, N, told.step, lambda t: np.array([numbers.seconds(n, float(t)) for n in range(N)]), BACKUPS)


SYNCHRONOUS = (
    Case("GD", "(1.2)", algorithms.gradient_descent, _plainly, _exact, on_server, "exact gradients"),
    Case(
        "SGD",
        "(1.10)",
        algorithms.sgd,
        _plainly,
        lambda told: synchronous.sgd(told.x, told.G, N, told.step, asked(told.found)),
        on_server,
        "of the worker that is asked",
        "adam",
    ),
    Case("mb-SGD", "section 2.1.2", algorithms.minibatch_sgd, _plainly, _minibatch, on_server, optimizer="momentum"),
    Case("mb-SGD, parameter server", "section 2.1.2", algorithms.parameter_server_sgd, _plainly, _minibatch, on_server, optimizer="adam"),
    Case(
        "mb-SGD, model averaging",
        "section 2.1.2",
        algorithms.model_averaging_sgd,
        _plainly,
        lambda told: synchronous.model_averaging(told.X, told.G, told.step),
        on_workers,
        "Adam's memories are local",
        "adam",
    ),
    Case(
        "local SGD",
        "Stich 2019, algorithm 1",
        algorithms.local_sgd,
        _every_third,
        lambda told: synchronous.local(told.X, told.G, lambda t: np.full((N, N), 1 / N), told.step, H),
        on_workers,
        optimizer="momentum",
    ),
    Case(
        "SCAFFOLD",
        "Karimireddy et al. 2020, algorithm 1",
        algorithms.scaffold,
        _every_third,
        lambda told: synchronous.scaffold(told.x, told.G, N, told.gamma, H),
        _with_control,
    ),
    Case(
        "backup workers",
        "Chen et al. 2016",
        algorithms.backup_workers_sgd,
        lambda method, optimizer, of: method(optimizer, BACKUPS),
        _backup,
        _with_compute,
        "mean of the first; seconds of a table",
        "momentum",
        cluster,
        placed,
    ),
)


# --- Compression.

HALF, SHORT, SIGN = compressors.top_k(0.5), compressors.clipping(3), compressors.sign
IN_LAYERS, WHOLE = Parts(LAYERS, N), Parts((D,), N)
HALF_OF_ALL, SHORT_OF_ALL = compressors.whole_model(HALF), compressors.whole_model(SHORT)


def _with_errors(cutting: Parts, found: Trajectory, papers: Symbols) -> Symbols:
    memory = found.states.workers
    return {
        **on_server(found, papers),
        "delta_worker": cutting.join(_beside(memory.worker)),
        "delta_server": cutting.join(_beside(memory.server)),
    }


def _with_estimates(cutting: Parts, found: Trajectory, papers: Symbols) -> Symbols:
    known = found.states.workers
    return {
        "x": cutting.join(_beside(known.model.params)),
        "x_hat": trajectories.rows(found.states.server, 1),
        "u_hat": cutting.join(_beside(known.gradient)),
        "mean of u_hat": cutting.join(_beside(known.mean)),
    }


def _beside(parts: Any) -> np.ndarray:
    """The parts of all layers, one beside the other, `[..., N, part]`."""
    return np.concatenate([np.asarray(leaf) for leaf in (parts.values() if isinstance(parts, dict) else [parts])], axis=-1)


def _estimated(told: Told, up: compressed.Q, down: compressed.Q, cutting: Parts) -> Iterator[Symbols]:
    for symbols in compressed.kimad(told.x, told.G, told.step, up, down, cutting):
        yield {**symbols, "mean of u_hat": symbols["u_hat"].mean(axis=0)}


def _csgd(name: str, reference: str, via: str, exchange: compressed.Exchange, Q: Any, q: compressed.Q, cutting: Parts) -> Case:
    return Case(
        f"CSGD, {name}",
        reference,
        algorithms.compressed_sgd,
        lambda method, optimizer, of: method(optimizer, Q, via, allow_biased=True),
        lambda told: compressed.csgd(told.x, told.G, told.step, exchange, q, cutting),
        on_server,
        f"Q: {Q.name}",
    )


def _two(
    name: str, reference: str, method: Method, recursion: Callable, seen: Callable, up: Any, down: Any, cutting: Parts, **more
) -> Case:
    (Up, u), (Down, d) = up, down
    return Case(
        name,
        reference,
        method,
        lambda method, optimizer, of: method(optimizer, Up, Down),
        lambda told: recursion(told, u, d, cutting),
        partial(seen, cutting),
        f"{Up.name} up, {Down.name} down",
        **more,
    )


def _squeezed_twice(told: Told, up: compressed.Q, down: compressed.Q, cutting: Parts) -> Iterator[Symbols]:
    return compressed.double_squeeze(told.x, told.G, told.step, up, down, cutting)


_EC, _EF = algorithms.error_compensated_sgd, algorithms.ef21
_ALL = compressors.whole_model
COMPRESSED = (
    _csgd("server", "(3.4), (3.6)", "server", compressed.through_servers, SHORT, clipped, IN_LAYERS),
    _csgd("ring", "(3.5), (3.6)", "ring", compressed.around_ring, HALF, largest_half, IN_LAYERS),
    _two("EC-SGD", "(3.10) to (3.14)", _EC, _squeezed_twice, _with_errors, (HALF, largest_half), (SHORT, clipped), IN_LAYERS),
    _two(
        "EC-SGD, whole model",
        "(3.10) to (3.14)",
        _EC,
        _squeezed_twice,
        _with_errors,
        (_ALL(SIGN), mean_size_times_sign),
        (_ALL(compressors.identity), lambda x: x),
        WHOLE,
        optimizer="momentum",
    ),
    _two(
        "EF21",
        "Kimad, algorithm 3",
        _EF,
        _estimated,
        _with_estimates,
        (HALF, largest_half),
        (SHORT, clipped),
        IN_LAYERS,
        optimizer="momentum",
    ),
    _two(
        "EF21, whole model",
        "Kimad, algorithm 3",
        _EF,
        _estimated,
        _with_estimates,
        (_ALL(HALF), largest_half),
        (_ALL(SHORT), clipped),
        WHOLE,
    ),
)


# --- Gossip.

_RING = [(n, (n + 1) % N) for n in range(N)]
_IRREGULAR = [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4), (4, 5)]
_DIRECTED = [*_RING, (0, 2), (0, 3), (3, 1)]  # no two kinds of workers send, or receive, equally often: only columns sum to 1


@cache
def graph(name: str) -> Topology:
    """One of those that the cases are on."""
    made: dict[str, Callable[[], Topology]] = {
        "ring": lambda: topologies.ring(N),
        "lazy": lambda: topologies.ring(N, topologies.lazy),
        "star": lambda: topologies.star(N),
        "exponential": lambda: topologies.exponential(N),
        "one peer": lambda: topologies.one_peer_exponential(N),
        "matchings": lambda: topologies.random_matchings(N, 4),
        "irregular": lambda: topologies.from_graph(nx.Graph(_IRREGULAR), name="irregular"),
        "directed": lambda: topologies.from_graph(nx.DiGraph(_DIRECTED), name="directed"),
    }
    return made[name]()


def matrices(name: str) -> Matrices:
    """W(t) of a graph, or of a schedule, written down once more; of what is random, the project's own."""
    written = {
        "ring": lambda: [_metropolis(_RING)],
        "lazy": lambda: [(np.eye(N) + _metropolis(_RING)) / 2],
        "star": lambda: [_metropolis([(0, n) for n in range(1, N)])],
        "irregular": lambda: [_metropolis(_IRREGULAR)],
        "exponential": lambda: [(np.eye(N) + _from(1) + _from(2) + _from(4)) / 4],
        "one peer": lambda: [(np.eye(N) + _from(distance)) / 2 for distance in (1, 2, 4)],
        "directed": lambda: [_shares(_DIRECTED)],
        "matchings": lambda: [W.toarray() for W in graph("matchings").matrices],
    }
    dense = written[name]()
    return lambda t: dense[t % len(dense)]


def _metropolis(edges: Sequence[tuple[int, int]]) -> np.ndarray:
    """W_ij = 1 / (1 + max(degree i, degree j)); what is left, on the diagonal."""
    degree, W = np.bincount(np.ravel(edges), minlength=N), np.zeros((N, N))
    for i, j in edges:
        W[i, j] = W[j, i] = 1 / (1 + max(degree[i], degree[j]))
    return W + np.diag(1 - W.sum(axis=0))


def _from(distance: int) -> np.ndarray:
    """Everybody i receives from i - distance: ones."""
    return np.roll(np.eye(N), distance, axis=0)


def _shares(arrows: Sequence[tuple[int, int]]) -> np.ndarray:
    """Each (sender, receiver): a sender keeps as much as it sends each."""
    W = np.eye(N)
    for sender, receiver in arrows:
        W[receiver, sender] = 1
    return W / W.sum(axis=0)


def _between_neighbours(rounds: Iterator[Symbols], on: str, message: float, every: int = 1) -> Iterator[Symbols]:
    """The same rounds, with a message of so many bits to each neighbour in the last of every few."""
    for t, symbols in enumerate(rounds, start=1):
        links = matrices(on)(t // every - 1) * (1 - np.eye(N)) != 0
        up, down = ((message if t % every == 0 else 0.0) * links.sum(axis=axis) for axis in (0, 1))
        yield {**symbols, "bits up": up, "bits down": down}


def _gossip(
    name: str, reference: str, method: Method, recursion: Callable, on: str, optimizer: str = "plain", message: float = BITS
) -> Case:
    return Case(
        name,
        reference,
        method,
        lambda method, optimizer, of: method(optimizer, graph(on)),
        lambda told: _between_neighbours(recursion(told.X, told.G, matrices(on), told.step), on, message),
        on_workers,
        f"on {on}",
        optimizer,
    )


def _lossy_gossip(
    name: str, reference: str, method: Method, recursion: Callable, on: str, C: Any, q: compressed.Q, message: float, **more: Any
) -> Case:
    return Case(
        name,
        reference,
        method,
        lambda method, optimizer, of: method(optimizer, graph(on), C, ETA),
        lambda told: _between_neighbours(recursion(told.X, told.G, matrices(on), told.step, q, ETA), on, message),
        on_workers,
        f"on {on}; {C.name}",
        **more,
    )


def _in_layers(q: compressed.Q) -> compressed.Q:
    return decentralized.by_layers(q, LAYERS)


DECENTRALIZED = (
    _gossip("DSGD", "(5.2)", algorithms.decentralized_sgd, decentralized.decentralized, "exponential", "momentum"),
    _gossip("DSGD, schedule", "(5.2)", algorithms.decentralized_sgd, decentralized.decentralized, "one peer"),
    Case(
        "local SGD, schedule",
        "Koloskova et al. 2020",
        algorithms.local_sgd,
        lambda method, optimizer, of: method(optimizer, 2, graph("one peer")),
        lambda told: _between_neighbours(synchronous.local(told.X, told.G, matrices("one peer"), told.step, 2), "one peer", BITS, 2),
        on_workers,
        "on one peer, every other round",
    ),
    _gossip("D2", "Tang et al. 2018, algorithm 1", algorithms.d2, decentralized.d_squared, "lazy"),
    _gossip("EXTRA", "Shi et al. 2015, (2.13)", algorithms.extra, decentralized.shi, "irregular", "momentum"),
    _gossip("exact diffusion", "Li et al. 2019, NIDS", algorithms.exact_diffusion, decentralized.nids, "star"),
    _gossip(
        "gradient tracking",
        "Nedic et al. 2017, DIGing",
        algorithms.gradient_tracking,
        decentralized.tracking,
        "exponential",
        message=2 * BITS,
    ),
    _gossip(
        "gradient tracking, schedule",
        "Nedic et al. 2017, DIGing",
        algorithms.gradient_tracking,
        decentralized.tracking,
        "one peer",
        "momentum",
        2 * BITS,
    ),
    _gossip(
        "SGP",
        "Assran et al. 2019, algorithm 1",
        algorithms.stochastic_gradient_push,
        decentralized.push,
        "directed",
        "momentum",
        BITS + DOUBLE,
    ),
    _gossip(
        "SGP, schedule",
        "Assran et al. 2019, algorithm 1",
        algorithms.stochastic_gradient_push,
        decentralized.push,
        "one peer",
        message=BITS + DOUBLE,
    ),
    _lossy_gossip(
        "CHOCO",
        "Koloskova et al. 2019, algorithm 2",
        algorithms.choco_sgd,
        decentralized.choco,
        "irregular",
        HALF,
        _in_layers(largest_half),
        sum(bits.largest(-(-size // 2), size, DOUBLE) for size in LAYERS),
    ),
    _lossy_gossip(
        "CHOCO, whole model",
        "Koloskova et al. 2019, algorithm 2",
        algorithms.choco_sgd,
        decentralized.choco,
        "star",
        SHORT_OF_ALL,
        clipped,
        bits.codes(D, 12),
    ),
    _lossy_gossip(
        "DeepSqueeze",
        "Tang et al. 2019, algorithm 1",
        algorithms.deepsqueeze,
        decentralized.squeeze,
        "irregular",
        SIGN,
        _in_layers(mean_size_times_sign),
        sum(bits.signs(size, DOUBLE) for size in LAYERS),
    ),
    _lossy_gossip(
        "DeepSqueeze, schedule",
        "Tang et al. 2019, algorithm 1",
        algorithms.deepsqueeze,
        decentralized.squeeze,
        "matchings",
        HALF_OF_ALL,
        largest_half,
        bits.largest(D // 2, D, DOUBLE),
        optimizer="momentum",
    ),
)


# --- Staleness.

OLDEST = 5
LATENCY = 0.25
LONG = 30  # updates: five of each worker


def _table(draws: Draws) -> np.ndarray:
    """A staleness of three parts, for so many updates, over and over."""
    return np.random.default_rng(draws.integer(0, 2**32 - 1)).integers(0, OLDEST + 1, (7, 3)).astype(np.int32)


def _of_the_table(of: Instance) -> delays.Delays:
    def staleness(key, t, parts, moved):
        return jnp.minimum(jnp.asarray(of.more)[t % 7], t).astype(jnp.int32)

    return delays.Delays(OLDEST, staleness, "table")


def _bits_of(*workers: int) -> Symbols:
    """These send, and receive, a model each."""
    each = np.where(np.isin(np.arange(N), workers), float(BITS), 0.0)
    return {"bits up": each, "bits down": each}


def _given(told: Told, aware: bool) -> Iterator[Symbols]:
    staleness = np.minimum(np.asarray(told.more)[np.arange(LONG) % 7], np.arange(LONG)[:, None])
    x = asynchronous.stale_steps(told.x, told.G, N, told.step, asked(told.found), staleness, aware=aware)
    for t in range(LONG):
        worker = asked(told.found)[t]
        yield {"x": x[t + 1], "worker": worker, "staleness": staleness[t].max(), **_bits_of(worker)}


def _emergent(told: Told, servers: int, convention: str, bound: float, aware: bool) -> Iterator[Symbols]:
    schedule = asynchronous.server_schedule(
        told.more, latency=LATENCY, convention=convention, servers=servers, updates=LONG, bits=BITS, bound=bound
    )
    x = asynchronous.stale_steps(told.x, told.G, N, told.step, schedule.worker, schedule.staleness, aware=aware)
    for t, (worker, now, old) in enumerate(zip(schedule.worker, schedule.clock, schedule.staleness, strict=True)):
        yield {
            "x": x[t + 1],
            "worker": np.int64(worker),
            "asked": np.int64(worker),
            "clock": np.float64(now),
            "staleness": old.max(),
            **_bits_of(worker),
        }


def _with_events(found: Trajectory, papers: Symbols) -> Symbols:
    metrics = found.info.metrics
    return {
        "x": trajectories.rows(found.states.server.model.params, 1),
        "worker": metrics["worker"],
        "asked": asked(found),
        "staleness": metrics["staleness"],
        "clock": found.clock,
    }


def _stale(name: str, aware: bool, optimizer: str = "plain") -> Case:
    return Case(
        name,
        "(4.2)",
        algorithms.asynchronous_sgd,
        lambda method, optimizer, of: method(optimizer, _of_the_table(of), servers=3, staleness_aware=aware),
        lambda told: _given(told, aware),
        _with_events,
        "given delays, three servers",
        optimizer,
        _table,
        length=LONG,
    )


def _served(name: str, servers: int, convention: Any, bound: int | None = None, *, aware: bool = False, optimizer: str = "plain") -> Case:
    return Case(
        name,
        "section 4.1",
        algorithms.asynchronous_sgd,
        lambda method, optimizer, of: method(optimizer, servers=servers, bound=bound, staleness_aware=aware),
        lambda told: _emergent(told, servers, convention, np.inf if bound is None else bound, aware),
        _with_events,
        f"event by event; {servers} servers, {convention}",
        optimizer,
        cluster,
        partial(placed, latency=LATENCY, convention=convention),
        length=LONG,
    )


def partners(found: Trajectory) -> np.ndarray:
    """Of each update of AD-PSGD, the other one who sends, `[T]`; -1 where that is not one other."""
    found_ = []
    for worker, sent in zip(found.info.metrics["worker"], found.sent, strict=True):
        others = [n for n in np.flatnonzero(sent) if n != worker]
        found_.append(others[0] if len(others) == 1 and sent[worker] else -1)
    return np.array(found_)


def _pairs(told: Told) -> Iterator[Symbols]:
    numbers, found = told.more, told.found
    worker, partner = found.info.metrics["worker"], partners(found)
    schedule = asynchronous.gossip_schedule(numbers, LATENCY, [partner[worker == n].tolist() for n in range(N)], LONG, BITS)
    steps = [told.steps() for _ in range(N)]
    X = asynchronous.pairwise_steps(told.X, told.G, steps, schedule.worker, schedule.partner)
    for t, (i, now) in enumerate(zip(schedule.worker, schedule.clock, strict=True)):
        before = [s + 1 for s in range(t) if schedule.worker[s] == i]
        yield {
            "params": X[t + 1],
            "worker": np.int64(i),
            "asked": np.int64(i),
            "clock": np.float64(now),
            "staleness": np.int64(t - max(before, default=0)),
            **_bits_of(i, schedule.partner[t]),
        }


def _with_exchanges(found: Trajectory, papers: Symbols) -> Symbols:
    metrics = found.info.metrics
    return {
        "params": trajectories.rows(found.states.workers.params),
        "worker": metrics["worker"],
        "asked": asked(found),
        "staleness": metrics["staleness"],
        "clock": found.clock,
    }


ASYNCHRONOUS = (
    _stale("ASGD, given delays", aware=False, optimizer="momentum"),
    _stale("ASGD, given delays, staleness-aware", aware=True),
    _served("ASGD on a cluster", 2, "blocking"),
    _served("ASGD on a cluster, bounded", 1, "pipelined", N - 1, aware=True, optimizer="momentum"),
    Case(
        "AD-PSGD",
        "Lian et al. 2018, algorithm 1",
        algorithms.asynchronous_gossip_sgd,
        lambda method, optimizer, of: method(optimizer, graph("irregular")),
        _pairs,
        _with_exchanges,
        "event by event; told the partners",
        "momentum",
        cluster,
        partial(placed, latency=LATENCY),
        length=LONG,
    ),
)

CASES: dict[str, Case] = {case.name: case for case in (*SYNCHRONOUS, *COMPRESSED, *DECENTRALIZED, *ASYNCHRONOUS)}
STATEMENTS = [
    Statement(f"{case.name}, every round", case.reference, case.hypotheses, partial(cases.trial, case)) for case in CASES.values()
]
