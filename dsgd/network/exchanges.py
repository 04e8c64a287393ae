"""When each worker is done with an exchange: the entry to the clocks of all patterns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks
from dsgd.base import Pattern
from dsgd.network.clocks import Ports, Timing, together
from dsgd.network.levels import Levels, clocks
from dsgd.network.switch import Convention, check_convention


@checks.arguments
def elapse(
    pattern: Pattern,
    finish: jax.Array,
    ports: Ports | Levels,
    convention: Convention,
    step: jax.Array,
) -> jax.Array:
    """Returns when each worker is done with a round's messages.

    Args:
        pattern: how the messages flow.
        finish: when each worker has computed its gradient, seconds `[N]`.
        ports: times that the messages take on the ports; `Levels` if machines have several workers.
        convention: "blocking" or "pipelined".
        step: number of the exchange; selects the graph of a schedule of topologies.

    Returns:
        Seconds on the same clock as `finish`, `[N]`; for workers that do not participate, the time
        at which the last participating worker is done.

    Raises:
        ValueError: if the convention is unknown, `finish` is not of shape `[N]`, or what the
            pattern does on two levels is not known.
    """
    return exchange(pattern, finish, ports, convention, step).done


@checks.arguments
def exchange(
    pattern: Pattern,
    finish: jax.Array,
    ports: Ports | Levels,
    convention: Convention,
    step: jax.Array,
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
    if isinstance(ports, Levels):
        return clocks(pattern).two_levels(finish, ports, convention, step)
    ports = ports._replace(
        **{
            name: checks.copy_array(f"elapse: ports.{name}", getattr(ports, name))
            for name in ("latency", "up", "down")
        }
    )
    clock, present = pattern.clock or together(pattern), ports.present
    if present is not None:
        finish, ports = jnp.where(present, finish, -jnp.inf), ports.mask_absent()
    timing = clock(finish, ports, convention, step)
    timing = timing if isinstance(timing, Timing) else Timing(timing, ports.up, ports.down)
    if present is None:
        return timing
    return timing._replace(
        done=jnp.where(present, timing.done, jnp.max(timing.done, initial=-jnp.inf, where=present))
    )
