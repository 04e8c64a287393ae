"""A wrapper in which the clients with the largest losses participate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dsgd import (
    Algorithm,
    Communicator,
    LocalWork,
    Now,
    Query,
    Round,
    State,
    checks,
    compressors,
    network,
    workers,
)
from dsgd.extend import Period, PyTree


class Server(NamedTuple):
    """The server's state.

    Args:
        method: the method's own server state.
        chosen: numbers of the clients that participate in this period, int32 `[m]`; N for none.
    """

    method: PyTree
    chosen: jax.Array


@checks.arguments
def power_of_choice(
    method: Algorithm,
    m: int,
    period: Period,
    *,
    exact: bool = True,
    via: network.OneServer = network.star,
) -> Algorithm:
    r"""Power-of-choice: of the d candidates that the cluster draws, the m with the largest losses
    participate in the method's rounds.

    $$ S_t = \{ \text{the } m \text{ candidates } n \text{ with the largest } f_n(x_t) \} $$

    Candidates are the workers that participate on the cluster:
    `clusters.sampled(d, of=N, weights=sizes)` draws them by their numbers of samples, as in the
    paper. On a cluster where all workers participate these are the m clients with the largest local
    losses. With $d = m$ the method is unchanged. Means are over $S_t$ and so biased towards clients
    with large losses: the limit is not the minimum of f, and inclusion probabilities are unknown.

    In the first round of a period, the candidates also compute their losses at x, and send them to
    the server, which replies with the smallest loss that participates. As they begin with their
    local steps before the reply, a candidate that is not chosen has computed one gradient in vain.
    It is then absent until the end of the period.

    Losses are multiplied by the workers' weights if the method does not weight its means. The
    history's `present` is the share of the candidates.

    Args:
        method: a method with a server, whose queries ask all workers; it synchronizes at the end of
            each period.
        m: number of participating clients.
        period: H, rounds of a communication round, as in the method. The cluster's
            `participation_period` should be H, too. It may be swept.
        exact: whether $f_n(x_t)$ is the loss of all samples of a client; False: of the batch of its
            first local step (the variant cpow-d). A loss takes as long as a gradient of the same
            samples.
        via: communication pattern of the losses; by default each client has its own link to the
            server.

    Raises:
        ValueError: if m is less than 1 or more than the number of workers, the period is less than
            1, or the method asks some workers only. During a run: with `exact`, if the user
            supplies the batches, because the losses of all samples are then not known.

    Source: Cho, Wang and Joshi, "Towards understanding biased client selection in federated
    learning", 2022, section 3.
    """
    checks.positive_int("power_of_choice: m", m)
    period = checks.period("power_of_choice: period", period)
    name = f"power_of_choice({method.name}, {m})"

    def init(params, N):
        if m > N:
            raise ValueError(f"power_of_choice: m = {m} of {N} workers; expected m of at most {N}")
        state = method.init(params, N)
        return state._replace(server=Server(state.server, jnp.full(m, N, jnp.int32)))

    def query(state: State, round: Round) -> tuple[Query, ...]:
        begins = round.step % period == 0
        active = begins | _flags(state.server.chosen, round.workers)

        def restrict(asked: Query) -> Query:
            if asked.workers is not None:
                raise ValueError(
                    f"power_of_choice: {method.name} chooses the workers that compute; expected a "
                    "method that asks all workers, such as algorithms.fed_avg"
                )
            return asked._replace(active=active if asked.active is None else asked.active & active)

        before = _of_method(state)
        asked = method.query(before, round)
        at = Query(method.model(before), exact=exact, active=begins, loss=True)
        return (*map(restrict, (asked,) if isinstance(asked, Query) else asked), at)

    def update(state: State, answers: tuple, round: Communicator) -> State:
        N, of_method = round.workers, _of_method(state)
        (losses, _), answers = answers[-1], answers[:-1]

        def choose(before: jax.Array) -> jax.Array:
            sent = round.to_server(compressors.identity, losses[:, None], via=via)
            among = workers.participation()
            known = jnp.ones(N, bool) if among is None else among.counted
            with round.unrecorded():
                every = workers.gather(sent.decoded)[:, 0]
            largest, chosen = lax.top_k(jnp.where(known, every, -jnp.inf), m)
            round.from_server(largest[-1:])
            return jnp.where(known[chosen], chosen, N).astype(before.dtype)

        chosen = round.every(period, choose, state.server.chosen, offset=1 % period)
        among = _restrict(workers.participation(), _flags(chosen, N), f"{name} on its losses")
        work = round.work
        assert work is not None
        # The last micro-batch is that of the losses.
        work = LocalWork(work.samples[:, :-1], work.weights[:, :-1])
        now = (round.now or Now(None))._replace(present=among.present)
        with workers.with_participation(among):
            asked = method.query(of_method, round)  # for its structure
            if isinstance(asked, Query):
                answers = answers[0]
            elif hasattr(asked, "_fields"):
                answers = type(asked)(*answers)
            after = method.update(of_method, answers, round._replace(now=now, work=work))
        before, rows = of_method.workers, after.workers
        absent = before if method.absent is None else method.absent(before, rows)
        server = jax.tree.map(
            partial(jnp.where, jnp.any(among.present)), after.server, of_method.server
        )
        return State(Server(server, chosen), workers.where_rows(among.present, rows, absent))

    return method._replace(
        name=name,
        init=init,
        query=query,
        update=update,
        model=_from_method(method.model),
        personal=method.personal and _from_method(method.personal),
    )


def _of_method(state: State) -> State:
    """Returns the state of the method."""
    return state._replace(server=state.server.method)


def _from_method(function: Callable[[State], PyTree]) -> Callable[[State], PyTree]:
    return lambda state: function(_of_method(state))


def _flags(chosen: jax.Array, N: int) -> jax.Array:
    """Returns which workers are chosen, bool `[N]`."""
    return jnp.zeros(N, bool).at[chosen].set(True, mode="drop")


def _restrict(
    participation: workers.Participation | None, chosen: jax.Array, name: str
) -> workers.Participation:
    """Returns the participation of the chosen workers, bool `[N]`, only."""
    present = counted = chosen
    if participation is not None:
        present, counted = chosen & participation.present, chosen & participation.counted

    def arrives(i: jax.Array, j: jax.Array) -> jax.Array:
        both = chosen[i] & chosen[j]
        return both if participation is None else both & participation.arrives(i, j)

    return workers.Participation(present, counted, arrives, name=name)
