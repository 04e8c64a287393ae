"""The cluster: computation times of workers and the network that connects them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from dsgd import checks
from dsgd.base import Real, Round
from dsgd.clusters.collectives import Collectives
from dsgd.clusters.message_noise import MessageNoise
from dsgd.clusters.nodes import Nodes
from dsgd.clusters.quantities import constant
from dsgd.clusters.quantity import Quantity, require_number, require_probability, same_workers
from dsgd.network import Convention
from dsgd.network.switch import check_convention, require_seconds

# Purposes of draws; each has random keys of its own.
_COMPUTE, _UP, _DOWN, _PER_SAMPLE, _BACKWARD, _BACKWARD_PER_SAMPLE, _NOISE, _POWER = range(8)
# The port if no bandwidth is given.
_FREE = Quantity(
    lambda key, clock, worker: jnp.float32(jnp.inf), "None", positive=True, time_invariant=True
)


@checks.arguments
@dataclass(frozen=True)
class Overlap:
    r"""Overlap of communication with computation: a gradient is sent bucket by bucket while the
    rest of it is computed.

    The backward pass of a micro-batch of b samples takes $P = k b + m$ seconds. The first bucket is
    ready after $\gamma P$ of them. The last bucket, the share $T_u / T_{comm}$ of the message, is
    ready only at the end.

    Args:
        backward: m, seconds.
        backward_per_sample: k, seconds per sample.
        first: $\gamma$, in [0, 1].
        last: share of the message's bits that is in the last bucket, in [0, 1]; its messages also
            have a latency.

    Raises:
        ValueError: if an argument has another type, or a share is outside [0, 1].

    Source: Nie et al., "Cannikin", section 3, equations 3 to 7.
    """

    backward: Quantity
    backward_per_sample: Quantity
    first: float
    last: float

    def __post_init__(self) -> None:
        self.backward.refuse_selection("Overlap: backward")
        self.backward_per_sample.refuse_selection("Overlap: backward_per_sample")
        require_probability("Overlap: first", self.first)
        require_probability("Overlap: last", self.last)

    @property
    def name(self) -> str:
        """A description that contains all parameters."""
        quantities = f"{self.backward.name}; {self.backward_per_sample.name}"
        return f"overlap({quantities}; {self.first:.9g}; {self.last:.9g})"


@checks.arguments
@dataclass(frozen=True)
class Cluster:
    r"""Workers that compute, and the network that connects them.

    Args:
        compute: seconds that a worker needs for one micro-batch, in addition to `per_sample`.
        up: bits per second of a worker's sending port; None: sending takes only the latency. If the
            bandwidth changes with the clock, a message takes the time over which the bandwidth,
            integrated from the message's start, reaches the message's bits.
        down: bits per second of a worker's receiving port; None: as fast as its sending port.
        latency: seconds per message, at least 0; traced in a function for `dsgd.replay`.
        convention: "blocking" or "pipelined", see `dsgd.network`.
        micro_batches: number of micro-batches of one gradient, which a worker computes one after
            the other, each of the problem's batch size; ignored if the method sets the local work
            (`Query.work`).
        per_sample: seconds for each sample of a micro-batch; None: 0.
        single_batch: whether a worker's micro-batches are parts of one batch, which only the
            simulation divides: the samples of a round then take the time of a single micro-batch of
            that size.
        overlap: overlap of the round's messages with the computation of the last micro-batch, whose
            backward pass takes at most the whole micro-batch's time; None: no overlap.
        noise: $\nu$ of the noise of the workers' clocks: a time t is measured as $t e^{\nu z}$ with
            $z \sim \mathcal N(0, 1)$.
        present: participation: a worker participates in a round if its quantity is positive; None:
            all workers participate.
        participation_period: number of rounds for which a draw of `present` is kept, counted from
            round 0, for example the rounds between two averagings of local SGD. A dependence of
            `present` on the clock still takes effect in every round.
        delivered: which messages of a round arrive: those for which the quantity is positive. In
            gossip it is evaluated at the number of the link, min(i, j) N + max(i, j), so that a
            link is down in both directions; in all-reduces and exchanges with servers, at the
            number of the worker whose contribution is lost. Selections by periods, such as
            `bursts`, have periods of one round. None: all messages arrive.
        power: $v_n(t) \ge 0$, the relative speed at which a worker computes at time t (the
            universal computation model). A computation of h seconds, by `compute` and `per_sample`,
            which begins at t, takes the least s with $\int_t^{t+s} v_n(u)\,du \ge h$, and forever
            if there is none. None: 1.
        message_noise: noise on the messages between workers, and from workers to servers. In gossip
            it is drawn for each link and exchange, and a worker's own vector has none. In sums,
            means and tables of all rows, it is drawn once for each worker's contribution; the
            result is sent without noise. Methods with compressed messages, and event-driven
            methods, are refused. None: no noise.
        bucket: size in bits up to which arrays of one message are sent together, with one
            latency, as data-parallel training sends a gradient in buckets of 25 MB: a message of b
            bits in A arrays takes clip(ceil(b / bucket), 1, A) latencies in the place of one. inf:
            one for all arrays; 0: one for each array. Methods that keep their own time ignore it.
        nodes: machines with several workers. `up`, `down` and `latency` are then those of a
            machine's network card, which its workers share; the two bandwidths are evaluated at the
            machine's first worker. None: each worker is a machine.
        collectives: how a library's collectives compare with the switch; None: as on the switch.
            Methods that keep their own time ignore them.

    Raises:
        ValueError: if an argument has another type; a bandwidth can be 0; the latency or the noise
            is negative, infinite or NaN; the bucket is negative or NaN; the convention is unknown;
            `micro_batches` or `participation_period` is less than 1; quantities are for different
            numbers of workers; `delivered` is for a number of workers instead of for links;
            `participation_period` is given without `present`; `power` with `overlap`;
            or `nodes` with `present`.

    Source: of `power`: Tyurin, "Tight time complexities in parallel stochastic optimization with
    arbitrary computation dynamics", 2024.
    """

    compute: Quantity
    up: Quantity | None = None
    down: Quantity | None = None
    latency: Real = 0.0
    convention: Convention = "blocking"
    micro_batches: int = 1
    per_sample: Quantity | None = None
    single_batch: bool = False
    overlap: Overlap | None = None
    noise: float = 0.0
    present: Quantity | None = None
    participation_period: int = 1
    delivered: Quantity | None = None
    power: Quantity | None = None
    message_noise: MessageNoise | None = None
    bucket: float = math.inf
    nodes: Nodes | None = None
    collectives: Collectives | None = None

    def __post_init__(self) -> None:
        for what, quantity in (("up", self.up), ("down", self.down)):
            if quantity is not None and not quantity.positive:
                raise ValueError(
                    f"Cluster: {what} = {quantity.name} can be 0; expected a bandwidth > 0 bit/s"
                )
        if not isinstance(self.latency, Tracer):
            require_seconds("Cluster: latency", self.latency)
        require_number("Cluster: noise", self.noise, least=0)
        if not self.bucket >= 0:
            raise ValueError(
                f"Cluster: bucket = {self.bucket}; expected bits >= 0, or math.inf for one latency "
                "for a whole message"
            )
        for what in ("compute", "up", "down", "per_sample", "power"):
            if quantity := getattr(self, what):
                quantity.refuse_selection(f"Cluster: {what}")
        check_convention(self.convention)
        checks.positive_int("Cluster: micro_batches", self.micro_batches)
        same_workers(*self._quantities)
        if (
            checks.positive_int("Cluster: participation_period", self.participation_period) > 1
            and self.present is None
        ):
            raise ValueError(
                f"Cluster: participation_period = {self.participation_period} but present = None; "
                "expected a "
                "quantity `present` that determines which workers participate"
            )
        if self.power is not None and self.overlap is not None:
            raise ValueError(
                f"Cluster: power = {self.power.name} with overlap = {self.overlap.name}; expected "
                "one of them: the share of a backward pass after which its first bucket is ready "
                "is for a constant speed"
            )
        if self.nodes is not None and self.present is not None:
            raise ValueError(
                f"Cluster: nodes = {self.nodes.name} with present = {self.present.name}; expected "
                "one of them: exchanges within machines need all of their workers"
            )
        if self.delivered is not None and (self.delivered.workers or self.delivered.min_workers):
            number = self.delivered.workers or self.delivered.min_workers
            raise ValueError(
                f"Cluster: delivered = {self.delivered.name} is for {number} workers; expected a "
                "quantity of links, such as bernoulli(0.9, 1.0)"
            )

    @property
    def _quantities(self) -> list[Quantity]:
        members = (self.compute, self.up, self.down, self.per_sample, self.present, self.power)
        backward = (self.overlap.backward, self.overlap.backward_per_sample) if self.overlap else ()
        return [quantity for quantity in (*members, *backward) if quantity]

    @property
    def workers(self) -> int | None:
        """Number of workers that the cluster is for, or None for any number."""
        return same_workers(*self._quantities)

    @property
    def spells(self) -> np.ndarray | None:
        """`Quantity.spells` of `present`; None: participation is not given in seconds."""
        return self.present and self.present.spells

    @property
    def participation(self) -> tuple[str | None, int, str | None, MessageNoise | None]:
        """What the iterates of all methods depend on: which workers participate, which messages
        arrive, and their noise.
        """
        present, delivered = (each and each.name for each in (self.present, self.delivered))
        return present, self.participation_period, delivered, self.message_noise

    def require_workers(self, N: int) -> None:
        """Raises ValueError if the cluster is not for N workers, or if a function of one of its
        quantities does not return a float scalar.
        """
        min_workers = max(quantity.min_workers for quantity in self._quantities)
        if self.workers not in (None, N):
            raise ValueError(
                f"cluster: it has {self.workers} workers but the problem has {N}; expected the "
                "same number"
            )
        if min_workers > N:
            raise ValueError(
                f"cluster: a quantity names worker {min_workers - 1} ({self.name}) but the problem "
                f"has {N} workers; expected workers 0 to {N - 1}"
            )
        if self.nodes is not None and N % self.nodes.size:
            raise ValueError(
                f"cluster: nodes of {self.nodes.size} workers but the problem has {N} workers; "
                f"expected a multiple of {self.nodes.size}"
            )
        for quantity in (*self._quantities, *([self.delivered] if self.delivered else [])):
            quantity.require_scalars()

    @property
    def name(self) -> str:
        """A description that contains all parameters."""
        up, down = (quantity.name if quantity else "None" for quantity in (self.up, self.down))
        ports = f"up {up}, down {down}; latency {_format(self.latency)}; {self.convention}"
        options = [
            f"per sample {self.per_sample.name}" if self.per_sample else "",
            "at once" if self.single_batch else "",
            self.overlap.name if self.overlap else "",
            f"noise {self.noise:.9g}" if self.noise else "",
            f"present {self.present.name} for {self.participation_period}" if self.present else "",
            f"delivered {self.delivered.name}" if self.delivered else "",
            f"power {self.power.name}" if self.power else "",
            f"message noise {self.message_noise.name}" if self.message_noise else "",
            f"bucket {self.bucket:.9g}" if self.bucket < math.inf else "",
            self.nodes.name if self.nodes else "",
            self.collectives.name if self.collectives else "",
        ]
        return "; ".join(
            filter(None, [f"{self.micro_batches} x {self.compute.name}", ports, *options])
        )

    def messages(self, arrays: float, bits: float) -> float:
        """Returns the number of latencies that one message takes, see `bucket`.

        Args:
            arrays: number of its arrays.
            bits: bits of these arrays.
        """
        buckets = math.ceil(bits / self.bucket) if self.bucket else math.inf
        return max(1, min(buckets, arrays))

    def with_levels(self, N: int) -> Cluster:
        """Returns the cluster as N workers see it: without `nodes` if there is only one level, as
        all workers are on one machine, or each is on its own.
        """
        if self.nodes is None or 1 < self.nodes.size < N:
            return self
        if self.nodes.size == 1:
            return replace(self, nodes=None)
        up, latency = constant(self.nodes.bandwidth), self.nodes.latency
        return replace(self, up=up, down=None, latency=latency, nodes=None)

    def latencies(
        self, round: Round, workers: ArrayLike, after: ArrayLike = 0.0, passes: float = 1.0
    ) -> jax.Array:
        """Returns the seconds of each micro-batch of the given workers in this round, which they
        compute one after the other, `[k, M]`; 0 for micro-batches without samples.

        Args:
            round: its `work` has the samples of each of M micro-batches. Without `work` there are
                `micro_batches` micro-batches of the problem's `batch_size` (or of each worker's
                `batch_sizes`, if given; of one sample if the problem has none).
            workers: numbers of the workers, int `[k]`.
            after: seconds between the beginning of the round and that of each worker's first
                micro-batch, a scalar or `[k]`; only `power` depends on it.
            passes: how many times as much as the round's samples is computed.
        """
        workers = jnp.asarray(workers)
        nominal = passes * self._nominal(round, workers)
        if self.power is None:
            return nominal
        works = jnp.cumsum(nominal, axis=1)
        ends = jax.vmap(
            lambda work: self._at_power(round, workers, work, after), in_axes=1, out_axes=1
        )(works)
        begins = jnp.concatenate([jnp.zeros_like(ends[:, :1]), ends[:, :-1]], axis=1)
        # inf - inf: a micro-batch after one that never ends does not end, either.
        seconds = jnp.where(jnp.isinf(ends), jnp.inf, ends - begins)
        return jnp.where(nominal > 0, seconds, 0)

    def _nominal(self, round: Round, workers: jax.Array) -> jax.Array:
        """Returns the seconds of each micro-batch at power 1, `[k, M]`."""
        seconds = self._each(self.compute, _COMPUTE, round, workers)
        samples = self.samples(round, workers)
        if self.per_sample is not None:
            seconds = seconds + samples * self._each(self.per_sample, _PER_SAMPLE, round, workers)
        return jnp.where(samples > 0, seconds, 0)

    def _at_power(
        self, round: Round, workers: jax.Array, nominal: jax.Array, after: ArrayLike
    ) -> jax.Array:
        """Returns the seconds of computations of `nominal` seconds at power 1, `[k]`."""
        assert self.power is not None
        seconds = _evaluate(Quantity.seconds, self.power, _POWER, round, workers, nominal, after)
        return jnp.where(nominal > 0, seconds, 0)  # a power of 0 needs no time for no work

    def seconds(
        self, round: Round, workers: ArrayLike, after: ArrayLike = 0.0, passes: float = 1.0
    ) -> jax.Array:
        """Returns the seconds that the given workers, `[k]`, compute for a gradient in this round,
        `[k]`; inf for a worker whose power is too small from then on. Arguments as for `latencies`.
        """
        workers = jnp.asarray(workers)
        nominal = passes * jnp.sum(self._nominal(round, workers), axis=1)
        return nominal if self.power is None else self._at_power(round, workers, nominal, after)

    def backward(self, round: Round, workers: ArrayLike) -> jax.Array:
        r"""Returns P, the seconds of the backward pass of the last micro-batch that has samples,
        for each of the given workers, `[k]`. A worker's messages may begin $(1 - \gamma) P$ seconds
        before the end of the pass.

        Args:
            round, workers: as in `latencies`; the cluster must have an overlap.
        """
        assert self.overlap is not None
        workers = jnp.asarray(workers)
        samples = self.samples(round, workers)
        backward = self._each(self.overlap.backward, _BACKWARD, round, workers)
        backward = backward + samples * self._each(
            self.overlap.backward_per_sample, _BACKWARD_PER_SAMPLE, round, workers
        )
        backward = jnp.minimum(backward, self.latencies(round, workers))
        # For a worker without samples any micro-batch will do, as all of its seconds are 0.
        last = samples.shape[1] - 1 - jnp.argmax(samples[:, ::-1] > 0, axis=1)
        return jnp.take_along_axis(backward, last[:, None], axis=1)[:, 0]

    def samples(self, round: Round, workers: ArrayLike) -> jax.Array:
        """Returns the samples of each micro-batch of the given workers, int32 `[k, M]`; with
        `single_batch`, the first micro-batch has all of a worker's samples.

        Args:
            round, workers: as in `latencies`.
        """
        workers = jnp.asarray(workers)
        if round.work is None:
            batch_size, batch_sizes = (
                (None, None)
                if round.problem is None
                else (round.problem.batch_size, round.problem.sampler.batch_sizes)
            )
            batch = (
                (batch_size or 1)
                if batch_sizes is None
                else jnp.asarray(batch_sizes, jnp.int32)[workers, None]
            )
            samples = jnp.full((workers.shape[0], self.micro_batches), batch, jnp.int32)
        else:
            samples = jnp.asarray(round.work.samples)[workers]
        if not self.single_batch:
            return samples
        return jnp.zeros_like(samples).at[:, 0].set(jnp.sum(samples, axis=1, dtype=samples.dtype))

    def _each(
        self, quantity: Quantity, purpose: int, round: Round, workers: jax.Array
    ) -> jax.Array:
        """Draws the quantity for each micro-batch of the given workers, float32 `[k, M]`."""
        M = self.micro_batches if round.work is None else round.work.samples.shape[1]
        draw = jax.vmap(quantity.sample, (0, None, None))
        keys = jax.random.split(_key(round, purpose), M)
        return jax.vmap(draw, (None, None, 0))(keys, jnp.float32(round.clock), workers).astype(
            jnp.float32
        )

    @property
    def time_invariant(self) -> bool:
        """Whether no bandwidth changes with the clock, so that the time of a message does not
        depend on when it begins.
        """
        return all(port is None or port.time_invariant for port in (self.up, self.down))

    def sending(
        self, round: Round, workers: ArrayLike, bits: ArrayLike, after: ArrayLike = 0.0
    ) -> jax.Array:
        """Returns the seconds that the sending ports of the given workers need for their bits,
        `[k]`; with `nodes`, that the cards of their machines need.

        Args:
            round: the present round; it begins at `round.clock`.
            workers: numbers of the workers, int `[k]`.
            bits: a scalar, or `[k]`.
            after: seconds between the beginning of the round and that of each message, a scalar or
                `[k]`.
        """
        cards = self._cards(workers)
        return _evaluate(Quantity.seconds, *self._sender, round, cards, bits, after)

    def receiving(
        self, round: Round, workers: ArrayLike, bits: ArrayLike, after: ArrayLike = 0.0
    ) -> jax.Array:
        """Returns the seconds that the receiving ports of the given workers need for their bits,
        `[k]`; arguments as for `sending`.
        """
        cards = self._cards(workers)
        return _evaluate(Quantity.seconds, *self._receiver, round, cards, bits, after)

    def bandwidths(
        self, round: Round, workers: ArrayLike, after: ArrayLike = 0.0, seconds: ArrayLike = 0.0
    ) -> tuple[jax.Array, jax.Array]:
        r"""Returns the mean bits per second of the given workers' sending and receiving ports in a
        time window, $\frac1s \int_t^{t+s} B(u)\,du$, `[k]` each. The random draws are those of the
        round, so that a message which takes s seconds by `sending` has s times this mean bits.
        With `nodes`, they are those of the cards of the workers' machines.

        Args:
            round: the present round; it begins at `round.clock`.
            workers: numbers of the workers, int `[k]`.
            after: seconds between the beginning of the round and that of the window, a scalar or
                `[k]`.
            seconds: s, at least 0, a scalar or `[k]`; if it is 0, the bandwidths at time t are
                returned.

        Returns:
            Sending and receiving bandwidths, `[k]` each; infinite for a port without a bandwidth.
        """
        up, down = (
            _evaluate(Quantity.mean, *port, round, self._cards(workers), seconds, after)
            for port in (self._sender, self._receiver)
        )
        return up, down

    def _cards(self, workers: ArrayLike) -> jax.Array:
        """Returns the workers at which the ports of the given workers are evaluated, `[k]`."""
        workers = jnp.asarray(workers)
        return workers // self.nodes.size * self.nodes.size if self.nodes else workers

    @property
    def _sender(self) -> tuple[Quantity, int]:
        """Returns the quantity of a worker's sending port, and the number that separates its random
        draws from those of other quantities.
        """
        return self.up or _FREE, _UP

    @property
    def _receiver(self) -> tuple[Quantity, int]:
        return (self.down, _DOWN) if self.down else self._sender

    def with_noise(self, round: Round, seconds: jax.Array) -> jax.Array:
        r"""Returns the given seconds, `[N, ...]`, as the workers measure them: $t e^{\nu z}$ with
        an independent $z \sim \mathcal N(0, 1)$ for each.
        """
        if not self.noise:
            return seconds
        return seconds * jnp.exp(
            self.noise * jax.random.normal(_key(round, _NOISE), seconds.shape, seconds.dtype)
        )


def _format(number: Real) -> str:
    return "traced" if isinstance(number, Tracer) else f"{number:.9g}"


def _evaluate(
    method: Callable,
    quantity: Quantity,
    purpose: int,
    round: Round,
    workers: ArrayLike,
    argument: ArrayLike,
    after: ArrayLike,
) -> jax.Array:
    """Evaluates a method of a quantity (`method`: seconds or mean) for the given workers, `[k]`, at
    `argument`, from `after` seconds after the beginning of the round.
    """
    workers = jnp.asarray(workers)
    argument, after = (
        jnp.broadcast_to(jnp.float32(each), workers.shape) for each in (argument, after)
    )
    # Rounding could move the start of a run to before 0.
    clocks = jnp.maximum(0, round.clock + after)
    each = jax.vmap(partial(method, quantity), (None, 0, 0, 0))
    return each(_key(round, purpose), clocks, argument, workers).astype(jnp.float32)


def _key(round: Round, purpose: int) -> jax.Array:
    # The number is far from the small numbers that methods fold into a round's key.
    return jax.random.fold_in(round.key, 0x636C7573 + purpose)
