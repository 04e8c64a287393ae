"""What a recursion in numpy is given, and how its rounds are compared with those of a method.

A file `tests/methods/<function>.py` states what must hold for a method of `algorithms`,
independently of the method's file:

- `recursion(given)`: the paper's rounds in numpy. Models are the rows of X `[N, d]`, so that gossip
  is W @ X. (The papers have a column for each worker.) Its t-th item maps the name of each symbol
  to its value after round t.
- `EQUALS`: pairs of functions that return methods with equal models, from the optimizers `SGD` or
  `MOMENTUM`.
- `CASES`: what is compared with it. A case with `absent` has workers that are absent in some
  rounds, and messages that are lost; in all others all workers take part.
- `bits(t, N, d)`: what each worker sends in round t of the registered instance.
- `APART`: whether workers may start from different models (no if the file does not say).
- `CANCELS`, `DRAWS`, `LEARNING_RATE`, `CONTRACT_ROUNDS`: for the contract, if gradients at two
  points have the same noise, if a method of exact gradients draws otherwise, if 0.05 is too large,
  and if 12 rounds are too few. `EXACT_RATE`: the step size with which an exact method reaches the
  optimum in 9,000 rounds.

`files.py` collects these files for `test_methods.py` and the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dsgd
from dsgd import clusters, problems
from dsgd.base import Algorithm, Regularizer
from tests.methods import graphs, steps
from tests.methods.steps import Step
from theory_checks.machinery import trajectories
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.search import ReplayableDraws
from theory_checks.machinery.statement import Draws
from theory_checks.machinery.trajectories import LAYERS, ROUNDS, Trajectory

Symbols = dict[str, Any]  # arrays of one round, or `[T, ...]` of all rounds
Rounds = Iterator[Symbols]
# (t, models [N, d]) -> gradients of all workers in round t at their own models [N, d]
Gradients = Callable[[int, np.ndarray], np.ndarray]
Q = Callable[[np.ndarray], np.ndarray]  # vector [d] -> decoded message

GAMMA, WORD = 0.1, 32  # the step size with absent workers, and the bits of their numbers
SGD, MOMENTUM = optax.sgd(GAMMA), optax.sgd(GAMMA, momentum=0.5)  # of `EQUALS`
OPTIMIZERS: dict[
    str, tuple[Callable[..., optax.GradientTransformation], Callable[[float], Step]]
] = {
    "plain": (optax.sgd, steps.plain),
    "momentum": (lambda gamma: optax.sgd(gamma, momentum=0.9), steps.momentum),
    "adam": (optax.adam, steps.adam),
    "lion": (lambda gamma: optax.lion(gamma, weight_decay=0.0), steps.lion),
    "clipped": (
        lambda gamma: optax.chain(optax.clip_by_global_norm(steps.CLIP), optax.sgd(gamma)),
        steps.clipped,
    ),
}


@dataclass(frozen=True)
class Setting:
    """What a method is made from.

    Args:
        N: number of workers.
        gamma: step size, which may be traced.
        optimizer: the local step.
        graphs: topologies that the case names.
        more: additional numbers of the case.
    """

    N: int
    gamma: Any
    optimizer: optax.GradientTransformation
    graphs: Sequence[dsgd.Topology]
    more: Any = ()

    @property
    def graph(self) -> dsgd.Topology:
        """The case's only graph."""
        (graph,) = self.graphs
        return graph


@dataclass(frozen=True, eq=False)
class Case:
    """A method and its recursion.

    Args:
        make: returns the method.
        recursion: yields the paper's rounds.
        graph: name of the graph, or names, in `graphs.py`; they also exist for absent workers.
        optimizer: a key of `OPTIMIZERS`.
        absent: whether workers are absent and messages are lost.
        symbols: where the method has a symbol: a path in its state, "workers.error", or (trajectory
            or result) -> values. If it is not given, x is the model of the server, and other
            symbols have the names of the state's fields.
        more: draws -> additional numbers.
        place: instance -> the cluster, or, of absent workers, the cluster -> another; None: as it
            is.
        length: number of rounds, if none are absent.
        regularizer: of the problem; None: none.
    """

    make: Callable[[Setting], Algorithm]
    recursion: Callable[[Given], Rounds]
    graph: str | tuple[str, ...] = ()
    optimizer: str = "plain"
    absent: bool = False
    symbols: Mapping[str, str | Callable[[Any], Any]] = field(default_factory=dict)
    more: Callable[[Draws], Any] = lambda draws: ()
    place: Callable[[Any], Any] | None = None
    length: int = ROUNDS
    regularizer: Regularizer | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the graphs."""
        return (self.graph,) if isinstance(self.graph, str) else self.graph


@dataclass(frozen=True)
class Given:
    """What a recursion is given.

    Args:
        gamma: step size.
        X: the start, `[N, d]`.
        G: gradients of all workers.
        exact: gradients of all workers without noise.
        losses: losses of all workers with noise, (t, X) -> `[N]`.
        optimizer: a key of `OPTIMIZERS`.
        length: number of rounds.
        layers: number of elements of each layer.
        word: bits of a number.
        participates: the workers that participate, bool `[T, N]`.
        delivered: the workers with messages to all others, or to a server, that arrive, bool `[T,
            N]`.
        links: on which links messages arrive, bool `[T, N, N]`.
        graphs: adjacency and W of each graph.
        more: additional numbers of the case.
        found: the method's own rounds, for values that are random in them; None: with absent
            workers.
        weights: of the workers in means, `[N]`; None: equal.
    """

    gamma: float
    X: np.ndarray
    G: Gradients
    exact: Gradients
    losses: Gradients
    optimizer: str
    length: int
    layers: Sequence[int]
    word: int
    participates: np.ndarray
    delivered: np.ndarray
    links: np.ndarray
    graphs: Sequence[graphs.Matrices]
    more: Any = ()
    found: Any = None
    weights: np.ndarray | None = None

    @property
    def N(self) -> int:
        """Number of workers."""
        return len(self.X)

    @property
    def d(self) -> int:
        """Number of elements of a model."""
        return self.X.shape[1]

    @property
    def x(self) -> np.ndarray:
        """The common start, `[d]`."""
        return self.X[0]

    @property
    def rounds(self) -> range:
        """The numbers of the rounds, from 0."""
        return range(self.length)

    @property
    def model(self) -> int:
        """Bits of a model."""
        return self.word * self.d

    def step(self) -> Step:
        """Returns a step, (g, which workers participate) -> change, with empty memory."""
        return OPTIMIZERS[self.optimizer][1](self.gamma)

    def gradients_at(self, t: int, x: np.ndarray) -> np.ndarray:
        """Returns the gradients of all workers at the same model x `[d]`: `[N, d]`."""
        return self.G(t, np.tile(x, (self.N, 1)))

    def present(self, t: int) -> np.ndarray:
        """Returns which workers participate in round t, bool `[N, 1]`."""
        return self.participates[t][:, None]

    def contributes(self, t: int) -> np.ndarray:
        """Returns which workers participate in round t with messages that arrive, bool `[N]`."""
        return self.participates[t] & self.delivered[t]

    def mean(self, t: int, rows: np.ndarray) -> np.ndarray:
        """Returns the weighted mean of the rows `[N, d]` of the workers that `contributes` names,
        at least one.
        """
        S = self.contributes(t) * (1.0 if self.weights is None else self.weights)
        return S @ rows / S.sum()

    def each(self, q: Q, rows: np.ndarray) -> np.ndarray:
        """Compresses each layer of each row, `[N, d]`."""
        ends = np.cumsum(self.layers)[:-1]
        return np.array([np.concatenate([q(part) for part in np.split(x, ends)]) for x in rows])

    def W(self, t: int, turn: int | None = None, graph: int = 0) -> np.ndarray:
        """Returns W of round t, with rows that sum to 1: a worker gives the weight of a model that
        does not arrive to its own.

        Args:
            t: the round.
            turn: number of the exchange, which selects W in a schedule; None: t.
            graph: number of the graph.
        """
        W = self._received_weights(t, turn, graph)
        return W + np.diag(1 - W.sum(axis=1))

    def P(self, t: int, turn: int | None = None, graph: int = 0) -> np.ndarray:
        """Returns W of round t, with columns that sum to 1: a sender keeps what does not arrive."""
        W = self._received_weights(t, turn, graph)
        return W + np.diag(1 - W.sum(axis=0))

    def adjacency(self, turn: int = 0, graph: int = 0) -> np.ndarray:
        """Returns the links between workers, bool `[receiver, sender]`."""
        W = self.graphs[graph](turn)
        return (W != 0) & ~np.eye(self.N, dtype=bool)

    def sends(self, t: int, turn: int | None = None, graph: int = 0) -> np.ndarray:
        """Returns on which links messages are sent, bool `[receiver, sender]`."""
        both = self.participates[t] & self.participates[t][:, None]
        return self.adjacency(t if turn is None else turn, graph) & both

    def hears(self, t: int, turn: int | None = None, graph: int = 0) -> np.ndarray:
        """Returns on which links messages arrive, bool `[receiver, sender]`."""
        return self.sends(t, turn, graph) & self.links[t]

    def _received_weights(self, t: int, turn: int | None, graph: int) -> np.ndarray:
        W = self.graphs[graph](t if turn is None else turn)
        return np.where(self.hears(t, turn, graph), W, 0.0)

    def to_neighbours(
        self, t: int, message: float, turn: int | None = None, graph: int = 0
    ) -> Symbols:
        """Returns the bits of a message to each neighbour."""
        up = message * self.sends(t, turn, graph).sum(axis=0)
        down = message * self.hears(t, turn, graph).sum(axis=1)
        return {"bits up": up, "bits down": down}

    def all_reduce(self, t: int, bits: float) -> Symbols:
        """Returns the bits of an all-reduce of vectors of these bits."""
        m = self.participates[t].sum()
        each = self.participates[t] * (round(2 * (m - 1) / m * bits) if m else 0)
        return {"bits up": each, "bits down": each}

    def all_gather(self, t: int, message: float) -> Symbols:
        """Returns the bits of a message to each other worker."""
        each = self.participates[t] * (self.participates[t].sum() - 1) * message
        return {"bits up": each, "bits down": each}

    def to_server(self, t: int, up: Any, down: Any) -> Symbols:
        """Returns the bits of a message to one server, and of its reply: numbers, or `[N]`."""
        return {"bits up": up * self.participates[t], "bits down": down * self.participates[t]}

    def nothing(self) -> Symbols:
        """Returns the bits of a round without messages."""
        return {"bits up": np.zeros(self.N), "bits down": np.zeros(self.N)}


def add(*bits: Symbols) -> Symbols:
    """Returns the sum of bits of several exchanges of a round."""
    return {key: sum(each[key] for each in bits) for key in ("bits up", "bits down")}


def quadratic(A: np.ndarray, b: np.ndarray, noise: Any = 0.0) -> Gradients:
    r"""Returns the gradients $g_n(x) = A_n x - b_n + \xi_t^{(n)}$.

    Args:
        A: `[N, d, d]`.
        b: `[N, d]`.
        noise: xi, `[T, N, d]`; 0: no noise.
    """

    def gradients(t, X):
        return np.einsum("nij,nj->ni", A, X) - b + (noise[t] if np.ndim(noise) else noise)

    return gradients


def quadratic_losses(A: np.ndarray, b: np.ndarray, noise: Any = 0.0) -> Gradients:
    """Returns the losses with the gradients of `quadratic`, (t, X `[N, d]`) -> `[N]`; they are 0 at
    x = 0.
    """

    def losses(t, X):
        linear = b - (noise[t] if np.ndim(noise) else noise)
        return np.einsum("ni,ni->n", X, np.einsum("nij,nj->ni", A, X) / 2 - linear)

    return losses


def quadratic_given(
    A: np.ndarray,
    b: np.ndarray,
    x: np.ndarray,
    gamma: float,
    length: int,
    graphs: Sequence[graphs.Matrices],
    noise: Any = 0.0,
    **more: Any,
) -> Given:
    """Returns what a recursion is given with the gradients of `quadratic`.

    Args:
        A, b, noise: see `quadratic`.
        x: the start of all workers, `[d]`.
        gamma, length, graphs: see `Given`.
        more: other fields of `Given`. By default the optimizer is SGD, there is one layer, numbers
            have 64 bits, all workers participate and all messages arrive.
    """
    N = len(A)
    everything = {
        name: np.ones((length, *shape), bool)
        for name, shape in (("participates", (N,)), ("delivered", (N,)), ("links", (N, N)))
    }
    return Given(
        gamma=gamma,
        X=np.tile(x, (N, 1)),
        G=quadratic(A, b, noise),
        exact=quadratic(A, b),
        losses=quadratic_losses(A, b, noise),
        length=length,
        graphs=graphs,
        **{"optimizer": "plain", "layers": (len(x),), "word": 64} | everything | more,
    )


# --- All workers take part: six workers, in float64, with noise; all rounds are compared.


def draws(seed: int = 0) -> ReplayableDraws:
    """Returns draws of an instance, the same in each run."""
    return ReplayableDraws(np.random.default_rng(seed))


@cache
def build(case: Case) -> trajectories.Build:
    """Returns a function from an instance to the case's method. It is the same object in each call,
    so that the method is compiled once.
    """

    def method(of: Instance) -> Algorithm:
        optimizer = OPTIMIZERS[case.optimizer][0](of.learning_rate)
        on = [graphs.topology(name, trajectories.N) for name in case.names]
        return case.make(Setting(trajectories.N, of.learning_rate, optimizer, on, of.more))

    return method


def run(case: Case, draws: Draws) -> tuple[Instance, Trajectory]:
    """Returns an instance of the case, and its rounds."""
    of = trajectories.instance(draws, case.more(draws))
    options: Any = {"place": case.place, "length": case.length, "regularizer": case.regularizer}
    return of, trajectories.run(build(case), of, seed=draws.integer(0, 2**31 - 1), **options)


def case_given(case: Case, of: Instance, found: Trajectory) -> Given:
    """Returns what the case's recursion is given."""
    A, b, x, gamma = (np.asarray(leaf) for leaf in (of.A, of.b, of.start, of.learning_rate))
    return quadratic_given(
        A,
        b,
        x,
        float(gamma),
        case.length,
        [graphs.matrices(name, trajectories.N) for name in case.names],
        found.noise,
        optimizer=case.optimizer,
        layers=LAYERS,
        more=of.more,
        found=found,
    )


def compare(case: Case, draws: Draws, tolerance: float = 1e-9) -> None:
    """Compares method and recursion on a random instance, each symbol in every round."""
    of, found = run(case, draws)
    expected = list(islice(case.recursion(case_given(case, of, found)), case.length))
    papers = {symbol: np.stack([symbols[symbol] for symbols in expected]) for symbol in expected[0]}
    bits = {"bits up": found.sent, "bits down": found.received}
    for symbol, values in papers.items():
        got = (
            bits[symbol]
            if symbol in bits
            else find_symbol(case, found, found.states, symbol, values)
        )
        assert_equal(symbol, np.asarray(got)[-case.length :], values, tolerance)
    assert_equal("model to take home", found.home, home(papers), tolerance)


def compare_equal(*methods: Callable[[], Algorithm], length: int = 24) -> None:
    """Compares the models of two methods after each round, with the same noise."""
    of = trajectories.instance(draws())
    one, other = (
        trajectories.run(lambda of, make=make: make(), of, length=length) for make in methods
    )
    assert np.ptp(one.home, axis=0).max() > 0.1
    assert_equal("model to take home", one.home, other.home)
    X, Y = (getattr(found.states.workers, "params", None) for found in (one, other))
    if X is not None and Y is not None:
        assert_equal("models", trajectories.rows(X), trajectories.rows(Y))


def home(papers: Symbols) -> np.ndarray:
    """Returns x, or the mean of the local models (in push-sum: their sum divided by the sum of the
    weights), `[T, d]`.
    """
    if "x" in papers:
        return papers["x"]
    X, weight = papers["params"], papers.get("weight", np.ones(papers["params"].shape[:2]))
    return X.sum(axis=1) / weight.sum(axis=1, keepdims=True)


def assert_equal(
    symbol: str, got: np.ndarray, expected: np.ndarray, tolerance: float = 1e-9
) -> None:
    """Compares two arrays `[T, ...]` up to rounding relative to the largest value until the
    respective round.
    """
    assert got.shape == expected.shape, symbol
    deviation, size = (
        np.abs(values).reshape(len(expected), -1).max(axis=1)
        for values in (np.asarray(got, float) - expected, expected)
    )
    scale = np.maximum(1.0, np.maximum.accumulate(size))
    np.testing.assert_array_less(deviation / scale, tolerance, err_msg=symbol)


def find_symbol(case: Case, found: Any, states: Any, symbol: str, like: np.ndarray) -> np.ndarray:
    """Returns a symbol of the method in the form of the paper's.

    Args:
        case: says where the symbol is.
        found: trajectory, or result of a run.
        states: of each round, or the last.
        symbol: its name.
        like: the paper's values.
    """
    where = case.symbols.get(symbol, symbol)
    value = where(found) if callable(where) else _look_up(found, states, where)
    leaves = jax.tree.leaves(value)
    if (
        like.ndim
        and len(leaves)
        and like.shape[-1] == sum(int(np.prod(np.shape(leaf)[like.ndim - 1 :])) for leaf in leaves)
    ):
        return trajectories.rows(value, like.ndim - 1)
    return np.asarray(value)


def _look_up(found: Any, states: Any, path: str) -> Any:
    """Returns a part of a state, "server.params", or a metric, "metrics.period"."""
    if path == "x":
        path = "server.params"
    start, *names = path.split(".")
    if start == "metrics":
        return found.metrics[names[0]]
    if not names and start not in ("workers", "server"):
        owner = next(
            (each for each in (states.workers, states.server) if hasattr(each, start)), states
        )
        return _get(owner, start)
    value = getattr(states, start)
    for name in names:
        value = _get(value, name)
    return value


def _get(value: Any, name: str) -> Any:
    if hasattr(value, name) and not callable(getattr(value, name)):
        return getattr(value, name)
    return optax.tree.get(value, name)


# --- Some workers are absent: eight workers, in float32; the last round and all bits are compared.

WORKERS, ELEMENTS, T = 8, 4, 12
DRAW = np.random.default_rng(3)
PARTICIPATES = DRAW.random((T, WORKERS)) < 0.6
PARTICIPATES[4:6] = False  # no worker participates, also in a round in which local methods average
DELIVERED = DRAW.random((T, WORKERS * WORKERS)) < 0.7
DELIVERED[8, :WORKERS] = False  # the message of every worker is lost
PARTICIPATES[10:], DELIVERED[10:] = True, True
IDS = np.arange(WORKERS)
NUMBERS = WORKERS * np.minimum.outer(IDS, IDS) + np.maximum.outer(IDS, IDS)  # of the links
START = DRAW.normal(size=ELEMENTS)
# A round takes a second, so that masks are recordings by the clock.
CLUSTER = clusters.Cluster(
    clusters.constant(1.0),
    present=clusters.trace(PARTICIPATES.T.astype(float), 1.0),
    delivered=clusters.Quantity(
        lambda key, clock, number: jnp.asarray(DELIVERED, jnp.float32)[jnp.int32(clock), number],
        "given by the clock",
        positive=False,
    ),
)


def two_gradients(rounds: np.ndarray, cluster: clusters.Cluster) -> clusters.Cluster:
    """Returns the cluster on which a gradient takes half a second in the given rounds, bool `[T]`,
    in which every worker that participates computes two.
    """
    single = ~rounds | ~PARTICIPATES.any(axis=1)
    seconds = np.tile(np.where(single, 1.0, 0.5), (WORKERS, 1))
    return replace(cluster, compute=clusters.trace(seconds, 1.0))


def personal(method: Algorithm) -> Callable[[Any], Any]:
    """Returns where the workers' personal models are, for `Case.symbols`."""
    models = method.personal
    assert models is not None

    def find(found: Any) -> Any:
        if not isinstance(found, Trajectory):
            return models(found.state)
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, jax.vmap(models)(found.states))

    return find


@cache
def problem() -> dsgd.Problem:
    """Returns quadratics without noise that start at `START`."""
    plain = problems.random_quadratic(WORKERS, ELEMENTS, heterogeneity=2.0, seed=1)
    return plain._replace(init=lambda key: jnp.asarray(START, jnp.float32))


def compare_absent(case: Case) -> dsgd.Result:
    """Compares method and recursion with absent workers: the last round, and the bits of all
    rounds. On two devices, so that some neighbours of a worker are on its own, and some on the
    other.
    """
    optimizer = OPTIMIZERS[case.optimizer][0](GAMMA)
    on = [graphs.topology(name, WORKERS) for name in case.names]
    method = case.make(Setting(WORKERS, GAMMA, optimizer, on))
    cluster = CLUSTER if case.place is None else case.place(CLUSTER)
    options: Any = {"steps": T, "key": jax.random.key(0), "cluster": cluster, "mesh": 2}
    r = case.regularizer
    of = problem() if r is None else problems.regularized(problem(), r)
    result = dsgd.run(method, of, **options)
    A, b = (np.asarray(leaf, float) for leaf in problem().data[:2])
    known = quadratic_given(
        A,
        b,
        np.asarray(START, np.float32).astype(float),
        GAMMA,
        T,
        [graphs.matrices(name, WORKERS) for name in case.names],
        optimizer=case.optimizer,
        word=WORD,
        participates=PARTICIPATES,
        delivered=DELIVERED[:, :WORKERS],
        links=DELIVERED[:, NUMBERS],
    )
    rounds = list(case.recursion(known))
    assert len(rounds) == T
    for symbol, values in rounds[-1].items():
        if not symbol.startswith("bits"):
            got = find_symbol(case, result, result.state, symbol, np.asarray(values))
            np.testing.assert_allclose(got, values, rtol=2e-5, atol=4e-6, err_msg=symbol)
    last = {symbol: np.asarray(values)[None] for symbol, values in rounds[-1].items()}
    np.testing.assert_allclose(result.params, home(last)[0], rtol=2e-5, atol=4e-6)
    total = sum(np.sum(each["bits up"] + each["bits down"]) for each in rounds)
    assert result.history["bits"][-1] * WORKERS == total
    np.testing.assert_allclose(result.history["present"][1:], PARTICIPATES.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(result.history["clock"], np.arange(T + 1))
    return result
