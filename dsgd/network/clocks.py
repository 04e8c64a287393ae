"""When each worker is done with a round's messages, if workers are not ready at the same time, do
not all participate, or have unequal ports.

If all workers are equal, the results agree with the closed forms of `patterns`. With one server,
and in a star, they agree with the event simulation, message by message. All-reduces and exchanges
with N servers begin when the last worker is ready and proceed at the pace of the slowest port. In
gossip, each neighbourhood begins when its last worker is ready and takes as long as its busiest
port.

If bandwidths change over time, the transfer time of a port is the time over which the integrated
bandwidth reaches its bits, sent without a pause; receiving begins one latency after sending. This
time starts at each message's own beginning with one server and in a star, when the last worker is
ready in all-reduces and among N servers, and when the port's own neighbourhood is ready in gossip.

A worker that does not participate sends and receives nothing, and no other worker waits for it: a
ring consists of the workers that participate, and a server receives from these only. A lost message
takes as long as one that arrives: it is sent, and its receiver waits until the time at which it
would have arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import checks
from dsgd.base import Pattern
from dsgd.graphs.neighbours import neighbours
from dsgd.graphs.topology import Topology
from dsgd.network.switch import Convention, check_convention


class Ports(NamedTuple):
    """Times that a round's messages take on the workers' ports.

    Args:
        latency: seconds per message.
        up: seconds that each worker's sending port needs for all that it sends in this round,
            `[N]`.
        down: the same for receiving ports, including messages that are lost.
        changing: (begin `[k]`, workers int32 `[k]`) -> the two times, `[k]` each, for messages that
            begin at `begin`, if bandwidths change with the clock; `up` and `down` are then the
            times of ports that begin when their worker is ready. None: bandwidths do not change.
        present: which workers participate in the round, bool `[N]`; None: all.
    """

    latency: Any
    up: jax.Array
    down: jax.Array
    changing: Callable | None = None
    present: jax.Array | None = None

    def at_times(self, begin: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns `up` and `down` of ports that begin at the given times, `[N]` each."""
        return (
            self.changing(begin, jnp.arange(begin.shape[0]))
            if self.changing
            else (self.up, self.down)
        )

    def mask_absent(self) -> Ports:
        """Returns the ports with times of 0 for workers that do not participate."""
        present, changing = self.present, self.changing
        assert present is not None

        def among(begin, workers):
            assert changing is not None
            return tuple(
                jnp.where(present[workers], seconds, 0) for seconds in changing(begin, workers)
            )

        up, down = (jnp.where(present, seconds, 0) for seconds in (self.up, self.down))
        return self._replace(up=up, down=down, changing=among if changing else None)

    def occupancy(self, latency: Any, workers: Any = slice(None)) -> Any:
        """Returns for how long the latency of one message occupies the ports of the given workers;
        0 for workers that do not participate.
        """
        return latency if self.present is None else jnp.where(self.present[workers], latency, 0)


class Timing(NamedTuple):
    """Completion times of an exchange, and busy times of the ports.

    Args:
        done: when each worker is done with the messages, `[N]`.
        up: seconds that each sending port needed for its bits, `[N]`.
        down: seconds that each receiving port needed, `[N]`.
    """

    done: jax.Array
    up: jax.Array
    down: jax.Array


@checks.arguments
def elapse(
    pattern: Pattern, finish: jax.Array, ports: Ports, convention: Convention, step: jax.Array
) -> jax.Array:
    """Returns when each worker is done with a round's messages.

    Args:
        pattern: how the messages flow.
        finish: when each worker has computed its gradient, seconds `[N]`.
        ports: times that the messages take on the ports.
        convention: "blocking" or "pipelined".
        step: number of the exchange; selects the graph of a schedule of topologies.

    Returns:
        Seconds on the same clock as `finish`, `[N]`; for workers that do not participate, the time
        at which the last participating worker is done.

    Raises:
        ValueError: if the convention is unknown or `finish` is not of shape `[N]`.
    """
    return exchange(pattern, finish, ports, convention, step).done


@checks.arguments
def exchange(
    pattern: Pattern, finish: jax.Array, ports: Ports, convention: Convention, step: jax.Array
) -> Timing:
    """Returns when each worker is done with a round's messages, and how long its ports were busy.

    Args:
        pattern, finish, ports, convention, step: as in `elapse`.

    Raises:
        ValueError: as `elapse`.
    """
    check_convention(convention)
    if np.ndim(finish) != 1 or not len(finish):
        raise ValueError(f"elapse: finish of shape {np.shape(finish)}; expected seconds [N]")
    ports = ports._replace(
        **{
            name: checks.copy_array(f"elapse: ports.{name}", getattr(ports, name))
            for name in ("latency", "up", "down")
        }
    )
    clock, present = pattern.clock or _together(pattern), ports.present
    if present is not None:
        finish, ports = jnp.where(present, finish, -jnp.inf), ports.mask_absent()
    timing = clock(finish, ports, convention, step)
    timing = timing if isinstance(timing, Timing) else Timing(timing, ports.up, ports.down)
    if present is None:
        return timing
    return timing._replace(
        done=jnp.where(present, timing.done, jnp.max(timing.done, initial=-jnp.inf, where=present))
    )


def _together(pattern: Pattern) -> Callable:
    """Returns a clock from the pattern's closed form: all workers wait for the last worker and for
    the slowest port.
    """

    def clock(finish, ports, convention, step):
        last = jnp.broadcast_to(jnp.max(finish), finish.shape)
        up, down = ports.at_times(last)
        busiest = jnp.max(jnp.maximum(up, down))
        if ports.present is None:
            N = finish.shape[0]
            vectors = pattern.volume(N)
            transfer = busiest / vectors if vectors else 0.0
        else:  # the pattern among the workers that participate, whose number is traced
            N = jnp.maximum(1, jnp.sum(ports.present))
            vectors = pattern.volume(N)
            transfer = jnp.where(vectors > 0, busiest / jnp.where(vectors > 0, vectors, 1), 0)
        seconds = pattern.seconds(N, ports.latency, transfer, convention)
        # With jax_enable_x64 the quotient by a traced N is float64.
        return Timing(last + jnp.asarray(seconds).astype(last.dtype), up, down)

    return clock


def server_clock(
    finish: jax.Array, ports: Ports, convention: Convention, step: jax.Array
) -> jax.Array | Timing:
    """Clock of one server: it receives the workers' messages one by one, in the order in which the
    workers are ready; then it sends to all workers, one by one.
    """
    latency = ports.latency if convention == "blocking" else 0.0
    order = jnp.argsort(finish)
    if ports.changing:
        return _one_by_one(finish, ports, order, latency)
        # The last arrival is the maximum over messages of the message's start plus the times of all
        # messages from it on.
    behind = jnp.cumsum((ports.up[order] + ports.occupancy(latency, order))[::-1])[::-1]
    received = jnp.max(finish[order] + behind)
    overlapped = 0.0 if convention == "blocking" else ports.latency
    return received + 2 * overlapped + jnp.cumsum(ports.down + ports.occupancy(latency))


def _one_by_one(finish, ports, order, held):
    """Clock of one server if each message's time depends on when it begins.

    Args:
        finish, ports: as in `elapse`.
        order: order in which the server receives.
        held: seconds for which the latency occupies a port.
    """

    def receive(free, worker):
        start = jnp.maximum(free, finish[worker])
        up = ports.changing(start[None], worker[None])[0][0]
        return start + ports.occupancy(held, worker) + up, up

    def send(free, worker):
        down = ports.changing(free[None], worker[None])[1][0]
        arrived = free + ports.occupancy(held, worker) + down
        return arrived, (arrived, down)

    received, up = lax.scan(receive, jnp.float32(-jnp.inf), order)
    overlapped = ports.latency - held
    # The part of a latency that does not occupy ports passes once before the last gradient has
    # arrived, and once before the first model begins to arrive.
    _, (done, down) = lax.scan(send, received + overlapped, jnp.arange(finish.shape[0]))
    return Timing(done + overlapped, jnp.zeros_like(up).at[order].set(up), down)


def link_clock(finish: jax.Array, ports: Ports, convention: Convention, step: jax.Array) -> Timing:
    """Clock of a star: each worker sends to the server when it is ready; when all messages have
    arrived, the server sends to all workers at once.
    """
    up, _ = ports.at_times(finish)
    received = jnp.broadcast_to(jnp.max(finish + (ports.latency + up)), finish.shape)
    _, down = ports.at_times(received)
    return Timing(received + (ports.latency + down), up, down)


def idle_clock(
    finish: jax.Array, ports: Ports, convention: Convention, step: jax.Array
) -> jax.Array:
    """Clock of a round without messages: each worker is done when it is ready."""
    return finish


def neighbour_clock(topology: Topology) -> Callable:
    """Returns the clock of gossip: neighbours begin when all of them are ready, and are done when
    the busiest port among them has finished its messages.
    """

    def clock(finish, ports, convention, step):
        # The workers that each worker sends to in this round, and those that it receives from.
        to, origin = (
            jnp.asarray(neighbours(topology, end).workers)[step % topology.period] for end in (0, 1)
        )
        if ports.present is not None:
            to, origin = (jnp.where(ports.present[lists], lists, -1) for lists in (to, origin))

        def busy(ends, own, others):
            """Seconds of each worker's messages. A message occupies a port for as long as the
            slower of its two ports needs.
            """
            messages = jnp.where(ends >= 0, jnp.maximum(own[:, None], others[ends]), 0)
            latencies = (
                jnp.sum(ends >= 0, axis=1)
                if convention == "blocking"
                else jnp.any(ends >= 0, axis=1)
            )
            return jnp.sum(messages, axis=1) + latencies * ports.latency

        def wait(times):
            """Returns the latest of each worker's time and its neighbours' times."""
            latest = (
                jnp.max(jnp.where(ends >= 0, times[ends], -jnp.inf), axis=1, initial=-jnp.inf)
                for ends in (to, origin)
            )
            return reduce(jnp.maximum, latest, times)

        ready = wait(finish)
        up, down = whole = ports.at_times(ready)
        up, down = (
            seconds / jnp.maximum(1, jnp.sum(ends >= 0, axis=1))
            for seconds, ends in ((up, to), (down, origin))
        )
        return Timing(ready + wait(jnp.maximum(busy(to, up, down), busy(origin, down, up))), *whole)

    return clock
