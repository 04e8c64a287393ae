r"""The hard instance of the lower bounds: a chain of coordinates that can be discovered only one
after the other, with gradients that show the next one with a small probability.

$$ F_T(x) = -\Psi(1)\Phi(x_1) + \sum_{i=2}^T \big( \Psi(-x_{i-1})\Phi(-x_i) -
\Psi(x_{i-1})\Phi(x_i) \big) $$

with $\Psi(x) = \exp\big(1 - \frac1{(2x - 1)^2}\big)$ for $x > \frac12$, else 0, and $\Phi(x) =
\sqrt e \int_{-\infty}^x e^{-t^2/2} dt$, has

1. $F_T(0) - \inf F_T \le 12T$, and an $\ell_1$-Lipschitz gradient with $\ell_1 = 152$;
2. elements of $F_T'$ of at most 23 in absolute value;
3. $F_T'(x)_j = 0$ for $j > i + 1$, if $x_j = 0$ for $j > i$;
4. $|F_T'(x)| > 1$ while $x_T = 0$.

$f(x) = \frac{L\lambda^2}{\ell_1} F_T(\frac x\lambda)$ with $\lambda =
\frac{\ell_1\sqrt{2\epsilon}}L$ and $T = \big\lfloor \frac{LD}{2 \cdot 12\, \ell_1 \epsilon}
\big\rfloor$ is L-smooth, has $f(0) - f^\star \le D$, and $|f'(x)|^2 > 2\epsilon$ while $x_T = 0$. A
stochastic gradient at x is exact, except for the elements after the last nonzero element of x:
these are divided by p with probability p, else 0. Only one of them can be nonzero, so that the
variance is at most $2\epsilon \cdot 23^2 \frac{1 - p}p \le \sigma^2$ for $p = \min\big(1, \frac{2
\cdot 23^2 \epsilon}{\sigma^2}\big)$.

Source: Carmon, Duchi, Hinder and Sidford, "Lower bounds for finding stationary points I", 2017;
Arjevani et al., "Lower bounds for non-convex stochastic optimization", 2019; Tyurin and Richtarik,
2023.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf

from dsgd.base import Constants, Loss, Problem
from dsgd.problems.quadratic import FromZero

GAP, SMOOTHNESS, LARGEST = 12.0, 152.0, 23.0
"""Constants of F_T: gap divided by T, Lipschitz constant of the gradient, largest element."""


class Chain(NamedTuple):
    """Data of the workers, which are equal.

    Args:
        width: lambda, `[N]`.
        height: L lambda^2 / l_1, `[N]`.
        probability: p, `[N]`.
        shown: the factor of the elements after the last nonzero one, 0 or 1 / p; None: 1.
    """

    width: jax.Array
    height: jax.Array
    probability: jax.Array
    shown: jax.Array | None = None


def length(*, gap: float, smoothness: float, epsilon: float) -> int:
    r"""Returns $T = \lfloor \frac{LD}{2 \cdot 12 \cdot 152\, \epsilon} \rfloor$."""
    return math.floor(smoothness * gap / (2 * GAP * SMOOTHNESS * epsilon))


def probability(*, noise: float, epsilon: float) -> float:
    r"""Returns $p = \min\big(1, \frac{2 \cdot 23^2 \epsilon}{\sigma^2}\big)$."""
    return min(1.0, 2 * LARGEST**2 * epsilon / noise**2) if noise else 1.0


def chain(workers: int, *, gap: float, smoothness: float, noise: float, epsilon: float) -> Problem:
    """Returns the hard instance, the same for all workers.

    Args:
        workers: N.
        gap: D, at least f(0) - f*.
        smoothness: L.
        noise: sigma, of one gradient.
        epsilon: the accuracy.

    Raises:
        ValueError: if T = 0, because the accuracy is too low.
    """
    T = length(gap=gap, smoothness=smoothness, epsilon=epsilon)
    if T < 1:
        raise ValueError(
            f"chain: L D / epsilon = {smoothness * gap / epsilon:.4g}; expected at least "
            f"{2 * GAP * SMOOTHNESS:g}, so that the chain has an element"
        )
    width = SMOOTHNESS * math.sqrt(2 * epsilon) / smoothness
    height, p = smoothness * width**2 / SMOOTHNESS, probability(noise=noise, epsilon=epsilon)
    data = Chain(*(jnp.full(workers, value, float) for value in (width, height, p)))
    return Problem(
        init=FromZero(T),
        loss=Loss(_loss, _gradient),
        sample=_sample,
        data=data,
        constants=Constants(smoothness=smoothness, noise=noise, heterogeneity=0.0),
        name=f"chain({workers} workers, T = {T})",
    )


def value(x: jax.Array) -> jax.Array:
    """Returns F_T(x)."""
    before, after = x[:-1], x[1:]
    first = -_psi(jnp.ones(())) * _phi(x[0])
    return first + jnp.sum(_psi(-before) * _phi(-after) - _psi(before) * _phi(after))


def _psi(x: jax.Array) -> jax.Array:
    # The argument of the branch that is not selected has a finite derivative.
    inside = x > 0.5
    return jnp.where(inside, jnp.exp(1 - 1 / (2 * jnp.where(inside, x, 1.0) - 1) ** 2), 0.0)


def _phi(x: jax.Array) -> jax.Array:
    return np.sqrt(np.e * np.pi / 2) * (1 + erf(x / np.sqrt(2)))


def _loss(x: jax.Array, batch: Chain) -> jax.Array:
    return batch.height * value(x / batch.width)


def _gradient(x: jax.Array, batch: Chain) -> jax.Array:
    exact = jax.grad(_loss)(x, batch)
    if batch.shown is None:
        return exact
    # an element after the last nonzero one: neither it nor a later one is nonzero
    later = jnp.cumsum(jnp.flip(x != 0)) == 0
    return exact * jnp.where(jnp.flip(later), batch.shown, 1.0)


def _sample(key: jax.Array, data: Chain) -> Chain:
    p = data.probability
    return data._replace(shown=jax.random.bernoulli(key, p) / p)
