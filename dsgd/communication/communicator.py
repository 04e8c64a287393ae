"""The round as an update sees it: each call sends, and records what it sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from dsgd import checks, network, workers
from dsgd.base import Algorithm, Compressor, Gradients, Pattern, Period, PyTree, Round, State
from dsgd.communication import bits, compressed
from dsgd.communication.bits import Bits
from dsgd.communication.compressed import Delivery
from dsgd.communication.record import Frame, Record
from dsgd.graphs.topology import Topology
from dsgd.wire import counts

UPDATE, MESSAGE = "dsgd.update", "dsgd.message"
"""Scopes of operations: those of an update, and among them those of recorded messages."""

GOES_ON = "algorithms.decentralized_sgd on a symmetric W, local_sgd, scaffold or minibatch_sgd"
_SERVES = "each worker is the server of a shard of the model, which no other worker has"
_PASSES_ON = "each worker adds its own vector to the message of the worker before it"


class Communicator(Round):
    """A `Round` that sends. Each call moves data between workers and records by itself the bits
    that each worker sends and receives, how the messages flow (for the clock), and which are lost.

    Several calls in one update are exchanges one after the other; calls `with round.joint():` are
    one exchange. A tree is one message.

    Blocks: leaves `[n, ...]` have a row for each of the block's n workers; leaves `[N, ...]` and
    `[...]` are the same on every device.
    """

    record: Record

    def _replace(self, **kwargs: Any) -> Communicator:  # pyright: ignore[reportIncompatibleMethodOverride] (keeps the record)
        return _with_record(Round._replace(self, **kwargs), self.record)

    # All to all.

    def mean(self, tree: PyTree, via: Pattern = network.ring_all_reduce) -> PyTree:
        r"""The mean over all workers, $\frac1N \sum_n x_n$: leaves `[n, ...]` become `[...]`.

        It is over the workers that participate and whose message arrives; of none it is 0.

        Args:
            tree: leaves `[n, ...]`.
            via: how it is sent: `network.ring_all_reduce`, `network.multi_server`,
                `network.parameter_server`, `network.star`.
        """
        with self._reducing("mean", tree, via):
            return workers.mean(tree)

    def sum(self, tree: PyTree, via: Pattern = network.ring_all_reduce) -> PyTree:
        """The sum over all workers; otherwise as `mean`. Half precision is summed in float32 and
        rounded once.
        """
        with self._reducing("sum", tree, via):
            return workers.sum(tree)

    def weighted_mean(self, tree: PyTree, via: Pattern = network.ring_all_reduce) -> PyTree:
        r"""$\sum_n w_n x_n / \sum_n w_n$ with the weights of the problem's workers; otherwise as
        `mean`.

        A method that calls it gets gradients of $f_n$, any other gradients of $w_n f_n$: weights
        count once.
        """
        with self._reducing("weighted_mean", tree, via), self._weighing():
            return workers.mean(tree)

    def average(self, models: PyTree, via: Pattern = network.ring_all_reduce) -> PyTree:
        """All workers get the `weighted_mean` of their models: leaves `[n, ...]` to `[n, ...]`. If
        no message arrives, they keep theirs.
        """
        with self._reducing("average", models, via), self._weighing():
            mean = jax.tree.map(
                lambda mean, leaf: jnp.broadcast_to(mean, leaf.shape), workers.mean(models), models
            )
            return workers.if_any(mean, models)

    def aggregate(
        self, new: PyTree, old: PyTree, via: Pattern = network.ring_all_reduce
    ) -> tuple[PyTree, PyTree]:
        r"""The weighted mean of a vector that each worker keeps, of which those that participate
        send a new one.

        $$ \bar c \leftarrow \bar c + \frac1N \sum_{n \in S} w_n (c_n^{new} - c_n), \qquad c_n
        \leftarrow c_n^{new} \text{ for } n \in S $$

        Args:
            new: leaves `[n, ...]`.
            old: those of before, whose weighted mean all workers know.

        Returns:
            The mean, leaves `[...]`; and what each worker keeps, leaves `[n, ...]`.
        """
        with self._reducing("aggregate", new, via), self._weighing():
            kept = workers.where_counted(new, old)
            with workers.attended(None):  # old vectors are known: the mean is over all workers
                return workers.mean(kept), kept

    def all_gather(self, tree: PyTree, compressor: Compressor | None = None, last: Any = ()) -> Any:
        """All workers get all rows: leaves `[n, ...]` become `[N, ...]`; with a compressor a
        `Delivery` of such leaves.

        Args:
            tree: leaves `[n, ...]`.
            compressor: of each row; None: rows are sent as they are.
            last: the `Delivery.messages` of the last time, of a compressor that starts warm.
        """
        with self._sending("all_gather"):
            self.require_all("all workers know what each of them has sent")
            if compressor is None:
                sizes = bits.to_one((self.workers - 1) * bits.of_tree(tree), self.workers)
                self.record.add("all_gather", network.all_gather, Bits(sizes, sizes))
                return workers.gather(tree)
            vectors = compressed.flat(tree, compressor.layer_wise)
            delivery = compressed.to_all(
                compressor, self.record.next_key(), vectors, self.workers, last
            )
            self.record.add(f"all_gather of {compressor.name}", network.all_gather, delivery.bits)
            return _shaped(delivery, tree, compressor)

    # To neighbours on a graph.

    def mix(self, tree: PyTree, topology: Topology) -> PyTree:
        r"""One gossip round, $x_n \leftarrow \sum_m W_{nm} x_m$: leaves `[n, ...]` to `[n, ...]`.

        Args:
            tree: floating-point leaves `[n, ...]`.
            topology: W; of a schedule, that of the round.
        """
        with self._mixing("mix", tree, topology, _moves_the_mean) as turn:
            return workers.mix(tree, topology, turn)

    def laplacian(self, tree: PyTree, topology: Topology) -> PyTree:
        r"""What one gossip round changes, $\sum_m W_{nm} (x_m - x_n)$: leaves `[n, ...]` to
        `[n, ...]`; its mean over workers is 0.
        """
        with self._mixing("laplacian", tree, topology, _moves_the_mean) as turn:
            return workers.pull(tree, topology, turn)

    def push_sum(
        self, tree: PyTree, weights: jax.Array, topology: Topology
    ) -> tuple[PyTree, jax.Array]:
        r"""One round of push-sum, $x_n \leftarrow \sum_m W_{nm} x_m$ and
        $w_n \leftarrow \sum_m W_{nm} w_m$.

        Sums over workers are kept, also if messages are lost: a sender keeps what does not arrive.

        Args:
            tree: leaves `[n, ...]`.
            weights: w, `[n]`.
            topology: W, whose columns sum to 1.
        """
        with self._mixing("push_sum", (tree, weights), topology, _divides_by_zero) as turn:
            return workers.mix((tree, weights), topology, turn, keep_sums=True)

    def neighbours(self, tree: PyTree, topology: Topology) -> tuple[PyTree, jax.Array]:
        """The neighbours' values one by one.

        Args:
            tree: leaves `[n, ...]`.
            topology: whose neighbours.

        Returns:
            Leaves `[n, K, ...]`, K the largest number of neighbours; and W's weights of them,
            `[n, K]`: 0 where there is none, or its message does not arrive.
        """
        with self._mixing("neighbours", tree, topology, None) as turn:
            return workers.neighbours(tree, topology, turn)

    def to_neighbours(
        self, compressor: Compressor, tree: PyTree, topology: Topology, last: Any = ()
    ) -> Delivery:
        r"""Every worker sends its neighbours one compressed message, and receives
        $\sum_m W_{nm} (C(x_m) - C(x_n))$.

        Args:
            compressor: C.
            tree: leaves `[n, ...]`.
            topology: W.
            last: the `Delivery.messages` of the last time, of a compressor that starts warm.
        """
        with self._to_neighbours("to_neighbours", topology, _moves_the_mean):
            key, turn = self.record.next_key(), self.record.frame.turn
            vectors = compressed.flat(tree, compressor.layer_wise)
            delivery = compressed.to_neighbours(compressor, key, vectors, topology, turn, last)
            self.record.add(
                f"to_neighbours on {topology.name} of {compressor.name}",
                network.gossip(topology),
                delivery.bits,
                turns=topology.period,
            )
            return _shaped(delivery, tree, compressor)

    # Through servers, around a ring, between pairs.

    def to_servers(self, compressor: Compressor, shards: PyTree, last: Any = ()) -> Delivery:
        r"""Every worker sends N servers, which are the workers, each its shard; server n receives
        $\frac1N \sum_m C(x_m)$ of shard n.

        `from_servers` sends the servers' answer: the two are one exchange.

        Args:
            compressor: C.
            shards: leaves `[n, M, part]`, of `communication.shards`.
            last: the `Delivery.messages` of the last time, of a compressor that starts warm.

        Returns:
            `received` has leaves `[n, part]`.
        """
        with self._sending("to_servers"):
            self.require_all(_SERVES)
            up, down = jax.random.split(self.record.next_key())
            delivery, frame = (
                compressed.to_servers(compressor, up, shards, self.workers, last),
                self.record.frame,
            )
            frame.answers.append((len(frame.sendings), down))
            self.record.add(f"to_servers of {compressor.name}", network.multi_server, delivery.bits)
            return delivery

    def from_servers(self, compressor: Compressor, vectors: PyTree, last: Any = ()) -> Delivery:
        """Every server sends all workers its shard, the answer to the last `to_servers`.

        Args:
            compressor: of the server.
            vectors: of the shards that they serve, leaves `[n, part]`.
            last: as in `to_servers`.

        Returns:
            `received` has leaves `[N, part]`.

        Raises:
            ValueError: there was no `to_servers` in this round that is not answered.
        """
        with self._sending("from_servers"):
            frame = self.record.frame
            if not frame.answers:
                raise ValueError(
                    f"{self.record.method}: round.from_servers without a message to them; "
                    "expected round.to_servers before it"
                )
            at, key = frame.answers.pop()
            delivery, asked = (
                compressed.to_all(compressor, key, vectors, self.workers, last),
                frame.sendings[at],
            )
            call = f"{asked.call}, from_servers of {compressor.name}"
            frame.sendings[at] = asked._replace(call=call, bits=asked.bits + delivery.bits)
            return delivery

    def around_ring(self, compressor: Compressor, shards: PyTree) -> PyTree:
        r"""The ring all-reduce, compressed at each hop,
        $\frac1N C(\cdots C(C(x_1) + x_2) + \cdots + x_N)$.

        Args:
            compressor: C.
            shards: leaves `[n, M, part]`, of `communication.shards`.

        Returns:
            Leaves `[N, part]`.
        """
        with self._sending("around_ring"):
            self.require_all(_PASSES_ON)
            delivery = compressed.around_ring(
                compressor, self.record.next_key(), shards, self.workers
            )
            self.record.add(
                f"around_ring of {compressor.name}", network.ring_all_reduce, delivery.bits
            )
            return delivery.received

    def shift(
        self, tree: PyTree, by: int = 1, compressor: Compressor | None = None, last: Any = ()
    ) -> Any:
        """Worker n receives the row of worker n - by (modulo N): leaves `[n, ...]` to `[n, ...]`.

        Args:
            tree: leaves `[n, ...]`.
            by: how many places further.
            compressor: of each row; None: rows are sent as they are.
            last: the `Delivery.messages` of the last time, of a compressor that starts warm.

        Returns:
            The rows; with a compressor a `Delivery` of them.
        """
        with self._sending("shift"):
            self.require_all("each worker needs the row of another one")
            origin = (np.arange(self.workers) - by) % self.workers
            return self._moved(
                "shift", tree, origin, lambda rows: workers.shift(rows, by), compressor, last
            )

    def exchange(
        self,
        tree: PyTree,
        partner: np.ndarray,
        compressor: Compressor | None = None,
        last: Any = (),
    ) -> Any:
        """Pairs of workers exchange their rows: leaves `[n, ...]` to `[n, ...]`.

        Args:
            tree, compressor, last: as in `shift`.
            partner: of each worker, int `[N]`, in pairs: `partner[partner[n]] == n`; a worker
                without one is its own.

        Returns:
            As `shift`.

        Raises:
            ValueError: not in pairs.
        """
        with self._sending("exchange"):
            pairs, ids = np.asarray(partner), np.arange(self.workers)
            if (
                pairs.shape != ids.shape
                or not np.isin(pairs, ids).all()
                or (pairs[pairs] != ids).any()
            ):
                given = checks.shown(partner)
                raise ValueError(
                    f"{self.record.method}: round.exchange with partner = {given}; expected "
                    f"{self.workers} workers in pairs"
                )
            self.require_all("each worker needs the row of its partner")
            return self._moved(
                "exchange",
                tree,
                pairs,
                lambda rows: workers.permuted(rows, pairs),
                compressor,
                last,
            )

    # In some rounds only.

    def when(
        self, now: Any, send: Callable, *operands: Any, otherwise: Callable | None = None
    ) -> Any:
        """`send(*operands)` if `now`, with the messages in it; else the operands as they are.

        Args:
            now: bool scalar, the same on every device.
            send: calls of this round, and anything else.
            operands: what it changes: one tree, or several, for which it returns as many.
            otherwise: what comes instead; None: the operands.

        Raises:
            ValueError: the two results differ in structure, shapes or types.
        """
        return self._sometimes(now, self.record.frame.turn, 0, send, operands, otherwise)

    def every(self, period: Period, send: Callable, *operands: Any) -> Any:
        """`send(*operands)` in the last of every `period` rounds, with the messages in it; else the
        operands as they are.

        A schedule of topologies takes its turns exchange by exchange.

        Args:
            period: a positive integer; it may be swept.
            send, operands: as in `when`.
        """
        period = _common_multiple(self.record.frame.period, period)
        return self._sometimes(
            (self.step + 1) % period == 0, self.step // period, period, send, operands, None
        )

    @contextmanager
    def joint(self) -> Iterator[None]:
        """Calls in here are one exchange, whose messages carry what each of them sends.

        Raises:
            ValueError: exchanges of different patterns.
        """
        self.record.require_seen("joint")
        with self.record.joined(self.workers):
            yield

    def if_active(self, tree: PyTree, otherwise: PyTree) -> PyTree:
        """The rows of workers that participate and compute something in this round, and the other
        workers' of another tree, `[n, ...]`.
        """
        if self.work is not None:
            tree = workers.where_rows(jnp.any(self.work.samples > 0, axis=1), tree, otherwise)
        return workers.where_present(tree, otherwise)

    # What is not a message.

    def log(self, **metrics: Any) -> None:
        """Numbers for the history: scalars, or `[N]` (one for each worker), the same on every
        device.
        """
        for name, value in metrics.items():
            if np.shape(value) != (self.workers,):
                checks.require_scalar(
                    f"{self.record.method}: round.log gets {name!r}",
                    value,
                    f"a scalar, or [{self.workers}],",
                )
        self._note("log", "metrics", metrics)

    def refuse_if(self, wrong: Any, words: str, number: Any = 0) -> None:
        """Ends the run with a ValueError if `wrong` holds in any round.

        Args:
            wrong: bool scalar, the same on every device.
            words: what is wrong and how to fix it, with {} for the number.
            number: a real scalar, likewise.
        """
        self._note("refuse_if", "refusals", {words: self._unless("refuse_if", wrong, number)})

    def warn_if(self, wrong: Any, words: str, number: Any = 0) -> None:
        """Warns if `wrong` holds; arguments as of `refuse_if`."""
        self._note("warn_if", "warnings", {words: self._unless("warn_if", wrong, number)})

    def computed(self, seconds: Any) -> None:
        """States for how many seconds each worker has computed, `[N]`, of a method that stops
        workers; on a cluster.
        """
        self.record.require_seen("computed")
        if np.shape(seconds) != (self.workers,):
            given = checks.typed(seconds)
            raise ValueError(
                f"{self.record.method}: round.computed gets {given}; expected seconds "
                f"[{self.workers}]"
            )
        self.record.time("computed", "compute", seconds)

    def event(self, tree: PyTree, among: jax.Array, elapsed: Any, pattern: Pattern) -> None:
        """A message of a few workers, of a method that is driven by events and keeps its own time.

        Args:
            tree: leaves `[n, ...]`, of which each of these workers sends, and receives, one row.
            among: which workers, int32 `[k]`; outside 0, ..., N - 1: none.
            elapsed: seconds since the last event; None: the run has no time.
            pattern: for tables of costs.
        """
        self.record.require_seen("event")
        here = jnp.any(workers.ids(self.workers)[:, None] == among[None], axis=1)
        sent = jnp.where(
            here[:, None], bits.to_one(bits.of_tree(tree), self.workers), jnp.uint32(0)
        )
        self.record.add("event", pattern, Bits(sent, sent), simulated=True)
        if elapsed is not None:
            checks.require_scalar(f"{self.record.method}: round.event gets elapsed", elapsed)
            self.record.time("event", "elapsed", elapsed)

    def sent(
        self, up: jax.Array, down: jax.Array, pattern: Pattern, *, simulated: bool = False
    ) -> None:
        """Records an exchange that the method models itself.

        Args:
            up, down: bits that each worker sends and receives, counts of `dsgd.counts`, uint32
                `[n, 4]`.
            pattern: how the messages flow.
            simulated: the collectives in the program are not these messages.
        """
        self.record.require_seen("sent")
        self.record.add("sent", pattern, Bits(up, down), simulated=simulated)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Collectives of `dsgd.workers` in here are no messages: of numbers for the history, or
        what the method records by `sent`.

        Means have the workers' weights if those of the method, in its calls before, have them.
        """
        weights = self.problem.weights if self.problem is not None and self.record.weighs else None
        with jax.named_scope(f"{MESSAGE}.unrecorded"), workers.weighted(weights):
            yield

    def next_key(self) -> jax.Array:
        """A random key of this update that no other call has, the same for all workers;
        `workers.keys(key, N)` makes one for each.
        """
        return self.record.next_key()

    def require_all(self, reason: str) -> None:
        """Refuses clusters on which workers do not participate or messages are lost.

        Args:
            reason: why the method cannot go on, in words.
        """
        if workers.attendance() is None:
            return
        where = "messages are lost" if self.present is None else "workers do not participate"
        raise ValueError(
            f"{self.record.method} on a cluster where {where}: {reason}; expected a method that "
            f"goes on, such as {GOES_ON}"
        )

    # How calls are recorded.

    @contextmanager
    def _sending(self, call: str) -> Iterator[None]:
        self.record.require_seen(call)
        with jax.named_scope(f"{MESSAGE}.{call}"):
            yield

    @contextmanager
    def _reducing(self, call: str, tree: PyTree, via: Any) -> Iterator[None]:
        """Records an all-reduce."""
        if not isinstance(via, Pattern):
            raise ValueError(
                f"{self.record.method}: round.{call} via {checks.shown(via)}; expected a pattern "
                "of dsgd.network"
            )
        with self._sending(call):
            one_server = via in (network.parameter_server, network.star)
            self.record.add_reduced(
                f"{call} via {via.name}",
                via,
                bits.of_tree(tree),
                self.workers,
                simulated=one_server,
            )
            yield

    @contextmanager
    def _weighing(self) -> Iterator[None]:
        self.record.weighs = True
        with workers.weighted(self.problem and self.problem.weights):
            yield

    @contextmanager
    def _to_neighbours(
        self, call: str, topology: Any, needs_all: Callable[[Topology], str] | None
    ) -> Iterator[None]:
        """`needs_all`: topology -> why no worker or message may be missing on it, "" if they may;
        None: they always may.
        """
        if not isinstance(topology, Topology):
            raise ValueError(
                f"{self.record.method}: round.{call} on {checks.shown(topology)}; expected a "
                "topology of topologies"
            )
        topology.require_workers(self.record.method, self.workers)
        if needs_all is not None and (reason := needs_all(topology)):
            self.require_all(reason)
        with self._sending(call):
            yield

    @contextmanager
    def _mixing(
        self, call: str, tree: PyTree, topology: Any, needs_all: Callable[[Topology], str] | None
    ) -> Iterator[jax.Array]:
        """Records messages to all neighbours, and gives the turn of a schedule."""
        with self._to_neighbours(call, topology, needs_all):
            size, turn = bits.of_tree(tree), self.record.frame.turn
            sent = bits.to_neighbours(size, size, topology, turn)
            # The uniform W is a mean over all workers, for which an all-reduce stands.
            pattern, simulated = network.gossip(topology), topology.uniform
            self.record.add(
                f"{call} on {topology.name}",
                pattern,
                sent,
                simulated=simulated,
                turns=topology.period,
            )
            yield turn

    def _moved(
        self,
        call: str,
        tree: PyTree,
        origin: np.ndarray,
        move: Callable,
        compressor: Compressor | None,
        last: Any,
    ) -> Any:
        """Each worker gets the row of its origin, which may be itself."""
        N = self.workers
        moves = workers.own(jnp.asarray(origin != np.arange(N), jnp.uint32), N)
        if compressor is None:
            sent = counts.times(moves, bits.to_one(bits.of_tree(tree), N))
            self.record.add(call, network.ring_shift, Bits(sent, sent))
            return move(tree)
        vectors = compressed.flat(tree, compressor.layer_wise)
        delivery = compressed.moved(compressor, self.record.next_key(), vectors, N, move, last)
        sent = Bits(*(counts.times(moves, each) for each in delivery.bits[:2]))
        self.record.add(f"{call} of {compressor.name}", network.ring_shift, sent)
        return _shaped(delivery, tree, compressor)

    def _unless(self, call: str, wrong: Any, number: Any) -> jax.Array:
        """The number if something is wrong, else NaN."""
        checks.require_scalar(f"{self.record.method}: round.{call} gets a condition", wrong)
        checks.require_scalar(f"{self.record.method}: round.{call} gets a number", number)
        return jnp.where(wrong, jnp.asarray(number, float), jnp.nan)

    def _note(self, call: str, kind: str, numbers: dict[str, Any]) -> None:
        self.record.require_seen(call)
        self.record.frame.numbers[kind].update(
            {name: jnp.asarray(number) for name, number in numbers.items()}
        )

    def _sometimes(
        self,
        now: Any,
        turn: Any,
        period: Period,
        send: Callable,
        operands: tuple,
        otherwise: Callable | None,
    ) -> Any:
        record, opened = self.record, list[Frame]()
        record.require_seen("when")
        checks.require_scalar(f"{record.method}: round.when gets a condition", now)
        now, outer = jnp.asarray(now), record.frame.period
        if not isinstance(period, Tracer) and period == 1:
            return send(*operands)

        def branch(operands):
            # inside `when` no number of rounds is fixed
            opened[:] = [Frame(turn, 0 if isinstance(outer, int) and outer == 0 else period)]
            with record.inside(opened[0]):
                result = send(*operands)
            return result, opened[0].arrays()

        branch = jax.jit(branch, inline=True)  # traced once, for its shapes and for the branch
        shapes, arrays = jax.eval_shape(branch, operands)

        def silent(operands):
            kept = (
                otherwise(*operands)
                if otherwise
                else operands[0]
                if len(operands) == 1
                else operands
            )
            checks.require_same(f"{record.method}: round.when: without messages", kept, shapes)
            unknown = jax.tree.map(
                lambda leaf: jnp.full(leaf.shape, np.nan if _is_float(leaf) else 0, leaf.dtype),
                arrays,
            )
            return kept, unknown

        result, sent = lax.cond(now, branch, silent, operands)
        record.enclose(opened[0], sent, now)
        return result


def communicate(
    method: Algorithm, state: State, gradients: Gradients, round: Round, key: jax.Array
) -> tuple[Any, Record]:
    """The state after one update, and the record of what it sent; it is counted as a round.

    Args:
        method: with plain members.
        state, gradients: as its `update` gets them.
        round: the present one.
        key: for the messages, the same for all workers.
    """
    record = Record(method.name, key, round.step)
    with jax.named_scope(UPDATE):
        after = method.update(state, gradients, _with_record(round, record))
    if isinstance(after, State):
        after = after._replace(step=state.step + 1, fixed=state.fixed)
    return after, record


def _moves_the_mean(topology: Topology) -> str:
    """Why a lost message matters to methods that keep the mean over workers. A link is down in both
    directions, so that on a symmetric W it moves neither end's share of the mean."""
    if topology.symmetric:
        return ""
    return f"W of {topology.name} is not symmetric: a lost message moves the mean over workers, which push-sum keeps"


def _divides_by_zero(topology: Topology) -> str:
    """Why a lost message matters to push-sum."""
    if min(W.data.min() for W in topology.matrices) > 0:
        return ""
    return (
        f"W of {topology.name} has negative weights: if messages are lost, push-sum may divide by 0"
    )


def _shaped(delivery: Delivery, like: PyTree, compressor: Compressor) -> Delivery:
    """Of vectors `[n, d]` or `[N, d]`, the tree that they were made of."""
    received, decoded = (
        compressed.shaped(each, like, compressor.layer_wise)
        for each in (delivery.received, delivery.decoded)
    )
    return delivery._replace(received=received, decoded=decoded)


def _with_record(round: Round, record: Record) -> Communicator:
    communicator = Communicator(*round)
    communicator.record = record
    return communicator


def _common_multiple(outer: Period, period: Period) -> Period:
    """Rounds from one exchange to the next of `every` inside another one (or inside `when`, whose
    period is 0).
    """
    if not isinstance(outer, Tracer) and outer <= 1:
        return period
    traced = isinstance(outer, Tracer) or isinstance(period, Tracer)
    return jnp.lcm(outer, period) if traced else math.lcm(outer, period)


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
