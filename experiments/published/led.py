r"""LED: Alghunaim, "Local exact-diffusion for decentralized optimization and learning", 2024.

Published, in the abstract and the paper's theorems: with exact gradients and a constant step size
LED converges to the optimum with any number of local steps, and local steps reduce the
communication of stochastic gradients. The set-up is that of K-GT's reproduction, with $\zeta = 10$.
"""

from __future__ import annotations

import jax
import numpy as np
import optax

import algorithms
import dsgd
from experiments.published.local_steps import RING, fewest_rounds, local_dsgd, quadratics
from experiments.published.outcomes import Claim, Number, Outcome, Panel

TARGET, STEPS, RATE, EXACT = 2e-4, 8_000, 0.05, 4_000


@jax.enable_x64(True)
def led(quick: bool) -> Outcome:
    """Error against communication rounds with exact gradients, and local steps with noise."""
    periods = (1, 8) if quick else (1, 2, 4, 8)
    problem = quadratics(10.0)
    methods = {"LED": _led, "local DSGD": local_dsgd, "K-GT": _k_gt}
    lines, last, bits = {}, {}, {}
    for name, build in methods.items():
        for tau in periods[-2:]:
            history = dsgd.run(
                build(optax.sgd(RATE), tau),
                problem,
                steps=EXACT,
                record_every=tau,
                key=jax.random.key(0),
            ).history
            lines[f"{name}, τ = {tau}"] = (history["step"] / tau, history["distance"][None])
            last[name] = [*last.get(name, []), history["distance"][-1]]
            bits[name] = history["bits"][-1]
    noisy = quadratics(10.0, noise=1.0)
    rounds = np.array([fewest_rounds(_led, noisy, tau, TARGET, STEPS)[0] for tau in periods])
    rows = [
        Number(f"noise: rounds, τ = 1 / τ = {tau}", tau, factor, "theorem", tolerance=0.1)
        for tau, factor in zip(periods[1:], rounds[0] / rounds[1:], strict=True)
    ]
    return Outcome(
        [
            Claim("LED, last distance", "exact", last["LED"], "theorem", at_most=1e-20),
            Claim(
                "local DSGD, last distance", "biased", last["local DSGD"], "theorem", at_least=1e-4
            ),
            Number("bits, LED / K-GT", 0.5, bits["LED"] / bits["K-GT"], "from memory", None, 0.001),
            *rows,
        ],
        [Panel("communication rounds", r"$|\bar x - x^\star|^2$", lines)],
        "As published.",
    )


def _led(optimizer: optax.GradientTransformation, period: int) -> dsgd.Algorithm:
    return algorithms.local_exact_diffusion(optimizer, RING, period)


def _k_gt(optimizer: optax.GradientTransformation, period: int) -> dsgd.Algorithm:
    return algorithms.k_gt(optimizer, RING, period)
