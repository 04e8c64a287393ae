"""When each worker is done with a round's messages, where workers are not ready at once, nor all
there, and ports are not equal.

It agrees with the closed forms of `patterns` where all are equal. With one server, and in a star,
it is the event simulation's, message by message. All-reduces and N servers begin when the last
worker is ready, and the slowest port sets the pace of all. In gossip, each neighbourhood begins
when its last worker is ready, and takes as long as its busiest port.

Where bandwidths change meanwhile, a port needs the seconds in which so many bits come together,
sent without a pause from when its first message begins, and received one latency later: with one
server and in a star from each message's own beginning, in an all-reduce and among N servers from
the last worker's, in gossip from when the port's own neighbourhood is ready.

Who is away from a round has no message in it, and nobody waits for it: a ring has as many members
as are there, a server hears only those. A message that is lost takes as long as one that arrives:
its sender has sent it, and its receiver waits until it should have come.
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
    """What a round sends, as the clock sees it.

    Args:
        latency: seconds of a message.
        up: seconds that each worker's port needs for all that it sends in this round, `[N]`.
        down: the same for what it receives, or would have received if it had not been lost.
        changing: (begin `[k]`, workers int32 `[k]`) -> the two, `[k]` each, of what is sent from
            then on, where bandwidths change with the clock: those above are then of ports that
            begin when their worker is ready. None: they do not.
        present: who takes part in the round, bool `[N]`; None: everybody.
    """

    latency: Any
    up: jax.Array
    down: jax.Array
    changing: Callable | None = None
    present: jax.Array | None = None

    def at(self, begin: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`up` and `down` of ports that begin then, `[N]` each."""
        return (
            self.changing(begin, jnp.arange(begin.shape[0]))
            if self.changing
            else (self.up, self.down)
        )

    def of_those_present(self) -> Ports:
        """The same, where the ports of all others take no time."""
        present, changing = self.present, self.changing
        assert present is not None

        def among(begin, workers):
            assert changing is not None
            return tuple(
                jnp.where(present[workers], seconds, 0) for seconds in changing(begin, workers)
            )

        up, down = (jnp.where(present, seconds, 0) for seconds in (self.up, self.down))
        return self._replace(up=up, down=down, changing=among if changing else None)

    def held(self, latency: Any, workers: Any = slice(None)) -> Any:
        """For how long the latency of one message holds these workers' ports; of those who are
        away, not at all.
        """
        return latency if self.present is None else jnp.where(self.present[workers], latency, 0)


class Timing(NamedTuple):
    """When the messages of an exchange are done, and how long they took.

    Args:
        done: when each worker is done with them, `[N]`.
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
    """When each worker is done with a round's messages.

    Args:
        pattern: how they flow.
        finish: when each has computed its gradient, `[N]`.
        ports: what they take.
        convention: "blocking" or "pipelined".
        step: the present round, of patterns that take turns.

    Returns:
        Seconds on the same clock, `[N]`; of who is away, when the last of the others is done.
    """
    return exchange(pattern, finish, ports, convention, step).done


@checks.arguments
def exchange(
    pattern: Pattern, finish: jax.Array, ports: Ports, convention: Convention, step: jax.Array
) -> Timing:
    """The same, and for how long ports were busy.

    Args:
        pattern, finish, ports, convention, step: as of `elapse`.
    """
    check_convention(convention)
    if np.ndim(finish) != 1 or not len(finish):
        raise ValueError(f"elapse: finish of shape {np.shape(finish)}: need seconds [N]")
    clock, present = pattern.clock or _together(pattern), ports.present
    if present is not None:
        finish, ports = jnp.where(present, finish, -jnp.inf), ports.of_those_present()
    went = clock(finish, ports, convention, step)
    went = went if isinstance(went, Timing) else Timing(went, ports.up, ports.down)
    if present is None:
        return went
    return went._replace(
        done=jnp.where(present, went.done, jnp.max(went.done, initial=-jnp.inf, where=present))
    )


def _together(pattern: Pattern) -> Callable:
    """All wait for the last, and for the slowest port: a clock from the closed form."""

    def clock(finish, ports, convention, step):
        last = jnp.broadcast_to(jnp.max(finish), finish.shape)
        up, down = ports.at(last)
        busiest = jnp.max(jnp.maximum(up, down))
        if ports.present is None:
            N = finish.shape[0]
            vectors = pattern.vectors(N)
            transfer = busiest / vectors if vectors else 0.0
        else:  # the pattern of as many workers, a traced number
            N = jnp.maximum(1, jnp.sum(ports.present))
            vectors = pattern.vectors(N)
            transfer = jnp.where(vectors > 0, busiest / jnp.where(vectors > 0, vectors, 1), 0)
        seconds = pattern.seconds(N, ports.latency, transfer, convention)
        # a quotient of a traced N is float64 with jax_enable_x64
        return Timing(last + jnp.asarray(seconds).astype(last.dtype), up, down)

    return clock


def through_server(
    finish: jax.Array, ports: Ports, convention: Convention, step: jax.Array
) -> jax.Array | Timing:
    """The server receives one by one, the first that is ready first; then it sends to all, one by
    one.
    """
    latency = ports.latency if convention == "blocking" else 0.0
    order = jnp.argsort(finish)
    if ports.changing:
        return _one_by_one(finish, ports, order, latency)
    # The last arrival is as late as any message with all that queue behind it.
    behind = jnp.cumsum((ports.up[order] + ports.held(latency, order))[::-1])[::-1]
    received = jnp.max(finish[order] + behind)
    overlapped = 0.0 if convention == "blocking" else ports.latency
    return received + 2 * overlapped + jnp.cumsum(ports.down + ports.held(latency))


def _one_by_one(finish, ports, order, held):
    """The same where each message's seconds depend on when it begins.

    Args:
        order: in which the server receives.
        held: for how long latency holds a port.
    """

    def receive(free, worker):
        start = jnp.maximum(free, finish[worker])
        up = ports.changing(start[None], worker[None])[0][0]
        return start + ports.held(held, worker) + up, up

    def send(free, worker):
        down = ports.changing(free[None], worker[None])[1][0]
        arrived = free + ports.held(held, worker) + down
        return arrived, (arrived, down)

    received, up = lax.scan(receive, jnp.float32(-jnp.inf), order)
    overlapped = ports.latency - held
    # Of the first model, what is not held: one latency till the last gradient is there, and one
    # till this one begins to arrive.
    _, (done, down) = lax.scan(send, received + overlapped, jnp.arange(finish.shape[0]))
    return Timing(done + overlapped, jnp.zeros_like(up).at[order].set(up), down)


def over_links(finish: jax.Array, ports: Ports, convention: Convention, step: jax.Array) -> Timing:
    """Everybody sends to the server as soon as it is ready; when all has arrived, the server sends
    to everybody at once.
    """
    up, _ = ports.at(finish)
    received = jnp.broadcast_to(jnp.max(finish + (ports.latency + up)), finish.shape)
    _, down = ports.at(received)
    return Timing(received + (ports.latency + down), up, down)


def apart(finish: jax.Array, ports: Ports, convention: Convention, step: jax.Array) -> jax.Array:
    """Nobody sends anything."""
    return finish


def among_neighbours(topology: Topology) -> Callable:
    """Neighbours begin when all of them have computed, and are done when the busiest port among
    them has handled all of its own.
    """

    def clock(finish, ports, convention, step):
        # To whom each worker sends in this round, and from whom it receives.
        to, origin = (
            jnp.asarray(neighbours(topology, end).workers)[step % topology.period] for end in (0, 1)
        )
        if ports.present is not None:
            to, origin = (jnp.where(ports.present[lists], lists, -1) for lists in (to, origin))

        def busy(ends, own, others):
            """Each message holds a port for as long as the slower of its two ports needs."""
            messages = jnp.where(ends >= 0, jnp.maximum(own[:, None], others[ends]), 0)
            latencies = (
                jnp.sum(ends >= 0, axis=1)
                if convention == "blocking"
                else jnp.any(ends >= 0, axis=1)
            )
            return jnp.sum(messages, axis=1) + latencies * ports.latency

        def wait(times):
            """One's own, or the latest of those with whom one exchanges messages."""
            latest = (
                jnp.max(jnp.where(ends >= 0, times[ends], -jnp.inf), axis=1, initial=-jnp.inf)
                for ends in (to, origin)
            )
            return reduce(jnp.maximum, latest, times)

        ready = wait(finish)
        up, down = whole = ports.at(ready)
        up, down = (
            seconds / jnp.maximum(1, jnp.sum(ends >= 0, axis=1))
            for seconds, ends in ((up, to), (down, origin))
        )
        return Timing(ready + wait(jnp.maximum(busy(to, up, down), busy(origin, down, up))), *whole)

    return clock
