"""SGD on one machine: the survey's section 1.2."""

from __future__ import annotations

import jax
import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, Query, checks


@method(
    sends="nothing: one machine",
    needs=("all workers",),
    paper="(1.10)",
    page="explanation/theory.md",
)
@checks.arguments
def sgd(optimizer: optax.GradientTransformation) -> Algorithm:
    r"""SGD on one machine that holds all data: each step uses a batch of one worker's data, and the
    worker is drawn uniformly.

    $$ x_{t+1} = x_t - \gamma\, g(x_t), \qquad g = F_{n}'(x_t; \xi_t),\ n \sim \mathrm{Uniform}\{1,
    \dots, N\} \tag{1.10} $$

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.

    Source: Liu and Zhang, section 1.2. Departure: a step uses `problem.batch_size` samples; the
    survey's uses one.
    """

    def query(x, round):
        return Query(x.params, workers=jax.random.randint(round.key, (1,), 0, round.workers))

    def update(x, gradients, round):
        round.require_all("it runs on one machine, which asks one worker in each round")
        return optimizers.step(optimizer, x, methods.first(gradients))

    return methods.one_model("sgd", optimizer, update, query)
