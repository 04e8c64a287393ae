"""PowerSGD: all-reduces of low-rank factors of the gradient, with error feedback."""

from __future__ import annotations

import jax
import optax

from algorithms.facts import method
from algorithms.mechanisms import matrices
from dsgd import Algorithm, checks
from dsgd.extend import Real


@checks.arguments
def powersgd_momentum(
    learning_rate: optax.ScalarOrSchedule, momentum: Real = 0.9
) -> optax.GradientTransformation:
    r"""Returns PowerSGD's step with momentum, as an optax optimizer.

    $$ m \leftarrow \beta m + \Delta', \qquad x \leftarrow x - \gamma (\Delta' + m) $$

    m starts at 0. The step is neither that of `optax.sgd(gamma, momentum=beta)`,
    $x - \gamma m$, nor that with `nesterov=True`, $x - \gamma (\Delta' + \beta m)$. For a constant
    $\Delta'$ it converges to $(1 + 1 / (1 - \beta))$ times that of SGD: 11 times with 0.9.

    Args:
        learning_rate: gamma, or a schedule from the number of the round to gamma.
        momentum: beta, in [0, 1).

    Raises:
        ValueError: if the momentum is outside [0, 1).

    Source: Vogels, Karimireddy and Jaggi, "PowerSGD", 2019, algorithm 2.
    """
    checks.number("powersgd_momentum: momentum", momentum, "[0, 1)")
    trace = optax.trace(momentum)

    def update(updates, state, params=None):
        m, state = trace.update(updates, state, params)
        return optax.tree.add(updates, m), state

    return optax.chain(
        optax.GradientTransformation(trace.init, update),
        optax.scale_by_learning_rate(learning_rate),
    )


@method(
    sends="low-rank factors of gradients plus error memory, by two all-reduces",
    paper="PowerSGD: Vogels et al., 2019",
    candidates={
        "language models": [
            {"optimizer": powersgd_momentum, "learning_rates": (0.03, 0.1, 0.3, 1.0)}
        ]
    },
)
@checks.arguments
def powersgd(optimizer: optax.GradientTransformation, rank: int = 2) -> Algorithm:
    r"""PowerSGD with error feedback: all workers make one step of power iteration on the mean of
    their gradients and error memories, and send its factors.

    For each leaf that is a matrix, $a \times b$, where a is the number of output features:

    $$ D_n = g_n(x) + e_n, \qquad P = \mathrm{orth}\Big(\frac1N \sum_n D_n Q\Big), \qquad Q
    \leftarrow \frac1N \sum_n D_n^\top P $$
    $$ \Delta' = P Q^\top, \qquad e_n \leftarrow D_n - \Delta', \qquad x \leftarrow x - \gamma
    \Delta' $$

    Leaves with more than two axes are reshaped to the matrix with the smallest a + b: a kernel
    `[height, width, inputs, outputs]` has a = outputs. Other leaves are updated with the mean
    gradient. The memories start at 0. Q starts with independent normal elements, the same for all
    workers, and is kept between rounds (warm start). All operations are linear in the $D_n$, so
    that the iterates are those of one worker with the mean gradient. With exact gradients and a
    small constant step, x converges to a stationary point of the mean objective for any data of the
    workers. The mean of the memories then tends to 0, but each $e_n$ continues to accumulate its
    worker's gradient. If the workers' data differ, rounding errors therefore grow with the number
    of rounds.

    Sends the r(a + b) elements of P and Q for each matrix, by two all-reduces. The first one also
    has the elements of all other leaves.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation. `powersgd_momentum(gamma)` is
            the paper's, with momentum.
        rank: r; matrices with a side shorter than r are sent exactly. The paper has 1 to 4.

    Raises:
        ValueError: if rank < 1.

    Source: Vogels, Karimireddy and Jaggi, "PowerSGD", 2019, algorithms 1 and 2, and its code
    (epfml/powersgd, `RankKReducer`). Departures: P is orthonormalized by a QR decomposition instead
    of the Gram-Schmidt process, which gives the same $\Delta'$ and is defined for a matrix of
    zeros; a Q of zeros is drawn again. PyTorch's communication hook makes the same steps on the
    leaves that it compresses, after 1,000 steps without compression.
    """
    checks.positive_int("powersgd: rank", rank)

    def update(gradients, e, Q, others, round):
        D = optax.tree.add(gradients, e)
        P, Q, others = matrices.mean_factors(round, D, Q, others)
        delta = matrices.times(P, matrices.transpose(Q))
        e = jax.tree.map(lambda D, delta: D - delta[None], D, delta)
        return delta, e, Q, others

    return matrices.with_memory(
        f"powersgd({rank})", optimizer, lambda a, b: min(rank, a, b), update
    )
