"""Asynchronous SGD: Liu and Zhang, (4.2) and section 4.1; bounded staleness: Ho et al., 2013;
staleness-aware steps: Zhang et al., 2016.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from algorithms import asynchronous_sgd, delays
from tests.methods import events
from tests.methods.bits import FLOAT, Bits, bits_of_some
from tests.methods.compressors import shard, unshard
from tests.methods.events import Schedule, asked_worker
from tests.methods.given import Case, Given, Rounds, Setting
from theory_checks.machinery.statement import Draws

OLDEST, WORST, LATENCY = 5, 4, 0.25
LENGTH = 30  # number of updates: five per worker
# (t, models until x_t) -> t - D(t) of each part
Ages = Callable[[int, Sequence[np.ndarray]], np.ndarray]


def recursion(
    given: Given, worker: Sequence[int] | np.ndarray, ages: Ages, aware: bool = False
) -> Rounds:
    r"""$x_{t+1} = x_t - \gamma g_{n_t}(x_{D(t)})$, where each of P parts has its own D(t).

    Args:
        given: see `Given`.
        worker: n_t.
        ages: t - D(t).
        aware: whether the step of each part is divided by max(1, t - D(t)).
    """
    x, step = [given.x], given.step()
    for t in given.rounds:
        n, old = worker[t], ages(t, x)
        change = shard(step(given.gradients_at(t, read(x, old))[n]), len(old))
        x.append(x[t] + unshard(change / np.maximum(1, old if aware else 1)[..., None], given.d))
        sent = np.where(np.arange(given.N) == n, given.model, 0)
        yield {"x": x[-1], "worker": n, "staleness": old.max(), "bits up": sent, "bits down": sent}


def read(x: Sequence[np.ndarray], ages: np.ndarray) -> np.ndarray:
    """Returns the model with parts of the given ages in updates, `[d]`."""
    parts = [shard(x[-1 - age], len(ages))[part] for part, age in enumerate(ages)]
    return unshard(np.stack(parts), len(x[0]))


def schedule(given: Given, servers: int, convention: str, bound: float = np.inf) -> Schedule:
    """Returns the events on the case's cluster."""
    options: Any = {"servers": servers, "convention": convention, "bound": bound}
    return events.server_schedule(
        given.more, latency=LATENCY, updates=given.length, bits=given.model, **options
    )


def farthest(servers: int) -> Ages:
    """The ages of those of the last models that are farthest from the current one."""

    def ages(t, x):
        earlier = np.stack([shard(x[t - age], servers) for age in range(min(t, WORST) + 1)])
        return np.argmax(((earlier - earlier[:1]) ** 2).sum(axis=2), axis=0)

    return ages


def table(draws: Draws) -> np.ndarray:
    """Draws a staleness table of seven updates, which are repeated, and three parts, `[7, 3]`."""
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    return rng.integers(0, OLDEST + 1, (7, 3)).astype(np.int32)


def table_delays(given: Setting) -> delays.Delays:
    def staleness(key, t, parts, moved):
        return jnp.minimum(jnp.asarray(given.more)[t % 7], t).astype(jnp.int32)

    return delays.Delays(OLDEST, staleness, "table")


SYMBOLS: dict[str, Any] = {
    "x": "server.model.params",
    "worker": "metrics.worker",
    "staleness": "metrics.staleness",
    "asked": asked_worker,
    "clock": lambda found: found.clock,
}


def _with_delays(aware: bool, optimizer: str = "plain") -> Case:
    return Case(
        lambda given: asynchronous_sgd(
            given.optimizer, table_delays(given), servers=3, staleness_aware=aware
        ),
        lambda given: recursion(
            given,
            asked_worker(given.found),
            lambda t, x: np.minimum(np.asarray(given.more)[t % 7], t),
            aware,
        ),
        optimizer=optimizer,
        symbols=SYMBOLS,
        more=table,
        length=LENGTH,
    )


def cluster_case(
    servers: int,
    convention: Any,
    bound: int | None = None,
    *,
    aware: bool = False,
    optimizer: str = "plain",
    more: Callable[[Draws], events.Numbers] = events.cluster,
) -> Case:
    """Returns the case of updates event by event."""

    def rounds(given):
        found = schedule(given, servers, convention, np.inf if bound is None else bound)
        steps = recursion(given, found.worker, lambda t, x: found.staleness[t], aware)
        for symbols, now in zip(steps, found.clock, strict=True):
            yield symbols | {"asked": symbols["worker"], "clock": now}

    return Case(
        lambda given: asynchronous_sgd(
            given.optimizer, servers=servers, bound=bound, staleness_aware=aware
        ),
        rounds,
        optimizer=optimizer,
        symbols=SYMBOLS,
        more=more,
        place=partial(events.place, latency=LATENCY, convention=convention),
        length=LENGTH,
    )


def bits(t: int, N: int, d: int) -> Bits:
    return bits_of_some(1, d * FLOAT, N)


CASES = {
    "": cluster_case(2, "blocking"),
    "clipped": cluster_case(1, "blocking", optimizer="clipped"),
    "bounded": cluster_case(1, "pipelined", 5, aware=True, optimizer="momentum"),
    "delays": _with_delays(False, "momentum"),
    "delays, staleness-aware": _with_delays(True),
    "worst case": Case(
        lambda given: asynchronous_sgd(given.optimizer, delays.worst_case(WORST), servers=2),
        lambda given: recursion(given, asked_worker(given.found), farthest(2)),
        symbols=SYMBOLS,
        length=LENGTH,
    ),
}
