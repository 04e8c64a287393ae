r"""DropCompute's published approximations of the expected speedup, for normally distributed times;
`dropcompute.expected_effect` is the exact expectation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtri

from algorithms import dropcompute
from algorithms.dropcompute.stopping import Stop
from theory_checks.machinery.statement import Misprint, Outcome, both


def equation_4(mean: float, std: float, micro_batches: int, workers: Any) -> Any:
    r"""Returns the approximate seconds of the slowest of N workers without a threshold.

    $$ \mathbb E T \approx M \mu + \sqrt M \sigma \Big((1 - \gamma) \Phi^{-1}\Big(1 - \frac1N\Big) +
    \gamma\, \Phi^{-1}\Big(1 - \frac1{eN}\Big)\Big) \quad (4) $$

    with Euler's $\gamma$. The factor of $\sqrt M \sigma$ is 8% too small at N = 2, 2.5% too large
    at N = 5 to 8, and within 1% for N >= 81.

    Args:
        mean, std: mu and sigma of a micro-batch, seconds.
        micro_batches: M.
        workers: N, at least 2 (it is infinite for 1), an integer or an array.
    """
    N, gamma = np.asarray(workers), np.euler_gamma
    quantiles = (1 - gamma) * ndtri(1 / N) + gamma * ndtri(1 / (np.e * N))
    return micro_batches * mean - np.sqrt(micro_batches) * std * quantiles


def equation_11(
    mean: float,
    std: float,
    micro_batches: int,
    workers: Any,
    thresholds: Any,
    communication: float = 0.0,
    stop: Stop = "preempt",
    *,
    step_time: Any = None,
) -> Any:
    r"""Returns the approximate speedup, for an $\mathbb E T$ whose distribution is unknown.

    $$ \frac{\mathbb E \tilde M(\tau)}{M} \cdot \frac{\mathbb E T + T^c}{\min(\tau, \mathbb E T) +
    T^c} \quad (11) $$

    With "between" the expected time above tau is added to tau.

    Args:
        mean, std, micro_batches, workers, thresholds, communication, stop: see
            `dropcompute.expected_effect`.
        step_time: E T, seconds without communication, for example measured; None: `equation_4`.

    Departure: the paper prints E T instead of E T + T^c in the numerator, with communication
    included in E T (equation 12), which min() then counts twice: `communication_twice`.
    """
    model, others = (mean, std, micro_batches, workers), (thresholds, communication)
    whole = equation_4(*model) if step_time is None else step_time
    effect = dropcompute.expected_effect(*model, *others, stop)
    preempted = dropcompute.expected_effect(*model, *others).step_time
    step = np.minimum(np.asarray(thresholds) + effect.step_time - preempted, whole)
    return (1 - effect.drop_rate) * (whole + communication) / (step + communication)


def communication_twice() -> tuple[Outcome, Outcome]:
    """Evaluates both forms of equation 11 without a threshold, where the speedup is 1."""
    T_c, model = 2.0, (1.0, 0.3, 12, 64)
    whole = equation_4(*model) + T_c  # equation 12: E T includes T^c
    printed = whole / (min(np.inf, whole) + T_c)
    corrected = float(equation_11(*model, np.inf, T_c))
    return both(1.0, float(printed), corrected, equality=True)


MISPRINTS = [
    Misprint(
        "DropCompute, (11), (12)",
        "E T / (min(tau, E T) + T^c), T^c in E T",
        "T^c not in E T, and E T + T^c",
        "12 normal micro-batches, no threshold",
        communication_twice,
    ),
]
