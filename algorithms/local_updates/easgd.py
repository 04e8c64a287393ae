"""EASGD: workers' models and a center variable attract each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from algorithms import methods, optimizers, weights
from dsgd import Algorithm, checks, network, workers
from dsgd.base import Params, Pattern, Period, Real


@checks.arguments
def easgd(
    optimizer: optax.GradientTransformation,
    period: Period = 10,
    moving_rate: Real = 0.9,
    *,
    via: Pattern = network.star,
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
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. With momentum this is
            not the paper's EAMSGD, which computes gradients at $x^{(n)} + \mu v^{(n)}$.
        period: H. It may be swept.
        moving_rate: $\beta$, in (0, 1].
        via: communication pattern.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1, or $\beta$ is not in (0, 1].

    Source: Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", 2015,
    equations (5) and (6).
    """
    period = checks.period("easgd: period", period)
    checks.within("easgd: moving_rate", moving_rate, "(0, 1]")

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

    name = f"easgd({period}, {moving_rate})"
    method = methods.with_server(
        name,
        optimizer,
        update,
        server=lambda params: params,
        start=lambda models: models,
    )

    def query(state, round):
        weights.warn_if_cancelled(name, optimizer, round)
        return method.query(state, round)

    return method._replace(query=query, model=lambda state: state.server)
