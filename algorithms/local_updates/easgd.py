"""EASGD and EAMSGD: workers' models and a center variable attract each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from algorithms import methods, optimizers, weights
from algorithms.facts import method
from dsgd import Algorithm, checks, network, workers
from dsgd.extend import Params, Period, Real


@method(
    sends="models and a center variable every H-th round, through one server",
    paper="EASGD: Zhang et al., 2015",
    settings={"period": 2},
)
@checks.arguments
def easgd(
    optimizer: optax.GradientTransformation,
    period: Period = 10,
    moving_rate: Real = 0.9,
    *,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""Synchronous elastic averaging SGD: every H-th round moves the workers' models towards a
    center variable, and the center towards the models.

    $$ x^{(n)} \leftarrow x^{(n)} - \gamma g_n(x^{(n)}) - \alpha (x^{(n)} - \tilde x), \qquad
       \tilde x \leftarrow \tilde x + \alpha \sum_n (x^{(n)} - \tilde x), \qquad
       \alpha = \frac\beta N $$

    Both lines use the values before the round. A round is one gradient per worker; in all rounds
    but every H-th, only the gradient term is applied and nothing is sent. Every H-th round sends
    the center to the workers and a vector from each worker to the server. The model of the run is
    $\tilde x$.

    $\sum_n x^{(n)} + \tilde x$ changes by the gradient steps alone. The limit is biased: with
    $H = 1$ and exact gradients, $\tilde x$ tends to the minimizer of the mean of the Moreau
    envelopes of $f_n$ with parameter $\rho = \alpha / \gamma$.

    A worker that does not participate keeps its model. On problems with weights, worker n steps
    along $w_n g_n$.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. `eamsgd` is the
            paper's method with momentum.
        period: H. It may be swept.
        moving_rate: $\beta$, in (0, 1].
        via: communication pattern.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1, or $\beta$ is not in (0, 1].

    Source: Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", 2015,
    equations (5) and (6).
    """
    period = checks.period("easgd: period", period)
    checks.number("easgd: moving_rate", moving_rate, "(0, 1]")
    return _elastic(f"easgd({period}, {moving_rate})", optimizer, period, moving_rate, via)


@method(
    sends="models and a center variable every H-th round, through one server",
    paper="EAMSGD: Zhang et al., 2015",
    settings={"momentum": 0.9, "period": 2},
)
@checks.arguments
def eamsgd(
    optimizer: optax.GradientTransformation,
    period: Period = 10,
    moving_rate: Real = 0.9,
    momentum: Real = 0.99,
    *,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""EAMSGD: synchronous elastic averaging SGD with Nesterov momentum on the workers, which
    compute gradients at the points to which their momentum leads.

    $$ v^{(n)} \leftarrow \mu v^{(n)} - \gamma g_n\big(x^{(n)} + \mu v^{(n)}\big), \qquad
       x^{(n)} \leftarrow x^{(n)} + v^{(n)} - \alpha (x^{(n)} - \tilde x) $$

    $\tilde x$, $\alpha$, H, messages, participation and weights are those of `easgd`, which this is
    with $\mu = 0$. Momenta start at 0 and stay local. The limit is biased: with $H = 1$ and exact
    gradients, $\tilde x$ tends to the minimizer of the mean of the Moreau envelopes of $f_n$ with
    parameter $\rho = (1 - \mu) \alpha / (\gamma (1 + \mu \alpha))$.

    Args:
        optimizer: each worker's step without momentum; `optax.sgd(gamma)` gives the equation.
        period, moving_rate, via: as in `easgd`.
        momentum: $\mu$, in [0, 1).

    Raises:
        ValueError: as `easgd`, or if $\mu$ is not in [0, 1).

    Source: Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", 2015.
    """
    period = checks.period("eamsgd: period", period)
    checks.number("eamsgd: momentum", momentum, "[0, 1)")
    checks.number("eamsgd: moving_rate", moving_rate, "(0, 1]")
    name = f"eamsgd({momentum}, {period}, {moving_rate})"
    # the trace of the updates is v
    moving = optax.chain(optimizer, optax.trace(momentum))
    method = _elastic(name, moving, period, moving_rate, via)

    def query(state, round):
        asked, v = method.query(state, round), state.workers.optimizer[1].trace
        ahead = jax.tree.map(lambda x, v: x + jnp.asarray(momentum, x.dtype) * v, asked.params, v)
        return asked._replace(params=ahead)

    return method._replace(query=query)


def _elastic(
    name: str,
    optimizer: optax.GradientTransformation,
    period: Period,
    moving_rate: Real,
    via: network.AllReduce,
) -> Algorithm:
    """Returns `easgd` with this name."""

    def update(center, y, gradients, round):
        before, y = y.params, optimizers.local_step(optimizer, y, gradients, round)

        def attract(center: Params, models: Params) -> tuple[Params, Params]:
            alpha = moving_rate / round.workers
            pull = jax.tree.map(
                lambda x, c: jnp.asarray(alpha, x.dtype) * (x - c[None]), before, center
            )
            pull = workers.where_delivered(pull, optax.tree.zeros_like(pull))
            return optax.tree.add(center, round.sum(pull, via)), optax.tree.sub(models, pull)

        center, models = round.every(period, attract, center, y.params)
        return center, y._replace(params=models)

    method = methods.with_server(
        name, optimizer, update, server=lambda params: params, start=lambda models: models
    )

    def query(state, round):
        weights.warn_if_cancelled(name, optimizer, round)
        return method.query(state, round)

    return method._replace(query=query, model=lambda state: state.server)
