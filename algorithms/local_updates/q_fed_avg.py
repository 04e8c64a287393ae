"""q-FedAvg: clients with larger losses count more."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.facts import method
from algorithms.mechanisms.outer import Inner, Outer, local_updates, outer_gradient
from dsgd import Algorithm, Communicator, Query, Round, State, checks, network, workers
from dsgd.extend import Gradients, Params, Period, Real, loss_type, scale_rows

_POSITIVE = 1e-10  # added to losses, as in the authors' code, so that all powers are finite


class Measured(NamedTuple):
    """A client's loss at the server's model.

    Args:
        loss: the loss of all its samples.
        period: number of the period in which it was computed, int32; -1: none.
    """

    loss: jax.Array
    period: jax.Array


@method(
    sends=(
        "changes and a number of the participating clients every H-th round, the model back, "
        "through a server"
    ),
    needs=("some exact gradients",),
    paper="q-FedAvg: Li et al., 2020, Algorithm 2",
    settings=None,
)
@checks.arguments
def q_fed_avg(
    optimizer: optax.GradientTransformation,
    period: Period,
    q: Real,
    *,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""q-FedAvg: FedAvg in which the server weighs clients by the q-th power of their losses.

    $$ F_n = f_n(x_t), \qquad \Delta_n = L (x_t - y_H^{(n)}), \qquad
       x_{t+1} = x_t - \frac{\sum_{n \in S_t} p_n F_n^q \Delta_n}{\sum_{n \in S_t} p_n \big(q
       F_n^{q - 1} |\Delta_n|^2 + L F_n^q\big)}, \qquad L = \frac1\gamma $$

    The method approaches the minimum of $\sum_n p_n f_n(x)^{q + 1} / (q + 1)$: the larger q, the
    more equal are the clients' losses. Losses must be positive; $10^{-10}$ is added to them. With
    $q = 0$ the method is FedAvg. Local steps, participation and the weights $p_n$ are those of
    `fed_avg`.

    A round is one gradient per client; the first round of a period also computes $f_n(x_t)$ on all
    samples of the client. Every H-th round sends the changes, and the summand of the denominator.
    The clients $S_t$ should be drawn once per period: those that do not participate in its first
    round count as absent.

    Args:
        optimizer: each client's step, as in `fed_avg`; $\gamma$ is the length of its first step.
        period: H. It may be swept.
        q: at least 0. The paper uses 0.001 to 5. It may be swept.
        via: communication pattern; by default each client has its own link to the server.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1, q is negative, or the
            optimizer has no step size. During a run: if the user supplies the batches, because the
            losses of all samples are then not known.

    Source: Li et al., "Fair resource allocation in federated learning", 2020, Algorithm 2, which
    draws clients with probability $p_n$ instead of weighing them by $p_n$.
    """
    period = checks.period("q_fed_avg: period", period)
    checks.number("q_fed_avg: q", q, "[0, inf)")
    optimizers.step_size(optimizer)  # refuses optimizers without one

    def change(x: Outer, y: Inner, round: Communicator, via: network.AllReduce):
        delta = outer_gradient(x, y)
        loss, kind = y.memory.loss + _POSITIVE, y.memory.loss.dtype
        power, below = (loss ** jnp.asarray(exponent, kind) for exponent in (q, q - 1))
        step_size = optimizers.step_size(optimizer).astype(kind)
        far = workers.sqnorm_rows(delta).astype(kind) / step_size
        known = y.memory.period == round.step // period
        # Numerator and denominator, both divided by L; 0 for clients with an unknown loss.
        weight, total = (
            jnp.where(known, value, 0)
            for value in (power, jnp.asarray(q, kind) * below * far + power)
        )
        mean, total = round.weighted_mean((scale_rows(weight, delta), total), via)
        total = jnp.where(total != 0, total, 1)
        step = jax.tree.map(lambda leaf: (leaf / total).astype(leaf.dtype), mean)
        return step, x.memory, y.memory

    def never(models: Params) -> Measured:
        rows = jax.tree.leaves(models)[0].shape[0]
        kind = loss_type(models)
        return Measured(jnp.zeros(rows, kind), jnp.full(rows, -1, jnp.int32))

    fed_avg = local_updates(
        f"q_fed_avg({period}, {q})",
        optimizer,
        optax.sgd(1.0),
        period,
        via=via,
        fresh=True,
        change=change,
        own=never,
    )

    def query(state: State, round: Round) -> tuple[Query, Query]:
        at_start = round.step % period == 0
        whole = Query(state.server.params, exact=True, active=at_start, loss=True)
        return Query(state.workers.params), whole

    def update(
        state: State, answer: tuple[Gradients, tuple[jax.Array, Gradients]], round: Communicator
    ) -> State:
        gradients, (loss, _) = answer
        y = state.workers
        now = Measured(loss, jnp.full_like(y.memory.period, round.step // period))
        at_start = round.step % period == 0
        now = jax.tree.map(lambda new, old: jnp.where(at_start, new, old), now, y.memory)
        y = y._replace(memory=round.if_active(now, y.memory))
        return fed_avg.update(state._replace(workers=y), gradients, round)

    return fed_avg._replace(query=query, update=update)
