"""TernGrad with a scale that all workers share."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.votes import count_votes, digits, fractions
from dsgd import Algorithm, checks
from dsgd.extend import clip_to_rms, safe_divide, wide


@method(
    sends="ternary gradients with one scale to a server, their sum back",
    needs=("all workers",),
    paper="TernGrad: Wen et al., 2017",
    page="reference/compressors.md",
)
@checks.arguments
def tern_grad(optimizer: optax.GradientTransformation, limit: float | None = 2.5) -> Algorithm:
    r"""TernGrad with scaler sharing: workers send ternary gradients with a common scale, so that
    the server adds integers and sends their sum exactly.

    For each layer, with $y_n$ the worker's gradient $g_n(x)$ in which magnitudes are limited to c
    times their root mean square:

    $$ s = \max_n |y_n|_\infty, \qquad b_{ni} = \mathrm{sign}(y_{ni}) \text{ with probability }
    \frac{|y_{ni}|}{s}, \text{ else } 0, \qquad x \leftarrow x - \gamma\, \frac sN \sum_n b_n $$

    The step is unbiased for the mean of $y_n$, with the variance
    $\frac1{N^2} \sum_n (s |y_n|_1 - |y_n|^2)$. With limited magnitudes it is biased for the mean
    gradient, so that the limit is, too; without them it is not, and the limit is that of SGD with
    more noise, which vanishes only if all gradients do.

    Each worker sends the largest magnitude of each layer to all others, and then one ternary digit
    per element to a server, five in a byte. It receives $\lceil \log_2(2N + 1) \rceil$ bits per
    element. All workers are required: the server's code counts N digits.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.
        limit: c, at least 1; None: magnitudes are not limited. The paper has 2.5.

    Raises:
        ValueError: if the limit is below 1 or infinite. At the start of a run: if workers may be
            absent or messages may be lost.

    Source: Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep
    learning", 2017. Departures: $\sigma$ as in `compressors.clipped_ternary`; all layers are sent
    as digits, while the paper sends the last layer uncompressed.
    """
    if limit is not None:
        checks.number("tern_grad: limit", limit, "[1, inf)")

    def limit_gradient(g):
        g = wide(g)
        return g if limit is None else jax.vmap(partial(clip_to_rms, limit=limit))(g)

    def update(x, gradients, round):
        y = jax.tree.map(limit_gradient, gradients)
        largest = jax.tree.map(_largest, y)
        s = jax.tree.map(jnp.max, round.all_gather(largest))
        b = count_votes(
            digits, fractions(2 * round.workers), jax.tree.map(safe_divide, y, s), round
        )
        step = jax.tree.map(lambda s, b, x: (s * b).astype(x.dtype), s, b, x.params)
        return optimizers.step(optimizer, x, step)

    return methods.one_model(f"tern_grad({limit})", optimizer, update)


def _largest(y: jax.Array) -> jax.Array:
    """Returns the largest magnitude of each row, `[n, ...]` to `[n]`; 0 if rows are empty."""
    return jnp.max(jnp.abs(y.reshape(len(y), -1)), axis=1, initial=0)
