r"""EF21 layer by layer, Theorem 1 of Kimad.

Layers i, with $f(x + s) \le f(x) + \langle f'(x), s \rangle + \frac12 \sum L_i |s_i|^2$, step sizes
$\gamma w_i$, estimates $u_i$ and contractions $\alpha_i$. The descent lemma with
$\langle a, b \rangle = \frac12(|a|^2 + |b|^2 - |a - b|^2)$ gives

$$ f(x^{k+1}) \le f(x^k) - \frac\gamma2 \sum_i w_i |f_i'(x^k)|^2 - \sum_i \Big( \frac{1}{2\gamma
w_i} - \frac{L_i}{2} \Big) |x_i^{k+1} - x_i^k|^2
   + \frac\gamma2 \sum_i w_i |u_i^k - f_i'(x^k)|^2. $$

By the contraction and Young's inequality, $G_i = |u_i - f_i'(x)|^2$ obeys
$G_i^{k+1} \le (1 - \theta_i) G_i^k + \beta_i |f_i'(x^{k+1}) - f_i'(x^k)|^2$,
$\theta_i = 1 - (1 - \alpha_i)(1 + \zeta_i)$, $\beta_i = (1 - \alpha_i)(1 + 1/\zeta_i)$ (8). Adding
$\frac{\gamma}{2\theta} \max(w / \delta) \sum_i \delta_i G_i$ to
f, the remaining coefficient of $|x^{k+1} - x^k|^2$ is not positive if
$\gamma^2 w_i \max(w/\delta) \max(\delta\beta) L^2 / \theta + \gamma L_i w_i \le 1$ (9), and

$$ \frac1K \sum_k \sum_i w_i E|f_i'(x^k)|^2 \le \frac{2D}{\gamma K} + \frac{\max(w/\delta) \sum_i
\delta_i |u_i^0 - f_i'(x^0)|^2}{\theta K}. $$

Here $\zeta_i = 1/\sqrt{1 - \alpha_i} - 1$, which minimises $\beta_i / \theta_i$, and the initial
estimates are $u^0 = C(f'(x^0))$, so that
$E|u_i^0 - f_i'(x^0)|^2 \le (1 - \alpha_i) |f_i'(x^0)|^2$.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import algorithms
from dsgd import compressors, problems
from dsgd.base import Compressor, Problem
from dsgd.compressors.members import constant_at
from dsgd.compressors.sizes import fixed_size
from theory_checks.machinery import instances, ranges, runs
from theory_checks.machinery.rates import Rate
from theory_checks.machinery.statement import Condition, Draws, Method, Outcome, Statement, need

_LARGEST = "the largest step of (9)"


class Factors(NamedTuple):
    """The factors theta_i and beta_i of each layer, defined in equation (8) of the paper."""

    theta: np.ndarray
    beta: np.ndarray


@ranges.validate("ef21.factors")
def factors(contractions: Sequence[float]) -> Factors:
    r"""Returns the factors at $\zeta_i = 1/\sqrt{1 - \alpha_i} - 1$: $\theta_i = 1 - \sqrt{1 -
    \alpha_i}$, $\beta_i = (1 - \alpha_i) / \theta_i$.
    """
    left = 1 - np.asarray(contractions, float)
    theta = 1 - np.sqrt(left)
    return Factors(theta, left / theta)


def hypotheses(
    *,
    contractions: Sequence[float],
    layers: Sequence[float],
    smoothness: float,
    weights: Sequence[float],
    learning_rate: float,
) -> list[Condition]:
    """Returns the conditions: contractions in (0, 1], positive weights, and (9)."""
    first = _contractions(contractions, weights)
    if not all(condition.holds for condition in first):
        return first  # The largest step is not defined.
    limit = step_size(
        contractions=contractions, layers=layers, smoothness=smoothness, weights=weights
    )
    return [*first, instances.step_below(_LARGEST, limit, learning_rate)]


def _contractions(contractions: Sequence[float], weights: Sequence[float]) -> list[Condition]:
    alphas, ws = (", ".join(f"{x:.4g}" for x in numbers) for numbers in (contractions, weights))
    return [
        Condition(
            "contractions in (0, 1]",
            all(0 < a <= 1 for a in contractions),
            f"contractions {alphas}",
        ),
        Condition("positive weights", all(w > 0 for w in weights), f"weights {ws}"),
    ]


@ranges.validate("ef21.step_size")
def step_size(
    *,
    contractions: Sequence[float],
    layers: Sequence[float],
    smoothness: float,
    weights: Sequence[float],
    deltas: Sequence[float] | None = None,
) -> float:
    r"""Returns the largest step size of (9): $\gamma = \min_i \frac{2}{c_i + \sqrt{c_i^2 + 4a_i}}$,
    $c_i = L_i w_i$, $a_i = w_i \max(w/\delta) \max(\delta\beta) L^2 / \theta$.
    """
    w, (theta, beta) = np.asarray(weights, float), factors(contractions)
    delta = np.ones_like(w) if deltas is None else np.asarray(deltas, float)
    c = np.asarray(layers, float) * w
    a = w * (w / delta).max() * (delta * beta).max() * smoothness**2 / theta.min()
    return float(np.min(2 / (c + np.sqrt(c**2 + 4 * a))))


@ranges.validate("bounds.ef21")
def bound(
    *,
    gap: float,
    contractions: Sequence[float],
    layers: Sequence[float],
    smoothness: float,
    first: Sequence[float],
    weights: Sequence[float],
    steps: int,
    learning_rate: float,
    deltas: Sequence[float] | None = None,
) -> float:
    r"""Returns $\frac{2D}{\gamma K} + \frac{\max(w/\delta) \sum \delta_i |u_i^0 -
    f_i'(x^0)|^2}{\theta K}$, the bound on $\frac1K \sum_k \sum_i w_i E|f_i'(x^k)|^2$.

    Args:
        gap: D = f(x^0) - f*.
        contractions: alpha_i, of each layer's compressor, in every round.
        layers: L_i.
        smoothness: L.
        first: |u_i^0 - f_i'(x^0)|^2.
        weights: w_i; layer i has the step size gamma w_i.
        steps: K.
        learning_rate: gamma, at most `step_size`.
        deltas: delta_i > 0, free constants of the bound; None: ones.

    Source: Kimad, Theorem 1 (one node, exact gradients, compressed uplink).
    """
    limit = step_size(
        contractions=contractions,
        layers=layers,
        smoothness=smoothness,
        weights=weights,
        deltas=deltas,
    )
    instances.require_step("bounds.ef21", learning_rate, _LARGEST, limit)
    w = np.asarray(weights, float)
    delta = np.ones_like(w) if deltas is None else np.asarray(deltas, float)
    begun = (
        (w / delta).max()
        * float(delta @ np.asarray(first, float))
        / factors(contractions).theta.min()
    )
    return 2 * gap / (learning_rate * steps) + begun / steps


@ranges.validate("ef21.rate")
def rate(
    *,
    gap: float,
    contractions: Sequence[float],
    layers: Sequence[float],
    smoothness: float,
    first: Sequence[float],
    weights: Sequence[float],
) -> Rate:
    r"""Returns $\frac1K \big( \frac{2D}{\gamma} + \ldots \big)$, the rate at the largest step
    size.
    """
    numbers = {
        "contractions": contractions,
        "layers": layers,
        "smoothness": smoothness,
        "weights": weights,
    }
    return Rate(bound(**numbers, gap=gap, first=first, steps=1, learning_rate=step_size(**numbers)))


class Layered(NamedTuple):
    """A problem whose parameters are a dictionary of layers, with the constants that the theorem
    needs.

    Args:
        problem: the problem; its `evaluate` returns |f_i'|^2 of each layer, as `layer0_sqnorm`,
            `layer1_sqnorm`, ...
        sizes: d_i.
        layers: L_i.
        gap: D.
    """

    problem: Problem
    sizes: tuple[int, ...]
    layers: tuple[float, ...]
    gap: float


@cache
def _functions(sizes: tuple[int, ...], loss, sample):
    """Returns the functions of a layered problem. Equal layers yield the same function objects, so
    that the problem is compiled once.
    """
    cuts = [*np.cumsum(sizes)[:-1].tolist()]
    names = [f"layer{i}" for i in range(len(sizes))]

    def init(key):
        return dict(zip(names, jnp.split(jnp.zeros(sum(sizes)), cuts), strict=True))

    def loss_of_layers(params, batch):
        return loss(jnp.concatenate([params[name] for name in names]), batch)

    def evaluate(params, data, shared):
        value, slope = jax.value_and_grad(
            lambda params: jnp.mean(jax.vmap(loss_of_layers, (None, 0))(params, data))
        )(params)
        return {
            "loss": value,
            **{f"{name}_sqnorm": jnp.sum(slope[name] ** 2) for name in names},
        }, slope

    return init, loss_of_layers, evaluate, sample


def split_layers(problem: Problem, sizes: tuple[int, ...], layers: Sequence[float]) -> Layered:
    """Returns the same problem split into layers, with one worker, exact gradients, and 0 as the
    start.

    Args:
        problem: a problem whose parameters are one vector.
        sizes: d_i, which sum to d.
        layers: L_i.

    Raises:
        ValueError: if the sizes do not sum to d, their number differs from that of `layers`, or the
            problem has several workers.
    """
    d = jax.eval_shape(problem.init, jax.random.key(0)).shape[0]
    if sum(sizes) != d or len(sizes) != len(layers):
        raise ValueError(
            f"ef21.split_layers: sizes = {sizes} and {len(layers)} constants for {d} elements; "
            f"expected sizes that sum to {d}, and one constant for each"
        )
    if problem.workers != 1:
        raise ValueError(
            f"ef21.split_layers: {problem.name} has {problem.workers} workers: need one worker"
        )
    problem = instances.full_batch(problem)
    gap = instances.constants(problem).gap
    init, loss, evaluate, sample = _functions(sizes, problem.loss, problem.sample)
    made = problem._replace(
        init=init,
        loss=loss,
        evaluate=evaluate,
        sample=sample,
        constants=problem.constants._replace(minimizer=None),  # it is one vector
    )
    return Layered(made, sizes, tuple(layers), gap)


def stepping(learning_rate: Any, weights: Sequence[float]) -> optax.GradientTransformation:
    """Returns SGD in which layer i has the step size gamma w_i."""

    def scale(gradient, params=None):
        return {
            name: leaf * weights[int(name.removeprefix("layer"))] for name, leaf in gradient.items()
        }

    return optax.chain(optax.stateless(scale), optax.sgd(learning_rate))


@cache
def _factory(method: Method, up: Compressor, weights: tuple[float, ...]):
    """Returns a function learning_rate -> EF21 whose layers have the step sizes gamma w_i."""
    return lambda learning_rate: method(stepping(learning_rate, weights), up, compressors.identity)


def check(
    layered: Layered,
    up: Compressor,
    *,
    steps: int,
    weights: Sequence[float] | None = None,
    learning_rate: float | None = None,
    seeds: int = 1,
    seed: int = 0,
    method: Method = algorithms.ef21,
) -> Outcome:
    """Checks the bound against runs.

    Args:
        layered: a problem from `split_layers`.
        up: C, a contraction, applied to every layer.
        steps: K.
        weights: w_i; None: ones.
        learning_rate: gamma; None: the largest.
        seeds, seed: number of runs and their seed, for a random C.
        method: (optimiser, up, down) -> method; the default or a custom one.

    Raises:
        ValueError: if the problem's constants are unknown, or a hypothesis fails.
    """
    w = tuple(float(x) for x in ([1.0] * len(layered.sizes) if weights is None else weights))

    def run(gamma):
        problem, factory = layered.problem, _factory(method, up, w)
        history = runs.histories(
            factory, problem, steps=steps, learning_rates=[gamma], seeds=seeds, seed=seed
        )
        return {name: values if name == "step" else values[0] for name, values in history.items()}

    alphas = [constant_at(up.delta, size) or 0.0 for size in layered.sizes]
    return compare(layered, run, alphas, w, steps=steps, learning_rate=learning_rate, name=up.name)


def compare(
    layered: Layered,
    run: Callable[[float], dict[str, np.ndarray]],
    contractions: Sequence[float],
    weights: Sequence[float],
    *,
    steps: int,
    learning_rate: float | None,
    name: str,
) -> Outcome:
    """Checks the bound against any run whose compressors contract layer i by at least alpha_i.

    Args:
        layered: a problem from `split_layers`.
        run: gamma -> histories with a record of every round, `[seeds, steps + 1]`.
        contractions: alpha_i.
        weights: w_i.
        steps: K.
        learning_rate: gamma; None: the largest.
        name: description of the compressors.
    """
    problem, w = layered.problem, np.asarray(weights)
    L = float(problem.constants.smoothness or math.nan)
    numbers: Any = {
        "contractions": list(contractions),
        "layers": layered.layers,
        "smoothness": L,
        "weights": tuple(weights),
    }
    need("ef21", _contractions(contractions, weights))
    gamma = step_size(**numbers) if learning_rate is None else learning_rate
    need("ef21", hypotheses(**numbers, learning_rate=gamma))
    history = run(gamma)
    # [seeds, records, layers]
    squares = np.stack([history[f"layer{i}_sqnorm"] for i in range(len(w))], axis=-1)
    measured, error = runs.mean_and_error(squares[:, :steps] @ w)
    first = [
        (1 - alpha) * float(square)
        for alpha, square in zip(contractions, squares[0, 0], strict=True)
    ]
    right = bound(**numbers, gap=layered.gap, first=first, steps=steps, learning_rate=gamma)
    return Outcome(
        float(measured),
        right,
        float(error),
        f"{problem.name}, {name}, gamma L = {gamma * L:.3g}, K = {steps}",
    )


SIZES = (2, 6, 4)


def trial(draws: Draws) -> list[Outcome]:
    """Checks a random quadratic whose layers have different constants, or random non-convex
    wells.
    """
    up, weights, problem = draws.choice(TRIED)
    made, steps = problem(draws), draws.choice((1, 10, 1000))
    numbers = {
        "contractions": [constant_at(up.delta, size) for size in SIZES],
        "layers": made.layers,
        "weights": weights,
    }
    limit = step_size(**numbers, smoothness=float(made.problem.constants.smoothness or 0))
    gamma = draws.choice((None, draws.real(0.01, 1.0) * limit))
    seeds = runs.SEEDS if up.name.startswith("contraction") else 1
    return [
        check(
            made,
            up,
            steps=steps,
            weights=weights,
            learning_rate=gamma,
            seeds=seeds,
            seed=draws.integer(0, 10**6),
        )
    ]


def quadratic(draws: Draws) -> Layered:
    """Draws a quadratic whose diagonal blocks have different scales, coupled or not. L_i is the sum
    over the row of blocks: A <= diag(sum_j |A_ij|) in the positive semidefinite order.
    """
    coupled, flat = draws.real(0.0, 0.3), draws.choice((True, False))
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    d, ends = sum(SIZES), np.cumsum((0, *SIZES))
    scale = np.repeat(10 ** rng.uniform(-1, 1, len(SIZES)), SIZES)
    root = rng.normal(size=(d, d)) / math.sqrt(d)
    block = np.repeat(np.repeat(np.eye(len(SIZES)), SIZES, axis=0), SIZES, axis=1)
    spread = np.sqrt(scale)[:, None] * (block + coupled * (1 - block)) * root
    A = np.eye(d) if flat else spread @ spread.T + 1e-3 * np.diag(scale)
    parts = [[A[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] for j in range(3)] for i in range(3)]
    layers = [sum(float(np.linalg.norm(part, 2)) for part in row) for row in parts]
    problem = problems.quadratic(A[None], rng.normal(size=(1, d)) * np.sqrt(scale))
    return split_layers(problem, SIZES, layers)


def wells(draws: Draws) -> Layered:
    """Draws wells of one worker; every layer has the constant of the whole problem."""
    problem = instances.random_wells(draws, 1, sum(SIZES))
    return split_layers(problem, SIZES, [float(problem.constants.smoothness or 0)] * len(SIZES))


_TOP, _RANDOM = compressors.top_k(0.25), compressors.contraction(compressors.random_k(0.5))
TRIED = (
    (_TOP, (0.5, 1.0, 2.0), quadratic),
    (compressors.sign, (1.0, 1.0, 1.0), wells),
    (_RANDOM, (2.0, 1.0, 0.5), quadratic),
)
"""Contractions, weights w_i, and problems; each combination is compiled separately."""


def shrinking(left: float) -> Compressor:
    """Returns the linear contraction that omits this share of each difference."""
    return fixed_size(
        lambda key, x: (1 - left) * x,
        lambda message, d: message,
        f"shrinking({left})",
        delta=lambda d: 1 - left**2,
    )


SHRINKING = shrinking(0.02)
UNEQUAL = (0.5, 1.0, 2.0)


def bowl() -> Layered:
    """Returns a bowl with L_i = 1 / w_i for the weights `UNEQUAL`, so that the step sizes gamma w_i
    of all layers are the same multiple of 1 / L_i.
    """
    curvature = np.repeat(1 / np.asarray(UNEQUAL), SIZES)
    problem = problems.quadratic(np.diag(curvature)[None], np.ones((1, sum(SIZES))))
    return split_layers(problem, SIZES, [1 / w for w in UNEQUAL])


def bowls() -> list[Outcome]:
    """Checks a compressor that omits little, with which the bound is attained, and one that omits
    much.
    """
    return [
        check(bowl(), up, steps=steps, weights=UNEQUAL)
        for up, steps in ((SHRINKING, 20), (_TOP, 1000))
    ]


STATEMENTS = [
    Statement(
        "EF21, layer by layer",
        "Kimad, Theorem 1",
        "C contracts layers; gamma within (9)",
        trial,
        (bowls,),
    )
]
