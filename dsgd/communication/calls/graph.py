"""Calls that send messages to neighbours on a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import optax

from dsgd import checks, workers
from dsgd.base import Compressor, PyTree
from dsgd.communication import bits, compressed, noise, transports
from dsgd.communication.calls.sender import Sender
from dsgd.communication.compressed import Delivery
from dsgd.communication.transports import Transport
from dsgd.graphs.accelerated import Accelerated
from dsgd.graphs.topology import Role, Topology


class GraphCalls(Sender):
    """Calls that send messages to neighbours on a graph."""

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
        with self._gossip("mix", tree, topology, _moves_the_mean) as turn:
            mixed = workers.mix(tree, topology, turn)
            return self._with_noise_of_links(mixed, tree, topology)

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
        with self._gossip("laplacian", tree, topology, _moves_the_mean) as turn:
            change = workers.laplacian(tree, topology, turn, weighted=weighted)
            return self._with_noise_of_links(change, tree, topology, weighted=weighted)

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
            topology: W, with columns that sum to 1.
        """
        with self._gossip("push_sum", (tree, weights), topology, _divides_by_zero) as turn:
            mixed = workers.mix((tree, weights), topology, turn, keep_sums=True)
            return self._with_noise_of_links(mixed, (tree, weights), topology)

    def pull(self, tree: PyTree, topology: Topology) -> PyTree:
        r"""Returns weighted means of the neighbours' vectors, $x_n \leftarrow \sum_m R_{nm} x_m$:
        leaves `[n, ...]` to `[n, ...]`. Vectors that are all equal do not change, even if messages
        are lost: a receiver keeps its own vector in the place of what does not arrive.

        Args:
            tree: floating-point leaves `[n, ...]`.
            topology: R, with rows that sum to 1: a topology for "pull", or doubly stochastic.
        """
        with self._gossip("pull", tree, topology, None, ("pull",)) as turn:
            mixed = workers.mix(tree, topology, turn)
            return self._with_noise_of_links(mixed, tree, topology)

    def push(self, tree: PyTree, topology: Topology) -> PyTree:
        r"""Returns the sums of what workers send each other, $x_n \leftarrow \sum_m P_{nm} x_m$:
        leaves `[n, ...]` to `[n, ...]`. The sum over workers is preserved even if messages are
        lost: a sender keeps what does not arrive.

        Args:
            tree: floating-point leaves `[n, ...]`.
            topology: P, with columns that sum to 1: a topology for "push" or for "gossip".
        """
        with self._gossip("push", tree, topology, None, ("push", "gossip")) as turn:
            mixed = workers.mix(tree, topology, turn, keep_sums=True)
            return self._with_noise_of_links(mixed, tree, topology)

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
        transport = self._transport("to_each_neighbour", topology)
        _require_edges(f"{self.record.method}: round.to_each_neighbour", tree, topology)
        with self._send("to_each_neighbour", transport, bits.count_arrays(tree, axes=2)):
            sent = self._with_noise("to_each_neighbour", tree)
            return workers.to_each_neighbour(sent, otherwise, topology)

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
            A `Delivery`; `received` has leaves `[n, ...]`. If `one_by_one`, it is a pair: the
            neighbours' C(x_m), leaves `[n, K, ...]`, where K is the largest number of neighbours;
            and their weights in W, `[n, K]`, which are 0 for missing neighbours and for messages
            that do not arrive.
        """
        transport = self._transport("to_neighbours", topology, _moves_the_mean)
        turn = self.record.frame.turn
        combine = workers.neighbours if one_by_one else workers.laplacian

        def receive(decoded, arrived):
            return combine(decoded, topology, turn, table=arrived)

        delivery = self._send_compressed(
            "to_neighbours", transport, compressed.send, compressor, tree, last, receive
        )
        if not one_by_one:
            return delivery
        weights = workers.neighbour_weights(delivery.decoded, topology, turn)
        return delivery._replace(received=(delivery.received, weights))

    def _transport(
        self,
        call: str,
        topology: Any,
        needs_all: Callable[[Topology], str] | None = None,
        roles: tuple[Role, ...] = ("gossip",),
    ) -> Transport:
        """Validates the topology, and returns the transport of the messages of `call`.

        Args:
            call: name of the call, for error messages.
            topology: a topology, which has one of the roles or is doubly stochastic.
            needs_all: function of the topology that returns why it needs all workers and messages,
                or "" if it does not; None: workers and messages may be missing on any topology.
            roles: roles of topologies that the call accepts.
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
        reason = needs_all(topology) if needs_all else ""
        return transports.to_neighbours(topology, self.record.frame.turn, reason)

    @contextmanager
    def _gossip(
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
        transport = self._transport(call, topology, needs_all, roles)
        # The uniform W is a mean over all workers, which is computed by an all-reduce.
        transport = transport._replace(simulated=topology.uniform)
        with self._send(call, transport, bits.count_arrays(tree)):
            yield self.record.frame.turn

    def _with_noise_of_links(
        self, sums: PyTree, tree: PyTree, topology: Topology, *, weighted: bool = True
    ) -> PyTree:
        """Adds the noise of messages to sums over neighbours, independent at each receiver."""
        if self._noise is None:
            return sums
        key, turn = self.record.next_key(), self.record.frame.turn
        return noise.on_sums(self._noise, key, sums, tree, topology, turn, weighted=weighted)


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
