r"""Linear rates of DIANA, EF-BV (with EF21) and MARINA with exact gradients: a Lyapunov function
$\Psi$ decreases in the mean, from every state.

f has the minimum $x^\star$ and is $\mu$-strongly convex, $h_n^\star = f_n'(x^\star)$, and $\frac1N
\sum |f_n'(x) - f_n'(y)|^2 \le \tilde L^2 |x - y|^2$. Workers compress independently.

**DIANA**, with $H = \frac1N \sum |h_n - h_n^\star|^2$, $F = \frac1N \sum |f_n'(x) - h_n^\star|^2$
and $R = \frac1N \sum |f_n'(x) - h_n|^2$. The $f_n$ are convex and L-smooth, so that $F \le 2L (f -
f^\star)$. With $\Psi = |x - x^\star|^2 + c \gamma^2 H$,

$$ E|x_{t+1} - x^\star|^2 \le |x - x^\star|^2 - 2\gamma \langle f'(x), x - x^\star \rangle +
\gamma^2 (F + \tfrac\omega N R), $$
$$ E H_{t+1} \le (1 - \alpha) H + \alpha F - \alpha (1 - \alpha (1 + \omega)) R. $$

At $\alpha = 1 / (1 + \omega)$, with $c = 4\omega / (N\alpha)$ and $R \le 2F + 2H$, this is the
theorem of Gorbunov, Hanzely and Richtarik: for $\gamma \le 1 / (L (1 + 6\omega/N))$, $\Psi$
decreases by $\max(1 - \gamma\mu, 1 - \alpha/2)$. If $\theta = \alpha (1 + \omega)$ is below 1, the
last term cancels a part of R, and all of it with $c = \omega / (N\alpha (1 - \theta))$. With the
smaller c of the two,

| $\theta$ | $1 / (\gamma L)$ at the largest $\gamma$ | factor |
|---|---|---|
| up to 3/4 | $1 + \frac{\omega}{N (1 - \theta)}$ | $\max(1 - \gamma\mu, 1 - \alpha)$ |
| 3/4 to 1 | $1 + (8\theta - 2) \frac\omega N$ | $\max(1 - \gamma\mu, 1 - \alpha (5 - 4\theta)/2)$ |

Hence $\theta = 1/2$ has the factor of $\theta = 1$, and up to three times its step size.

**EF-BV**, with $G = \frac1N \sum |f_n'(x) - h_n|^2$; the compressor has the bias $|E\,C(x) - x| \le
\eta |x|$ and the variance $\omega |x|^2$. With $r = (1 - \lambda + \lambda\eta)^2 + \lambda^2
\omega$ and $r_{av} = (1 - \nu + \nu\eta)^2 + \nu^2 \omega / N$,

$$ E|\hat g - f'(x)|^2 \le r_{av} G, \qquad E G_{t+1} \le (1 + s) r G + (1 + 1/s) \tilde L^2
E|x_{t+1} - x|^2, $$
$$ f(x_{t+1}) \le f(x) - \frac\gamma2 |f'(x)|^2 - \Big(\frac1{2\gamma} - \frac L2\Big) |x_{t+1} -
x|^2 + \frac\gamma2 |\hat g - f'(x)|^2. $$

With $(1 + s)^2 = (1 + r) / (2r)$ and $\Psi = f - f^\star + b G$, $b = \gamma r_{av} / (2 r s (1 +
s))$: for $\gamma \le 1 / (L + \tilde L \sqrt{r_{av} / r} / s)$, $\Psi$ decreases by $\max(1 -
\gamma\mu, (1 + r)/2)$. EF21 with a contraction has $\lambda = \nu = 1$ and $r = r_{av} = 1 -
\delta$.

**MARINA**, with $G = |g - f'(x)|^2$ and the probability p of a full gradient,

$$ E G_{t+1} \le (1 - p) \Big(G + \frac\omega N \tilde L^2 |x_{t+1} - x|^2\Big), $$

and the same descent: for $\gamma \le 1 / (L + \tilde L \sqrt{2(1 - p) \omega / (pN)})$ and $\gamma
\le p / (2\mu)$, $\Psi = f - f^\star + \frac\gamma p G$ decreases by $1 - \gamma\mu$.

Sources: Mishchenko et al., "Distributed learning with compressed gradient differences", 2019;
Gorbunov, Hanzely and Richtarik, "A unified theory of SGD", 2020; Condat, Yi and Richtarik, "EF-BV",
2022; Richtarik, Sokolov and Fatkhullin, "EF21", 2021; Gorbunov et al., "MARINA", 2021. The part of
DIANA with $\theta < 1$ is derived here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from theory_checks.machinery import instances, ranges

_ROUNDING = 1e-12


# --- DIANA.


class _Diana(NamedTuple):
    """Constants of the theorem: the weight c of H, the largest gamma L, and the factor of H."""

    weight: float
    largest: float
    factor: float


def _diana(where: str, omega: float, N: int, shift: float | None) -> _Diana:
    alpha = 1 / (1 + omega) if shift is None else shift
    theta = alpha * (1 + omega)
    if theta > 1 + _ROUNDING:
        raise ValueError(
            f"bounds.{where}: shift = {alpha:.6g}, 1 / (1 + omega) = {1 / (1 + omega):.6g}; "
            "expected shift <= 1 / (1 + omega)"
        )
    c = 4 if theta >= 0.75 else 1 / (1 - theta)  # times omega / (N alpha)
    rest = max(0.0, 1 - c * (1 - theta))  # of omega / N, bounded by R <= 2F + 2H
    largest = 1 / (1 + (c + 2 * rest) * omega / N)
    return _Diana(c * omega / (N * alpha), largest, 1 - alpha + 2 * rest * alpha / c)


@ranges.validated("bounds.diana_step")
def diana_step(
    *, smoothness: float, omega: float, workers: int, shift: float | None = None
) -> float:
    r"""Returns the largest step size of DIANA: $\frac1{L(1 + 6\omega/N)}$ at $\alpha = 1 / (1 +
    \omega)$.

    Args:
        smoothness: L of every f_n.
        omega: of the workers' compressor.
        workers: N.
        shift: $\alpha$; None: the largest, $1/(1 + \omega)$.
    """
    return _diana("diana_step", omega, workers, shift).largest / smoothness


@ranges.validated("bounds.diana")
def diana(
    *,
    smoothness: float,
    strong_convexity: float,
    omega: float,
    workers: int,
    learning_rate: float,
    shift: float | None = None,
) -> float:
    r"""Returns the factor by which DIANA decreases $E \Psi$ in every round, $\Psi = |x -
    x^\star|^2 + c \gamma^2 \frac1N \sum |h_n - f_n'(x^\star)|^2$: $\max(1 - \gamma\mu, 1 -
    \alpha/2)$ at $\alpha = 1 / (1 + \omega)$.

    Args:
        smoothness: L of every f_n, which are convex.
        strong_convexity: mu of f.
        omega: of the workers' compressor.
        workers: N.
        learning_rate: gamma, at most `diana_step`.
        shift: $\alpha$; None: the largest, $1/(1 + \omega)$.
    """
    of = _diana("diana", omega, workers, shift)
    limit = of.largest / smoothness
    instances.require_step("bounds.diana", learning_rate, "the largest step", limit)
    return max(1 - learning_rate * strong_convexity, of.factor)


# --- EF-BV and EF21.


class Residuals(NamedTuple):
    r"""$r$ and $r_{av}$: $E|x - \lambda C(x)|^2 \le r |x|^2$, and the same with $\nu$ for the mean
    of the messages.
    """

    each: float
    mean: float


@ranges.validated("compressed_linear.residuals")
def residuals(
    *, omega: float, workers: int, bias: float = 0.0, shift: float = 1.0, gain: float = 1.0
) -> Residuals:
    r"""Returns r and $r_{av}$ of EF-BV for compressors with independent draws.

    Args:
        omega: variance of the compressor relative to $|x|^2$.
        workers: N.
        bias: $\eta$, $|E\,C(x) - x| \le \eta |x|$.
        shift: $\lambda$.
        gain: $\nu$.
    """
    return Residuals(
        (1 - shift + shift * bias) ** 2 + shift**2 * omega,
        (1 - gain + gain * bias) ** 2 + gain**2 * omega / workers,
    )


@ranges.validated("bounds.ef_bv_step")
def ef_bv_step(
    *, smoothness: float, mean_smoothness: float, residual: float, mean_residual: float
) -> float:
    r"""Returns the largest step size of EF-BV: $1 / (L + \tilde L \sqrt{r_{av} / r} / s)$.

    Args:
        smoothness: L of f.
        mean_smoothness: $\tilde L$.
        residual, mean_residual: r and $r_{av}$, from `residuals`. For EF21 with a contraction, both
            are $1 - \delta$.
    """
    larger = math.sqrt((1 + residual) / 2) - math.sqrt(residual)  # s sqrt(r)
    return 1 / (smoothness + mean_smoothness * math.sqrt(mean_residual) / larger)


@ranges.validated("bounds.ef_bv")
def ef_bv(
    *,
    smoothness: float,
    mean_smoothness: float,
    strong_convexity: float,
    residual: float,
    mean_residual: float,
    learning_rate: float,
) -> float:
    r"""Returns the factor by which EF-BV and EF21 decrease $E \Psi$ in every round, $\Psi = f -
    f^\star + b \frac1N \sum |f_n'(x) - h_n|^2$: $\max(1 - \gamma\mu, (1 + r) / 2)$.

    Args:
        smoothness, mean_smoothness, residual, mean_residual: as in `ef_bv_step`.
        strong_convexity: mu of f.
        learning_rate: gamma, at most `ef_bv_step`.
    """
    limit = ef_bv_step(
        smoothness=smoothness,
        mean_smoothness=mean_smoothness,
        residual=residual,
        mean_residual=mean_residual,
    )
    instances.require_step("bounds.ef_bv", learning_rate, "the largest step", limit)
    return max(1 - learning_rate * strong_convexity, (1 + residual) / 2)


def _weight_of_ef_bv(gamma: float, of: Residuals) -> float:
    """Returns b."""
    root = math.sqrt((1 + of.each) / 2)  # (1 + s) sqrt(r)
    return gamma * of.mean / (2 * (root - math.sqrt(of.each)) * root)


# --- MARINA.


@ranges.validated("bounds.marina_step")
def marina_step(
    *,
    smoothness: float,
    mean_smoothness: float,
    strong_convexity: float,
    omega: float,
    workers: int,
    probability: float,
) -> float:
    r"""Returns the largest step size of MARINA: $\min \big( 1 / (L + \tilde L \sqrt{2(1 - p) \omega
    / (pN)}), p / (2\mu) \big)$.

    Args:
        smoothness: L of f.
        mean_smoothness: $\tilde L$.
        strong_convexity: mu of f.
        omega: of the workers' compressor.
        workers: N.
        probability: p of a full gradient.
    """
    noise = 2 * (1 - probability) * omega / (probability * workers)
    return min(
        1 / (smoothness + mean_smoothness * math.sqrt(noise)), probability / (2 * strong_convexity)
    )


@ranges.validated("bounds.marina")
def marina(
    *,
    smoothness: float,
    mean_smoothness: float,
    strong_convexity: float,
    omega: float,
    workers: int,
    probability: float,
    learning_rate: float,
) -> float:
    r"""Returns the factor by which MARINA decreases $E \Psi$ in every round, $\Psi = f - f^\star +
    \frac\gamma p |g - f'(x)|^2$: $1 - \gamma\mu$.

    Args:
        smoothness, mean_smoothness, strong_convexity, omega, workers, probability: as in
            `marina_step`.
        learning_rate: gamma, at most `marina_step`.
    """
    limit = marina_step(
        smoothness=smoothness,
        mean_smoothness=mean_smoothness,
        strong_convexity=strong_convexity,
        omega=omega,
        workers=workers,
        probability=probability,
    )
    instances.require_step("bounds.marina", learning_rate, "the largest step", limit)
    return 1 - learning_rate * strong_convexity
