r"""K-GT: Liu, Lin, Koloskova, Stich, "Decentralized gradient tracking with local steps", 2024.

Published, in the abstract: local steps reduce the communication asymptotically by the factor K,
and, as in gradient tracking, the convergence does not depend on the data's heterogeneity. The
set-up is ours: quadratics with $L = 1$, $\mu \geq 0.1$ and gradient noise $\sigma^2 = 1$ on a lazy
ring of 8 workers, $\zeta^2 = \frac1n \sum_i |f_i'(x^\star)|^2$, and the best of 13 step sizes.
"""

from __future__ import annotations

import jax
import numpy as np

import algorithms
from experiments.published.local_steps import RING, fewest_rounds, local_dsgd, quadratics
from experiments.published.outcomes import Claim, Number, Outcome, Panel

TARGET, STEPS = 2e-4, 8_000


@jax.enable_x64(True)
def k_gt(quick: bool) -> Outcome:
    """Communication rounds against local steps, for homogeneous and heterogeneous data."""
    periods = (1, 8) if quick else (1, 2, 4, 8)
    cases = {
        "K-GT, ζ = 0": (lambda optimizer, K: algorithms.k_gt(optimizer, RING, K), 0.0),
        "K-GT, ζ = 10": (lambda optimizer, K: algorithms.k_gt(optimizer, RING, K), 10.0),
        "local DSGD, ζ = 0": (local_dsgd, 0.0),
        "local DSGD, ζ = 3": (local_dsgd, 3.0),
    }
    rounds = {}
    for name, (build, zeta) in cases.items():
        problem = quadratics(zeta, noise=1.0)
        rounds[name] = [fewest_rounds(build, problem, K, TARGET, STEPS)[0] for K in periods]
    same, different, _, drift = map(np.array, rounds.values())
    rows = [
        Number(f"rounds, K = 1 / K = {K}, ζ = 10", K, factor, "paper's text", tolerance=0.1)
        for K, factor in zip(periods[1:], different[0] / different[1:], strict=True)
    ]
    return Outcome(
        [
            *rows,
            Claim(
                "K-GT, rounds, ζ = 10 / ζ = 0", "equal", different / same, "paper's text", 0.9, 1.1
            ),
            Claim(
                f"local DSGD, ζ = 3: rounds, K = {periods[-1]} / K-GT",
                "depends on ζ",
                drift[-1] / different[-1],
                "from memory",
                at_least=2,
            ),
        ],
        [
            Panel(
                "local steps K",
                f"rounds to a gap of {TARGET:g}",
                {name: (periods, [found]) for name, found in rounds.items()},
                log="xy",
            )
        ],
        "At larger targets the factor is smaller, since the corrections have to be found first.",
    )
