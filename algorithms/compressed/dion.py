"""Dion: orthonormalized updates from low-rank factors of the workers' momenta, which stay local."""

from __future__ import annotations

import math
from collections.abc import Hashable

import jax
import jax.numpy as jnp
import optax

from algorithms.facts import method
from algorithms.mechanisms import matrices
from dsgd import Algorithm, checks
from dsgd.extend import Real, require_share, wide

_EPSILON = 1e-8  # added to the norms of columns, so that a column of zeros stays one


@checks.arguments
def dion_with_adamw(learning_rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
    r"""Returns Dion's step of the leaves that are matrices, with AdamW for all others, as an optax
    optimizer.

    $$ x \leftarrow x - \gamma \sqrt{a/b}\; P Q^\top \quad \text{for matrices}, \qquad
       \mathrm{AdamW}(\gamma) \quad \text{for scalars and vectors} $$

    Args:
        learning_rate: gamma of both, or a schedule from the number of the round to gamma.

    Source: Ahn, Xu, Abreu and Langford, "Dion: distributed orthonormalized updates", 2025; the
    weight decay of AdamW is that of optax.
    """

    def label(params):
        return jax.tree.map(
            lambda leaf: "other" if matrices.sides(leaf.shape) is None else "matrix", params
        )

    steps: dict[Hashable, optax.GradientTransformation] = {
        "matrix": optax.sgd(learning_rate),
        "other": optax.adamw(learning_rate),
    }
    return optax.partition(steps, label)


@method(
    sends="low-rank factors of momenta, by two all-reduces",
    paper="Dion: Ahn et al., 2025",
    candidates={
        "language models": [
            {"optimizer": dion_with_adamw, "learning_rates": (0.003, 0.01, 0.03, 0.1)}
        ]
    },
)
@checks.arguments
def dion(
    optimizer: optax.GradientTransformation, rank_fraction: float = 0.25, momentum: Real = 0.95
) -> Algorithm:
    r"""Dion: steps along an orthonormalized low-rank approximation of the mean momentum; the
    workers send its factors. Each worker's momentum keeps what the approximation omits.

    For each leaf that is a matrix (see `powersgd`), $a \times b$, where a is the number of output
    features:

    $$ M_n \leftarrow M_n + g_n(x), \qquad P = \mathrm{orth}\Big(\frac1N \sum_n M_n Q\Big), \qquad R
    = \frac1N \sum_n M_n^\top P $$
    $$ M_n \leftarrow M_n - (1 - \mu) P R^\top, \qquad Q_{\cdot j} \leftarrow
    \frac{R_{\cdot j}}{|R_{\cdot j}| + \epsilon}, \qquad x \leftarrow x - \gamma \sqrt{a/b}\; P
    Q^\top $$

    with $\epsilon = 10^{-8}$. The optimizer receives $\sqrt{a/b}\, P Q^\top$ as the gradient of
    these leaves, and the mean gradient of all others. The momenta start at 0. Q starts with
    independent normal elements, the same for all workers. The momenta of workers differ, but the
    iterates depend on their mean only: they are those of one worker with the mean gradient. Steps
    have a constant size, so that x approaches a minimum only if $\gamma$ decreases.

    Sends the r(a + b) elements of P and R for each matrix, by two all-reduces. The first one also
    has the elements of all other leaves.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation, and
            `optax.chain(optax.add_decayed_weights(lambda_), optax.sgd(gamma))` multiplies x by
            $1 - \gamma\lambda$ first. `dion_with_adamw(gamma)` has AdamW for the other leaves; the
            paper has AdamW or Lion.
        rank_fraction: r / min(a, b), a float in (0, 1]; r is rounded up. The authors report that
            1/4 nearly equals full rank for 3 billion parameters, and expect 1/8 or 1/16 to suffice
            for larger models. With 1.0, M is Muon's momentum, the direction is its
            orthonormalization once the power iteration has converged, and the factors are larger
            than the gradient.
        momentum: mu, in [0, 1).

    Raises:
        ValueError: if rank_fraction is an integer or outside (0, 1], or momentum outside [0, 1).

    Source: Ahn, Xu, Abreu and Langford, "Dion: distributed orthonormalized updates", 2025;
    microsoft/dion, `dion_simple.py`.
    """
    require_share("dion", "rank_fraction", rank_fraction)
    checks.number("dion: momentum", momentum, "[0, 1)")

    def rank(a, b):
        return math.ceil(rank_fraction * min(a, b) - 1e-9)

    def update(gradients, M, Q, others, round):
        M = optax.tree.add(M, gradients)
        P, R, others = matrices.mean_factors(round, M, Q, others)
        sent = matrices.times(P, matrices.transpose(R))
        M = jax.tree.map(
            lambda M, sent: M - jnp.asarray(1 - momentum, M.dtype) * sent[None], M, sent
        )
        Q = list(map(_normalize, R))
        direction = matrices.times(P, matrices.transpose(Q))
        scaled = [math.sqrt(each.shape[0] / each.shape[1]) * each for each in direction]
        return scaled, M, Q, others

    return matrices.with_memory(f"dion({rank_fraction:g}, {momentum})", optimizer, rank, update)


def _normalize(R: jax.Array) -> jax.Array:
    """Divides columns by their norms. Their squares may be out of the range of half precision."""
    columns = wide(R)
    norms = jnp.linalg.norm(columns, axis=0, keepdims=True)
    return (columns / (norms + _EPSILON)).astype(R.dtype)
