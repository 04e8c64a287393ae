"""Workers vote on the sign of each element of the step: signSGD and Signum with majority vote, and
Distributed Lion.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.facts import method
from algorithms.mechanisms.votes import count_votes, fractions, signs
from dsgd import Algorithm, Query, State, checks, workers
from dsgd.extend import Real, wide


@method(
    sends="signs of momenta to a server, the majority's sign back",
    paper="signSGD: Bernstein et al., 2018, 2019",
    aliases=("sign_sgd", "signum"),
)
@checks.arguments
def majority_vote(optimizer: optax.GradientTransformation, momentum: Real = 0.9) -> Algorithm:
    r"""Signum with majority vote; without momentum, signSGD with majority vote: workers send the
    signs of their momenta, and the step is along the sign that most workers sent.

    $$ m_n \leftarrow \beta m_n + (1 - \beta) g_n(x), \qquad
       x \leftarrow x - \gamma\, \mathrm{sign}\Big(\sum_n \mathrm{sign}(m_n)\Big) $$

    The momenta start at 0 and stay local. One bit cannot express 0: an element that is 0, or NaN,
    counts as positive, and so does a tie, which is possible if the number of votes is even. All
    workers have an equal vote, whatever their weights in the problem.

    Each worker sends one bit per element to a server, and receives one bit per element. Workers
    may be absent and messages may be lost: the votes that arrive are counted, and x does not change
    if there are none.

    If more than half of the workers agree on a sign, the others have no influence, whatever they
    send. Where data differ, the limit is biased: it is a zero of the sum of the signs. For f_n of
    one variable it is the median of the minimizers of f_n, for even N the smaller of the two in the
    middle, since a tie counts as positive. Steps have a constant size, so that x approaches its
    limit only if $\gamma$ decreases.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation, and
            `optax.chain(optax.add_decayed_weights(lambda_), optax.sgd(gamma))` also multiplies x by
            $1 - \gamma\lambda$.
        momentum: $\beta$, in [0, 1); 0: signSGD.

    Raises:
        ValueError: if the momentum is outside [0, 1).

    Source: Bernstein et al., "signSGD: compressed optimisation for non-convex problems", 2018;
    Bernstein et al., "signSGD with majority vote is communication efficient and fault tolerant",
    2019.
    """
    checks.number("majority_vote: momentum", momentum, "[0, 1)")
    return _voting(f"majority_vote({momentum})", optimizer, "vote", momentum, momentum)


@method(
    sends="signs of Lion's updates to a server, the majority's sign or the mean back",
    paper="Distributed Lion: Liu et al., 2024",
)
@checks.arguments
def distributed_lion(
    optimizer: optax.GradientTransformation,
    aggregate: Literal["vote", "mean"] = "vote",
    *,
    beta1: Real = 0.9,
    beta2: Real = 0.99,
) -> Algorithm:
    r"""Distributed Lion: workers send the signs of their Lion updates, and the step is along the
    majority of the signs, or along their mean.

    $$ s_n = \mathrm{sign}(\beta_1 m_n + (1 - \beta_1) g_n(x)), \qquad
       m_n \leftarrow \beta_2 m_n + (1 - \beta_2) g_n(x) $$
    $$ x \leftarrow x - \gamma \Delta, \qquad \Delta = \mathrm{sign}\Big(\sum_n s_n\Big)
       \ \text{ or } \ \Delta = \frac1N \sum_n s_n $$

    Momenta, zeros, ties and weights are those of `majority_vote`, which is this method with
    $\beta_1 = \beta_2$ and the vote. The limit is a zero of the sum of the signs. One worker makes
    the steps of `optax.lion`, except for elements that are exactly 0.

    Each worker sends one bit per element to a server. It receives one bit per element of the vote,
    or $\lceil \log_2(N + 1) \rceil$ bits per element of the mean, which is exact. With the vote,
    participation is that of `majority_vote`; with the mean, all workers are required, since the
    server's code counts N votes.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation. The paper multiplies x by
            $1 - \gamma\lambda$ in each step, by
            `optax.chain(optax.add_decayed_weights(lambda_), optax.sgd(gamma))`; with
            $\gamma\lambda \le 1$ the elements of x then stay in $[-1/\lambda, 1/\lambda]$ if they
            start there.
        aggregate: "vote" (in the paper, MaVo) or "mean" (Avg).
        beta1: $\beta_1$, in [0, 1).
        beta2: $\beta_2$, in [0, 1).

    Raises:
        ValueError: if `aggregate` is not one of the two, or $\beta_1$ or $\beta_2$ is outside
            [0, 1). At the start of a run: with "mean", if workers may be absent or messages may be
            lost.

    Source: Liu et al., "Communication efficient distributed training with Distributed Lion", 2024.
    """
    if aggregate not in ("vote", "mean"):
        raise ValueError(f"distributed_lion: aggregate = {aggregate!r}; expected 'vote' or 'mean'")
    checks.number("distributed_lion: beta1", beta1, "[0, 1)")
    checks.number("distributed_lion: beta2", beta2, "[0, 1)")
    return _voting(
        f"distributed_lion({aggregate}, {beta1}, {beta2})", optimizer, aggregate, beta1, beta2
    )


def _voting(
    name: str,
    optimizer: optax.GradientTransformation,
    aggregate: str,
    beta1: Real,
    beta2: Real,
) -> Algorithm:
    """Returns `distributed_lion`, with a name."""
    optimizers.require_descent(optimizer)

    def init(params, N):
        momenta = jax.tree.map(lambda x: jnp.zeros_like(wide(x)), params)
        return State(optimizers.init(optimizer, params), workers.replicate(momenta, N))

    def update(state, gradients, round):
        x, m = state.server, state.workers
        if aggregate == "mean":
            round.require_all("the server's code of the mean counts one vote of each worker")
        down = signs if aggregate == "vote" else fractions(round.workers)
        delta = count_votes(signs, down, optimizers.moving_average(beta1, m, gradients), round)
        delta = jax.tree.map(lambda delta, x: delta.astype(x.dtype), delta, x.params)
        return State(
            optimizers.server_step(optimizer, x, delta),
            optimizers.moving_average(beta2, m, gradients),
        )

    return Algorithm(
        name,
        init,
        lambda state, round: Query(state.server.params),
        update,
        lambda state: state.server.params,
    )
