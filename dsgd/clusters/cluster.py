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
class Cluster:
    """Workers that compute, and a network that connects them.

    Args:
        compute: seconds that a worker needs for one micro-batch.
        up: bits per second of a worker's sending port; None: sending takes no time besides the latency.
        down: of its receiving port; None: it is as fast as the sending one.
        latency: seconds of a message.
        convention: "blocking" or "pipelined", of `dsgd.network`.
        micro_batches: how many of them a worker computes for one gradient, one after the other.

    Raises:
        ValueError: not quantities, bandwidths that can be 0, a latency that is negative, infinite or NaN, an unknown convention,
            micro_batches < 1, quantities for different numbers of workers.
    """

    compute: Quantity
    up: Quantity | None = None
    down: Quantity | None = None
    latency: float = 0.0
    convention: Convention = "blocking"
    micro_batches: int = 1

    def __post_init__(self) -> None:
        for what, quantity in (("up", self.up), ("down", self.down)):
            if quantity is not None and not quantity.positive:
                raise ValueError(f"Cluster: {what} = {quantity.name} can be 0: need a bandwidth > 0 bit/s")
        need_seconds("Cluster: latency", self.latency)
        check_convention(self.convention)
        checks.positive_int("Cluster: micro_batches", self.micro_batches)
        same_workers(*self._quantities)

    @property
    def _quantities(self) -> list[Quantity]:
        return [quantity for quantity in (self.compute, self.up, self.down) if quantity]

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
        return f"{self.micro_batches} x {self.compute.name}; up {up}, down {down}; latency {self.latency:.9g}; {self.convention}"

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
