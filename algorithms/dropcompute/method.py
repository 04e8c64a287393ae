"""Any synchronous method, with workers that stop computing at a time limit."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.core import Tracer

from algorithms.dropcompute import thresholds
from algorithms.dropcompute.simulation import of_round
from algorithms.dropcompute.stopping import Stop, Stopped, need_one_by_one, need_stop, stopped
from algorithms.dropcompute.thresholds import ChosenAfter, Measuring
from dsgd import checks
from dsgd import work as works
from dsgd.base import Algorithm, Period, PyTree, Query, Round, State, Work

_IDLE = 10  # rounds in which no worker has computed anything: so many are no coincidence
_NOTHING_DONE = f"no worker has computed anything in {_IDLE} rounds or more: no micro-batch ends within {{:g}} s; pass a larger threshold"
Correction = Literal["none", "stochastic", "local"]
Seconds = Annotated[float | jax.Array, "a number of seconds"]
Factor = Annotated[float | jax.Array, "a number"]


class Server(NamedTuple):
    """The server's state.

    Args:
        method: the method's own server state.
        spent: seconds for which each worker has computed in this period, `[N]`; () if a period is
            one round.
        idle: rounds so far, int32, if no worker has computed anything in any of them, else -1.
        measuring: measurements of which the threshold is chosen; () if it is given.
        drawn: how many micro-batches each worker has computed, int32 `[N]`, if those that were
            dropped are drawn again; else ().
    """

    method: PyTree
    spent: jax.Array | tuple[()]
    idle: jax.Array
    measuring: Measuring | tuple[()]
    drawn: jax.Array | tuple[()]


class Rule(NamedTuple):
    """When a worker stops: arguments of `drop_compute`.

    Args:
        threshold: tau, or when it is chosen.
        micro_batches: M.
        stop: "preempt" or "between".
        period: H.
    """

    threshold: Seconds | ChosenAfter
    micro_batches: int
    stop: Stop
    period: Any  # traced only where the threshold is given

    @property
    def periodic(self) -> bool:
        """Whether seconds go on from round to round."""
        return not isinstance(self.period, int) or self.period > 1

    def until(self, server: Server) -> jax.Array:
        """tau in this round."""
        return (
            server.measuring.threshold
            if isinstance(server.measuring, Measuring)
            else jnp.float32(self.threshold)
        )

    def computed(self, server: Server, round: Round) -> Stopped:
        """What all workers compute in a round."""
        return stopped(
            of_round(round, self.micro_batches),
            self.until(server),
            self.stop,
            server.spent if self.periodic else 0.0,
        )

    def first_server(self, server: PyTree, N: int, redraw: bool) -> Server:
        """Before the first round."""
        measuring = ()
        if isinstance(self.threshold, ChosenAfter):
            measuring = thresholds.nothing_measured(
                self.threshold.rounds, N, self.period * self.micro_batches
            )
        spent = jnp.zeros(N, jnp.float32) if self.periodic else ()
        return Server(
            server, spent, jnp.int32(0), measuring, jnp.zeros(N, jnp.int32) if redraw else ()
        )

    def after(self, server: Server, round: Round, seconds: jax.Array) -> Server:
        """After a round in which workers have computed for so many seconds, `[N]`."""
        assert round.work is not None
        done = round.work.samples > 0
        participation = True if round.present is None else jnp.any(round.present)
        idle = jnp.where(jnp.any(done) | (server.idle < 0), -1, server.idle + participation)
        spent, measuring, drawn = server.spent, server.measuring, server.drawn
        if not isinstance(spent, tuple):
            spent = jnp.where((round.step + 1) % self.period == 0, 0, spent + seconds)
        if isinstance(measuring, Measuring):
            measuring = thresholds.observed(measuring, round, self.period, self.stop)
        if not isinstance(drawn, tuple):
            drawn = drawn + jnp.sum(done, axis=1, dtype=jnp.int32)
        return Server(server.method, spent, idle, measuring, drawn)


@checks.arguments
def drop_compute(
    method: Algorithm,
    threshold: Seconds | ChosenAfter,
    micro_batches: int,
    *,
    stop: Stop = "preempt",
    correction: Correction | Factor = "none",
    period: Period = 1,
    redraw: bool = False,
    all_dropped: Literal["error", "warn"] = "error",
) -> Algorithm:
    r"""DropCompute: every worker computes micro-batches until $\tau$ seconds have passed; the
    method uses those that are complete.

    $$ g_n = \frac1M \sum_{m=1}^{\tilde M_n} g_n^{(m)}, \qquad \tilde M_n = \#\{m \le M : T_n^{(m)}
    < \tau\}, \quad
       T_n^{(m)} = \sum_{j \le m} t_n^{(j)} $$

    with seconds $t$ of each micro-batch from the run's cluster. With stop="between" a worker reads
    its clock only between micro-batches: it completes the one in which $\tau$ passes. The simulated
    clock charges for what each worker has computed: $\min(\tau, T_n^{(M)})$ seconds, or until the
    end of its last micro-batch.

    Local SGD: with `period=H` seconds add up over H rounds, and a worker that has none left makes
    no more steps until models are averaged,
    `drop_compute(local_sgd(optimizer, 8), 0.5, 1, period=8)` (appendix B.3).

    History: `threshold` (seconds, infinite while it is being measured), `dropped` (the share of
    micro-batches, of the record's round), each worker's `samples`, `[records, N]`, and `idle`
    (rounds so far, if no worker has computed anything in any of them; else 0).

    Args:
        method: any synchronous one on stochastic gradients whose queries state no work.
        threshold: tau, seconds of computation in a round, or in a period; or
            `dropcompute.chosen_after(I)`.
        micro_batches: M, each a batch of the problem.
        stop: "preempt", Algorithm 1, at tau; or "between" micro-batches.
        correction: of the gradients if some are dropped: "none", the equation; "stochastic", the
            sum over workers is divided by all that was computed, $N / \sum_k \tilde M_k$ for
            $1 / M$; "local", each worker's by what it has, $1 / \tilde M_n$; or a number c,
            $c / M$: the paper's constant one is 1 less the drop rate. Steps whose size does not
            depend on the gradient's (Adam, LAMB) are not changed by numbers. Local steps keep their
            length with "local" only, or with "none" where M is 1.
        period: H, rounds. It may be swept if the threshold is given.
        redraw: a worker first computes in the next round what it has dropped: no sample is lost.
            (If seconds depended on the sample, one that takes tau or longer would be begun again
            for ever with "preempt".)
        all_dropped: if no worker has computed anything in the first ten rounds, or more, since no
            micro-batch ends before tau: the run ends with an error, or there is a warning.

    Raises:
        ValueError: a threshold or a number that is negative or NaN (an infinite threshold drops
            nothing), micro_batches or period < 1, another word. When it runs: no cluster, or one
            whose workers compute micro-batches at once; a method that keeps its own time, stops
            workers, states their work, or asks for exact gradients; a threshold to be chosen on a
            cluster with participation; with redraw, batches from outside; all dropped.

    Source: Giladi et al., "DropCompute: simple and more robust distributed synchronous training via
    compute variance reduction", 2023, Algorithms 1 and 2, sections 4.5, B.2.2 and B.3.
    """
    M, H = (
        checks.positive_int("drop_compute: micro_batches", micro_batches),
        need_period(period, threshold),
    )
    need_stop("drop_compute", stop)
    need_correction("drop_compute", correction)
    if all_dropped not in ("error", "warn"):
        raise ValueError(f"drop_compute: all_dropped = {all_dropped!r}: need 'error' or 'warn'")
    if not isinstance(threshold, ChosenAfter | Tracer) and (
        jnp.ndim(threshold) or not threshold >= 0
    ):
        raise ValueError(
            f"drop_compute: threshold = {checks.shown(threshold)}: need seconds >= 0, or "
            "dropcompute.chosen_after(rounds)"
        )

    rule = Rule(threshold, M, stop, H)
    words = (
        f"chosen after {threshold.rounds}"
        if isinstance(threshold, ChosenAfter)
        else f"{threshold} s"
    )
    more = [
        "" if isinstance(correction, str) and correction == "none" else str(correction),
        f"period {H}" if rule.periodic else "",
    ]
    name = f"drop_compute({', '.join(filter(None, [method.name, words, f'{M} micro-batches', stop, *more, 'redrawn' * redraw]))})"

    def inner(state: State) -> State:
        return state._replace(server=state.server.method)

    def init(params, N):
        state = method.init(params, N)
        return state._replace(server=rule.first_server(state.server, N, redraw))

    def query(state, round):
        asked = method.query(inner(state), round)
        need_synchronous(name, asked)
        need_cluster(name, round, isinstance(threshold, ChosenAfter))
        done = rule.computed(state.server, round).done
        return asked._replace(
            work=weighed(done, correction, round.present)._replace(
                draws=state.server.drawn if redraw else None
            )
        )

    def update(state, gradients, round):
        after = method.update(inner(state), gradients, round)
        seconds = rule.computed(state.server, round).seconds
        if round.present is not None:
            seconds = jnp.where(round.present, seconds, 0)
        server = rule.after(state.server._replace(method=after.server), round, seconds)
        tau, idle = rule.until(state.server), jnp.maximum(server.idle, 0)
        if all_dropped == "error":
            round.refuse_if(idle >= _IDLE, f'{_NOTHING_DONE}, or all_dropped="warn"', tau)
        else:
            round.warn_if(idle >= _IDLE, _NOTHING_DONE, tau)
        round.computed(seconds)
        round.log(threshold=tau, dropped=dropped(round, M), idle=idle)
        return after._replace(server=server)

    return method._replace(
        name=name,
        init=init,
        query=query,
        update=update,
        model=lambda state: method.model(inner(state)),
    )


def dropped(round: Round, M: int) -> jax.Array:
    """The share of micro-batches that were not computed, of the workers that participate; 0 if none
    does.
    """
    assert round.work is not None
    asked = jnp.full(round.workers, M) if round.present is None else jnp.where(round.present, M, 0)
    left = asked - jnp.sum(round.work.samples > 0, axis=1)
    return jnp.sum(left) / jnp.maximum(jnp.sum(asked), 1)


def weighed(done: jax.Array, correction: Correction | Factor, present: jax.Array | None) -> Work:
    """The work of these micro-batches, bool `[N, M]`, with their weights."""
    if correction == "stochastic":
        return works.micro_batches(done, present=present)
    if correction == "local":
        return works.micro_batches(done, average="workers", present=present)
    factor = 1.0 if isinstance(correction, str) else correction
    return Work(done, jnp.broadcast_to(jnp.asarray(factor / done.shape[1], float), done.shape))


def need_synchronous(name: str, asked: Query) -> None:
    """Raises a ValueError if the query is of a method whose workers cannot be stopped."""
    if asked.work is not None:
        raise ValueError(
            f"{name}: its method states itself what its workers compute; expected one that does not"
        )
    if asked.workers is not None:
        raise ValueError(
            f"{name}: its method takes the workers' gradients one by one; need a synchronous one"
        )
    if asked.exact:
        raise ValueError(
            f"{name}: its method asks for exact gradients, which are no micro-batches; need one "
            "on batches"
        )


def need_cluster(name: str, round: Round, to_be_chosen: bool) -> None:
    """Raises a ValueError without a cluster, on one whose workers cannot stop, or if participation
    keeps a threshold from being chosen.
    """
    if round.cluster is None:
        raise ValueError(
            f"{name} without a cluster, whose micro-batches take their time: need run(..., "
            "cluster=...)"
        )
    need_one_by_one(name, round.cluster)
    if to_be_chosen and round.present is not None:
        raise ValueError(
            f"{name}: a threshold is not chosen on a cluster with participation; pass a threshold "
            "in seconds"
        )


def need_period(period: Any, threshold: Any) -> Any:
    """Returns the number of rounds, or a traced one; raises a ValueError if it is not a positive
    integer.
    """
    if not isinstance(period, Tracer):
        return checks.positive_int("drop_compute: period", period)
    if isinstance(threshold, ChosenAfter):
        raise ValueError(
            "drop_compute: a period that is swept, where as many rounds are measured to choose a "
            "threshold: need a number"
        )
    return period


def need_correction(where: str, correction: Any) -> None:
    """Raises a ValueError if it is not a correction."""
    words = get_args(Correction)
    if isinstance(correction, str):
        if correction not in words:
            raise ValueError(
                f"{where}: correction = {correction!r}: need {', '.join(map(repr, words))}, or a "
                "number"
            )
    elif not isinstance(correction, Tracer) and (
        jnp.ndim(correction) or not 0 <= correction < math.inf
    ):
        raise ValueError(
            f"{where}: correction = {checks.shown(correction)}: need a word, or a finite number "
            ">= 0"
        )
