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
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import algorithms
from dsgd import compressors, problems
from dsgd.base import Algorithm, Compressor, State
from dsgd.compressors.members import constant_at
from theory_checks.machinery import instances, ranges
from theory_checks.machinery.random_rounds import RandomRounds, mixture, random_rounds
from theory_checks.machinery.rounds import Build, Instance
from theory_checks.machinery.statement import Draws, Method, Outcome, Statement
from theory_checks.statements.ef21 import SHRINKING, shrinking

_ROUNDING = 1e-12
_NEVER = 1e-30  # a probability so small that the coin never shows it
_ACCURACY = 1e-3  # of the exact largest step sizes


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


@ranges.validate("bounds.diana_step")
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


@ranges.validate("bounds.diana")
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


@ranges.validate("bounds.ef_bv_residuals")
def ef_bv_residuals(
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


@ranges.validate("bounds.ef_bv_step")
def ef_bv_step(
    *, smoothness: float, rms_smoothness: float, residual: float, mean_residual: float
) -> float:
    r"""Returns the largest step size of EF-BV: $1 / (L + \tilde L \sqrt{r_{av} / r} / s)$.

    Args:
        smoothness: L of f.
        rms_smoothness: $\tilde L$.
        residual, mean_residual: r and $r_{av}$, from `ef_bv_residuals`. For EF21 with a
            contraction, both are $1 - \delta$.
    """
    larger = math.sqrt((1 + residual) / 2) - math.sqrt(residual)  # s sqrt(r)
    return 1 / (smoothness + rms_smoothness * math.sqrt(mean_residual) / larger)


@ranges.validate("bounds.ef_bv")
def ef_bv(
    *,
    smoothness: float,
    rms_smoothness: float,
    strong_convexity: float,
    residual: float,
    mean_residual: float,
    learning_rate: float,
) -> float:
    r"""Returns the factor by which EF-BV and EF21 decrease $E \Psi$ in every round, $\Psi = f -
    f^\star + b \frac1N \sum |f_n'(x) - h_n|^2$: $\max(1 - \gamma\mu, (1 + r) / 2)$.

    Args:
        smoothness, rms_smoothness, residual, mean_residual: as in `ef_bv_step`.
        strong_convexity: mu of f.
        learning_rate: gamma, at most `ef_bv_step`.
    """
    limit = ef_bv_step(
        smoothness=smoothness,
        rms_smoothness=rms_smoothness,
        residual=residual,
        mean_residual=mean_residual,
    )
    instances.require_step("bounds.ef_bv", learning_rate, "the largest step", limit)
    return max(1 - learning_rate * strong_convexity, (1 + residual) / 2)


def weight(gamma: float, of: Residuals) -> float:
    r"""Returns b, the weight of $\frac1N \sum |f_n'(x) - h_n|^2$ in $\Psi$ of EF-BV."""
    root = math.sqrt((1 + of.each) / 2)  # (1 + s) sqrt(r)
    return gamma * of.mean / (2 * (root - math.sqrt(of.each)) * root)


# --- MARINA.


@ranges.validate("bounds.marina_step")
def marina_step(
    *,
    smoothness: float,
    rms_smoothness: float,
    strong_convexity: float,
    omega: float,
    workers: int,
    probability: float,
) -> float:
    r"""Returns the largest step size of MARINA: $\min \big( 1 / (L + \tilde L \sqrt{2(1 - p) \omega
    / (pN)}), p / (2\mu) \big)$.

    Args:
        smoothness: L of f.
        rms_smoothness: $\tilde L$.
        strong_convexity: mu of f.
        omega: of the workers' compressor.
        workers: N.
        probability: p of a full gradient.
    """
    noise = 2 * (1 - probability) * omega / (probability * workers)
    return min(
        1 / (smoothness + rms_smoothness * math.sqrt(noise)), probability / (2 * strong_convexity)
    )


@ranges.validate("bounds.marina")
def marina(
    *,
    smoothness: float,
    rms_smoothness: float,
    strong_convexity: float,
    omega: float,
    workers: int,
    probability: float,
    learning_rate: float,
) -> float:
    r"""Returns the factor by which MARINA decreases $E \Psi$ in every round, $\Psi = f - f^\star +
    \frac\gamma p |g - f'(x)|^2$: $1 - \gamma\mu$.

    Args:
        smoothness, rms_smoothness, strong_convexity, omega, workers, probability: as in
            `marina_step`.
        learning_rate: gamma, at most `marina_step`.
    """
    limit = marina_step(
        smoothness=smoothness,
        rms_smoothness=rms_smoothness,
        strong_convexity=strong_convexity,
        omega=omega,
        workers=workers,
        probability=probability,
    )
    instances.require_step("bounds.marina", learning_rate, "the largest step", limit)
    return 1 - learning_rate * strong_convexity


# --- The theorems on quadratics.


class Theorem(NamedTuple):
    r"""A theorem on a quadratic, and the method's exact rounds.

    Args:
        rounds: $\gamma$ -> the rounds.
        largest: the theorem's largest step size.
        factor: $\gamma$ -> the theorem's factor per round.
        weights: $\gamma$ -> the weights of quantities in $\Psi$.
        case: the instance in words.
    """

    rounds: Callable[[float], RandomRounds]
    largest: float
    factor: Callable[[float], float]
    weights: Callable[[float], dict[str, float]]
    case: str


class Constants(NamedTuple):
    r"""Constants of a quadratic: L of every $f_n$; L of f, $\tilde L$ and mu."""

    each: float
    smoothness: float
    rms_smoothness: float
    strong_convexity: float


def constants(A: np.ndarray) -> Constants:
    """Returns the constants for Hessians `[N, d, d]`."""
    of_mean = np.linalg.eigvalsh(A.mean(axis=0))
    squared = float(np.linalg.eigvalsh((A @ A).mean(axis=0)).max())
    each = float(np.linalg.eigvalsh(A).max())
    return Constants(each, float(of_mean.max()), math.sqrt(squared), float(of_mean.min()))


@cache
def random_one(d: int) -> Compressor:
    """Returns random-k that keeps one of d elements: omega = d - 1."""
    return compressors.random_k(1 / d)


@cache
def _with_shifts(method: Method, compressor: Compressor) -> Build:
    """Returns the builder of DIANA or EF-BV; `more` has alpha, or lambda and nu."""
    return lambda of, additive: method(optax.sgd(of.learning_rate), compressor, *of.more)


def _memories(state: State) -> dict[str, jax.Array]:
    """Returns x and the shifts divided by sqrt(N)."""
    h = state.workers.shift
    return {"x": state.server.shared.params, "h": h / jnp.sqrt(h.shape[0])}


def _with_memories(
    method: Method, A: np.ndarray, compressor: Compressor, *numbers: float
) -> Callable[[float], RandomRounds]:
    build = _with_shifts(method, compressor)
    problem = problems.quadratic(A, np.ones(A.shape[:2]))

    def rounds(gamma: float) -> RandomRounds:
        found = random_rounds(build, problem, gamma, more=numbers, quantities=_memories)
        residual = found.values["local"] - found.values["h"]
        return found._replace(values={**found.values, "residual": residual})

    return rounds


def diana_theorem(A: np.ndarray, theta: float) -> Theorem:
    r"""Returns the theorem of DIANA with random-1 and $\alpha = \theta / (1 + \omega)$."""
    (N, d, _), of, omega = A.shape, constants(A), A.shape[1] - 1.0
    alpha = theta / (1 + omega)
    given = {"smoothness": of.each, "omega": omega, "workers": N, "shift": alpha}
    c = _diana("diana", omega, N, alpha).weight
    return Theorem(
        _with_memories(algorithms.diana, A, random_one(d), alpha),
        diana_step(**given),
        lambda gamma: diana(strong_convexity=of.strong_convexity, learning_rate=gamma, **given),
        lambda gamma: {"x": 1.0, "h": c * gamma**2},
        f"N = {N}, omega = {omega:g}, theta = {theta:.3g}",
    )


def ef_bv_theorem(A: np.ndarray, shift: float, gain: float) -> Theorem:
    """Returns the theorem of EF-BV with random-1."""
    N, d, _ = A.shape
    of = ef_bv_residuals(omega=d - 1.0, workers=N, shift=shift, gain=gain)
    case = f"N = {N}, omega = {d - 1}, lambda = {shift:.3g}, nu = {gain:.3g}"
    return _residual_theorem(A, random_one(d), shift, gain, of, case)


def ef21_theorem(A: np.ndarray, up: Compressor) -> Theorem:
    """Returns the theorem of EF21 with a linear contraction."""
    N, d, _ = A.shape
    delta = constant_at(up.delta, d)
    of = Residuals(1 - delta, 1 - delta)
    return _residual_theorem(A, up, 1.0, 1.0, of, f"N = {N}, delta = {delta:.4g}")


def _residual_theorem(
    A: np.ndarray, up: Compressor, shift: float, gain: float, of: Residuals, case: str
) -> Theorem:
    of_A = constants(A)
    given = {
        "smoothness": of_A.smoothness,
        "rms_smoothness": of_A.rms_smoothness,
        "residual": of.each,
        "mean_residual": of.mean,
    }
    return Theorem(
        _with_memories(algorithms.ef_bv, A, up, shift, gain),
        ef_bv_step(**given),
        lambda gamma: ef_bv(strong_convexity=of_A.strong_convexity, learning_rate=gamma, **given),
        lambda gamma: {"gap": 1.0, "residual": weight(gamma, of)},
        case,
    )


@cache
def _marina(compressor: Compressor) -> Build:
    """Returns the builder of MARINA; `more` is p."""

    def build(of: Instance, additive: Compressor) -> Algorithm:
        return algorithms.marina(optax.sgd(of.learning_rate), compressor, of.more)

    return build


def _estimate(state: State) -> dict[str, jax.Array]:
    """Returns g and f'(x) of the last round."""
    return {"g": state.server.estimate, "last": state.workers.mean(axis=0)}


def marina_theorem(A: np.ndarray, probability: float) -> Theorem:
    """Returns the theorem of MARINA with random-1."""
    (N, d, _), of = A.shape, constants(A)
    given = {
        **of._asdict(),
        "omega": d - 1.0,
        "workers": N,
        "probability": probability,
    }
    del given["each"]
    problem = problems.quadratic(A, np.ones((N, d)))
    half = np.linalg.inv(np.linalg.cholesky(A.mean(axis=0))) / math.sqrt(2)

    def rounds(gamma: float) -> RandomRounds:
        whole, change = (
            random_rounds(_marina(random_one(d)), problem, gamma, more=p, quantities=_estimate)
            for p in (1.0, _NEVER)
        )
        g, last = whole.values["g"], whole.values["last"]
        # The state after a round has the next model; the theorem has g and f' at the same model.
        values = {"gap": half @ last, "residual": g - last}
        return mixture(probability, whole, change)._replace(values=values)

    return Theorem(
        rounds,
        marina_step(**given),
        lambda gamma: marina(learning_rate=gamma, **given),
        lambda gamma: {"gap": 1.0, "residual": gamma / probability},
        f"N = {N}, omega = {d - 1}, p = {probability:.3g}",
    )


def linear(theorem: Theorem, share: float = 1.0) -> list[Outcome]:
    r"""Compares the decrease of $\Psi$ that the theorem promises with the exact least one, over all
    states.

    Args:
        theorem: from `diana_theorem` or the like.
        share: step size as a share of the largest one.
    """
    gamma = share * theorem.largest
    rounds, promised = theorem.rounds(gamma), theorem.factor(gamma)
    exact = rounds.factor(theorem.weights(gamma))
    case = (
        f"{theorem.case}, {share:.3g} of the largest step: factor {exact:.4f}, of second moments "
        f"{rounds.rate():.4f}, theorem {promised:.4f}"
    )
    return [Outcome(1 - promised, 1 - exact, case=case, scale=1.0)]


def largest_step(theorem: Theorem) -> list[Outcome]:
    """Compares the theorem's largest step size with the exact one, up to which second moments
    decrease.
    """
    low, high = theorem.largest, 2 * theorem.largest
    if theorem.rounds(low).rate() >= 1:
        return [Outcome(low, 0.0, case=f"{theorem.case}: unstable")]
    while theorem.rounds(high).rate() < 1:
        low, high = high, 2 * high
    while high - low > _ACCURACY * low:
        middle = (low + high) / 2
        low, high = (middle, high) if theorem.rounds(middle).rate() < 1 else (low, middle)
    return [Outcome(theorem.largest, low, case=f"{theorem.case}: stable up to {low:.4g}")]


# --- Instances.

_SIZES = ((2, 2), (1, 3))  # N, d


def _hessians(draws: Draws) -> np.ndarray:
    """Draws Hessians with eigenvalues of different sizes, equal or different for the workers."""
    N, d = draws.choice(_SIZES)
    kappa, equal = draws.real(1.0, 30.0), draws.choice((True, False))
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    bases = np.linalg.qr(rng.normal(size=(N, d, d)))[0]
    sizes = rng.uniform(1 / kappa, 1, (N, d))
    if equal:
        bases, sizes = bases[:1].repeat(N, axis=0), sizes[:1].repeat(N, axis=0)
    A = draws.real(0.2, 5.0) * np.einsum("nij,nj,nkj->nik", bases, sizes, bases)
    return (A + A.swapaxes(1, 2)) / 2


def _diana_drawn(draws: Draws) -> Theorem:
    return diana_theorem(_hessians(draws), draws.choice((1.0, draws.real(0.1, 1.0))))


def _ef_bv_drawn(draws: Draws) -> Theorem:
    A = _hessians(draws)
    omega = A.shape[1] - 1.0
    shift, gain = draws.real(0.1, 1.0) / (1 + omega), draws.real(0.1, 1.0)
    return ef_bv_theorem(A, shift, draws.choice((1 / (1 + omega / len(A)), gain)))


def _ef21_drawn(draws: Draws) -> Theorem:
    A = _hessians(draws)
    return ef21_theorem(A, draws.choice((SHRINKING, _contraction(A.shape[1]))))


def _marina_drawn(draws: Draws) -> Theorem:
    A = _hessians(draws)
    return marina_theorem(A, draws.choice((1 / A.shape[1], draws.real(0.05, 1.0))))


@cache
def _contraction(d: int) -> Compressor:
    return compressors.contraction(random_one(d))


def bowls(N: int, *curvatures: float) -> np.ndarray:
    """Returns equal diagonal Hessians."""
    return np.tile(np.diag(curvatures), (N, 1, 1))


def _statements(
    name: str,
    reference: str,
    hypotheses: str,
    drawn: Callable[[Draws], Theorem],
    worst: Callable[[], list[Theorem]],
    decreasing: Callable[[], list[Theorem]] = list,
) -> list[Statement]:
    """Returns the statements for the decrease and for the largest step.

    Args:
        name, reference, hypotheses: for the table.
        drawn: a random instance.
        worst: instances on which the theorem is nearly attained.
        decreasing: more of them, for the decrease only.
    """

    def trial(draws: Draws) -> list[Outcome]:
        return linear(drawn(draws), draws.choice((1.0, draws.real(0.05, 1.0))))

    def decrease() -> list[Outcome]:
        return [outcome for theorem in (*worst(), *decreasing()) for outcome in linear(theorem)]

    def steps() -> list[Outcome]:
        return [outcome for theorem in worst() for outcome in largest_step(theorem)]

    return [
        Statement(
            f"{name}, linear, exact",
            reference,
            f"{hypotheses}; decrease of Psi",
            trial,
            (decrease,),
        ),
        Statement(
            f"{name}, largest step, exact",
            reference,
            f"{hypotheses}; second moments decrease",
            lambda draws: largest_step(drawn(draws)),
            (steps,),
        ),
    ]


STATEMENTS = [
    *_statements(
        "DIANA",
        "Gorbunov et al. 2020; derived",
        "f_n convex, f strongly; Q unbiased",
        _diana_drawn,
        lambda: [diana_theorem(bowls(2, 1.0, 1.0), theta) for theta in (1.0, 0.5)],
    ),
    *_statements(
        "EF-BV",
        "Condat et al. 2022",
        "f strongly convex; C(eta, omega)",
        _ef_bv_drawn,
        lambda: [ef_bv_theorem(bowls(2, 1.0, 1.0), *both) for both in ((0.1, 0.7), (0.5, 1.0))],
    ),
    *_statements(
        "EF21",
        "Condat et al. 2022",
        "f strongly convex; C contracts",
        _ef21_drawn,
        lambda: [ef21_theorem(bowls(N, 1.0, 0.5), SHRINKING) for N in (1, 2)],
        # The factor is that of the residuals, (1 + r) / 2, and not 1 - gamma mu.
        lambda: [ef21_theorem(bowls(1, 1.0), shrinking(0.2))],
    ),
    *_statements(
        "MARINA",
        "Gorbunov et al. 2021",
        "f strongly convex; Q unbiased",
        _marina_drawn,
        lambda: [marina_theorem(bowls(2, 1.0, 0.5), 0.5)],
        # The largest step is that of the variance, and not p / (2 mu).
        lambda: [marina_theorem(bowls(1, *[1.0] * 8), 0.5)],
    ),
]
