"""Workers that compute, and a network that connects them: what they take in a round."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dsgd import checks
from dsgd.base import Round
from dsgd.clusters.quantities import Quantity, same_workers
from dsgd.network import Convention
from dsgd.network.switch import check_convention, need_seconds

_COMPUTE, _UP, _DOWN = range(3)  # what a draw is for


@checks.arguments
@dataclass(frozen=True)
class Overlap:
    r"""A gradient that is sent while the rest of it is computed, bucket by bucket: its backward pass takes $P = k b + m$ seconds of a
    micro-batch of b samples, its first bucket is ready after $\gamma P$ of them, and its last one, $T_u / T_{comm}$ of the message,
    only at the end.

    Args:
        backward: m, seconds.
        backward_per_sample: k, seconds.
        first: gamma, in [0, 1].
        last: the share of the messages that the last bucket is, in [0, 1].

    Source: Nie et al., "Cannikin", section 3, equations 3 to 7.
    """

    backward: Quantity
    backward_per_sample: Quantity
    first: float
    last: float


@checks.arguments
@dataclass(frozen=True)
class Cluster:
    """Workers that compute, and a network that connects them.

    Args:
        compute: seconds that a worker needs for one micro-batch, besides those of `per_sample`.
        up: bits per second of a worker's sending port; None: sending takes no time besides the latency.
        down: of its receiving port; None: it is as fast as the sending one.
        latency: seconds of a message.
        convention: "blocking" or "pipelined", of `dsgd.network`.
        micro_batches: how many of them a worker computes for one gradient, one after the other, where the method says nothing else.
        per_sample: seconds for each sample of a micro-batch; None: none.
        overlap: what of the gradient's messages goes while it is computed; None: nothing.
        noise: nu of what workers measure of their times, t e^(nu z) with z from N(0, 1).
        present: who takes part in a round: whoever has more than 0 of it; None: everybody.
        present_for: rounds for which that stays so, from round 0 on: those of local SGD from one averaging to the next, say. Draws are
            those of the first of them; what goes by the clock goes on.
        delivered: which messages of a round arrive: those with more than 0 of it, by the number of the link, min(i, j) N + max(i, j), so
            that a link is down both ways; of all-reduces and of servers by the number of the worker, whose part is lost; None: all.

    Raises:
        ValueError: not quantities, bandwidths that can be 0, a latency or a noise that is negative, infinite or NaN, an unknown
            convention, micro_batches or present_for < 1, quantities for different numbers of workers, a `delivered` that is for workers
            and not for links, a `present_for` without `present`.
    """

    compute: Quantity
    up: Quantity | None = None
    down: Quantity | None = None
    latency: float = 0.0
    convention: Convention = "blocking"
    micro_batches: int = 1
    per_sample: Quantity | None = None
    overlap: Overlap | None = None
    noise: float = 0.0
    present: Quantity | None = None
    present_for: int = 1
    delivered: Quantity | None = None

    def __post_init__(self) -> None:
        for what, quantity in (("up", self.up), ("down", self.down)):
            if quantity is not None and not quantity.positive:
                raise ValueError(f"Cluster: {what} = {quantity.name} can be 0: need a bandwidth > 0 bit/s")
        need_seconds("Cluster: latency", self.latency)
        check_convention(self.convention)
        checks.positive_int("Cluster: micro_batches", self.micro_batches)
        same_workers(*self._quantities)
        if checks.positive_int("Cluster: present_for", self.present_for) > 1 and self.present is None:
            raise ValueError(f"Cluster: present_for = {self.present_for}, but everybody is present: need a quantity that says who is")
        if self.delivered is not None and (self.delivered.workers or self.delivered.named):
            many = self.delivered.workers or self.delivered.named
            raise ValueError(
                f"Cluster: delivered = {self.delivered.name} is for {many} workers: need a quantity of links, which have numbers of their"
                " own: bernoulli(0.9, 1.0), say"
            )

    @property
    def _quantities(self) -> list[Quantity]:
        return [quantity for quantity in (self.compute, self.up, self.down, self.present) if quantity]

    @property
    def workers(self) -> int | None:
        """How many workers it is for, None for any number."""
        return same_workers(*self._quantities)

    def need_workers(self, N: int) -> None:
        """Raises a ValueError where it is not for N workers."""
        named = max(quantity.named for quantity in self._quantities)
        if self.workers not in (None, N):
            raise ValueError(f"a cluster of {self.workers} workers for a problem of {N}: need the same number")
        if named > N:
            raise ValueError(f"a cluster that names worker {named - 1} ({self.name}) for a problem of {N}: need one of 0 to {N - 1}")

    @property
    def name(self) -> str:
        """All that it is of."""
        up, down = (quantity.name if quantity else "None" for quantity in (self.up, self.down))
        here = f"; present {self.present.name} for {self.present_for}" if self.present else ""
        arrives = f"; delivered {self.delivered.name}" if self.delivered else ""
        ports = f"up {up}, down {down}; latency {self.latency:.9g}; {self.convention}"
        return f"{self.micro_batches} x {self.compute.name}; {ports}{here}{arrives}"

    def latencies(self, round: Round, workers: ArrayLike) -> jax.Array:
        """Seconds of each of these workers' micro-batches in this round, `[k]` numbers to `[k, micro_batches]`."""
        keys = jax.random.split(_key(round, _COMPUTE), self.micro_batches)
        each = jax.vmap(self.compute.sample, (0, None, None))
        return jax.vmap(each, (None, None, 0))(keys, jnp.float32(round.clock), jnp.asarray(workers)).astype(jnp.float32)

    def seconds(self, round: Round, workers: ArrayLike) -> jax.Array:
        """Seconds that each of these workers computes for a gradient in this round, `[k]` numbers to `[k]`."""
        return jnp.sum(self.latencies(round, workers), axis=1)

    def bandwidths(self, round: Round, workers: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Bits per second of these workers' sending and receiving ports in this round, `[k]` numbers to `[k]` each."""
        workers = jnp.asarray(workers)

        def of(quantity: Quantity | None, purpose: int, otherwise: jax.Array) -> jax.Array:
            if quantity is None:
                return otherwise
            sample = jax.vmap(quantity.sample, (None, None, 0))
            return sample(_key(round, purpose), jnp.float32(round.clock), workers).astype(jnp.float32)

        up = of(self.up, _UP, jnp.full(workers.shape, jnp.inf, jnp.float32))
        return up, of(self.down, _DOWN, up)


def _key(round: Round, purpose: int) -> jax.Array:
    # Far from the small numbers that methods fold into a round's key.
    return jax.random.fold_in(round.key, 0x636C7573 + purpose)
