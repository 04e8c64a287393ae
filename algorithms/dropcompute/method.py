"""A wrapper for any synchronous method whose workers stop computing at a time limit."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.core import Tracer

from algorithms.dropcompute import thresholds
from algorithms.dropcompute.simulation import draw_round
from algorithms.dropcompute.stopping import (
    Stop,
    Stopped,
    require_one_by_one,
    require_stop,
    stop_workers,
)
from algorithms.dropcompute.thresholds import AutoThreshold, Measuring
from dsgd import checks
from dsgd import work as works
from dsgd.base import Algorithm, LocalWork, Period, PyTree, Query, Round, State

_IDLE = 10  # number of idle rounds in a row that is not a coincidence
_NOTHING_DONE = (
    f"no worker has computed anything in {_IDLE} rounds or more: no micro-batch ends within "
    f"{{:g}} s; pass a larger threshold"
)
Correction = Literal["none", "stochastic", "local"]
Seconds = Annotated[float | jax.Array, "a number of seconds"]
Factor = Annotated[float | jax.Array, "a number"]


class Server(NamedTuple):
    """The server's state.

    Args:
        method: the method's own server state.
        spent: seconds for which each worker has computed in this period, `[N]`; () if a period is
            one round.
        idle: number of rounds so far, int32, if no worker has computed anything in any of them;
            otherwise -1.
        measuring: measurements from which the threshold is chosen; () if it is given.
        drawn: number of micro-batches that each worker has computed, int32 `[N]`, if dropped
            samples are computed later (`resample_dropped`); otherwise ().
    """

    method: PyTree
    spent: jax.Array | tuple[()]
    idle: jax.Array
    measuring: Measuring | tuple[()]
    drawn: jax.Array | tuple[()]


class Rule(NamedTuple):
    """When a worker stops; arguments of `drop_compute`.

    Args:
        threshold: tau, or when it is chosen.
        micro_batches: M.
        stop: "preempt" or "between".
        period: H.
    """

    threshold: Seconds | AutoThreshold
    micro_batches: int
    stop: Stop
    period: Any  # traced only if the threshold is given

    @property
    def periodic(self) -> bool:
        """Whether seconds accumulate over several rounds."""
        return not isinstance(self.period, int) or self.period > 1

    def current_threshold(self, server: Server) -> jax.Array:
        """Returns tau in this round."""
        return (
            server.measuring.threshold
            if isinstance(server.measuring, Measuring)
            else jnp.float32(self.threshold)
        )

    def stop_round(self, server: Server, round: Round) -> Stopped:
        """Returns which micro-batches all workers compute in a round, and in how many seconds."""
        return stop_workers(
            draw_round(round, self.micro_batches),
            self.current_threshold(server),
            self.stop,
            server.spent if self.periodic else 0.0,
        )

    def first_server(self, server: PyTree, N: int, resample_dropped: bool) -> Server:
        """Returns the state before the first round."""
        measuring = ()
        if isinstance(self.threshold, AutoThreshold):
            measuring = thresholds.nothing_measured(
                self.threshold.rounds, N, self.period * self.micro_batches
            )
        spent = jnp.zeros(N, jnp.float32) if self.periodic else ()
        return Server(
            server,
            spent,
            jnp.int32(0),
            measuring,
            jnp.zeros(N, jnp.int32) if resample_dropped else (),
        )

    def next_state(self, server: Server, round: Round, seconds: jax.Array) -> Server:
        """Returns the state after a round in which the workers computed for `seconds`, `[N]`."""
        assert round.work is not None
        done = round.work.samples > 0
        participation = True if round.present is None else jnp.any(round.present)
        idle = jnp.where(jnp.any(done) | (server.idle < 0), -1, server.idle + participation)
        spent, measuring, drawn = server.spent, server.measuring, server.drawn
        if not isinstance(spent, tuple):
            spent = jnp.where((round.step + 1) % self.period == 0, 0, spent + seconds)
        if isinstance(measuring, Measuring):
            measuring = thresholds.record_timings(measuring, round, self.period, self.stop)
        if not isinstance(drawn, tuple):
            drawn = drawn + jnp.sum(done, axis=1, dtype=jnp.int32)
        return Server(server.method, spent, idle, measuring, drawn)


@checks.arguments
def drop_compute(
    method: Algorithm,
    threshold: Seconds | AutoThreshold,
    micro_batches: int,
    *,
    stop: Stop = "preempt",
    correction: Correction | Factor = "none",
    period: Period = 1,
    resample_dropped: bool = False,
    all_dropped: Literal["error", "warn"] = "error",
) -> Algorithm:
    r"""DropCompute: every worker computes micro-batches until $\tau$ seconds have passed; the
    method uses the gradients of those that are complete.

    $$ g_n = \frac1M \sum_{m=1}^{\tilde M_n} g_n^{(m)}, \qquad \tilde M_n = \#\{m \le M : T_n^{(m)}
    < \tau\}, \quad
       T_n^{(m)} = \sum_{j \le m} t_n^{(j)} $$

    where the seconds $t$ of each micro-batch come from the run's cluster. With stop="between" a
    worker reads its clock only between micro-batches: it completes the micro-batch in which $\tau$
    passes. The simulated clock counts the seconds for which each worker computed:
    $\min(\tau, T_n^{(M)})$, or until the end of its last micro-batch.

    Local SGD: with `period=H` the seconds accumulate over H rounds, and a worker whose time is used
    up makes no more steps until the models are averaged,
    `drop_compute(local_sgd(optimizer, 8), 0.5, 1, period=8)` (appendix B.3).

    The history contains `threshold` (seconds; infinite while latencies are measured), `dropped`
    (the share of dropped micro-batches in the record's round), each worker's `samples`,
    `[records, N]`, and `idle` (the number of rounds so far if no worker has computed anything in
    any of them; otherwise 0).

    Args:
        method: any synchronous method on stochastic gradients whose queries do not set the local
            work.
        threshold: tau, seconds of computation in a round or period; or
            `dropcompute.auto_threshold(I)`.
        micro_batches: M, each a batch of the problem.
        stop: "preempt", at tau (Algorithm 1); or "between" micro-batches.
        correction: correction of the gradients for dropped micro-batches. "none": the equation;
            "stochastic": the sum over workers is divided by the total number of computed
            micro-batches, that is, $N / \sum_k \tilde M_k$ replaces $1 / M$; "local": each worker's
            sum is divided by its own number, $1 / \tilde M_n$; a number c: $c / M$ (the paper's
            constant correction is 1 minus the drop rate). A number has no effect on steps whose
            size does not depend on the gradient's size (Adam, LAMB). Local steps keep their length
            only with "local", or with "none" if M is 1.
        period: H, number of rounds. It may be swept if the threshold is given.
        resample_dropped: whether a worker first computes in the next round the samples that it
            dropped, so that no sample is lost. (If seconds depended on the sample, a sample that
            takes tau or longer would be started again in every round with "preempt".)
        all_dropped: what happens if no worker has computed anything in the first ten rounds or
            more, because no micro-batch ends before tau: the run ends with an error, or warns.

    Raises:
        ValueError: if the threshold or a number is negative or NaN (an infinite threshold drops
            nothing), micro_batches or period is less than 1, or an option is unknown. During a run:
            if there is no cluster, or its workers compute all micro-batches as one batch; if the
            method has its own clock, sets participation or local work itself, or needs exact
            gradients; if the threshold is to be chosen on a cluster with participation; if
            `resample_dropped` is used with streamed batches; or if everything is dropped and
            `all_dropped` is "error".

    Source: Giladi et al., "DropCompute: simple and more robust distributed synchronous training via
    compute variance reduction", 2023, Algorithms 1 and 2, sections 4.5, B.2.2 and B.3.
    """
    M, H = (
        checks.positive_int("drop_compute: micro_batches", micro_batches),
        require_period(period, threshold),
    )
    require_stop("drop_compute", stop)
    require_correction("drop_compute", correction)
    if all_dropped not in ("error", "warn"):
        raise ValueError(f"drop_compute: all_dropped = {all_dropped!r}; expected 'error' or 'warn'")
    if not isinstance(threshold, AutoThreshold | Tracer) and (
        jnp.ndim(threshold) or not threshold >= 0
    ):
        raise ValueError(
            f"drop_compute: threshold = {checks.show(threshold)}; expected seconds >= 0, or "
            "dropcompute.auto_threshold(rounds)"
        )

    rule = Rule(threshold, M, stop, H)
    words = (
        f"chosen after {threshold.rounds}"
        if isinstance(threshold, AutoThreshold)
        else f"{threshold} s"
    )
    more = [
        "" if isinstance(correction, str) and correction == "none" else str(correction),
        f"period {H}" if rule.periodic else "",
    ]
    options = [method.name, words, f"{M} micro-batches", stop, *more, "redrawn" * resample_dropped]
    name = f"drop_compute({', '.join(filter(None, options))})"
    personal = method.personal

    def inner(state: State) -> State:
        return state._replace(server=state.server.method)

    def init(params, N):
        state = method.init(params, N)
        return state._replace(server=rule.first_server(state.server, N, resample_dropped))

    def query(state, round):
        asked = method.query(inner(state), round)
        require_synchronous(name, asked)
        require_cluster(name, round, isinstance(threshold, AutoThreshold))
        done = rule.stop_round(state.server, round).done
        return asked._replace(
            work=weigh(done, correction, round.present)._replace(
                first_batch=state.server.drawn if resample_dropped else None
            )
        )

    def update(state, answer, round):
        after = method.update(inner(state), answer, round)
        seconds = rule.stop_round(state.server, round).seconds
        if round.present is not None:
            seconds = jnp.where(round.present, seconds, 0)
        server = rule.next_state(state.server._replace(method=after.server), round, seconds)
        tau, idle = rule.current_threshold(state.server), jnp.maximum(server.idle, 0)
        if all_dropped == "error":
            round.refuse_if(idle >= _IDLE, f'{_NOTHING_DONE}, or all_dropped="warn"', tau)
        else:
            round.warn_if(idle >= _IDLE, _NOTHING_DONE, tau)
        round.computed(seconds)
        round.log(threshold=tau, dropped=drop_rate(round, M), idle=idle)
        return after._replace(server=server)

    return method._replace(
        name=name,
        init=init,
        query=query,
        update=update,
        model=lambda state: method.model(inner(state)),
        personal=personal and (lambda state: personal(inner(state))),
    )


def drop_rate(round: Round, M: int) -> jax.Array:
    """Returns the share of dropped micro-batches among those of the participating workers; 0 if
    none participates.
    """
    assert round.work is not None
    asked = jnp.full(round.workers, M) if round.present is None else jnp.where(round.present, M, 0)
    left = asked - jnp.sum(round.work.samples > 0, axis=1)
    return jnp.sum(left) / jnp.maximum(jnp.sum(asked), 1)


def weigh(done: jax.Array, correction: Correction | Factor, present: jax.Array | None) -> LocalWork:
    """Returns the local work of these micro-batches, bool `[N, M]`, with their weights."""
    if correction == "stochastic":
        return works.micro_batches(done, present=present)
    if correction == "local":
        return works.micro_batches(done, average="workers", present=present)
    factor = 1.0 if isinstance(correction, str) else correction
    return LocalWork(done, jnp.broadcast_to(jnp.asarray(factor / done.shape[1], float), done.shape))


def require_synchronous(name: str, asked: Query | tuple[Query, ...]) -> None:
    """Raises a ValueError if the query belongs to a method whose workers cannot be stopped."""
    if not isinstance(asked, Query) or asked.active is not None or asked.samples is not None:
        raise ValueError(
            f"{name}: its method has several queries in a round, or sets which workers are active "
            "or which samples they draw; expected a method that queries one batch of every worker"
        )
    if asked.work is not None:
        raise ValueError(
            f"{name}: the queries of its method set the local work themselves; expected a method "
            "whose queries do not"
        )
    if asked.workers is not None:
        raise ValueError(
            f"{name}: its method uses the workers' gradients one by one; expected a synchronous "
            "method"
        )
    if asked.exact:
        raise ValueError(
            f"{name}: its method uses exact gradients, which have no micro-batches; expected a "
            "method that uses stochastic gradients"
        )


def require_cluster(name: str, round: Round, to_be_chosen: bool) -> None:
    """Raises a ValueError if there is no cluster, its workers cannot stop between micro-batches, or
    participation prevents the choice of a threshold.
    """
    if round.cluster is None:
        raise ValueError(
            f"{name}: the run has no cluster, which sets the seconds of micro-batches; expected "
            "one: pass run(..., cluster=...)"
        )
    require_one_by_one(name, round.cluster)
    if to_be_chosen and round.present is not None:
        raise ValueError(
            f"{name}: the cluster has participation, with which no threshold can be chosen; pass a "
            "threshold in seconds"
        )


def require_period(period: Any, threshold: Any) -> Any:
    """Returns the period, an integer or traced. Raises a ValueError if it is not a positive
    integer.
    """
    if not isinstance(period, Tracer):
        return checks.positive_int("drop_compute: period", period)
    if isinstance(threshold, AutoThreshold):
        raise ValueError(
            "drop_compute: the period is swept, but its rounds are measured to choose a "
            "threshold; expected an integer, or a threshold in seconds"
        )
    return period


def require_correction(where: str, correction: Any) -> None:
    """Raises a ValueError if the correction is unknown."""
    words = get_args(Correction)
    if isinstance(correction, str):
        if correction not in words:
            raise ValueError(
                f"{where}: correction = {correction!r}; expected "
                f"{', '.join(map(repr, words))}, or a number"
            )
    elif not isinstance(correction, Tracer) and (
        jnp.ndim(correction) or not 0 <= correction < math.inf
    ):
        raise ValueError(
            f"{where}: correction = {checks.show(correction)}; expected a word, or a finite "
            "number >= 0"
        )
