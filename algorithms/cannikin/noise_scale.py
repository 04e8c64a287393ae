"""The gradient noise scale, from the gradient norms of nodes with unequal batches."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpy.typing import ArrayLike

from dsgd import checks

Weights = Literal["best", "paper", "plain"]


class NoiseScale(NamedTuple):
    r"""Estimates of the noise of one sample's gradient, and of the noiseless gradient.

    Args:
        noise: S, estimate of $\mathrm{tr}\,\Sigma$.
        sqnorm: G, estimate of $|G|^2$; may be negative if the noise is large.
        seen: effective number of rounds, with smaller weights for older ones; 0 before the first.
    """

    noise: Any
    sqnorm: Any
    seen: Any = 1.0

    @property
    def scale(self) -> Any:
        """$B_{noise} = S / G$, samples."""
        return self.noise / self.sqnorm

    @property
    def samples(self) -> float:
        """$B_{noise}$ for estimates that may be negative; infinite if G is not positive."""
        return max(float(self.noise), 0.0) / float(self.sqnorm) if self.sqnorm > 0 else np.inf


@checks.arguments
def gradient_noise_scale(
    local_sqnorms: ArrayLike,
    global_sqnorm: ArrayLike,
    batches: ArrayLike,
    weights: Weights = "best",
) -> NoiseScale:
    r"""Returns unbiased estimates of noise and gradient from one or more rounds of nodes with
    unequal batches.

    $$ G_i = \frac{B |g|^2 - b_i |g_i|^2}{B - b_i}, \quad S_i = \frac{b_i B}{B - b_i} (|g_i|^2 -
    |g|^2) \quad (10), \qquad G = \sum_i w_i G_i, \quad S = \sum_i w_i S_i, \quad
    g = \sum_i \frac{b_i}{B} g_i $$

    The weights are:

    - "best": $w_i = (B - b_i) / ((n - 1) B)$, so that $S = \sum_i b_i |g_i - g|^2 / (n - 1)$ and
      $G = |g|^2 - S / B$. For Gaussian gradients no unbiased combination has a smaller variance.
    - "paper": (11), whose matrices are not the covariances; some of its weights are negative for
      most batches.
    - "plain": $1 / n$, as for equal batches.

    Args:
        local_sqnorms: $|g_i|^2$ of the means over each node's own samples, `[..., n]`, as in the
            history of `algorithms.with_diagnostics`.
        global_sqnorm: $|g|^2$, `[...]`.
        batches: b, samples of each node, `[n]`; nodes without samples are ignored.
        weights: "best", "paper" or "plain".

    Returns:
        S and G, `[...]`; NumPy arrays unless an argument is a JAX array.

    Raises:
        ValueError: if shapes do not match, squared norms are negative, batches are negative,
            infinite or NaN, fewer than two nodes have samples, or the weights are unknown.

    Source: Nie et al., "Cannikin", section 4.4; McCandlish et al., "An empirical model of
    large-batch training", appendix A.
    """
    if weights not in get_args(Weights):
        raise ValueError(
            f"gradient_noise_scale: weights = {weights!r}; expected "
            f"{' or '.join(map(repr, get_args(Weights)))}"
        )
    xp = (
        jnp
        if any(isinstance(array, jax.Array) for array in (local_sqnorms, global_sqnorm, batches))
        else np
    )
    # Differences of small integer types or in half precision would overflow.
    local, whole = (
        each.astype(jnp.promote_types(each.dtype, jnp.float32))
        for each in map(xp.asarray, (local_sqnorms, global_sqnorm))
    )
    b = _require_batches(batches, local, whole)
    there, rows = b > 0, (1,) * (local.ndim - 1) + (-1,)
    b = xp.where(there, b, 0) * xp.ones((), local.dtype)
    longer = xp.where(there.reshape(rows), local - whole[..., None], 0)  # |g_i|^2 - |g|^2
    B = b.sum()

    def total(factors: Any) -> Any:
        return (longer * factors.reshape(rows)).sum(axis=-1)

    if weights == "best":
        noise = total(b / (there.sum() - 1))
        return NoiseScale(noise, whole - noise / B)
    on_noise, on_sqnorm = (
        _papers(b, there, xp) if weights == "paper" else 2 * (there / there.sum(),)
    )
    # G_i = |g|^2 - S_i / B
    return NoiseScale(total(on_noise * B * b / (B - b)), whole - total(on_sqnorm * b / (B - b)))


@checks.arguments
def smooth(before: NoiseScale, new: NoiseScale, weight: float) -> NoiseScale:
    r"""Returns separate exponential averages of S and G, whose quotient is less biased than an
    average of quotients.

    $$ \bar S_t = \frac{\sum_{j \ge 0} (1 - w)^j S_{t-j}}{\sum_{j \ge 0} (1 - w)^j} $$

    The first value has the full weight, so that no correction of a start at 0 is needed. NaN values
    are ignored.

    Args:
        before: averages so far; `NoiseScale(0.0, 0.0, 0.0)` if there are none.
        new: estimates of a round.
        weight: w, in (0, 1]; with w = 1 only the last estimate counts.

    Raises:
        ValueError: if the weight is not in (0, 1].

    Source: McCandlish et al., "An empirical model of large-batch training", appendix A.1.
    """
    if not 0 < weight <= 1:
        raise ValueError(f"smooth: weight = {weight!r}; expected a number in (0, 1]")
    xp = jnp if any(isinstance(value, jax.Array) for value in (*before, *new)) else np
    left = (1 - weight) * before.seen
    counts = xp.where(xp.isnan(new.noise) | xp.isnan(new.sqnorm), 0.0, new.seen)
    share = counts / xp.where(counts > 0, left + counts, 1.0)

    def move(old: Any, value: Any) -> Any:
        return old + share * (xp.where(counts > 0, value, old) - old)

    noise, sqnorm = move(before.noise, new.noise), move(before.sqnorm, new.sqnorm)
    return NoiseScale(noise, sqnorm, xp.where(counts > 0, left + counts, before.seen))


def _papers(b: Any, there: Any, xp: Any) -> tuple[Any, Any]:
    """Returns equation 11's weights for S and for G, `[n]`; 0 for nodes without samples."""
    n, B = b.shape[0], b.sum()
    me, ones = xp.eye(n, dtype=bool), there * xp.ones_like(b)
    i, j = b[:, None], b[None]
    pairs = (B - i) * (B - j)
    of_noise = xp.where(me, B * j / (B - j), i * j * (B - i - j) / pairs)
    of_sqnorm = xp.where(me, (B + 2 * j) / (B * (B - j)), (B**2 - i**2 - j**2) / (B * pairs))
    both = there[:, None] & there[None]

    def weights(matrix: Any) -> Any:
        solved = xp.linalg.solve(xp.where(both, matrix, me * 1.0), ones[:, None])[:, 0]
        return solved / solved.sum()

    return weights(of_noise), weights(of_sqnorm)


def _require_batches(batches: ArrayLike, local: Any, whole: Any) -> Any:
    b = batches if isinstance(batches, jax.Array) else np.asarray(batches)
    if (
        b.ndim != 1
        or local.ndim < 1
        or local.shape[-1:] != b.shape
        or whole.shape != local.shape[:-1]
    ):
        shapes = (
            f"local_sqnorms {list(local.shape)}, global_sqnorm {list(whole.shape)}, batches "
            f"{list(b.shape)}"
        )
        raise ValueError(f"gradient_noise_scale: {shapes}; expected [..., n], [...] and [n]")
    for name, sqnorms in (("local_sqnorms", local), ("global_sqnorm", whole)):
        if not isinstance(sqnorms, Tracer) and (np.asarray(sqnorms) < 0).any():
            raise ValueError(
                f"gradient_noise_scale: {name} contain {np.nanmin(np.asarray(sqnorms)):g}; "
                "expected squares >= 0"
            )
    if not isinstance(b, Tracer):
        each = np.asarray(b)
        if not (np.isfinite(each) & (each >= 0)).all():
            raise ValueError(
                f"gradient_noise_scale: batches = {checks.show(each.tolist())}; expected finite "
                "numbers >= 0"
            )
        if (each > 0).sum() < 2:
            raise ValueError(
                f"gradient_noise_scale: batches = {checks.show(each.tolist())}; expected at "
                "least two nodes with samples (n - 1 > 0)"
            )
    return b
