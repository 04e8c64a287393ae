"""Each call of a communicator: the data that it moves, the bits and the pattern that it records,
participation and lost messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import dsgd
import topologies
from dsgd import Round, State, communication, compressors, network, problems, workers
from dsgd.wire import counts
from tests.dsgd.by_hand import method

N, STEP = 8, 5  # round 5 is the last of every 2, of every 3 and of every 6
ROWS, EVERYWHERE = P(workers.AXIS), P()
DRAW = np.random.default_rng(0)
X = {
    "a": DRAW.normal(size=(N, 3)).astype(np.float32),
    "b": DRAW.normal(size=(N, 4, 5)).astype(np.float32),
}
OLD = jax.tree.map(lambda leaf: leaf[::-1] + 1, X)
VECTOR = 23 * 32  # bits of a worker's row of X
SIGNS = (8 + 32) + (24 + 32)  # bytes of signs, and the scale, of each leaf of the row
SHARDS = 2 * (8 + 32)  # of its shard of each leaf
REDUCED = round(2 * (N - 1) / N * VECTOR)
WEIGHTS = (0.5, 1.0, 0.0, 0.5, 1.5, 0.5, 2.0, 2.0)
IDS = np.arange(N)
RING, DIRECTED, COMPLETE = topologies.ring(N), topologies.exponential(N), topologies.complete(N)
SCHEDULE = topologies.one_peer_exponential(N)
PULL, PUSH = topologies.star(N, topologies.pull), topologies.star(N, topologies.uniform)
PRESENT = np.array([True, True, False, True, True, True, False, True])
COUNTED = PRESENT & (IDS != 4)
DOWN = {(0, 1), (3, 4), (0, 4)}
ARRIVES = (
    PRESENT
    & PRESENT[:, None]
    & np.array([[(min(i, j), max(i, j)) not in DOWN for j in IDS] for i in IDS])
)


def each(function: Callable, *trees: Any) -> Any:
    return jax.tree.map(function, *trees)


def mean(tree: Any) -> Any:
    return each(lambda x: x.mean(axis=0), tree)


def mix(topology: dsgd.Topology, tree: Any, turn: int = 0) -> Any:
    W = topology.matrices[turn % topology.period].toarray()
    return each(lambda x: np.tensordot(W, x, axes=1), tree)


def weighted_mean(tree: Any) -> Any:
    return each(lambda x: np.tensordot(WEIGHTS, x, axes=1) / N, tree)


def repeat(tree: Any) -> Any:
    return each(lambda x: np.broadcast_to(x, (N, *x.shape)), tree)


def sign(x: np.ndarray, first: int = 1) -> np.ndarray:
    """Returns, for each vector, whose elements are the axes from `first` on, the mean magnitude
    with each element's sign.
    """
    return np.abs(x).mean(axis=tuple(range(first, x.ndim)), keepdims=True) * np.where(x < 0, -1, 1)


def split(x: np.ndarray) -> np.ndarray:
    """Splits `[N, ...]` into `[N, N, part]`."""
    part = -(-x[0].size // N)
    return np.pad(x.reshape(N, -1), ((0, 0), (0, N * part - x[0].size))).reshape(N, N, part)


def servers_mean(x: np.ndarray) -> np.ndarray:
    """Returns the mean of the workers' signs, whose shards the servers send as signs."""
    return sign(sign(split(x), 2).mean(axis=0)).ravel()[: x[0].size].reshape(x.shape[1:])


def ring_mean(x: np.ndarray) -> np.ndarray:
    """Returns the result around a ring: shard m starts at worker m; each worker adds its own and
    sends the sum's signs.
    """
    shards, total = split(x), np.zeros_like(split(x)[0])
    for hop in range(N):
        total = sign(total + shards[(IDS + hop) % N, IDS])
    return (total / N).ravel()[: x[0].size].reshape(x.shape[1:])


def send_to_servers(round, x):
    received = round.to_servers(
        compressors.sign, communication.shards(x, N, compressors.sign)
    ).received
    return communication.unshard(
        round.from_servers(compressors.sign, received).received, mean(x), compressors.sign
    )


def send_to_server(round, x):
    received = round.to_server(compressors.sign, x, via=network.parameter_server).received
    return round.from_server(received, compressors.sign).received


def send_around_ring(round, x):
    shards = communication.shards(x, N, compressors.sign)
    return communication.unshard(
        round.around_ring(compressors.sign, shards), mean(x), compressors.sign
    )


def signs_of_neighbours(round, x):
    return sort_rows(*round.to_neighbours(compressors.sign, x, RING, one_by_one=True).received)


def sort_rows(rows, weights):
    """Returns the rows of the neighbours, sorted, because their order has no meaning, and their
    weighted sum.
    """
    return each(lambda leaf: jnp.sort(leaf, axis=1), rows), each(
        lambda leaf: jnp.einsum("nk,nk...->n...", weights, leaf), rows
    )


def old():
    """Returns the block's rows of OLD."""
    return workers.local_block(each(jnp.asarray, OLD), N)


def joint(round, x):
    with round.joint():
        return round.mix(x, RING), round.laplacian(old(), RING)


def pull_and_push(round, x):
    """Pulls and pushes along the edges of the star, in one exchange."""
    with round.joint():
        return round.pull(x, PULL), round.push(old(), PUSH)


class Call(NamedTuple):
    """A call in an update, and its expected effects.

    Args:
        send: (Communicator, x) -> result.
        moved: the same in numpy.
        pattern: its name.
        bits: bits that each worker sends, and receives, an int or `[N]`.
        spec: whether the result has the workers' rows, or is the same on every device.
        simulated: whether the messages are simulated by other collectives.
        turn: turn of a schedule.
        period: period of the exchange.
        now: whether it takes place in this round.
    """

    send: Callable
    moved: Any
    pattern: str
    bits: Any
    spec: P = EVERYWHERE
    simulated: bool = False
    turn: int = STEP
    period: int = 1
    now: bool = True


def to_each(round: communication.Communicator, x: Any) -> Any:
    """Sends k + 1 times a worker's rows to its k-th neighbour on `UNEVEN`."""
    sent = each(lambda leaf: jnp.stack([(k + 1) * leaf for k in range(3)], axis=1), x)
    return round.to_each_neighbour(sent, each(lambda leaf: -leaf, sent), UNEVEN)


def from_each(arrives: np.ndarray) -> Any:
    """Returns what workers have after `to_each` if these messages arrive, bool `[N, N]`."""
    lists = [np.flatnonzero(row) for row in ADJACENCY]

    def receive(x: np.ndarray) -> np.ndarray:
        rows = np.stack([-(k + 1) * x for k in range(3)], axis=1)
        for i, neighbours in enumerate(lists):
            for k, j in enumerate(neighbours):
                if arrives[i, j]:
                    rows[i, k] = (np.flatnonzero(lists[j] == i)[0] + 1) * x[j]
        return rows

    return each(receive, X)


# workers have one to three neighbours
UNEVEN = topologies.from_graph(
    nx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 3), (5, 0)]),
    name="uneven",
)
ADJACENCY = (UNEVEN.W != 0) * (1.0 - np.eye(N))
ALL_PLACES = compressors.random_places(1.0)  # in a random order
RING_MESSAGES, SCHEDULED = "gossip(ring(8))", "gossip(one_peer_exponential(8))"
CALLS = {
    "mean": Call(lambda round, x: round.mean(x), mean(X), "ring_all_reduce", REDUCED),
    "sum via a star": Call(
        lambda round, x: round.sum(x, network.star),
        each(lambda x: x.sum(axis=0), X),
        "star",
        VECTOR,
        simulated=True,
    ),
    "all_gather of signs": Call(
        lambda round, x: round.all_gather(x, compressors.sign).received,
        each(sign, X),
        "all_gather",
        (N - 1) * SIGNS,
    ),
    "mean_of_messages": Call(
        lambda round, x: round.mean_of_messages(compressors.sign, x).received,
        weighted_mean(each(sign, X)),
        "all_gather",
        (N - 1) * SIGNS,
    ),
    "mean_of_codes": Call(
        lambda round, x: round.mean_of_codes(ALL_PLACES, x).received,
        mean(X),
        "ring_all_reduce",
        REDUCED,
    ),
    "mix on the complete graph": Call(
        lambda round, x: round.mix(x, COMPLETE),
        mix(COMPLETE, X),
        "gossip(complete(8))",
        7 * VECTOR,
        ROWS,
        simulated=True,
    ),
    "mix on a schedule": Call(
        lambda round, x: round.mix(x, SCHEDULE), mix(SCHEDULE, X, STEP), SCHEDULED, VECTOR, ROWS
    ),
    "signs of neighbours": Call(
        signs_of_neighbours,
        (
            each(lambda x: np.sort(sign(x)[np.stack([IDS - 1, (IDS + 1) % N], axis=1)], axis=1), X),
            each(lambda m, x: m - sign(x) / 3, mix(RING, each(sign, X)), X),
        ),
        RING_MESSAGES,
        2 * SIGNS,
        ROWS,
    ),
    "laplacian, unweighted": Call(
        lambda round, x: round.laplacian(x, UNEVEN, weighted=False),
        each(lambda x: np.tensordot(ADJACENCY - np.diag(ADJACENCY.sum(axis=1)), x, axes=1), X),
        "gossip(uneven)",
        UNEVEN.out_degrees[0] * VECTOR,
        ROWS,
    ),
    "to_each_neighbour": Call(
        to_each,
        from_each(np.ones((N, N), bool)),
        "gossip(uneven)",
        UNEVEN.out_degrees[0] * VECTOR,
        ROWS,
    ),
    "to_servers": Call(
        send_to_servers, each(servers_mean, X), "multi_server", 2 * (N - 1) * SHARDS
    ),
    "to_server": Call(
        send_to_server,
        each(lambda x: sign(sign(x).mean(axis=0), 0), X),
        "parameter_server",
        SIGNS,
        simulated=True,
    ),
    "around_ring": Call(
        send_around_ring, each(ring_mean, X), "ring_all_reduce", 2 * (N - 1) * SHARDS
    ),
    "joint": Call(
        joint,
        (mix(RING, X), each(np.subtract, mix(RING, OLD), OLD)),
        RING_MESSAGES,
        4 * VECTOR,
        ROWS,
    ),
    "pull and push": Call(
        pull_and_push,
        (mix(PULL, X), mix(PUSH, OLD)),
        "gossip(star(8, pull))",
        2 * VECTOR * PULL.out_degrees[0],
        ROWS,
    ),
    "when": Call(
        lambda round, x: round.when(round.step == STEP, round.average, x),
        repeat(weighted_mean(X)),
        "ring_all_reduce",
        REDUCED,
        ROWS,
        period=0,
    ),
    "when not": Call(
        lambda round, x: round.when(
            round.step != STEP, round.average, x, otherwise=lambda x: each(lambda leaf: -leaf, x)
        ),
        each(np.negative, X),
        "ring_all_reduce",
        0,
        ROWS,
        period=0,
        now=False,
    ),
    "every third of every second": Call(
        lambda round, x: round.every(
            2, lambda x: round.every(3, lambda x: round.mix(x, SCHEDULE), x), x
        ),
        mix(SCHEDULE, X, 0),
        SCHEDULED,
        VECTOR,
        ROWS,
        turn=0,
        period=6,
    ),
    "every fourth, the second first": Call(
        lambda round, x: round.every(4, lambda x: round.mix(x, SCHEDULE), x, offset=2),
        mix(SCHEDULE, X, 1),
        SCHEDULED,
        VECTOR,
        ROWS,
        turn=1,
        period=4,
    ),
    "every fourth, the second first, of every third": Call(
        lambda round, x: round.every(3, lambda x: round.every(4, round.average, x, offset=2), x),
        repeat(weighted_mean(X)),
        "ring_all_reduce",
        REDUCED,
        ROWS,
        turn=0,
        period=12,
    ),
    "every third, when": Call(
        lambda round, x: round.when(
            x["a"].sum() < np.inf, lambda x: round.every(3, round.average, x), x
        ),
        repeat(weighted_mean(X)),
        "ring_all_reduce",
        REDUCED,
        ROWS,
        turn=1,
        period=0,
    ),
}


PROBLEM = problems.random_quadratic(N, 3, seed=0)._replace(weights=WEIGHTS)


class Seen(NamedTuple):
    """The effects of an update.

    Args:
        results: results of its calls.
        sendings: its exchanges, without arrays.
        bits: bits of each exchange, by name, `[N]`, or `[N, 2]` for messages.
        now: whether it took place.
        turns: turns of schedules.
        statistics: statistics of the round, without bits.
    """

    results: tuple[Any, ...]
    sendings: tuple[communication.Sending, ...]
    bits: list[dict[str, np.ndarray]]
    now: list[bool]
    turns: list[int]
    statistics: communication.Statistics


def run_calls(
    devices: int,
    *calls: tuple[Callable, P],
    there: workers.Participation | None = None,
    step: int = STEP,
) -> Seen:
    """Returns the effects of these calls, (Communicator, x) -> result, in one update, one after the
    other.

    Args:
        devices: number of devices with the workers.
        calls: each with the layout of its result.
        there: participating workers, and delivered messages.
        step: number of previous rounds.
    """
    sendings: list[communication.Sending] = []

    def block(x):
        results = []

        def update(state, gradients, round):
            x = state.workers
            for send, _ in calls:
                results.append(send(round, x))
                # The next call depends on this one: XLA may run independent collectives of a
                # program in different orders on the devices.
                x = each(lambda leaf: leaf + 0 * jax.tree.leaves(results[-1])[0].ravel()[0], x)
            return state

        this = Round(jnp.int32(step), N, jax.random.key(0), problem=PROBLEM)
        with workers.with_participation(there):
            _, record = communication.communicate(
                method(update=update), State(workers=x), (), this, jax.random.key(1)
            )
        sendings[:] = record.sendings()
        now = [jnp.bool_(True) if sending.now is None else sending.now for sending in sendings]
        statistics = record.statistics(N)._replace(bits=())
        return (
            tuple(results),
            [sending.bits._asdict() for sending in sendings],
            (now, [sending.turn for sending in sendings], statistics),
        )

    specs = tuple(spec for _, spec in calls), ROWS, EVERYWHERE
    spread = jax.shard_map(
        block, mesh=workers.mesh(devices), in_specs=ROWS, out_specs=specs, check_vma=False
    )
    results, bits, (now, turns, statistics) = jax.tree.map(np.asarray, jax.jit(spread)(X))
    for sent in bits:
        sent |= {
            what: counts.to_int(sent[what])
            for what in ("up", "down", "lost")
            if sent[what] is not None
        }
    return Seen(results, tuple(sendings), bits, now, turns, statistics)


def close(found: Any, expected: Any) -> None:
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6),
        found,
        expected,
    )


@cache
def all_calls() -> Seen:
    """Returns the effects of all calls in one program, compiled once for all tests, on two devices
    of four workers each.
    """
    return run_calls(2, *[(call.send, call.spec) for call in CALLS.values()])


@pytest.mark.parametrize("name", CALLS)
def test_a_call_moves_data_and_records_bits_pattern_and_period(name):
    seen, call, i = all_calls(), CALLS[name], list(CALLS).index(name)
    close(seen.results[i], call.moved)
    assert len(seen.sendings) == len(CALLS), "one exchange each"
    for way in ("up", "down"):
        np.testing.assert_array_equal(seen.bits[i][way], np.broadcast_to(call.bits, N))
    assert seen.bits[i]["lost"] is None
    found = seen.sendings[i]
    assert found.pattern.name == call.pattern
    assert (found.simulated, found.period, seen.now[i]) == (call.simulated, call.period, call.now)
    if call.now:
        assert seen.turns[i] == call.turn


PARTICIPATION = workers.Participation(
    jnp.asarray(PRESENT), jnp.asarray(COUNTED), lambda i, j: jnp.asarray(ARRIVES)[i, j]
)
SENT = (RING.W != 0) & ~np.eye(N, dtype=bool) & PRESENT & PRESENT[:, None]  # by receiver and sender
LEFT = np.where(SENT & ARRIVES, RING.W, 0)


def remaining(tree: Any) -> Any:
    """Returns the product with W if a worker keeps the weight of messages that do not arrive."""
    W = LEFT + np.diag(1 - LEFT.sum(axis=1))
    return each(lambda x: np.tensordot(W, x, axes=1), tree)


def mean_of_counted(tree: Any, weights: Any = (1.0,) * N) -> Any:
    by = np.where(COUNTED, weights, 0)
    return each(lambda x: np.tensordot(by / by.sum(), x, axes=1), tree)


def kept_rows() -> Any:
    return each(
        lambda new, old: np.where(np.expand_dims(COUNTED, tuple(range(1, new.ndim))), new, old),
        X,
        OLD,
    )


# an all-reduce among the participating workers
SIX = np.where(PRESENT, round(2 * 5 / 6 * VECTOR), 0)
# the call, its result, bits of a message on the ring; None: an all-reduce
LOSSES: dict[str, tuple[Callable, Any, int | None, P]] = {
    "sum": (
        lambda round, x: round.sum(x),
        each(lambda x: COUNTED.sum() * x, mean_of_counted(X)),
        None,
        EVERYWHERE,
    ),
    "weighted_mean": (
        lambda round, x: round.weighted_mean(x),
        mean_of_counted(X, WEIGHTS),
        None,
        EVERYWHERE,
    ),
    "mean_of_codes": (
        lambda round, x: round.mean_of_codes(ALL_PLACES, x).received,
        mean_of_counted(X),
        None,
        EVERYWHERE,
    ),
    "aggregate": (
        lambda round, x: round.aggregate(x, old(), weighted_mean(OLD))[0],
        weighted_mean(kept_rows()),
        None,
        EVERYWHERE,
    ),
    "what aggregate keeps": (
        lambda round, x: round.aggregate(x, old())[1],
        kept_rows(),
        None,
        ROWS,
    ),
    "signs of neighbours": (
        lambda round, x: signs_of_neighbours(round, x)[1],
        each(lambda x: np.tensordot(LEFT, sign(x), axes=1), X),
        SIGNS,
        ROWS,
    ),
    "if_active": (
        lambda round, x: round.when(True, lambda x: round.if_active(round.mix(x, RING), old()), x),
        each(
            lambda x, old: np.where(np.expand_dims(PRESENT, tuple(range(1, x.ndim))), x, old),
            remaining(X),
            OLD,
        ),
        VECTOR,
        ROWS,
    ),
}


@cache
def all_losses() -> Seen:
    return run_calls(
        2, *[(send, spec) for send, _, _, spec in LOSSES.values()], there=PARTICIPATION
    )


@pytest.mark.parametrize("name", LOSSES)
def test_workers_that_do_not_participate_and_messages_that_are_lost(name):
    """An all-reduce is among participating workers; a lost message on a link was sent, but did not
    arrive.
    """
    seen, (_, moved, size, _), i = all_losses(), LOSSES[name], list(LOSSES).index(name)
    close(seen.results[i], moved)
    sent = seen.bits[i]
    if size is None:
        expected: dict[str, Any] = {
            "up": SIX,
            "down": SIX,
            "messages": np.stack([PRESENT, COUNTED], axis=1),
        }
        assert sent["lost"] is None
    else:
        expected = {"up": size * SENT.sum(axis=0), "down": size * (SENT & ARRIVES).sum(axis=1)}
        expected |= {"lost": size * (SENT & ~ARRIVES).sum(axis=1)}
        expected |= {"messages": np.stack([SENT.sum(axis=0), (SENT & ARRIVES).sum(axis=1)], axis=1)}
    for what, numbers in expected.items():
        np.testing.assert_array_equal(sent[what], numbers, err_msg=what)


@pytest.mark.parametrize(
    ("send", "topology", "message"),
    [
        (
            "mix",
            PULL,
            r"round.mix: star\(8, pull\) is a topology for 'pull'; .* 'gossip', or a doubly",
        ),
        ("laplacian", PULL, "round.laplacian: .* 'pull'"),
        ("push", PULL, "round.push: .* 'pull'; expected one for 'push' or 'gossip'"),
        (
            "pull",
            PUSH,
            "round.pull: .* 'gossip'; expected one for 'pull', or a doubly stochastic W",
        ),
    ],
)
def test_topologies_for_other_roles_are_refused(send, topology, message):
    with pytest.raises(ValueError, match=message):
        run_calls(1, (lambda round, x: getattr(round, send)(x, topology), ROWS))


def test_vectors_of_neighbours_that_do_not_participate_or_are_lost():
    """A worker has `otherwise` in their place."""
    there = ARRIVES & PRESENT & PRESENT[:, None]
    close(run_calls(2, (to_each, ROWS), there=PARTICIPATION).results[0], from_each(there))


ACCELERATED = topologies.chebyshev(UNEVEN, 3)
UNFIT = {
    "to_each_neighbour on a schedule": (
        lambda round, x: round.to_each_neighbour(x, x, SCHEDULE),
        r"to_each_neighbour: one_peer_exponential\(8\) is a schedule; expected an undirected graph",
    ),
    "to_each_neighbour, one vector for all": (
        lambda round, x: round.to_each_neighbour(x["a"], x["a"], RING),
        r"a leaf of shape \[8, 3\]; expected \[n, 2, ...\], a vector for each of the up to 2",
    ),
    "push on an accelerated topology": (
        lambda round, x: round.push(x, ACCELERATED),
        r"mine: round.push on chebyshev\(uneven, 3\): a round has 3 exchanges; expected",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_calls_on_topologies_that_do_not_fit_are_refused(name):
    send, words = UNFIT[name]
    with pytest.raises(ValueError, match=words):
        run_calls(1, (send, ROWS))


@pytest.mark.parametrize("step", [3, 5])
def test_an_exchange_of_some_rounds_joins_one_of_all_rounds(step):
    """In any order, the exchange of all rounds is recorded in every round, and exchanges of some
    rounds in each round in which one of them takes place.
    """

    def join(*sends):
        def send(round, x):
            with round.joint():
                for each in sends:
                    x = each(round, x)
            return x

        return send, ROWS

    def always(round, x):
        return round.mix(x, RING)

    def some(round, x):
        return round.when(round.step == 5, lambda x: round.mix(x, RING), x)

    def every(period):
        return lambda round, x: round.every(period, lambda x: round.mix(x, RING), x)

    both = [join(every(2), every(3)), join(every(3), every(2))]
    equal = join(every(2), every(2))
    seen = run_calls(1, join(some, always), join(always, some), *both, equal, step=step)
    times = 2 if step == 5 else 1
    for i in range(4):
        np.testing.assert_array_equal(seen.bits[i]["up"], times * 2 * VECTOR)
    np.testing.assert_array_equal(seen.bits[4]["up"], 2 * 2 * VECTOR)
    assert all(seen.now)
    assert [sending.period for sending in seen.sendings] == [1, 1, 0, 0, 2]
    assert run_calls(1, *both, step=6).now == [False, False]
    assert run_calls(1, *both, step=8).now == [True, True]


def test_the_bits_of_an_all_reduce_that_carries_two_vectors_are_rounded_once():
    """Six workers send 5/3 of 64 bits each, which is 107; for 32 bits alone it would be 53."""

    def update(round, x):
        with round.joint():
            return round.mean(x["a"][:, 0]), round.sum(x["a"][:, 1])

    seen = run_calls(2, (update, EVERYWHERE), there=PARTICIPATION)
    np.testing.assert_array_equal(seen.bits[0]["up"], np.where(PRESENT, 107, 0))
    np.testing.assert_array_equal(seen.bits[0]["down"], np.where(PRESENT, 107, 0))


def test_results_of_an_exchange_are_undefined_in_rounds_without_it():
    def update(round, x):
        def send(x):
            round.log(norm=jnp.sum(x["a"] ** 2), rank=3)
            round.refuse_if(round.step == STEP, "wrong at {}", 2)
            round.warn_if(round.step == STEP, "odd at {}", 3)
            return x

        round.log(always=jnp.arange(N))
        return round.every(3, send, round.every(3, send, x))

    for step, known in ((STEP, True), (4, False)):
        error_context = run_calls(1, (update, ROWS), step=step).statistics
        np.testing.assert_array_equal(error_context.metrics["always"], np.arange(N))
        assert (
            error_context.metrics["rank"] == 3 if known else np.isnan(error_context.metrics["rank"])
        )
        assert np.isnan(error_context.metrics["norm"]) == (not known)
        np.testing.assert_array_equal(error_context.refusals["wrong at {}"], 2 if known else np.nan)
        np.testing.assert_array_equal(error_context.warnings["odd at {}"], 3 if known else np.nan)


def test_methods_record_what_they_model_themselves():
    """Messages of a few workers, and bits of a message that the method makes."""

    def event(round, x):
        round.event(x, jnp.array([2, 5, N]), jnp.float32(1.5), network.asynchronous_server)
        return x

    def messages(round, x):
        pairs = jnp.array([[1, 4], [-1, 4], [1, 6], [3, N]])
        round.event(x, pairs, None, network.asynchronous_gossip)
        return x

    def sent(round, x):
        up = workers.local_block(counts.from_bits(jnp.arange(N, dtype=jnp.uint32) * 10, N), N)
        round.sent(up, counts.from_bits(7, len(up)), network.ring_shift)
        return x

    seen = run_calls(2, (event, ROWS), (sent, ROWS), (messages, ROWS))
    assert seen.statistics.elapsed == 1.5
    np.testing.assert_array_equal(seen.bits[0]["up"], np.where(np.isin(IDS, [2, 5]), VECTOR, 0))
    np.testing.assert_array_equal(seen.bits[0]["down"], np.where(np.isin(IDS, [2, 5]), VECTOR, 0))
    np.testing.assert_array_equal(seen.bits[1]["up"], 10 * IDS)
    np.testing.assert_array_equal(seen.bits[1]["down"], 7)
    np.testing.assert_array_equal(seen.bits[2]["up"], VECTOR * np.bincount([1, 1, 3], minlength=N))
    np.testing.assert_array_equal(
        seen.bits[2]["down"], VECTOR * np.bincount([4, 4, 6], minlength=N)
    )
    assert [sending.simulated for sending in seen.sendings] == [True, False, True]


def test_means_for_the_history_are_weighted_after_a_weighted_call():
    """They send no bits."""

    def send(round, x):
        with round.unrecorded():
            before = workers.mean(x)
        round.weighted_mean(x)
        with round.unrecorded():
            return before, workers.mean(x)

    seen = run_calls(2, (send, EVERYWHERE))
    close(seen.results[0], (mean(X), weighted_mean(X)))
    assert len(seen.sendings) == 1


def test_the_bits_of_messages_of_any_length_are_their_own():
    """Each worker's message has its own length, and receivers read it."""

    def gather(round, x):
        return round.all_gather(x["b"], compressors.random_sparsification(0.3)).decoded

    def ring(round, x):
        return round.around_ring(
            compressors.random_sparsification(0.3),
            communication.shards(x["b"], N, compressors.random_sparsification(0.3)),
        )

    seen = run_calls(2, (gather, ROWS), (ring, EVERYWHERE))
    lengths = seen.bits[0]["up"] / (N - 1)
    assert len(set(lengths.tolist())) > 2
    np.testing.assert_array_equal(seen.bits[0]["down"], lengths.sum() - lengths)
    assert len(set(seen.bits[1]["up"].tolist())) > 2
    np.testing.assert_array_equal(seen.bits[1]["down"], np.roll(seen.bits[1]["up"], 1))
