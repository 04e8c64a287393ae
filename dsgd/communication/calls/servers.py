"""Calls that send compressed messages through servers and around a ring."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax

from dsgd import network, workers
from dsgd.base import Compressor, Pattern, PyTree
from dsgd.communication import bits, compressed, transports
from dsgd.communication.calls.sender import Sender
from dsgd.communication.compressed import Delivery, Sent
from dsgd.network import NServers, OneServer


class ServerCalls(Sender):
    """Calls that send compressed messages through servers and around a ring."""

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
            A `Delivery`; `received` has leaves `[n, part]`.

        Raises:
            ValueError: if `via` is another pattern.
        """
        via = self._require_pattern("to_servers: via", via, NServers)
        transport = transports.to_servers(via, self.workers)
        return self._send_compressed(
            "to_servers", transport, compressed.to_servers, compressor, shards, last
        )

    def from_servers(self, compressor: Compressor, vectors: PyTree, last: Any = ()) -> Delivery:
        """Sends every server's compressed shard to all workers: the reply to the last `to_servers`.

        Args:
            compressor: the servers' compressor.
            vectors: the shards that the servers own, leaves `[n, part]`.
            last: as in `all_gather`.

        Returns:
            A `Delivery`; `received` has leaves `[N, part]`.

        Raises:
            ValueError: if no `to_servers` of this round is left to reply to.
        """
        N, transport = self.workers, transports.to_all(self.workers)

        def send(key):
            delivery, arrays = compressed.send(transport, compressor, key, vectors, N, last)
            return delivery, compressed.all_shards(arrays, N)

        return self._reply("from_servers", "to_servers", NServers, compressor, send)

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
        via = self._require_pattern("to_server: via", via, OneServer)
        transport = transports.to_server(via, self.workers, senders)
        with self._weigh() if weighted else nullcontext():
            return self._send_compressed(
                "to_server",
                transport,
                compressed.send,
                compressor,
                tree,
                last,
                lambda decoded, arrived: workers.mean(decoded),
                senders,
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

        def send(key):
            if compressor is None:
                arrays = bits.count_arrays(tree, axes=0)
                sent = bits.from_server(int(arrays.bits), self.workers)
                return Delivery(tree, tree, (), sent), arrays
            return compressed.from_server(compressor, key, tree, self.workers, last)

        return self._reply("from_server", "to_server", OneServer, compressor, send)

    def around_ring(self, compressor: Compressor, shards: PyTree) -> PyTree:
        r"""Returns the mean over workers by a ring all-reduce that compresses at each hop,
        $\frac1N C(\cdots C(C(x_1) + x_2) + \cdots + x_N)$.

        Args:
            compressor: C.
            shards: leaves `[n, M, part]`, from `communication.shards`.

        Returns:
            The mean, leaves `[N, part]`.
        """
        transport = transports.ring_hops(self.workers)
        return self._send_compressed(
            "around_ring", transport, compressed.ring_mean, compressor, shards
        ).received

    def _reply(
        self,
        call: str,
        request: str,
        kind: type[Pattern],
        compressor: Compressor | None,
        send: Callable[[jax.Array], Sent],
    ) -> Delivery:
        """Records the messages that `send` sends, a function of a random key, as a part of the
        exchange of the last `request`, which a pattern of this kind carries.
        """
        with self._open(call):
            place, key = self.record.next_request(call, request, kind)
            delivery, arrays = send(key)
            name = f"{call} of {compressor.name}" if compressor else call
            self.record.add_reply(place, name, delivery.bits, arrays)
            return delivery
