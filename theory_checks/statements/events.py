r"""What holds in every round of methods without a theorem, whatever the instance, and what they draw.

- Gossip keeps the mean, whatever is lost or corrected: $\bar x_{t+1} - \bar x_t$ is the step along the mean gradient. What corrects it (the
  dual sums of EXTRA, D2 and exact diffusion; what CHOCO's estimates differ by) sums to 0 over workers, and control variates average to the
  server's. The trackers' mean is that of the gradients.
- Asynchronous SGD with one server, read at once: a gradient ages by one in every update but its worker's own. Each of T updates makes
  N - 1 gradients older, so that the ages of those applied and of those still on their way add up to (N - 1) T. Workers compute one gradient
  after the other: updates are in the order in which they finish, at these seconds.
- AD-PSGD: $X_{t+1} = X_t W_t - \gamma g e_i^T$ with a doubly stochastic W_t of one pair. The mean moves by $\gamma/N$ times one gradient,
  the partner has the pair's average, all others stay; the gradient is of the model that the worker had after its last update. Partners are
  drawn uniformly from the neighbours.
- A message has a key of its own: no two workers, servers, layers, directions or rounds share a random number. A compressor that sends what
  it draws shows them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

import algorithms
from dsgd.base import Compressor
from dsgd.compressors.sizes import fixed_size
from theory_checks.machinery import cases, trajectories
from theory_checks.machinery.cases import Case, Inputs, Method
from theory_checks.machinery.search import Tape
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.machinery.trajectories import D, N
from theory_checks.recursions import asynchronous
from theory_checks.statements.recursions import CASES
from theory_checks.statements.recursions.asynchronous import LONG, partners
from theory_checks.statements.recursions.compressed import IN_LAYERS, beside
from theory_checks.statements.recursions.decentralized import ETA
from theory_checks.statements.recursions.shared import cluster, graph, matrices, placed

Invariant = Callable[[Case, Inputs], list[Outcome]]


def trial(invariant: Invariant, names: tuple[str, ...], draws: Draws, method: Method | None = None) -> list[Outcome]:
    """What must hold in every round, of one of the cases by name."""
    case = CASES[draws.choice(names)]
    of, found = cases.run(case, draws, method)
    return invariant(case, cases.inputs(case, of, found))


def built(invariant: Invariant, name: str, method: Method | None = None) -> list[Outcome]:
    """The same, of this case, on one instance."""
    return trial(invariant, (name,), Tape(np.random.default_rng(0)), method)


# --- Means and sums over workers.


def mean_moves(case: Case, inputs: Inputs) -> list[Outcome]:
    """By the step that the mean gradient makes: of gradients as they came, wherever they were asked."""
    X, step = trajectories.rows(inputs.found.states.workers.params), inputs.step
    expected = np.cumsum([inputs.x, *(step(g.mean(axis=0)) for g in inputs.found.gradients)], axis=0)
    return [cases.compare(f"{case.name}: mean of the models", X.mean(axis=1), expected)]


def sums_vanish(case: Case, inputs: Inputs) -> list[Outcome]:
    """Of what corrects the models."""
    workers = inputs.found.states.workers
    if hasattr(workers, "control"):
        c = trajectories.rows(inputs.found.states.server, 1)
        return [cases.compare(f"{case.name}: mean control variate", c, trajectories.rows(workers.control).mean(axis=1))]
    dual = trajectories.rows(workers.laplacian if hasattr(workers, "laplacian") else workers.correction)
    return [cases.compare(f"{case.name}: dual sum", dual.sum(axis=1), np.zeros((len(dual), D)))]


def trackers_average(case: Case, inputs: Inputs) -> list[Outcome]:
    """To the mean gradient of the round; each worker's own is no tracker."""
    tracker = trajectories.rows(inputs.found.states.workers.tracker)[1:]
    return [cases.compare(f"{case.name}: mean of the trackers", tracker.mean(axis=1), inputs.found.gradients.mean(axis=1))]


# --- Asynchronous SGD.


def _alone(name: str, reference: str, method: Method, make: Callable, **more: Any) -> Case:
    """A case without a recursion."""
    return Case(name, reference, method, make, lambda inputs: iter(()), lambda found, papers: {}, **more)


def finishing(numbers: asynchronous.Numbers, updates: int) -> tuple[np.ndarray, np.ndarray]:
    """Who finishes first, second, ..., of workers that compute one gradient after the other, and when: `[T]` each. Of equals, the first."""
    queue = [(numbers.seconds(n, 0.0), n) for n in range(N)]
    heapq.heapify(queue)
    found = []
    for _ in range(updates):
        now, n = queue[0]
        found.append((n, now))
        heapq.heapreplace(queue, (now + numbers.seconds(n, now), n))
    workers, clock = zip(*found, strict=True)
    return np.array(workers), np.array(clock)


def ages(case: Case, inputs: Inputs) -> list[Outcome]:
    """Of all gradients that were applied, and of those on their way; order and seconds."""
    worker, staleness = (inputs.found.metrics[name] for name in ("worker", "staleness"))
    T = len(worker)
    last = [max((t + 1 for t in range(T) if worker[t] == n), default=0) for n in range(N)]
    on_the_way = sum(T - each for each in last)
    order, clock = finishing(inputs.more, T)
    total = Outcome(float(staleness.sum() + on_the_way), float((N - 1) * T), case=f"{case.name}: sum of ages", equality=True)
    return [
        total,
        cases.compare(f"{case.name}: who finishes", worker, order),
        cases.compare(f"{case.name}: when", inputs.found.clock, clock),
    ]


AT_ONCE = _alone(
    "ASGD, read at once",
    "section 4.1",
    algorithms.asynchronous_sgd,
    lambda method, optimizer, of: method(optimizer),
    more=lambda draws: cluster(draws)._replace(up=np.full(N, np.inf), down=np.full(N, np.inf)),
    place=placed,
    length=LONG,
)


def trial_ages(draws: Draws, method: Method | None = None) -> list[Outcome]:
    """One cluster, on which messages take no time."""
    of, found = cases.run(AT_ONCE, draws, method)
    return ages(AT_ONCE, cases.inputs(AT_ONCE, of, found))


# --- Asynchronous gossip.


def pairs(case: Case, inputs: Inputs) -> list[Outcome]:
    """What one exchange changes, in every round."""
    found, step = inputs.found, [inputs.steps() for _ in range(N)]
    X, read = (trajectories.rows(getattr(found.states.workers, name)) for name in ("params", "read"))
    i, j, rounds = found.metrics["worker"], partners(found), np.arange(len(found.home))
    asked_at = np.stack([inputs.G(int(t), read[t])[i[t]] for t in rounds])
    change = np.stack([step[i[t]](found.gradients[t, 0]) for t in rounds])
    middle = (X[rounds, i] + X[rounds, j]) / 2
    others = np.array([[n not in (a, b) for n in range(N)] for a, b in zip(i, j, strict=True)])[..., None]
    return [
        cases.compare(f"{case.name}: mean of the models", np.diff(X.mean(axis=1), axis=0), change / N),
        cases.compare(f"{case.name}: the partner", X[rounds + 1, j], middle),
        cases.compare(f"{case.name}: the worker", X[rounds + 1, i] - change, middle),
        cases.compare(f"{case.name}: all others", X[1:] * others, X[:-1] * others),
        cases.compare(f"{case.name}: the gradient", found.gradients[:, 0], asked_at),
        cases.compare(f"{case.name}: what is read", read[rounds + 1, i], X[rounds + 1, i]),
    ]


_SAME = 1e-12  # to rounding
_RUNS = 60  # of LONG updates each
_LINKED = (matrices("irregular")(0) != 0) & ~np.eye(N, dtype=bool)


def partners_are_neighbours(draws: Draws, method: Method = algorithms.asynchronous_gossip_sgd) -> list[Outcome]:
    """In every update of one run: how many exchanges are between others."""
    case = CASES["AD-PSGD"]
    _, found = cases.run(case, draws, method)
    others = partners(found)
    strangers = (others < 0) | ~_LINKED[found.metrics["worker"], others]
    return [Outcome(float(strangers.sum()), 0.0, case=f"{case.name}: exchanges with others than neighbours", equality=True, scale=1.0)]


def partners_are_uniform(method: Method = algorithms.asynchronous_gossip_sgd) -> list[Outcome]:
    """Over many runs: the share that each neighbour has of a worker's exchanges."""
    counts, draws = np.zeros((N, N)), Tape(np.random.default_rng(0))
    for _ in range(_RUNS):
        _, found = cases.run(CASES["AD-PSGD"], draws, method)
        np.add.at(counts, (found.metrics["worker"], partners(found)), 1)
    outcomes = []
    for i, j in zip(*np.nonzero(_LINKED), strict=True):
        share, total = 1 / _LINKED[i].sum(), counts[i].sum()
        error = float(np.sqrt(share * (1 - share) / total))
        case = f"worker {i} with {j}, of {total:.0f} exchanges"
        outcomes.append(Outcome(float(counts[i, j] / total), float(share), error, case, equality=True, scale=1e-3))
    return outcomes


# --- Keys.


def _add(key: jax.Array, x: jax.Array) -> jax.Array:
    return x + jax.random.uniform(key, x.shape, x.dtype)


SHOWN: Compressor = fixed_size(_add, lambda message, d: message, "shown", delta=lambda d: 1.0)  # adds what it draws


def _left_out(inputs: Inputs) -> list[Any]:
    """By EC-SGD and DeepSqueeze: what is in the memories, but for its sign."""
    memory = inputs.found.states.workers
    return [memory.worker, memory.server] if hasattr(memory, "worker") else [memory.error]


def _beyond_estimates(inputs: Inputs) -> list[Any]:
    """By EF21: how far estimates are from what they are of."""
    known = inputs.found.states.workers
    u_hat = IN_LAYERS.join(beside(known.gradient))[1:]
    return [u_hat - inputs.found.gradients, jax.tree.map(np.subtract, known.estimate, known.model.params)]


def _beyond_models(inputs: Inputs) -> list[Any]:
    """By CHOCO: how far estimates are from the models before gossip."""
    workers = inputs.found.states.workers
    x_hat, params, laplacian = (trajectories.rows(getattr(workers, name)) for name in ("x_hat", "params", "laplacian"))
    return [x_hat - (params - ETA * laplacian)]


def _collected(inputs: Inputs) -> list[Any]:
    """Around the ring: what all hops of a part have added. Were those of a worker the same, all parts would collect the same."""
    x = trajectories.rows(inputs.found.states.server.params, 1)
    return [np.diff(x, axis=0) / -inputs.gamma - inputs.found.gradients.mean(axis=1)]


def _on_ring(method: Method, optimizer: Any, of: Any) -> Any:
    return method(optimizer, graph("ring"), SHOWN, ETA)


def _both_ways(method: Method, optimizer: Any, of: Any) -> Any:
    return method(optimizer, SHOWN, SHOWN)


DRAWS: dict[str, tuple[Case, Callable[[Inputs], list[Any]]]] = {
    "EC-SGD": (_alone("EC-SGD", "(3.10)", algorithms.error_compensated_sgd, _both_ways), _left_out),
    "EF21": (_alone("EF21", "", algorithms.ef21, _both_ways), _beyond_estimates),
    "CSGD, ring": (
        _alone("CSGD, ring", "(3.5)", algorithms.compressed_sgd, lambda method, optimizer, of: method(optimizer, SHOWN, "ring", True)),
        _collected,
    ),
    "CHOCO": (_alone("CHOCO", "", algorithms.choco_sgd, _on_ring), _beyond_models),
    "DeepSqueeze": (_alone("DeepSqueeze", "", algorithms.deepsqueeze, _on_ring), _left_out),
}


def keys_differ(name: str, draws: Draws, method: Method | None = None) -> list[Outcome]:
    """How many of all numbers that were added in all rounds are the same as another one."""
    case, seen = DRAWS[name]
    of, found = cases.run(case, draws, method)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(seen(cases.inputs(case, of, found)))]
    numbers = np.sort(np.concatenate([leaf[-trajectories.ROUNDS :].ravel() for leaf in leaves]))
    same = int((np.diff(numbers) < _SAME).sum())
    return [Outcome(float(same), 0.0, case=f"{name}: {len(numbers)} numbers", equality=True, scale=1.0)]


def trial_keys(draws: Draws, method: Method | None = None) -> list[Outcome]:
    """One of the methods."""
    return keys_differ(draws.choice(tuple(DRAWS)), draws, method)


def built_keys(name: str, method: Method | None = None) -> list[Outcome]:
    """This method."""
    return keys_differ(name, Tape(np.random.default_rng(0)), method)


_MEANS = (
    "local SGD",
    "DSGD",
    "DSGD, schedule",
    "local SGD, schedule",
    "D2",
    "EXTRA",
    "exact diffusion",
    "gradient tracking",
    "SGP",
    "SGP, schedule",
    "CHOCO",
    "CHOCO, whole model",
    "DeepSqueeze",
    "DeepSqueeze, schedule",
)
_SUMS = ("SCAFFOLD", "D2", "EXTRA", "exact diffusion", "CHOCO")
_TRACKERS = ("gradient tracking", "gradient tracking, schedule")


def _statement(name: str, reference: str, hypotheses: str, invariant: Invariant, names: tuple[str, ...]) -> Statement:
    return Statement(name, reference, hypotheses, partial(trial, invariant, names), [partial(built, invariant, each) for each in names])


STATEMENTS = [
    _statement("mean of the models", "(5.2)", "columns of W sum to 1", mean_moves, _MEANS),
    _statement("dual sums vanish", "Shi et al. 2015", "columns of W sum to 1", sums_vanish, _SUMS),
    _statement("mean of the trackers", "Nedic et al. 2017", "columns of W sum to 1", trackers_average, _TRACKERS),
    Statement("ages of gradients", "section 4.1", "one server; messages take no time", trial_ages),
    _statement("AD-PSGD, one exchange", "Lian et al. 2018", "any cluster", pairs, ("AD-PSGD",)),
    Statement(
        "AD-PSGD, partners", "Lian et al. 2018", "drawn uniformly from the neighbours", partners_are_neighbours, [partners_are_uniform]
    ),
    Statement("numbers of every message", "(3.10)", "none", trial_keys, [partial(built_keys, name) for name in DRAWS]),
]
