"""Gradient descent: the survey's section 1.1."""

from __future__ import annotations

import optax

from algorithms.facts import method
from algorithms.synchronous.minibatch_sgd import minibatch_sgd
from dsgd import Algorithm, checks


@method(
    sends="exact gradients of all data, by an all-reduce",
    exact="any data",
    needs=("exact gradients",),
    paper="(1.2)",
    page="explanation/theory.md",
    aliases=("gd",),
)
@checks.arguments
def gradient_descent(optimizer: optax.GradientTransformation) -> Algorithm:
    r"""Gradient descent: the workers compute exact gradients of their own data and all-reduce them.

    $$ x_{t+1} = x_t - \gamma f'(x_t), \qquad f' = \frac1N \sum_n f_n' \tag{1.2} $$

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.

    Source: Liu and Zhang, section 1.1.
    """
    method = minibatch_sgd(optimizer)

    def query(state, round):
        return method.query(state, round)._replace(exact=True)

    return method._replace(name="gradient_descent", query=query)
