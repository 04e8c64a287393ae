"""Calls over all workers: sums, means, and messages from each worker to all others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dsgd import checks, network, workers
from dsgd.base import Compressor, PyTree
from dsgd.communication import bits, compressed, transports
from dsgd.communication.calls.sender import Sender
from dsgd.communication.compressed import Delivery
from dsgd.compressors.codes import LinearCode
from dsgd.network import AllReduce


class AllWorkerCalls(Sender):
    """Calls over all workers."""

    def mean(self, tree: PyTree, via: AllReduce = network.ring_all_reduce) -> PyTree:
        r"""Returns the mean over all workers, $\frac1N \sum_n x_n$: leaves `[n, ...]` become
        `[...]`.

        The mean is over the workers that participate, if their messages arrive; it is 0 if there
        are none.

        Args:
            tree: leaves `[n, ...]`.
            via: communication pattern: `network.ring_all_reduce`, `network.multi_server`,
                `network.parameter_server`, `network.star` or another `network.AllReduce`.

        Raises:
            ValueError: if the pattern does not carry a mean over all workers.
        """
        with self._all_reduce("mean", tree, via) as sent:
            return workers.mean(sent)

    def sum(self, tree: PyTree, via: AllReduce = network.ring_all_reduce) -> PyTree:
        """Returns the sum over all workers; otherwise as `mean`. Half-precision leaves are summed
        in float32 and rounded once.
        """
        with self._all_reduce("sum", tree, via) as sent:
            return workers.sum(sent)

    def weighted_mean(self, tree: PyTree, via: AllReduce = network.ring_all_reduce) -> PyTree:
        r"""Returns the mean with the problem's worker weights, $\sum_n w_n x_n / \sum_n w_n$;
        otherwise as `mean`.

        A method that calls this receives gradients of $f_n$ instead of gradients of $w_n f_n$, so
        that each weight counts once.
        """
        with self._all_reduce("weighted_mean", tree, via, weighted=True) as sent:
            return workers.mean(sent)

    def average(self, models: PyTree, via: AllReduce = network.ring_all_reduce) -> PyTree:
        """Replaces every worker's model by the `weighted_mean` of all models: leaves `[n, ...]` to
        `[n, ...]`. If no message arrives, workers keep their models.
        """
        with self._all_reduce("average", models, via, weighted=True) as sent:
            mean = jax.tree.map(
                lambda mean, leaf: jnp.broadcast_to(mean, leaf.shape), workers.mean(sent), models
            )
            return workers.if_nonempty(mean, models)

    def average_blocks(self, models: PyTree, size: int) -> PyTree:
        """Replaces every worker's model by the `weighted_mean` over its block of consecutive
        workers, by an all-reduce in each block: leaves `[n, ...]` to `[n, ...]`.

        Args:
            models: floating-point leaves `[n, ...]`.
            size: number of workers in a block.

        Raises:
            ValueError: if the number of workers is not a multiple of `size`.
        """
        where = f"{self.record.method}: round.average_blocks"
        if self.workers % checks.positive_int(f"{where}: size", size):
            raise ValueError(
                f"{where}: blocks of {size} workers for {self.workers} workers; expected a "
                f"divisor of {self.workers}"
            )
        transport = transports.within_blocks(size, self.workers)
        with self._send("average_blocks", transport, bits.count_arrays(models)), self._weigh():
            return workers.block_means(self._with_noise("average_blocks", models), size)

    def aggregate(
        self,
        new: PyTree,
        old: PyTree | None = None,
        mean: PyTree | None = None,
        via: AllReduce = network.ring_all_reduce,
    ) -> tuple[PyTree, PyTree]:
        r"""Updates the weighted mean of vectors that workers keep between rounds, when only the
        workers that participate send new ones.

        $$ \bar c \leftarrow \bar c + \frac1N \sum_{n \in S} w_n (c_n^{new} - c_n), \qquad c_n
        \leftarrow c_n^{new} \text{ for } n \in S $$

        Args:
            new: new vectors, leaves `[n, ...]`.
            old: vectors of the previous round, leaves `[n, ...]`; None: zeros.
            mean: $\bar c$, their weighted mean over all workers, which all of them know, leaves
                `[...]`; None: zeros.
            via: as in `mean`.

        Returns:
            The updated mean, leaves `[...]`, and the vector that each worker keeps, leaves
            `[n, ...]`.
        """
        with self._all_reduce("aggregate", new, via, weighted=True) as sent:
            if old is None:
                old = optax.tree.zeros_like(new)
            vectors, received = (workers.where_delivered(each, old) for each in (new, sent))
            change = workers.weighted_sum(workers.widen(optax.tree.sub(received, old)))
            change = jax.tree.map(lambda total: total / self.workers, change)
            after = change if mean is None else optax.tree.add(mean, change)
            return workers.narrow(after, new), vectors

    def all_gather(self, tree: PyTree, compressor: Compressor | None = None, last: Any = ()) -> Any:
        """Sends all rows to all workers: leaves `[n, ...]` become `[N, ...]`.

        Args:
            tree: leaves `[n, ...]`.
            compressor: compressor of each row; None: rows are sent uncompressed.
            last: the previous call's `Delivery.messages`, for a compressor that starts from the
                previous message.

        Returns:
            The rows; with a compressor, a `Delivery` with the rows in `received`.
        """
        transport = transports.to_all(self.workers)
        if compressor is None:
            with self._send("all_gather", transport, bits.count_arrays(tree)):
                return workers.gather(self._with_noise("all_gather", tree))
        return self._send_compressed(
            "all_gather", transport, compressed.send, compressor, tree, last
        )

    def mean_of_messages(self, compressor: Compressor, tree: PyTree, last: Any = ()) -> Delivery:
        r"""Sends one compressed message from every worker to all others, and returns the mean of
        the decoded messages with the problem's worker weights, $\sum_n w_n C(x_n) / \sum_n w_n$.

        As for `weighted_mean`, the gradients are then those of $f_n$.

        Args:
            compressor: C.
            tree: leaves `[n, ...]`.
            last: as in `all_gather`.

        Returns:
            A `Delivery`; `received` has leaves `[...]`.
        """
        delivery = self.all_gather(tree, compressor, last)
        self.record.weighs = True
        weights = self.problem and self.problem.weights

        def mean(rows):
            if weights is None:
                return workers.mean_rows(rows)
            shares = jnp.asarray(weights, workers.widen(rows).dtype) / sum(weights)
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
        with self._all_reduce(f"mean_of_codes of {code.name}", codes, via, weighted) as sent:
            means = workers.mean(sent)

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

    @contextmanager
    def _all_reduce(
        self, call: str, tree: PyTree, via: Any, weighted: bool = False
    ) -> Iterator[PyTree]:
        """Records an all-reduce, and opens the scope in which it is computed; if `weighted`, with
        the problem's weights. Yields the tree with the noise of messages.
        """
        via = self._require_pattern(f"{call}: via", via, AllReduce)
        volume = via.volume(self.workers)
        if self.workers > 1 and not volume >= 1:
            raise ValueError(
                f"{self.record.method}: round.{call}: volume of {via.name} returns {volume}; "
                f"expected at least 1, since each of {self.workers} workers sends its vector"
            )
        transport = transports.all_reduce(via, self.workers)
        weighing = self._weigh() if weighted else nullcontext()
        with self._send(call, transport, bits.count_arrays(tree)), weighing:
            yield self._with_noise(call, tree)
