"""The communicator: the round as an update sees it, whose calls send data and record it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.core import Tracer

from dsgd import checks, network, workers
from dsgd.base import Algorithm, Compressor, Gradients, Pattern, Period, PyTree, Round, State
from dsgd.communication import bits, compressed
from dsgd.communication.bits import Bits
from dsgd.communication.compressed import Delivery
from dsgd.communication.record import Frame, Record
from dsgd.compressors.codes import LinearCode
from dsgd.graphs.accelerated import Accelerated
from dsgd.graphs.topology import Role, Topology
from dsgd.network import AllReduce, Asynchronous, NServers, OneServer, PointToPoint

UPDATE, MESSAGE = "dsgd.update", "dsgd.message"
"""Name scopes of operations in a compiled program: those of an update, and, within an update, those
of recorded messages."""

Carrying = AllReduce | PointToPoint | Asynchronous
GOES_ON = "algorithms.decentralized_sgd on a symmetric W, local_sgd, scaffold or minibatch_sgd"
_SERVES = "each worker is the server of a shard of the model, which no other worker has"
_PASSES_ON = "each worker adds its own vector to the message of the worker before it"


class Communicator(Round):
    """A `Round` that can also send. Each call moves data between workers and records the bits that
    each worker sends and receives, the communication pattern (for the clock), and lost messages.

    Several calls in one update are consecutive exchanges; calls inside `with round.joint():` are
    one exchange. All leaves of a tree are sent in one message.

    Shapes: leaves `[n, ...]` have one row for each of the n workers of a device's block; leaves
    `[N, ...]` and `[...]` are the same on every device.
    """

    record: Record

    def _replace(self, **kwargs: Any) -> Communicator:  # pyright: ignore[reportIncompatibleMethodOverride] (keeps the record)
        return _with_record(Round._replace(self, **kwargs), self.record)

    # Collectives over all workers.

    def mean(self, tree: PyTree, via: AllReduce = network.ring_all_reduce) -> PyTree:
        r"""Returns the mean over all workers, $\frac1N \sum_n x_n$: leaves `[n, ...]` become
        `[...]`.

        The mean is over the workers that participate and whose messages arrive; it is 0 if there
        are none.

        Args:
            tree: leaves `[n, ...]`.
            via: communication pattern: `network.ring_all_reduce`, `network.multi_server`,
                `network.parameter_server`, `network.star` or another `network.AllReduce`.

        Raises:
            ValueError: if the pattern does not carry a mean over all workers.
        """
        with self._reducing("mean", tree, via):
            return workers.mean(tree)

    def sum(self, tree: PyTree, via: AllReduce = network.ring_all_reduce) -> PyTree:
        """Returns the sum over all workers; otherwise as `mean`. Half-precision leaves are summed
        in float32 and rounded once.
        """
        with self._reducing("sum", tree, via):
            return workers.sum(tree)

    def weighted_mean(self, tree: PyTree, via: AllReduce = network.ring_all_reduce) -> PyTree:
        r"""Returns the mean with the problem's worker weights, $\sum_n w_n x_n / \sum_n w_n$;
        otherwise as `mean`.

        A method that calls this receives gradients of $f_n$ instead of gradients of $w_n f_n$, so
        that each weight counts once.
        """
        with self._reducing("weighted_mean", tree, via), self._weighing():
            return workers.mean(tree)

    def average(self, models: PyTree, via: AllReduce = network.ring_all_reduce) -> PyTree:
        """Replaces every worker's model by the `weighted_mean` of all models: leaves `[n, ...]` to
        `[n, ...]`. If no message arrives, workers keep their models.
        """
        with self._reducing("average", models, via), self._weighing():
            mean = jax.tree.map(
                lambda mean, leaf: jnp.broadcast_to(mean, leaf.shape), workers.mean(models), models
            )
            return workers.if_nonempty(mean, models)

    def aggregate(
        self, new: PyTree, old: PyTree, via: AllReduce = network.ring_all_reduce
    ) -> tuple[PyTree, PyTree]:
        r"""Updates the weighted mean of vectors that workers keep between rounds, when only the
        workers that participate send new ones.

        $$ \bar c \leftarrow \bar c + \frac1N \sum_{n \in S} w_n (c_n^{new} - c_n), \qquad c_n
        \leftarrow c_n^{new} \text{ for } n \in S $$

        Args:
            new: new vectors, leaves `[n, ...]`.
            old: vectors of the previous round, leaves `[n, ...]`; all workers know their weighted
                mean.
            via: as in `mean`.

        Returns:
            The updated mean, leaves `[...]`, and the vector that each worker keeps, leaves
            `[n, ...]`.
        """
        with self._reducing("aggregate", new, via), self._weighing():
            kept = workers.where_delivered(new, old)
            # All workers know the old vectors' mean, so the new mean is over all workers.
            with workers.with_participation(None):
                return workers.mean(kept), kept

    def all_gather(self, tree: PyTree, compressor: Compressor | None = None, last: Any = ()) -> Any:
        """Sends all rows to all workers: leaves `[n, ...]` become `[N, ...]`.

        Args:
            tree: leaves `[n, ...]`.
            compressor: compressor of each row; None: rows are sent uncompressed.
            last: the previous call's `Delivery.messages`, for a compressor that starts from the
                previous message.

        Returns:
            The rows; with a compressor, a `Delivery` whose `received` has the rows.
        """
        with self._sending("all_gather"):
            self.require_all("each worker needs the messages of all others")
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

    def mean_of_messages(self, compressor: Compressor, tree: PyTree, last: Any = ()) -> Delivery:
        r"""Sends one compressed message from every worker to all others, and returns the mean of
        the decoded messages with the problem's worker weights, $\sum_n w_n C(x_n) / \sum_n w_n$.

        As for `weighted_mean`, the gradients are then those of $f_n$.

        Args:
            compressor: C.
            tree: leaves `[n, ...]`.
            last: as in `all_gather`.

        Returns:
            A `Delivery` whose `received` has leaves `[...]`.
        """
        delivery = self.all_gather(tree, compressor, last)
        self.record.weighs = True
        weights = self.problem and self.problem.weights

        def mean(rows):
            if weights is None:
                return workers.mean_rows(rows)
            shares = jnp.asarray(weights, workers.widened(rows).dtype) / sum(weights)
            return jnp.tensordot(shares, rows, 1, precision="highest").astype(rows.dtype)

        return delivery._replace(received=jax.tree.map(mean, delivery.received))

    def mean_of_codes(
        self,
        code: LinearCode,
        tree: PyTree,
        via: AllReduce = network.ring_all_reduce,
        *,
        weighted: bool = False,
    ) -> Delivery:
        r"""Returns the decoded mean over all workers of their codes, $D(\frac1N \sum_n E(x_n))$,
        which is that of the mean vector, $D(E(\bar x))$, since E is linear. Only the codes are
        all-reduced.

        The codes of each call are drawn with a new key, the same for all workers. The mean is over
        the same workers as in `mean`.

        Args:
            code: E and D, such as `compressors.random_places(0.1)`; each leaf has its own code.
            tree: floating-point leaves `[n, ...]`.
            via: as in `mean`.
            weighted: whether the mean is that of `weighted_mean`; the gradients are then those of
                $f_n$.

        Returns:
            A `Delivery`: `received` has leaves `[...]`, and `decoded` the vectors
            that the workers' own codes decode to, $D(E(x_n))$, leaves `[n, ...]`.
        """
        leaves, treedef = jax.tree.flatten(tree)
        keys = jax.random.split(self.record.next_key(), len(leaves))
        rows = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
        codes = [jax.vmap(partial(code.encode, key))(x) for key, x in zip(keys, rows, strict=True)]
        weighing = self._weighing() if weighted else nullcontext()
        with self._reducing(f"mean_of_codes of {code.name}", codes, via), weighing:
            means = workers.mean(codes)

        def decode(key, sent, x):
            return code.decode(key, sent, x.shape[1]).astype(x.dtype)

        received = [
            decode(key, mean, x).reshape(leaf.shape[1:])
            for key, mean, x, leaf in zip(keys, means, rows, leaves, strict=True)
        ]
        decoded = [
            jax.vmap(partial(decode, key, x=x))(sent).reshape(leaf.shape)
            for key, sent, x, leaf in zip(keys, codes, rows, leaves, strict=True)
        ]
        sent = self.record.frame.sendings[-1].bits
        return Delivery(treedef.unflatten(received), treedef.unflatten(decoded), (), sent)

    # Messages to neighbours on a graph.

    def mix(self, tree: PyTree, topology: Topology) -> PyTree:
        r"""Returns the models after one gossip round, $x_n \leftarrow \sum_m W_{nm} x_m$: leaves
        `[n, ...]` to `[n, ...]`.

        Args:
            tree: floating-point leaves `[n, ...]`.
            topology: W; if it is a schedule, the W of this round is used. If it is accelerated
                (`topologies.chebyshev`), its exchanges are sent one after the other.
        """
        if isinstance(topology, Accelerated):
            return optax.tree.add(tree, self.laplacian(tree, topology))
        with self._mixing("mix", tree, topology, _moves_the_mean) as turn:
            return workers.mix(tree, topology, turn)

    def laplacian(self, tree: PyTree, topology: Topology, weighted: bool = True) -> PyTree:
        r"""Returns the change that one gossip round would make, $\sum_m W_{nm} (x_m - x_n)$: leaves
        `[n, ...]` to `[n, ...]`. Its mean over workers is 0 if W is doubly stochastic.

        Args:
            tree: floating-point leaves `[n, ...]`.
            topology: as in `mix`.
            weighted: whether neighbours have the weights of W; if not, each has the weight 1, and
                the result is $\sum_{m \in \mathcal N_n} (x_m - x_n)$, minus the graph's unweighted
                Laplacian matrix times the models.
        """
        if weighted and isinstance(topology, Accelerated):
            return topology.change(lambda x: self.laplacian(x, topology.exchanged), tree)
        with self._mixing("laplacian", tree, topology, _moves_the_mean) as turn:
            return workers.laplacian(tree, topology, turn, weighted=weighted)

    def push_sum(
        self, tree: PyTree, weights: jax.Array, topology: Topology
    ) -> tuple[PyTree, jax.Array]:
        r"""Returns vectors and weights after one round of push-sum,
        $x_n \leftarrow \sum_m W_{nm} x_m$ and $w_n \leftarrow \sum_m W_{nm} w_m$.

        Sums over workers are preserved even if messages are lost: a sender keeps what does not
        arrive.

        Args:
            tree: leaves `[n, ...]`.
            weights: push-sum weights w, `[n]`.
            topology: W, whose columns sum to 1.
        """
        with self._mixing("push_sum", (tree, weights), topology, _divides_by_zero) as turn:
            return workers.mix((tree, weights), topology, turn, keep_sums=True)

    def pull(self, tree: PyTree, topology: Topology) -> PyTree:
        r"""Returns weighted means of the neighbours' vectors, $x_n \leftarrow \sum_m R_{nm} x_m$:
        leaves `[n, ...]` to `[n, ...]`. Vectors that are all equal do not change, even if messages
        are lost: a receiver keeps its own vector in the place of what does not arrive.

        Args:
            tree: floating-point leaves `[n, ...]`.
            topology: R, with rows that sum to 1: a topology for "pull", or doubly stochastic.
        """
        with self._mixing("pull", tree, topology, None, ("pull",)) as turn:
            return workers.mix(tree, topology, turn)

    def push(self, tree: PyTree, topology: Topology) -> PyTree:
        r"""Returns the sums of what workers send each other, $x_n \leftarrow \sum_m P_{nm} x_m$:
        leaves `[n, ...]` to `[n, ...]`. The sum over workers is preserved even if messages are
        lost: a sender keeps what does not arrive.

        Args:
            tree: floating-point leaves `[n, ...]`.
            topology: P, with columns that sum to 1: a topology for "push" or for "gossip".
        """
        with self._mixing("push", tree, topology, None, ("push", "gossip")) as turn:
            return workers.mix(tree, topology, turn, keep_sums=True)

    def to_each_neighbour(self, tree: PyTree, otherwise: PyTree, topology: Topology) -> PyTree:
        """Sends a different vector to each neighbour, and returns the vectors that the neighbours
        send: leaves `[n, K, ...]` to `[n, K, ...]`, where K is the largest number of neighbours,
        `topology.degree`.

        The k-th vector of a worker is sent to its k-th neighbour, in ascending order of the
        workers' numbers, and the k-th that it receives is sent by that neighbour.

        Args:
            tree: leaves `[n, K, ...]` of any type.
            otherwise: vectors in place of those that do not arrive, and of neighbours that a worker
                does not have because it has fewer than K; leaves `[n, K, ...]`.
            topology: an undirected graph, the same in all rounds. Its weights are not used.

        Raises:
            ValueError: if W is not symmetric or the topology is a schedule, or a leaf has another
                number of vectors.
        """
        with self._to_neighbours("to_each_neighbour", topology, None):
            _require_edges(f"{self.record.method}: round.to_each_neighbour", tree, topology)
            size, turn = bits.of_tree(tree) // max(1, topology.degree), self.record.frame.turn
            self.record.add(
                f"to_each_neighbour on {topology.name}",
                network.gossip(topology),
                bits.to_neighbours(size, size, topology, turn),
                topology=topology,
            )
            return workers.to_each_neighbour(tree, otherwise, topology)

    def to_neighbours(
        self,
        compressor: Compressor,
        tree: PyTree,
        topology: Topology,
        last: Any = (),
        *,
        one_by_one: bool = False,
    ) -> Delivery:
        r"""Sends one compressed message from every worker to its neighbours. Worker n receives
        $\sum_m W_{nm} (C(x_m) - C(x_n))$.

        Args:
            compressor: C.
            tree: leaves `[n, ...]`.
            topology: W.
            last: as in `all_gather`.
            one_by_one: whether worker n receives the C(x_m) of its neighbours instead of the sum.

        Returns:
            A `Delivery`; `received` has leaves `[n, ...]`; if `one_by_one`, it is
            a pair: the neighbours' C(x_m), leaves `[n, K, ...]`, where K is the largest number of
            neighbours; and their weights in W, `[n, K]`, which are 0 for missing neighbours and for
            messages that do not arrive.
        """
        with self._to_neighbours("to_neighbours", topology, _moves_the_mean):
            key, turn = self.record.next_key(), self.record.frame.turn
            vectors = compressed.flat(tree, compressor.layer_wise)
            delivery = compressed.to_neighbours(
                compressor, key, vectors, topology, turn, last, one_by_one=one_by_one
            )
            self.record.add(
                f"to_neighbours on {topology.name} of {compressor.name}",
                network.gossip(topology),
                delivery.bits,
                topology=topology,
            )
            if not one_by_one:
                return _shaped(delivery, tree, compressor)
            rows, weights = delivery.received
            shape = partial(compressed.shaped, like=tree, layer_wise=compressor.layer_wise)
            rows = jax.vmap(shape, in_axes=1, out_axes=1)(rows)
            return delivery._replace(received=(rows, weights), decoded=shape(delivery.decoded))

    # Messages through servers and around a ring.

    def to_servers(
        self,
        compressor: Compressor,
        shards: PyTree,
        last: Any = (),
        *,
        via: NServers = network.multi_server,
    ) -> Delivery:
        r"""Sends each worker's compressed shards to N servers, which run on the workers. Server n
        receives $\frac1N \sum_m C(x_m)$ of shard n.

        The servers reply with `from_servers`; the two calls are recorded as one exchange.

        Args:
            compressor: C.
            shards: leaves `[n, M, part]`, from `communication.shards`.
            last: as in `all_gather`.
            via: `network.multi_server` or another `network.NServers`.

        Returns:
            A `Delivery` whose `received` has leaves `[n, part]`.

        Raises:
            ValueError: if `via` is another pattern.
        """
        via = self._carrying("to_servers: via", via, NServers)
        with self._sending("to_servers"):
            self.require_all(_SERVES)
            up, down = jax.random.split(self.record.next_key())
            delivery, frame = (
                compressed.to_servers(compressor, up, shards, self.workers, last),
                self.record.frame,
            )
            frame.answers.append((len(frame.sendings), down))
            self.record.add(f"to_servers of {compressor.name}", via, delivery.bits)
            return delivery

    def from_servers(self, compressor: Compressor, vectors: PyTree, last: Any = ()) -> Delivery:
        """Sends every server's compressed shard to all workers: the reply to the last `to_servers`.

        Args:
            compressor: the servers' compressor.
            vectors: the shards that the servers own, leaves `[n, part]`.
            last: as in `all_gather`.

        Returns:
            A `Delivery` whose `received` has leaves `[N, part]`.

        Raises:
            ValueError: if no `to_servers` of this round is left to reply to.
        """
        with self._sending("from_servers"):
            at, key = self._request("from_servers", "to_servers", NServers)
            delivery = compressed.to_all(compressor, key, vectors, self.workers, last)
            self._reply(at, f"from_servers of {compressor.name}", delivery.bits)
            return delivery

    def to_server(
        self,
        compressor: Compressor,
        tree: PyTree,
        last: Any = (),
        *,
        via: OneServer = network.star,
        weighted: bool = False,
        senders: jax.Array | None = None,
    ) -> Delivery:
        r"""Sends one compressed message from every worker to one server, which is no worker. The
        server receives their mean, $\frac1N \sum_n C(x_n)$.

        The mean is over the messages that arrive; it is 0 if there are none.
        `workers.share_delivered` is their share of the N workers. Memories of workers
        without a delivered message are kept by `workers.where_delivered`. The server replies with
        `from_server`; the two calls are recorded as one exchange. On several devices they are
        simulated by sums over devices.

        Args:
            compressor: C.
            tree: leaves `[n, ...]`.
            last: as in `all_gather`.
            via: `network.star`, `network.parameter_server` or another `network.OneServer`.
            weighted: whether the mean is that of `weighted_mean`, $\sum_n w_n C(x_n) / \sum_n w_n$;
                the gradients are then those of $f_n$.
            senders: workers of the block that send a message, bool `[n]`; None: all. The others
                send no bits, and count in the mean with a vector of 0.

        Returns:
            A `Delivery`: `received` has leaves `[...]`, and `decoded` is 0 for workers that send
            nothing.

        Raises:
            ValueError: if `via` is another pattern.
        """
        via = self._carrying("to_server: via", via, OneServer)
        with self._sending("to_server"), self._weighing() if weighted else nullcontext():
            up, down = jax.random.split(self.record.next_key())
            vectors = compressed.flat(tree, compressor.layer_wise)
            delivery = compressed.to_one_server(
                compressor, up, vectors, self.workers, last, senders
            )
            frame = self.record.frame
            frame.answers.append((len(frame.sendings), down))
            self.record.add(f"to_server of {compressor.name}", via, delivery.bits, simulated=True)
            one = compressed.shaped(
                workers.replicate(delivery.received, 1), tree, compressor.layer_wise
            )
            return delivery._replace(
                received=jax.tree.map(lambda leaf: leaf[0], one),
                decoded=compressed.shaped(delivery.decoded, tree, compressor.layer_wise),
            )

    def from_server(
        self, tree: PyTree, compressor: Compressor | None = None, last: Any = ()
    ) -> Delivery:
        """Sends one vector from the server to all workers that participate: the reply to the last
        `to_server`.

        Args:
            tree: leaves `[...]`, the same on every device.
            compressor: the server's compressor; None: the vector is sent uncompressed.
            last: as in `all_gather`.

        Returns:
            A `Delivery`: `received` and `decoded` have leaves `[...]`.

        Raises:
            ValueError: if no `to_server` of this round is left to reply to.
        """
        with self._sending("from_server"):
            at, key = self._request("from_server", "to_server", OneServer)
            rows = workers.replicate(tree, 1)
            if compressor is None:
                sent = bits.from_server(bits.of_tree(rows), self.workers)
                self._reply(at, "from_server", sent)
                return Delivery(tree, tree, (), sent)
            vectors = compressed.flat(rows, compressor.layer_wise)
            delivery = compressed.from_one_server(compressor, key, vectors, self.workers, last)
            self._reply(at, f"from_server of {compressor.name}", delivery.bits)
            shaped = compressed.shaped(delivery.decoded, rows, compressor.layer_wise)
            decoded = jax.tree.map(lambda leaf: leaf[0], shaped)
            return delivery._replace(received=decoded, decoded=decoded)

    def around_ring(self, compressor: Compressor, shards: PyTree) -> PyTree:
        r"""Returns the mean over workers by a ring all-reduce that compresses at each hop,
        $\frac1N C(\cdots C(C(x_1) + x_2) + \cdots + x_N)$.

        Args:
            compressor: C.
            shards: leaves `[n, M, part]`, from `communication.shards`.

        Returns:
            The mean, leaves `[N, part]`.
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

    # Messages in some rounds only.

    def when(
        self, now: Any, send: Callable, *operands: Any, otherwise: Callable | None = None
    ) -> Any:
        """Returns `send(*operands)` if `now`, and records its messages; else returns the operands
        unchanged.

        Args:
            now: bool scalar, the same on every device.
            send: function that may call the communicator and compute anything else.
            operands: one tree, or several, which `send` changes; it returns as many.
            otherwise: function of the operands that is called if not `now`, without messages; None:
                the operands are returned.

        Raises:
            ValueError: if the two results differ in structure, shapes or types.
        """
        return self._sometimes(now, self.record.frame.turn, 0, send, operands, otherwise)

    def every(
        self, period: Period, send: Callable, *operands: Any, offset: int | jax.Array = 0
    ) -> Any:
        """Returns `send(*operands)` in the last of every `period` rounds, and records its messages;
        in other rounds returns the operands unchanged.

        A schedule of topologies advances with each exchange, not with each round.

        Args:
            period: a positive integer; it may be swept.
            send, operands: as in `when`.
            offset: an integer in [0, period): the exchanges take place in the rounds t with
                t + 1 = offset modulo `period`.
        """
        both = _common_multiple(self.record.frame.period, period)
        return self._sometimes(
            (self.step + 1 - offset) % period == 0,
            self.step // both,
            both,
            send,
            operands,
            None,
        )

    @contextmanager
    def joint(self) -> Iterator[None]:
        """Context whose calls are one exchange: its messages carry the data of all calls.

        Raises:
            ValueError: if the calls have different communication patterns.
        """
        self.record.require_seen("joint")
        with self.record.joined(self.workers):
            yield

    @contextmanager
    def delayed(self, rounds: Period) -> Iterator[None]:
        """Context whose messages the method uses only `rounds` rounds later. On the clock of a
        cluster the workers go on in the meantime, and wait for the messages in that later round,
        after they have computed its gradient.

        The calls return at once what arrives later. The method must not use it earlier.

        Args:
            rounds: at least 0, and at most the number of rounds to the next such exchange.
        """
        self.record.require_seen("delayed")
        with self.record.delayed(rounds):
            yield

    def if_active(self, tree: PyTree, otherwise: PyTree) -> PyTree:
        """Returns the rows of `tree` for workers that participate and compute something in this
        round, and the rows of `otherwise` for all other workers, leaves `[n, ...]`.
        """
        if self.work is not None:
            tree = workers.where_rows(jnp.any(self.work.samples > 0, axis=1), tree, otherwise)
        return workers.where_present(tree, otherwise)

    # Calls that send nothing.

    def prox(self, model: PyTree, step: Any) -> PyTree:
        r"""Returns $\mathrm{prox}_{s r}(x) = \arg\min_z r(z) + \frac1{2 s} |z - x|^2$ for the
        problem's regularizer r; x itself if it has none.

        `jax.vmap(round.prox, (0, None))(models, step)` is the same for each of several models.

        Args:
            model: x, one model, leaves `[...]`.
            step: s, a positive scalar.
        """
        self.record.proximal = True
        regularizer = self.problem and self.problem.regularizer
        if regularizer is None:
            return model
        after = regularizer.prox(model, step)
        checks.require_same(
            f"{self.record.method}: prox of {regularizer.name} returns a tree", after, model
        )
        return jax.tree.map(lambda after, x: after.astype(x.dtype), after, model)

    def log(self, **metrics: Any) -> None:
        """Records numbers in the history, by name: scalars, or `[N]` (one for each worker), the
        same on every device.
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
            words: error message: what is wrong and how to fix it, with {} for `number`.
            number: real scalar, the same on every device.
        """
        self._note("refuse_if", "refusals", {words: self._unless("refuse_if", wrong, number)})

    def warn_if(self, wrong: Any, words: str, number: Any = 0) -> None:
        """Warns if `wrong` holds in any round; arguments as in `refuse_if`."""
        self._note("warn_if", "warnings", {words: self._unless("warn_if", wrong, number)})

    def computed(self, seconds: Any) -> None:
        """Records the seconds that each worker has computed in this round, `[N]`, for methods that
        stop workers early on a cluster.
        """
        self.record.require_seen("computed")
        if np.shape(seconds) != (self.workers,):
            given = checks.kind(seconds)
            raise ValueError(
                f"{self.record.method}: round.computed: seconds = {given}; expected an array of "
                f"shape [{self.workers}], one number for each worker"
            )
        self.record.time("computed", "compute", seconds)

    def event(self, tree: PyTree, among: jax.Array, elapsed: Any, pattern: Asynchronous) -> None:
        """Records a message between a few workers, for event-driven methods that keep their own
        time.

        Args:
            tree: leaves `[n, ...]`; each of the given workers sends and receives one row.
            among: numbers of the workers, int32 `[k]`; numbers outside 0, ..., N - 1 are ignored.
            elapsed: seconds since the last event; None: the run has no simulated time.
            pattern: communication pattern, for tables of costs: `network.asynchronous_server`,
                `network.asynchronous_gossip` or another `network.Asynchronous`.

        Raises:
            ValueError: if it is another pattern.
        """
        self.record.require_seen("event")
        pattern = self._carrying("event: pattern", pattern, Asynchronous)
        takes_part = jnp.any(workers.ids(self.workers)[:, None] == among[None], axis=1)
        sent = jnp.where(
            takes_part[:, None], bits.to_one(bits.of_tree(tree), self.workers), jnp.uint32(0)
        )
        self.record.add("event", pattern, Bits(sent, sent), simulated=True)
        if elapsed is not None:
            checks.require_scalar(f"{self.record.method}: round.event gets elapsed", elapsed)
            self.record.time("event", "elapsed", elapsed)

    def sent(
        self, up: jax.Array, down: jax.Array, pattern: Carrying, *, simulated: bool = False
    ) -> None:
        """Records an exchange whose bits the method computes itself.

        Args:
            up, down: bits that each worker sends and receives, uint32 `[n, 4]`, counts of
                `dsgd.wire.counts`.
            pattern: how the messages flow.
            simulated: whether the collectives in the program differ from these messages.

        Raises:
            ValueError: if the pattern carries nothing, as `network.local`.
        """
        self.record.require_seen("sent")
        pattern = self._carrying("sent: pattern", pattern, Carrying)
        self.record.add("sent", pattern, Bits(up, down), simulated=simulated)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Context in which collectives of `dsgd.workers` do not count as messages: use it for
        numbers of the history, or for data that the method records with `sent`.

        Means are weighted by the workers' weights if an earlier call of the method in this round
        was weighted.
        """
        weights = self.problem.weights if self.problem is not None and self.record.weighs else None
        with jax.named_scope(f"{MESSAGE}.unrecorded"), workers.weighted(weights):
            yield

    def next_key(self) -> jax.Array:
        """Returns a random key of this update that no other call receives, the same for all
        workers; `workers.keys(key, N)` derives one key per worker.
        """
        return self.record.next_key()

    def require_all(self, reason: str) -> None:
        """Raises ValueError on clusters where workers may not participate or messages may be lost.

        Args:
            reason: why the method needs all workers and messages, for the error message.
        """
        if workers.participation() is None:
            return
        where = "messages are lost" if self.present is None else "workers do not participate"
        raise ValueError(
            f"{self.record.method} on a cluster where {where}: {reason}; expected a method that "
            f"tolerates this, such as {GOES_ON}"
        )

    # How calls are recorded.

    @contextmanager
    def _sending(self, call: str) -> Iterator[None]:
        self.record.require_seen(call)
        with jax.named_scope(f"{MESSAGE}.{call}"):
            yield

    @contextmanager
    def _reducing(self, call: str, tree: PyTree, via: Any) -> Iterator[None]:
        """Records an all-reduce, and opens the scope in which it is computed."""
        via = self._carrying(f"{call}: via", via, AllReduce)
        volume, on_ring = (each.volume(self.workers) for each in (via, network.ring_all_reduce))
        if self.workers > 1 and not volume >= 1:
            raise ValueError(
                f"{self.record.method}: round.{call}: volume of {via.name} returns {volume}; "
                f"expected at least 1, since each of {self.workers} workers sends its vector"
            )
        with self._sending(call):
            self.record.add_reduced(
                f"{call} via {via.name}",
                via,
                bits.of_tree(tree),
                self.workers,
                simulated=isinstance(via, OneServer) or volume != on_ring,
            )
            yield

    def _carrying(self, what: str, pattern: Any, kind: Any) -> Any:
        """Returns the pattern.

        Raises:
            ValueError: if it is not of this kind, so that it does not carry what a call needs.
        """
        return checks.require(f"{self.record.method}: round.{what}", pattern, kind)

    def _request(self, reply: str, request: str, kind: type[Pattern]) -> tuple[int, jax.Array]:
        """Returns the place in the record of the request to which a server replies, and the key of
        the reply.
        """
        frame = self.record.frame
        if not frame.answers or not isinstance(frame.sendings[frame.answers[-1][0]].pattern, kind):
            raise ValueError(
                f"{self.record.method}: round.{reply} is called without a preceding "
                f"round.{request} to reply to; expected round.{request} before it in the same "
                "round"
            )
        return frame.answers.pop()

    def _reply(self, at: int, call: str, sent: Bits) -> None:
        """Records a reply as a part of the exchange of its request."""
        sendings = self.record.frame.sendings
        request = sendings[at]
        sendings[at] = request._replace(call=f"{request.call}, {call}", bits=request.bits + sent)

    @contextmanager
    def _weighing(self) -> Iterator[None]:
        self.record.weighs = True
        with workers.weighted(self.problem and self.problem.weights):
            yield

    @contextmanager
    def _to_neighbours(
        self,
        call: str,
        topology: Any,
        needs_all: Callable[[Topology], str] | None,
        roles: tuple[Role, ...] = ("gossip",),
    ) -> Iterator[None]:
        """Validates the topology, and counts the messages of the block as those of `call`.
        `needs_all` takes the topology and returns the reason for which it needs all workers and
        messages, or "" if it does not. If it is None, workers and messages may be missing on any
        topology. A doubly stochastic topology has every role.
        """
        if not isinstance(topology, Topology):
            raise ValueError(
                f"{self.record.method}: round.{call}: topology = {checks.show(topology)}; "
                "expected a dsgd.Topology, such as topologies.ring(16)"
            )
        topology.require_workers(self.record.method, self.workers)
        if topology.role not in roles and not topology.doubly_stochastic:
            expected = " or ".join(map(repr, roles))
            raise ValueError(
                f"{self.record.method}: round.{call}: {topology.name} is a topology for "
                f"{topology.role!r}; expected one for {expected}, or a doubly stochastic W"
            )
        topology.require_one_exchange(f"{self.record.method}: round.{call}")
        if needs_all is not None and (reason := needs_all(topology)):
            self.require_all(reason)
        with self._sending(call):
            yield

    @contextmanager
    def _mixing(
        self,
        call: str,
        tree: PyTree,
        topology: Any,
        needs_all: Callable[[Topology], str] | None,
        roles: tuple[Role, ...] = ("gossip",),
    ) -> Iterator[jax.Array]:
        """Records messages to all neighbours, and yields the number of the exchange, which selects
        the graph of a schedule.
        """
        with self._to_neighbours(call, topology, needs_all, roles):
            size, turn = bits.of_tree(tree), self.record.frame.turn
            sent = bits.to_neighbours(size, size, topology, turn)
            # The uniform W is a mean over all workers, which is computed by an all-reduce.
            pattern, simulated = network.gossip(topology), topology.uniform
            self.record.add(
                f"{call} on {topology.name}",
                pattern,
                sent,
                simulated=simulated,
                topology=topology,
            )
            yield turn

    def _unless(self, call: str, wrong: Any, number: Any) -> jax.Array:
        """Returns `number` if `wrong` holds, else NaN."""
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
            # Inside `when`, the number of rounds between two exchanges is not fixed.
            opened[:] = [Frame(turn, 0 if isinstance(outer, int) and outer == 0 else period)]
            with record.inside(opened[0]):
                result = send(*operands)
            return result, opened[0].arrays()

        # The jitted branch is traced once, for both its shapes and its use in `lax.cond`.
        branch = jax.jit(branch, inline=True)
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
    """Runs one update. Returns the new state, whose step is one higher, and the record of what was
    sent.

    Args:
        method: an `Algorithm` with unwrapped members.
        state, gradients: arguments of its `update`.
        round: the present round.
        key: random key for the messages, the same for all workers.
    """
    record = Record(method.name, key, round.step)
    with jax.named_scope(UPDATE):
        after = method.update(state, gradients, _with_record(round, record))
    if isinstance(after, State):
        after = after._replace(step=state.step + 1, fixed=state.fixed)
    return after, record


def _moves_the_mean(topology: Topology) -> str:
    """Returns why methods that preserve the mean over workers need every message on this topology,
    or "" if they do not. A link is down in both directions, so on a symmetric W a lost message
    leaves the mean unchanged.
    """
    if topology.symmetric:
        return ""
    return (
        f"W of {topology.name} is not symmetric, so that a lost message changes the mean over "
        "workers; push-sum preserves it"
    )


def _divides_by_zero(topology: Topology) -> str:
    """Returns why push-sum needs every message on this topology, or "" if it does not."""
    if min(W.data.min() for W in topology.matrices) > 0:
        return ""
    return (
        f"W of {topology.name} has negative weights, so that push-sum may divide by 0 if messages "
        "are lost"
    )


def _require_edges(call: str, tree: PyTree, topology: Topology) -> None:
    """Raises ValueError unless the leaves have a vector for each edge of an undirected graph."""
    if topology.period > 1 or not topology.symmetric:
        what = "is a schedule" if topology.period > 1 else "has a W that is not symmetric"
        raise ValueError(
            f"{call}: {topology.name} {what}; expected an undirected graph that is the same in all "
            "rounds, such as topologies.ring(16)"
        )
    for leaf in jax.tree.leaves(tree):
        if leaf.ndim < 2 or leaf.shape[1] != topology.degree:
            raise ValueError(
                f"{call}: a leaf of shape {list(leaf.shape)}; expected [n, {topology.degree}, "
                f"...], a vector for each of the up to {topology.degree} neighbours on "
                f"{topology.name}"
            )


def _shaped(delivery: Delivery, like: PyTree, compressor: Compressor) -> Delivery:
    """Reshapes the delivered vectors, `[n, d]` or `[N, d]`, to the tree that they were made of."""
    received, decoded = (
        compressed.shaped(vectors, like, compressor.layer_wise)
        for vectors in (delivery.received, delivery.decoded)
    )
    return delivery._replace(received=received, decoded=decoded)


def _with_record(round: Round, record: Record) -> Communicator:
    communicator = Communicator(*round)
    communicator.record = record
    return communicator


def _common_multiple(outer: Period, period: Period) -> Period:
    """Returns the number of rounds between exchanges of `every` nested in another `every` of period
    `outer`, or in `when`, whose period is 0.
    """
    if not isinstance(outer, Tracer) and outer <= 1:
        return period
    traced = isinstance(outer, Tracer) or isinstance(period, Tracer)
    return jnp.lcm(outer, period) if traced else math.lcm(outer, period)


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
