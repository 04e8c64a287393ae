r"""ProxSkip on graphs: Mishchenko, Malinovsky, Stich, Richtárik, "ProxSkip: yes! Local gradient
steps provably lead to communication acceleration! Finally!", 2022; Guo, Alghunaim, Yuan, Condat,
Cao, "Revisiting decentralized ProxSkip: achieving linear speedup", 2023.

Published: the theorem's rate $\min(\gamma \mu, p^2 \frac{1 - \lambda_2}{2})$ with step size
$\gamma$ and the probability p of communication. The number of steps thus does not depend on p down
to $p_0 = \sqrt{2 \gamma \mu / (1 - \lambda_2)}$, and that of communication rounds falls in
proportion to p. The set-up is ours: quadratics with $\kappa = 500$ on a lazy ring of 8 workers.
"""

from __future__ import annotations

import jax
import numpy as np
import optax

import algorithms
import dsgd
from dsgd import problems
from experiments.published.local_steps import RING
from experiments.published.outcomes import Claim, Number, Outcome, Panel

CURVATURE, TARGET, EVERY = 0.002, 1e-10, 20


@jax.enable_x64(True)
def prox_skip(quick: bool) -> Outcome:
    """Steps and communication rounds against the probability of communication."""
    best = float(np.sqrt(2 * CURVATURE / (1 - RING.second_eigenvalue)))
    factors = (1 / best, 2, 1, 0.5) if quick else (1 / best, 3, 2, 1.5, 1, 0.7, 0.5)
    problem = problems.random_quadratic(8, 20, strong_convexity=CURVATURE, equal_hessians=True)
    found = dsgd.sweep(
        lambda probability: algorithms.prox_skip(optax.sgd(1.0), RING, probability),
        problem,
        steps=24_000,
        key=jax.random.key(0),
        seeds=2 if quick else 5,
        record_every=EVERY,
        probability=best * np.array(factors),
    )
    error = found.history["distance"] + found.history["consensus"]
    reached = error <= TARGET * error[..., :1]
    first = np.where(reached.any(axis=-1), reached.argmax(axis=-1), -1)  # [probabilities, seeds]
    steps = np.where(first >= 0, EVERY * first, np.inf)
    sent = np.take_along_axis(found.history["communications"], first[..., None], axis=-1)[..., 0]
    rounds = np.where(first >= 0, sent, np.inf)
    rows: list[Number | Claim] = []
    for i, factor in enumerate(factors[1:], start=1):
        what = f"p = {factor:g} p0"
        if factor >= 1:
            ratio = steps[i] / steps[0]
            rows.append(
                Number(f"{what}: steps / those with p = 1", 1, ratio, "theorem", None, 0.05)
            )
            fewer = rounds[i] / rounds[0]
            rows.append(Number(f"{what}: rounds", factor * best, fewer, "theorem", None, 0.05))
    more = rounds[-1] / rounds[factors.index(1)]
    rows.append(Claim("rounds, p = p0/2 / p = p0", "p0 is best", more, "theorem", at_least=1))
    lines = {
        "steps": (best * np.array(factors), steps.T),
        "rounds": (best * np.array(factors), rounds.T),
    }
    y = f"to an error of {TARGET:g} (relative)"
    return Outcome(rows, [Panel("probability p", y, lines, log="xy")], f"Here p0 = {best:.3f}.")
