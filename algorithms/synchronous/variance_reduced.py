"""Gradient descent on variance-reduced gradients: PAGE, loopless SVRG and SAGA."""

from __future__ import annotations

import optax

from algorithms.facts import method
from algorithms.mechanisms.variance_reduction import with_loopless_svrg, with_page, with_saga
from algorithms.synchronous.minibatch_sgd import averaged_gradients
from dsgd import Algorithm, checks, network
from dsgd.extend import Real


@method(
    sends="estimates of the gradients, by an all-reduce",
    exact="any data and samples",
    needs=("some exact gradients", "all workers"),
    paper="PAGE: Li et al., 2021",
    settings={"probability": 0.25},
)
@checks.arguments
def page(
    optimizer: optax.GradientTransformation,
    probability: Real,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""PAGE: mini-batch SGD on recursive estimates of the workers' gradients, which are exact in a
    round with probability p.

    $$ v_n \leftarrow \begin{cases} f_n'(x_t) & \text{with probability } p \\ v_n + g_n(x_t; \xi) -
       g_n(x_{t-1}; \xi) & \text{otherwise} \end{cases}, \qquad
       x_{t+1} = x_t - \gamma \frac1N \sum_n v_n $$

    One coin is drawn for all workers; the first round computes $f_n'(x_0)$. The second case
    computes two gradients of the same samples. Each worker sends one vector in each round. With
    p = 1 the method is gradient descent. The limit is the optimum, also with gradients of batches.
    All workers must participate.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.
        probability: p, in (0, 1]; with batches of b of m samples the paper has b / (b + m). It may
            be swept.
        via: communication pattern: all-reduce, or one server (`network.parameter_server`).

    Raises:
        ValueError: if p is not in (0, 1]. At the start of a run: if not all workers participate, or
            the user supplies the batches, because exact gradients are then not known.

    Source: Li, Bao, Zhang and Richtarik, "PAGE: a simple and optimal probabilistic gradient
    estimator for nonconvex optimization", 2021. Departure: all samples are distributed over
    workers, and each worker has an estimate.
    """
    checks.number("page: probability", probability, "(0, 1]")
    inner = averaged_gradients("minibatch_sgd", optimizer, via)
    return with_page(inner, probability)._replace(name=f"page({probability})")


@method(
    sends="gradients minus those at a snapshot, by an all-reduce",
    exact="any data and samples",
    needs=("some exact gradients", "all workers"),
    paper="L-SVRG: Kovalev et al., 2020",
    aliases=("l_svrg",),
    settings={"probability": 0.25},
)
@checks.arguments
def loopless_svrg(
    optimizer: optax.GradientTransformation,
    probability: Real,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""Loopless SVRG (L-SVRG): mini-batch SGD on gradients that are corrected by those at a
    snapshot, which is renewed in a round with probability p.

    $$ x_{t+1} = x_t - \gamma \frac1N \sum_n \big(g_n(x_t; \xi) - g_n(w; \xi) + f_n'(w)\big), \qquad
       w \leftarrow x_t \text{ with probability } p $$

    One coin is drawn for all workers. When w is renewed, as in the first round, the step is along
    $f'(x_t)$; the other rounds compute two gradients of the same samples. Each worker sends one
    vector in each round. With p = 1 the method is gradient descent. The limit is the optimum, also
    with gradients of batches. All workers must participate.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.
        probability: p, in (0, 1], for example one over the number of batches of a worker. It may be
            swept.
        via: as in `page`.

    Raises:
        ValueError: as `page`.

    Source: Kovalev, Horvath and Richtarik, "Don't jump through hoops and remove those loops: SVRG
    and Katyusha are better without the outer loop", 2020. Departure: w is renewed before the step
    instead of after it, so that the exact gradient is also used for the step of its round.
    """
    checks.number("loopless_svrg: probability", probability, "(0, 1]")
    inner = averaged_gradients("minibatch_sgd", optimizer, via)
    return with_loopless_svrg(inner, probability)._replace(name=f"loopless_svrg({probability})")


@method(
    sends="gradients minus those in a table of all samples, by an all-reduce",
    exact="any data and samples",
    needs=("all workers",),
    paper="SAGA: Defazio et al., 2014",
    settings=None,
)
@checks.arguments
def saga(
    optimizer: optax.GradientTransformation,
    samples: int,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""SAGA: mini-batch SGD on estimates from a table of the last gradient of each sample.

    $$ x_{t+1} = x_t - \gamma \frac1N \sum_n \Big(\nabla f_{n,\tau}(x_t) -
       \nabla f_{n,\tau}(z_{n,\tau}) + \frac1{m_n} \sum_l \nabla f_{n,l}(z_{n,l})\Big), \qquad
       z_{n,\tau} \leftarrow x_t $$

    $\tau$ is uniform among the $m_n$ samples of worker n, and $z_{n,l} = x_0$ at first. A round
    computes the gradient of one sample of each worker, and also its gradient at $x_0$ if it was not
    drawn before; the first round computes the exact gradient. A worker stores a gradient for each
    sample, and sends one vector in each round. The limit is the optimum. All workers must
    participate.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.
        samples: number of rows of each worker's table, at least the largest $m_n$:
            `problem.max_local_samples`.
        via: as in `page`.

    Raises:
        ValueError: if `samples` is less than 1. At the start of a run: if not all workers
            participate, or the problem does not have a finite number of samples, or has more.

    Source: Defazio, Bach and Lacoste-Julien, "SAGA: a fast incremental gradient method with support
    for non-strongly convex composite objectives", 2014. Departure: each worker has its own table.
    """
    checks.positive_int("saga: samples", samples)
    inner = averaged_gradients("minibatch_sgd", optimizer, via)
    return with_saga(inner, samples)._replace(name="saga")
