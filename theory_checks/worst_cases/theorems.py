"""Exact worst cases next to the right-hand sides of the theorems, on the classes of functions of
these theorems, without noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import optax

import algorithms
import topologies
from algorithms import delays
from dsgd import Algorithm, compressors
from theory_checks import bounds
from theory_checks.statements import (
    asynchronous_sgd,
    compressed_linear,
    decentralized_sgd,
    ef21,
    gradient_tracking,
    local_sgd,
)
from theory_checks.worst_cases.analysis import WorstCase, worst_case
from theory_checks.worst_cases.classes import Smooth, Where
from theory_checks.worst_cases.measures import Measure

_ROUNDING = 1e-6  # relative accuracy of the solver
_GAP, _DISTANCE, _L, _MU, _SPREAD = 1.0, 1.0, 1.0, 0.1, 1.0
_RING = 8


class Comparison(NamedTuple):
    """The worst case of a class of functions, and the theorem's bound on it.

    Args:
        worst: the worst case.
        theorem: the right-hand side of the theorem.
        case: the instance in words.
    """

    worst: WorstCase
    theorem: float
    case: str

    @property
    def ratio(self) -> float:
        """Returns worst case / bound; 1 is tight."""
        return self.worst.value / self.theorem

    @property
    def holds(self) -> bool:
        """Whether the worst case satisfies the bound."""
        return self.ratio <= 1 + _ROUNDING


def _gradient_descent() -> Comparison:
    steps, gamma = 20, 0.5
    theorem = bounds.gradient_descent(gap=_GAP, smoothness=_L, steps=steps, learning_rate=gamma)
    functions = Smooth(L=_L, mu=-_L, gap=_GAP)
    method = algorithms.gradient_descent(optax.sgd(gamma))
    worst = worst_case(method, functions, steps=steps, measure="gradient", over="mean", workers=1)
    return Comparison(worst, theorem, f"gamma L = {gamma}, T = {steps}")


def _decentralized_sgd() -> Comparison:
    steps, ring = 10, topologies.ring(_RING)
    given = {"smoothness": _L, "noise": 0.0, "heterogeneity": _SPREAD, "workers": ring.n}
    gamma = decentralized_sgd.step_size(gap=_GAP, steps=steps, rho=ring.rho, **given)
    theorem = bounds.decentralized_sgd(
        gap=_GAP, steps=steps, rho=ring.rho, learning_rate=gamma, **given
    )
    method = algorithms.decentralized_sgd(optax.sgd(gamma), ring)
    return _path_comparison(method, theorem, steps, gamma, "average", ring.n)


def _consensus() -> Comparison:
    steps, gamma, ring = 10, 0.1, topologies.ring(_RING)
    theorem = bounds.consensus(
        smoothness=_L,
        noise=0.0,
        heterogeneity=_SPREAD,
        workers=ring.n,
        learning_rate=gamma,
        rho=ring.rho,
    )
    method = algorithms.decentralized_sgd(optax.sgd(gamma), ring)
    return _path_comparison(method, theorem, steps, gamma, "average", ring.n, "consensus")


def _local_sgd(measure: Measure = "gradient") -> Comparison:
    steps, period, N, gamma = 8, 2, 4, 0.25
    memory = local_sgd.memory(topologies.complete(N), period)
    given = {
        "smoothness": _L,
        "noise": 0.0,
        "heterogeneity": _SPREAD,
        "steps": steps,
        "memory": memory,
        "learning_rate": gamma,
    }
    theorem = (
        bounds.local_sgd(gap=_GAP, workers=N, **given)
        if measure == "gradient"
        else local_sgd.consensus(**given)
    )
    method = algorithms.local_sgd(optax.sgd(gamma), period)
    return _path_comparison(method, theorem, steps, gamma, "path", N, measure)


def _path_comparison(
    method: Algorithm,
    theorem: float,
    steps: int,
    gamma: float,
    where: Where,
    N: int,
    measure: Measure = "gradient",
) -> Comparison:
    """Returns the comparison for the class with heterogeneity bounded at the models."""
    functions = Smooth(L=_L, mu=-_L, gap=_GAP, heterogeneity=_SPREAD, where=where)
    worst = worst_case(method, functions, steps=steps, measure=measure, over="mean", workers=N)
    return Comparison(worst, theorem, f"N = {N}, gamma L = {gamma:.3g}, T = {steps}")


def _asynchronous_sgd() -> Comparison:
    steps, staleness = 10, 2
    gamma = asynchronous_sgd.largest_step(smoothness=_L, staleness=staleness)
    theorem = bounds.asynchronous_sgd(
        gap=_GAP,
        smoothness=_L,
        noise=0.0,
        steps=steps,
        staleness=staleness,
        learning_rate=gamma,
    )
    method = algorithms.asynchronous_sgd(optax.sgd(gamma), delays.constant(staleness))
    functions = Smooth(L=_L, mu=-_L, gap=_GAP)
    worst = worst_case(method, functions, steps=steps, measure="gradient", over="mean", workers=1)
    return Comparison(
        worst, theorem, f"equal workers, tau = {staleness}, gamma L = {gamma:.3g}, T = {steps}"
    )


def _ef21() -> Comparison:
    steps, delta = 10, 0.5
    given = {"contractions": [delta], "layers": [_L], "smoothness": _L, "weights": [1.0]}
    gamma = ef21.step_size(**given)
    # The estimate of the gradient starts at 0, and |f'(x_0)|^2 <= 2 L D.
    theorem = bounds.ef21(
        gap=_GAP, first=[2 * _L * _GAP], steps=steps, learning_rate=gamma, **given
    )
    worst = worst_case(
        lambda compressor: algorithms.ef21(optax.sgd(gamma), compressor, compressors.identity),
        Smooth(L=_L, mu=-_L, gap=_GAP),
        steps=steps,
        measure="gradient",
        over="mean",
        workers=1,
        delta=delta,
    )
    return Comparison(worst, theorem, f"delta = {delta}, gamma L = {gamma:.3g}, K = {steps}")


def _ef21_linear() -> Comparison:
    steps, delta = 10, 0.9
    given = {
        "smoothness": _L,
        "rms_smoothness": _L,
        "residual": 1 - delta,
        "mean_residual": 1 - delta,
    }
    gamma = bounds.ef_bv_step(**given)
    factor = bounds.ef_bv(strong_convexity=_MU, learning_rate=gamma, **given)
    # The estimate of the gradient starts at 0, and |f'(x_0)|^2 <= 2 L D.
    b = compressed_linear.weight(gamma, compressed_linear.Residuals(1 - delta, 1 - delta))
    theorem = factor**steps * (_GAP + b * 2 * _L * _GAP)
    worst = worst_case(
        lambda compressor: algorithms.ef21(optax.sgd(gamma), compressor, compressors.identity),
        Smooth(L=_L, mu=_MU, gap=_GAP),
        steps=steps,
        measure="gap",
        workers=1,
        delta=delta,
    )
    case = f"mu / L = {_MU}, delta = {delta}, gamma L = {gamma:.3g}, T = {steps}"
    return Comparison(worst, theorem, case)


def _gradient_tracking() -> Comparison:
    steps, ring = 10, topologies.ring(_RING)
    given = {"smoothness": _L, "strong_convexity": _MU, "topology": ring}
    gamma = gradient_tracking.largest_step(**given) / 2
    functions = Smooth(L=_L, mu=_MU, distance=_DISTANCE, heterogeneity=_SPREAD)
    M = gradient_tracking.contraction(learning_rate=gamma, **given)
    # In units of sqrt(N): the trackers start at gradients, which differ by at most varsigma + L D.
    z = np.linalg.matrix_power(M, steps) @ [_SPREAD + _L * _DISTANCE, 0.0, _DISTANCE]
    theorem = float(z[2]) ** 2
    worst = worst_case(
        algorithms.gradient_tracking(optax.sgd(gamma), ring),
        functions,
        steps=steps,
        measure="distance",
    )
    return Comparison(worst, theorem, f"N = {ring.n}, gamma L = {gamma:.3g}, T = {steps}")


COMPARISONS: dict[str, Callable[[], Comparison]] = {
    "GD": _gradient_descent,
    "DSGD, non-convex": _decentralized_sgd,
    "DSGD, consensus, exact": _consensus,
    "local SGD": _local_sgd,
    "local SGD, consensus": lambda: _local_sgd("consensus"),
    "ASGD, non-convex": _asynchronous_sgd,
    "EF21, layer by layer": _ef21,
    "EF21, linear, exact": _ef21_linear,
    "gradient tracking, linear": _gradient_tracking,
}
"""Comparisons by the name of the statement."""
