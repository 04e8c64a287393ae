"""Proximal gradient descent and proximal SGD, the baselines for problems with a regularizer."""

from __future__ import annotations

import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, checks, workers
from dsgd.extend import Real


@method(
    sends="exact gradients of all data, by an all-reduce",
    exact="any data",
    needs=("exact gradients",),
    regularizer=True,
    paper="Beck and Teboulle, 2009",
    page="how_to/regularizers.md",
    aliases=("prox_gd",),
)
@checks.arguments
def proximal_gradient(step_size: Real) -> Algorithm:
    r"""Proximal gradient descent: the workers all-reduce exact gradients of their own data, then
    make the same step and proximal step of the regularizer r.

    $$ x_{t+1} = \mathrm{prox}_{\gamma r}(x_t - \gamma f'(x_t)) $$

    The limit is a minimizer of f + r, if f is convex and L-smooth and $\gamma < 2 / L$. Means are
    over the workers that participate.

    Args:
        step_size: $\gamma$, above 0.

    Raises:
        ValueError: if the step size is not positive.

    Source: Beck and Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear inverse
    problems", 2009 (ISTA).
    """
    method = proximal_sgd(step_size)

    def query(state, round):
        return method.query(state, round)._replace(exact=True)

    return method._replace(name="proximal_gradient", query=query)


@method(
    sends="gradients, by an all-reduce",
    exact="any data",
    regularizer=True,
    paper="Beck and Teboulle, 2009",
    page="how_to/regularizers.md",
    aliases=("prox_sgd",),
)
@checks.arguments
def proximal_sgd(step_size: Real) -> Algorithm:
    r"""Proximal mini-batch SGD: `minibatch_sgd` with a proximal step of the regularizer r.

    $$ x_{t+1} = \mathrm{prox}_{\gamma r}\Big(x_t - \gamma \frac1N \sum_n g_n(x_t)\Big) $$

    The workers all-reduce their gradients. Iterates approach a minimizer of f + r up to the noise
    of the gradients. Means are over the workers that participate.

    Args:
        step_size: $\gamma$, above 0.

    Raises:
        ValueError: if the step size is not positive.
    """
    checks.number("proximal_sgd: step_size", step_size, "(0, inf)")
    descent = optax.sgd(step_size)

    def update(x, gradients, round):
        half = optimizers.step(descent, x, round.mean(gradients))
        return workers.if_nonempty(half._replace(params=round.prox(half.params, step_size)), x)

    return methods.one_model("proximal_sgd", descent, update)
