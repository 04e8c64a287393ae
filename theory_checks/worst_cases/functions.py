r"""The functions that attain a worst case, as a problem.

Through points $x_i$ with gradients $g_i$ and values $f_i$ that satisfy the interpolation conditions
there is a largest function of the class:

$$ f(x) = \frac\mu2 |x|^2 + \min_{a \ge 0,\ \sum a_i = 1} \frac l2 \Big| x - \sum_i a_i c_i \Big|^2
+ \sum_i a_i d_i, \qquad l = L - \mu, $$

with $s_i = g_i - \mu x_i$, $c_i = x_i - s_i / l$ and $d_i = f_i - \frac\mu2 |x_i|^2 - |s_i|^2 / (2
l)$. Its gradient is $\mu x + l (x - \sum_i a_i c_i)$ at the minimizing a. The quadratic program
over the simplex has as many variables as there are points, and is solved by an interior-point
method.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import workers
from dsgd.base import Constants, Loss, Problem

_ITERATIONS = 60
_STEP = 0.995  # share of the longest step within the cone


class Interpolated(NamedTuple):
    """Numbers of the functions, with a leading axis of the workers.

    Args:
        c: centers, `[N, P, p]`.
        d: heights, `[N, P]`.
        curvature: l = L - mu, `[N]`.
        mu: `[N]`.
    """

    c: Any
    d: Any
    curvature: Any
    mu: Any


def problem(
    x: np.ndarray,
    g: np.ndarray,
    f: np.ndarray,
    start: np.ndarray,
    *,
    L: float,
    mu: float,
    name: str,
) -> Problem:
    r"""Returns the problem of the functions through given points, in which $x^\star$ is the origin.

    Its history has the column `distance`, $|x|^2$.

    Args:
        x, g, f: points and gradients, `[N, P, p]`, and values, `[N, P]`.
        start: the first model, `[p]`.
        L, mu: smoothness and strong convexity.
        name: name of the problem.
    """
    s = g - mu * x
    c = x - s / (L - mu)
    d = f - mu / 2 * np.sum(x**2, axis=-1) - np.sum(s**2, axis=-1) / (2 * (L - mu))
    ones = np.ones(len(x))
    return Problem(
        init=lambda key: jnp.asarray(start),
        loss=Loss(value, gradient),
        data=Interpolated(c, d, (L - mu) * ones, mu * ones),
        sample=lambda key, mine: mine,
        evaluate=_evaluate,
        constants=Constants(
            smoothness=L,
            strong_convexity=mu if mu > 0 else None,
            minimum=0.0,
            minimizer=np.zeros_like(start) if mu >= 0 else None,
        ),
        name=name,
    )


def value(x: jax.Array, of: Interpolated) -> jax.Array:
    """Returns one worker's f(x)."""
    a = weights(x, of)
    away = x - a @ of.c
    return of.mu / 2 * x @ x + of.curvature / 2 * away @ away + a @ of.d


def gradient(x: jax.Array, of: Interpolated) -> jax.Array:
    """Returns one worker's f'(x)."""
    return of.mu * x + of.curvature * (x - weights(x, of) @ of.c)


def _evaluate(x, data, shared):
    values, slopes = jax.vmap(lambda of: (value(x, of), gradient(x, of)))(data)
    return {"loss": workers.mean(values)}, workers.mean(slopes)


def weights(x: jax.Array, of: Interpolated) -> jax.Array:
    r"""Returns the minimizer a of $\frac l2 |x - \sum_i a_i c_i|^2 + \sum_i a_i d_i$ over the
    simplex, `[P]`.

    It is found by the predictor-corrector method of Mehrotra.
    """
    Q, q = of.curvature * of.c @ of.c.T, of.d - of.curvature * of.c @ x
    # A tiny size only avoids 0 / 0.
    size = jnp.maximum(1e-30, jnp.maximum(jnp.max(jnp.abs(Q)), jnp.max(jnp.abs(q))))
    Q, q, ones = Q / size, q / size, jnp.ones(len(of.d))

    def iterate(_, carry):
        a, z, y = carry  # weights, multipliers of a >= 0, multiplier of sum a = 1
        dual, primal, center = Q @ a + q - z - y, 1 - jnp.sum(a), a @ z / len(a)
        factor = jax.scipy.linalg.cho_factor(Q + jnp.diag(z / a))

        def direction(products):
            right = -dual - (a * z - products) / a
            both = jax.scipy.linalg.cho_solve(factor, jnp.stack([right, ones], axis=1))
            dy = (primal - jnp.sum(both[:, 0])) / jnp.sum(both[:, 1])
            da = both[:, 0] + dy * both[:, 1]
            return da, (products - a * z - z * da) / a, dy

        da, dz, _ = direction(jnp.zeros_like(a))
        after = (a + _longest(a, da) * da) @ (z + _longest(z, dz) * dz) / len(a)
        da, dz, dy = direction((after / center) ** 3 * center - da * dz)
        step_a, step_z = _longest(a, da), _longest(z, dz)
        new = a + step_a * da, z + step_z * dz, y + step_z * dy
        # At the accuracy of the arithmetic the linear system becomes singular.
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(each)) for each in new]))
        return jax.tree.map(
            lambda new, old: jnp.where(finite & (center > 1e-30), new, old), new, carry
        )

    first = ones / len(ones), ones, jnp.zeros(())
    a, _, _ = lax.fori_loop(0, _ITERATIONS, iterate, first)
    return a / jnp.sum(a)


def _longest(v: jax.Array, change: jax.Array) -> jax.Array:
    """Returns the step, at most 1, with which v stays positive."""
    falling = change < 0
    ratios = jnp.where(falling, -v / jnp.where(falling, change, -1), jnp.inf)
    return jnp.minimum(1.0, _STEP * jnp.min(ratios))
