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

from dsgd.base import Pattern
from dsgd.graphs.neighbours import neighbours
from dsgd.graphs.topology import Topology
from dsgd.network.switch import Convention


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


def together(pattern: Pattern) -> Callable:
    """Returns a clock from the pattern's closed form: all workers wait for the last worker and for
    the slowest port.
    """

    def clock(finish, ports, convention, step):
        last = jnp.broadcast_to(jnp.max(finish), finish.shape)
        # With absent workers it is the pattern among those that participate, a traced number.
        present = ports.present
        N = finish.shape[0] if present is None else jnp.maximum(1, jnp.sum(present))
        seconds, up, down = duration(pattern, N, last, ports, convention)
        return Timing(last + seconds, up, down)

    return clock


def duration(
    pattern: Pattern, count: Any, begin: jax.Array, ports: Ports, convention: Convention
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the seconds of the pattern's closed form at the slowest of some ports, and how long
    each of the ports is busy, `[n]`.

    Args:
        pattern: how the messages flow.
        count: number of ports among which they flow, static or traced; the given ports may belong
            to several exchanges of this size.
        begin: when the messages begin, `[n]`.
        ports: the ports.
        convention: "blocking" or "pipelined".
    """
    up, down = ports.at_times(begin)
    busiest, vectors = jnp.max(jnp.maximum(up, down)), pattern.volume(count)
    if isinstance(count, int):
        transfer = busiest / vectors if vectors else 0.0
    else:
        transfer = jnp.where(vectors > 0, busiest / jnp.where(vectors > 0, vectors, 1), 0)
    seconds = pattern.seconds(count, ports.latency, transfer, convention)
    # With jax_enable_x64 the quotient by a traced number is float64.
    return jnp.asarray(seconds).astype(begin.dtype), up, down


def server_clock(
    finish: jax.Array, ports: Ports, convention: Convention, step: jax.Array, groups: int = 1
) -> jax.Array | Timing:
    """Clock of one server: it receives the workers' messages one by one, in the order in which the
    workers are ready; then it sends to all workers, one by one.

    Args:
        finish, ports, convention, step: as in `elapse`.
        groups: number of groups of consecutive workers; the server has a port for each group, and
            sends when it has received the messages of all of them.
    """
    latency = ports.latency if convention == "blocking" else 0.0
    each = finish.reshape(groups, -1)
    order = jnp.argsort(each) + np.arange(0, finish.size, each.shape[1], dtype=np.int32)[:, None]
    if ports.changing:
        return _one_by_one(finish, ports, order, latency)
    # The last arrival is the maximum over messages of the message's start plus the times of all
    # messages from it on.
    held = ports.up[order] + ports.occupancy(latency, order)
    behind = jnp.cumsum(held[:, ::-1], axis=1)[:, ::-1]
    received = jnp.max(finish[order] + behind)
    overlapped = 0.0 if convention == "blocking" else ports.latency
    sent = jnp.cumsum((ports.down + ports.occupancy(latency)).reshape(each.shape), axis=1)
    return received + 2 * overlapped + sent.ravel()


def _one_by_one(finish, ports, order, held):
    """Clock of one server if each message's time depends on when it begins.

    Args:
        finish, ports: as in `elapse`.
        order: order in which the server receives from each group, `[groups, k]`.
        held: seconds for which the latency occupies a port.
    """

    def receive(free, workers):
        start = jnp.maximum(free, finish[workers])
        up = ports.changing(start, workers)[0]
        return start + ports.occupancy(held, workers) + up, up

    def send(free, workers):
        down = ports.changing(free, workers)[1]
        arrived = free + ports.occupancy(held, workers) + down
        return arrived, (arrived, down)

    groups = order.shape[0]
    received, up = lax.scan(receive, jnp.full(groups, -jnp.inf, jnp.float32), order.T)
    overlapped = ports.latency - held
    # The part of a latency that does not occupy ports passes once before the last gradient has
    # arrived, and once before the first model begins to arrive.
    begin = jnp.broadcast_to(jnp.max(received) + overlapped, groups)
    ids = jnp.arange(finish.size).reshape(order.shape)
    _, (done, down) = lax.scan(send, begin, ids.T)
    up = jnp.zeros_like(finish).at[order.T].set(up)
    return Timing(done.T.ravel() + overlapped, up, down.T.ravel())


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
        to, origin = neighbours_at(topology, step)
        if ports.present is not None:
            to, origin = (jnp.where(ports.present[lists], lists, -1) for lists in (to, origin))
        return neighbourhoods(to, origin, finish, ports, convention)

    return clock


def neighbours_at(topology: Topology, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the workers that each worker sends to in this round, and those that it receives
    from, int32 `[N, K]`, padded with -1.
    """
    to, origin = (
        jnp.asarray(neighbours(topology, end).workers)[step % topology.period] for end in (0, 1)
    )
    return to, origin


def neighbourhoods(
    to: jax.Array, origin: jax.Array, finish: jax.Array, ports: Ports, convention: Convention
) -> Timing:
    """Returns the times of messages between neighbours; those of one sender are equally long.

    Args:
        to, origin: the receivers of each port's messages, and the senders of those that it
            receives, int32 `[n, K]`, padded with -1; with several messages, a neighbour occurs
            several times.
        finish, ports, convention: as in `elapse`, `[n]`.
    """

    def busy(ends, own, others):
        """Seconds of each port's messages. A message occupies a port for as long as the slower of
        its two ports needs.
        """
        messages = jnp.where(ends >= 0, jnp.maximum(own[:, None], others[ends]), 0)
        latencies = (
            jnp.sum(ends >= 0, axis=1) if convention == "blocking" else jnp.any(ends >= 0, axis=1)
        )
        return jnp.sum(messages, axis=1) + latencies * ports.latency

    def wait(times):
        """Returns the latest of each port's time and its neighbours' times."""
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
