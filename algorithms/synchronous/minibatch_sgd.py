"""Mini-batch SGD in the survey's three implementations (section 2.1.2), which differ only in their
communication.
"""

from __future__ import annotations

import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, checks, network


@method(
    sends="gradients, by an all-reduce",
    exact="any data",
    paper="section 2.1.2",
    page="explanation/theory.md",
    aliases=("mb_sgd",),
    candidates={"any problem": [{}], "language models": [{}]},
)
@checks.arguments
def minibatch_sgd(optimizer: optax.GradientTransformation) -> Algorithm:
    r"""Mini-batch SGD by gradient aggregation: the workers all-reduce their gradients and make the
    same step on equal replicas of the model.

    $$ x_{t+1} = x_t - \gamma \frac1N \sum_n g_n(x_t) $$

    The replicas are equal in every round, so each device stores one replica for all of its workers.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.

    Source: Liu and Zhang, section 2.1.2, "Gradient Aggregation".
    """
    return averaged_gradients("minibatch_sgd", optimizer, network.ring_all_reduce)


@method(
    sends="gradients to one server, models back",
    exact="any data",
    paper="section 2.1.2",
    page="how_to/clusters.md",
    aliases=("mb_sgd_server",),
)
@checks.arguments
def parameter_server_sgd(optimizer: optax.GradientTransformation) -> Algorithm:
    r"""Mini-batch SGD with a parameter server: the model is stored on one server; the workers fetch
    it and send their gradients.

    $$ x_{t+1} = x_t - \gamma \frac1N \sum_n g_n(x_t) $$

    The recorded bits are those of a worker's port; the server's port carries N times as many. With
    N servers, each of which owns a shard, the cost is that of `minibatch_sgd`.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.

    Source: Liu and Zhang, section 2.1.2, "Global Model Replica", with one dedicated server (section
    1.3.2).
    """
    return averaged_gradients("parameter_server_sgd", optimizer, network.parameter_server)


@method(
    sends="models, by an all-reduce",
    exact="any data",
    paper="section 2.1.2",
    aliases=("mb_sgd_model",),
)
@checks.arguments
def model_averaging_sgd(optimizer: optax.GradientTransformation) -> Algorithm:
    r"""Mini-batch SGD by model aggregation: every worker makes its own step, then the workers
    all-reduce their models.

    $$ x_{t+1/2}^{(n)} = x_t - \gamma g_n(x_t), \qquad x_{t+1} = \frac1N \sum_n x_{t+1/2}^{(n)} $$

    With an optimizer that is linear in the gradient (SGD, momentum) this equals `minibatch_sgd`.
    The state of Adam stays local. On problems with weights the mean is
    $\sum_n w_n x_{t+1/2}^{(n)} / \sum_n w_n$.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation.

    Source: Liu and Zhang, section 2.1.2, "Model Aggregation".
    """

    def update(x, gradients, round):
        half = optimizers.local_step(optimizer, x, gradients, round)
        return half._replace(params=round.average(half.params))

    return methods.local_models(
        "model_averaging_sgd", optimizer, update, absent=methods.gets_average
    )


def averaged_gradients(
    name: str, optimizer: optax.GradientTransformation, via: network.AllReduce
) -> Algorithm:
    """Returns mini-batch SGD with means by this communication pattern."""

    def update(x, gradients, round):
        return optimizers.server_step(optimizer, x, round.mean(gradients, via))

    return methods.one_model(name, optimizer, update)
