"""Scaffnew: local steps with control variates, and a random number of steps between averages."""

from __future__ import annotations

from typing import NamedTuple

import jax
import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, checks, network
from dsgd.extend import Params, PyTree, Real


class Controlled(NamedTuple):
    """State of a worker.

    Args:
        params: x, its model.
        optimizer: the state of its optimizer.
        control: h, its control variate, which estimates its own gradient at the optimum.
    """

    params: Params
    optimizer: PyTree
    control: Params


@method(
    sends="models, in each round with probability p, by an all-reduce",
    exact="any data",
    needs=("all workers",),
    paper="Scaffnew (ProxSkip): Mishchenko et al., 2022, Algorithm 2",
    page="explanation/theory.md",
    settings={"probability": 0.5},
)
@checks.arguments
def scaffnew(
    optimizer: optax.GradientTransformation,
    probability: Real,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""Scaffnew (ProxSkip for the consensus problem): corrected local steps, and an average in
    each round with probability p.

    $$ \hat x^{(n)} = x^{(n)} - \gamma \big(g_n(x^{(n)}) - h^{(n)}\big), \qquad
       x^{(n)} \leftarrow \begin{cases} \frac1N \sum_m \hat x^{(m)} & \theta_t = 1 \\
       \hat x^{(n)} & \theta_t = 0 \end{cases}, \qquad
       h^{(n)} \leftarrow h^{(n)} + \frac p\gamma (x^{(n)} - \hat x^{(n)}) $$

    $\theta_t \sim \mathrm{Bernoulli}(p)$ is one coin for all workers, so that the number of local
    steps between averages is geometric, with mean $1 / p$. A round is one gradient per worker; it
    averages one vector if $\theta_t = 1$ and sends nothing otherwise. $h^{(n)}$ starts at 0, and
    $\sum_n h^{(n)} = 0$ always. If the problem has weights, sums and means are weighted.

    With exact gradients the limit is the optimum, $h^{(n)} \to f_n'(x^\star)$, and the rate is that
    of gradient descent although only $1 / \sqrt\kappa$ of the rounds communicate: if f_n are
    $\mu$-strongly convex and L-smooth, then for $\gamma \le 1 / L$

    $$ E\, \Psi_t \le (1 - \min(\gamma \mu, p^2))^t \Psi_0, \qquad \Psi = \sum_n |x^{(n)} -
       x^\star|^2 + \frac{\gamma^2}{p^2} \sum_n |h^{(n)} - f_n'(x^\star)|^2 $$

    All workers must participate.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation, with the paper's
            $\gamma = 1 / L$. $\gamma$ is the optimizer's first step for a gradient of 1.
        probability: p, in (0, 1]; the paper's choice is $1 / \sqrt\kappa$. With p = 1 the method is
            gradient descent, or model averaging SGD.
        via: communication pattern: all-reduce, or clients of a server, as in `local_sgd`.

    Raises:
        ValueError: if p is not in (0, 1], the optimizer does not accept a scalar, or, in a run, not
            all workers participate.

    Source: Mishchenko et al., "ProxSkip: yes! Local gradient steps provably lead to communication
    acceleration! Finally!", 2022, Algorithm 2, Theorem 3.6.
    """
    checks.number("scaffnew: probability", probability, "(0, 1]")

    def update(server, x, gradients, round):
        round.require_all("the control variates of all workers add up to 0")
        gamma = optimizers.step_size(optimizer)
        corrected = optax.tree.sub(gradients, x.control)
        x = optimizers.local_step(optimizer, x, corrected, round)

        def average(x):
            mean = round.average(x.params, via)
            control = jax.tree.map(
                lambda h, mean, hat: h + (probability / gamma * (mean - hat)).astype(h.dtype),
                x.control,
                mean,
                x.params,
            )
            return x._replace(params=mean, control=control)

        coin = jax.random.bernoulli(round.next_key(), probability)
        return server, round.when(coin, average, x)

    return methods.with_server(
        f"scaffnew({probability})",
        optimizer,
        update,
        server=lambda params: (),
        start=lambda y: Controlled(y.params, y.optimizer, optax.tree.zeros_like(y.params)),
    )
