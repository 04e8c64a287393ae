"""FedNova: the mean of changes that are normalized by the clients' numbers of steps."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.facts import method
from algorithms.mechanisms.outer import Inner, Outer, local_updates, outer_gradient, scale
from algorithms.optimizers import Model
from dsgd import Algorithm, Communicator, checks, network
from dsgd.extend import Period, PyTree


class Measured(NamedTuple):
    r"""State of an optimizer with measured steps.

    Args:
        optimizer: its state.
        unit: a model with the tree of the parameters and one number in place of each array, from 0,
            that the same optimizer moves with gradients 1; and the state of that optimizer. The
            numbers are $-\gamma \|a\|_1$.
    """

    optimizer: PyTree
    unit: Model


@method(
    sends=(
        "changes per local step and numbers of steps every H-th round, the model back, through "
        "a server"
    ),
    paper="FedNova: Wang et al., 2020",
    page="how_to/own_problem/unequal.md",
    settings={"period": 4},
)
@checks.arguments
def fed_nova(
    optimizer: optax.GradientTransformation,
    period: Period,
    outer: optax.GradientTransformation | None = None,
    *,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""FedNova: FedAvg in which the server averages the clients' changes per unit of local
    progress, so that clients with more steps do not count more.

    $$ x_t - y^{(n)} = \gamma \sum_{k=1}^{\tau_n} a_{n,k}\, g_n(y_k^{(n)}), \qquad
       d_n = \frac{x_t - y^{(n)}}{\gamma \|a_n\|_1}, \qquad
       x_{t+1} = x_t - \gamma \tau_{\mathrm{eff}} \sum_n p_n d_n, \qquad
       \tau_{\mathrm{eff}} = \sum_n p_n \|a_n\|_1 $$

    A round is one gradient per client; every H-th round sends $d_n$ and two numbers. Client n makes
    $\tau_n \le H$ steps: one in each round in which it participates and computes something
    (`Query.work`). Clients that participate in the H-th round without having made a step count as
    absent. Participation and the weights $p_n$, which are divided by the sum over the participating
    clients, are those of `fed_avg`; with equal $\tau_n$ and `optax.sgd` the method is FedAvg.

    $\gamma \|a_n\|_1$ is the distance that the optimizer moves a number with $\tau_n$ gradients of
    1: $\gamma \tau_n$ for `optax.sgd(gamma)`, and $\gamma \sum_{k=1}^{\tau_n} (1 - \rho^k) / (1 -
    \rho)$ with momentum $\rho$. The first equation holds for optimizers that are linear in the
    gradients. If the steps of the model's arrays differ, as with labels or masks, it is that of the
    array that moves most; the other arrays' steps should be proportional to it.

    The limit differs from the optimum by $O(\gamma)$. That of FedAvg with different $\tau_n$ is the
    optimum of another objective, $\sum_n p_n \tau_n f_n$, up to $O(\gamma)$.

    Args:
        optimizer: each client's step, for example `optax.sgd(gamma, momentum=0.9)`; its state
            starts again in each period.
        period: H, the largest number of steps. It may be swept.
        outer: the server's step on $\gamma \tau_{\mathrm{eff}} \sum_n p_n d_n$; None: the equation
            above, `optax.sgd(1)`. `optax.sgd(1, momentum=beta)` is the authors' momentum at the
            server.
        via: communication pattern; by default each client has its own link to the server.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1. In a run: if the optimizer
            draws random numbers.

    Source: Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated
    optimization", 2020, without the proximal term. The authors' code has the same $\|a_n\|_1$ for
    SGD with and without momentum.
    """
    period = checks.period("fed_nova: period", period)

    def change(x: Outer, y: Inner, round: Communicator, via: network.AllReduce):
        moved = [jnp.abs(unit).ravel() for unit in jax.tree.leaves(y.optimizer.unit.params)]
        distance = jnp.stack(moved).max(axis=0)
        counts = distance > 0
        normalized = jax.vmap(scale)(1 / jnp.where(counts, distance, 1), outer_gradient(x, y))
        sent = normalized, distance, counts.astype(distance.dtype)
        direction, effective, share = round.weighted_mean(sent, via)
        share = jnp.where(share > 0, share, 1)
        return scale(effective / share**2, direction), x.memory, y.memory

    def require_no_noise(params):
        optimizers.require_no_noise(optimizer, optimizers.init(optimizer, params).optimizer)
        return ()

    return local_updates(
        f"fed_nova({period})",
        _measure(optimizer),
        optax.sgd(1.0) if outer is None else outer,
        period,
        via=via,
        fresh=True,
        change=change,
        shared=require_no_noise,
    )


def _measure(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns the optimizer with a `Measured` state."""

    def init(params):
        unit = jax.tree.map(
            lambda x: jnp.zeros(x.ndim * (1,), jnp.promote_types(x.dtype, jnp.float32)), params
        )
        return Measured(optimizer.init(params), Model(unit, optimizer.init(unit)))

    def update(updates, state, params=None):
        updates, memory = optimizer.update(updates, state.optimizer, params)
        model, of_unit = state.unit
        steps, of_unit = optimizer.update(optax.tree.ones_like(model), of_unit, model)
        return updates, Measured(memory, Model(optax.apply_updates(model, steps), of_unit))

    return optax.GradientTransformation(init, update)
