"""Workers that compute, and a network that connects them: what they take in a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dsgd import checks
from dsgd.base import Round
from dsgd.clusters.quantity import Quantity, need_number, need_probability, same_workers
from dsgd.network import Convention
from dsgd.network.switch import check_convention, need_seconds

# what a draw is for
_COMPUTE, _UP, _DOWN, _PER_SAMPLE, _BACKWARD, _BACKWARD_PER_SAMPLE, _NOISE = range(7)
# a port that is not given
_FREE = Quantity(
    lambda key, clock, worker: jnp.float32(jnp.inf), "None", positive=True, steady=True
)


@checks.arguments
@dataclass(frozen=True)
class Overlap:
    r"""A gradient that is sent while the rest of it is computed, bucket by bucket: its backward
    pass takes $P = k b + m$ seconds of a micro-batch of b samples, its first bucket is ready after
    $\gamma P$ of them, and its last one, $T_u / T_{comm}$ of the message, only at the end.

    Args:
        backward: m, seconds.
        backward_per_sample: k, seconds.
        first: gamma, in [0, 1].
        last: the share of the messages' bits that the last bucket is, in [0, 1]; its messages have
            their latencies, too.

    Raises:
        ValueError: not quantities, shares outside [0, 1].

    Source: Nie et al., "Cannikin", section 3, equations 3 to 7.
    """

    backward: Quantity
    backward_per_sample: Quantity
    first: float
    last: float

    def __post_init__(self) -> None:
        need_probability("Overlap: first", self.first)
        need_probability("Overlap: last", self.last)

    @property
    def name(self) -> str:
        """All that it is of."""
        return f"overlap({self.backward.name}; {self.backward_per_sample.name}; {self.first:.9g}; {self.last:.9g})"


@checks.arguments
@dataclass(frozen=True)
class Cluster:
    """Workers that compute, and a network that connects them.

    Args:
        compute: seconds that a worker needs for one micro-batch, besides those of `per_sample`.
        up: bits per second of a worker's sending port; None: sending takes no time besides the
            latency. Where they change with the clock, a message takes the seconds in which so many
            bits come together, from its own beginning on.
        down: of its receiving port; None: it is as fast as the sending one.
        latency: seconds of a message.
        convention: "blocking" or "pipelined", of `dsgd.network`.
        micro_batches: how many of them a worker computes for one gradient, one after the other,
            each of the problem's batch size; a method that says how much each worker computes
            (`Query.work`) says also in how many.
        per_sample: seconds for each sample of a micro-batch; None: none.
        at_once: whether a worker's micro-batches are pieces of one batch, in the simulation only:
            all its samples of a round take the seconds of one micro-batch of so many.
        overlap: what of the round's messages goes while the gradient is computed: of the last
            micro-batch, whose backward part is never more than all of it; None: nothing.
        noise: nu of what workers measure of their times, t e^(nu z) with z from N(0, 1).
        present: who takes part in a round: whoever has more than 0 of it; None: everybody.
        present_for: rounds for which that stays so, from round 0 on: those of local SGD from one
            averaging to the next, say. Draws are those of the first of them; what goes by the clock
            goes on.
        delivered: which messages of a round arrive: those with more than 0 of it, by the number of
            the link, min(i, j) N + max(i, j), so that a link is down both ways; of all-reduces and
            of servers by the number of the worker, whose part is lost; None: all.

    Raises:
        ValueError: not quantities, bandwidths that can be 0, a latency or a noise that is negative,
            infinite or NaN, an unknown convention, micro_batches or present_for < 1, quantities for
            different numbers of workers, a `delivered` that is for workers and not for links, a
            `present_for` without `present`.
    """

    compute: Quantity
    up: Quantity | None = None
    down: Quantity | None = None
    latency: float = 0.0
    convention: Convention = "blocking"
    micro_batches: int = 1
    per_sample: Quantity | None = None
    at_once: bool = False
    overlap: Overlap | None = None
    noise: float = 0.0
    present: Quantity | None = None
    present_for: int = 1
    delivered: Quantity | None = None

    def __post_init__(self) -> None:
        for what, quantity in (("up", self.up), ("down", self.down)):
            if quantity is not None and not quantity.positive:
                raise ValueError(
                    f"Cluster: {what} = {quantity.name} can be 0: need a bandwidth > 0 bit/s"
                )
        need_seconds("Cluster: latency", self.latency)
        need_number("Cluster: noise", self.noise, least=0)
        check_convention(self.convention)
        checks.positive_int("Cluster: micro_batches", self.micro_batches)
        same_workers(*self._quantities)
        if (
            checks.positive_int("Cluster: present_for", self.present_for) > 1
            and self.present is None
        ):
            raise ValueError(
                f"Cluster: present_for = {self.present_for}, but everybody is present: need a "
                "quantity that says who is"
            )
        if self.delivered is not None and (self.delivered.workers or self.delivered.named):
            many = self.delivered.workers or self.delivered.named
            raise ValueError(
                f"Cluster: delivered = {self.delivered.name} is for {many} workers: need a "
                "quantity of links, which have numbers of their"
                " own: bernoulli(0.9, 1.0), say"
            )

    @property
    def _quantities(self) -> list[Quantity]:
        own = (self.compute, self.up, self.down, self.per_sample, self.present)
        backward = (self.overlap.backward, self.overlap.backward_per_sample) if self.overlap else ()
        return [quantity for quantity in (*own, *backward) if quantity]

    @property
    def workers(self) -> int | None:
        """How many workers it is for, None for any number."""
        return same_workers(*self._quantities)

    def need_workers(self, N: int) -> None:
        """Raises a ValueError where it is not for N workers, or a function of one of its quantities
        returns no float scalar.
        """
        named = max(quantity.named for quantity in self._quantities)
        if self.workers not in (None, N):
            raise ValueError(
                f"a cluster of {self.workers} workers for a problem of {N}: need the same number"
            )
        if named > N:
            raise ValueError(
                f"a cluster that names worker {named - 1} ({self.name}) for a problem of {N}: "
                f"need one of 0 to {N - 1}"
            )
        for quantity in (*self._quantities, *([self.delivered] if self.delivered else [])):
            quantity.need_scalars()

    @property
    def name(self) -> str:
        """All that it is of."""
        up, down = (quantity.name if quantity else "None" for quantity in (self.up, self.down))
        ports = f"up {up}, down {down}; latency {self.latency:.9g}; {self.convention}"
        more = [
            f"per sample {self.per_sample.name}" if self.per_sample else "",
            "at once" if self.at_once else "",
            self.overlap.name if self.overlap else "",
            f"noise {self.noise:.9g}" if self.noise else "",
            f"present {self.present.name} for {self.present_for}" if self.present else "",
            f"delivered {self.delivered.name}" if self.delivered else "",
        ]
        return "; ".join(
            filter(None, [f"{self.micro_batches} x {self.compute.name}", ports, *more])
        )

    def latencies(self, round: Round, workers: ArrayLike) -> jax.Array:
        """Seconds of each of these workers' micro-batches in this round, one by one, `[k]` numbers
        to `[k, M]`; 0 of those without samples.

        Args:
            round: whose `work` says how many samples they have, in M micro-batches; without it,
                these are `micro_batches` of the problem's `batch_size` (of each worker's
                `batch_sizes`, if given), of one sample if it has none.
            workers: which.
        """
        workers = jnp.asarray(workers)
        seconds = self._each(self.compute, _COMPUTE, round, workers)
        samples = self.samples(round, workers)
        if self.per_sample is not None:
            seconds = seconds + samples * self._each(self.per_sample, _PER_SAMPLE, round, workers)
        return jnp.where(samples > 0, seconds, 0)

    def seconds(self, round: Round, workers: ArrayLike) -> jax.Array:
        """Seconds that each of these workers computes for a gradient in this round, `[k]` numbers
        to `[k]`.
        """
        return jnp.sum(self.latencies(round, workers), axis=1)

    def backward(self, round: Round, workers: ArrayLike) -> jax.Array:
        """P, seconds of the backward pass of each of these workers' last micro-batch that has
        samples, `[k]` numbers to `[k]`: before they are over, by 1 - gamma of them, its messages
        may begin.

        Args:
            round, workers: as of `latencies`; the cluster has an overlap.
        """
        assert self.overlap is not None
        workers = jnp.asarray(workers)
        samples = self.samples(round, workers)
        backward = self._each(self.overlap.backward, _BACKWARD, round, workers)
        backward = backward + samples * self._each(
            self.overlap.backward_per_sample, _BACKWARD_PER_SAMPLE, round, workers
        )
        backward = jnp.minimum(backward, self.latencies(round, workers))
        # of those without samples any: its seconds are 0
        last = samples.shape[1] - 1 - jnp.argmax(samples[:, ::-1] > 0, axis=1)
        return jnp.take_along_axis(backward, last[:, None], axis=1)[:, 0]

    def samples(self, round: Round, workers: ArrayLike) -> jax.Array:
        """Of each of these workers' micro-batches, one after the other, int32 `[k, M]`; with
        `at_once`, all are of the first.

        Args:
            round, workers: as of `latencies`.
        """
        workers = jnp.asarray(workers)
        if round.work is None:
            batch_size, batch_sizes = (
                (None, None)
                if round.problem is None
                else (round.problem.batch_size, round.problem.batch_sizes)
            )
            whole = (
                (batch_size or 1)
                if batch_sizes is None
                else jnp.asarray(batch_sizes, jnp.int32)[workers, None]
            )
            each = jnp.full((workers.shape[0], self.micro_batches), whole, jnp.int32)
        else:
            each = jnp.asarray(round.work.samples)[workers]
        if not self.at_once:
            return each
        return jnp.zeros_like(each).at[:, 0].set(jnp.sum(each, axis=1, dtype=each.dtype))

    def _each(
        self, quantity: Quantity, purpose: int, round: Round, workers: jax.Array
    ) -> jax.Array:
        """One draw for each micro-batch, float32 `[k, M]`."""
        M = self.micro_batches if round.work is None else round.work.samples.shape[1]
        each = jax.vmap(quantity.sample, (0, None, None))
        keys = jax.random.split(_key(round, purpose), M)
        return jax.vmap(each, (None, None, 0))(keys, jnp.float32(round.clock), workers).astype(
            jnp.float32
        )

    @property
    def steady(self) -> bool:
        """Whether no bandwidth changes with the clock, so that a message takes as long whenever it
        begins.
        """
        return all(port is None or port.steady for port in (self.up, self.down))

    def sending(
        self, round: Round, workers: ArrayLike, bits: ArrayLike, after: ArrayLike = 0.0
    ) -> jax.Array:
        """Seconds that these workers' sending ports need for so many bits, `[k]` numbers to `[k]`.

        Args:
            round: at the beginning of which it is `round.clock`.
            workers: which.
            bits: a scalar, or `[k]`.
            after: seconds after that when each begins, likewise.
        """
        return _at_ports(Quantity.seconds, *self._sender, round, workers, bits, after)

    def receiving(
        self, round: Round, workers: ArrayLike, bits: ArrayLike, after: ArrayLike = 0.0
    ) -> jax.Array:
        """The same of their receiving ports."""
        return _at_ports(Quantity.seconds, *self._receiver, round, workers, bits, after)

    def bandwidths(
        self, round: Round, workers: ArrayLike, after: ArrayLike = 0.0, seconds: ArrayLike = 0.0
    ) -> tuple[jax.Array, jax.Array]:
        r"""Bits per second of these workers' sending and receiving ports in a window, `[k]` numbers
        to `[k]` each: $\frac1s \int_t^{t+s} B(u)\,du$, with the round's draws, so that bits over
        this mean are the s in which `sending` says that they go.

        Args:
            round: at the beginning of which it is `round.clock`.
            workers: which.
            after: seconds after that when the window begins, a scalar, or `[k]`.
            seconds: s, at least 0, likewise; where it is 0, the bandwidths are those at t.

        Returns:
            Both; infinite where sending, or receiving, takes no time.
        """
        up, down = (
            _at_ports(Quantity.mean, *port, round, workers, seconds, after)
            for port in (self._sender, self._receiver)
        )
        return up, down

    @property
    def _sender(self) -> tuple[Quantity, int]:
        """A worker's sending port, and what its draw is for."""
        return self.up or _FREE, _UP

    @property
    def _receiver(self) -> tuple[Quantity, int]:
        return (self.down, _DOWN) if self.down else self._sender

    def with_noise(self, round: Round, seconds: jax.Array) -> jax.Array:
        r"""What the workers measure of these seconds, `[N, ...]`: $t e^{\nu z}$, each with a z of
        its own from N(0, 1).
        """
        if not self.noise:
            return seconds
        return seconds * jnp.exp(
            self.noise * jax.random.normal(_key(round, _NOISE), seconds.shape, seconds.dtype)
        )


def _at_ports(
    what: Callable,
    port: Quantity,
    purpose: int,
    round: Round,
    workers: ArrayLike,
    asked: ArrayLike,
    after: ArrayLike,
) -> jax.Array:
    """What these workers' ports have, or need, for so much from a time on, `[k]` numbers to
    `[k]`.
    """
    workers = jnp.asarray(workers)
    asked, after = (jnp.broadcast_to(jnp.float32(each), workers.shape) for each in (asked, after))
    clocks = jnp.maximum(0, round.clock + after)  # rounding may put the start of a run before 0
    each = jax.vmap(partial(what, port), (None, 0, 0, 0))
    return each(_key(round, purpose), clocks, asked, workers).astype(jnp.float32)


def _key(round: Round, purpose: int) -> jax.Array:
    # Far from the small numbers that methods fold into a round's key.
    return jax.random.fold_in(round.key, 0x636C7573 + purpose)
