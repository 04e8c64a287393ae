r"""RelaySGD: Vogels et al., "RelaySum for decentralized deep learning on heterogeneous data", 2021.

Published values are stored outputs of the notebooks in paper-figures of the authors' repository:
for figure 2 medians and ranges over 10 seeds, for figure 8 numbers of one seed.

Worker i has $|A_i x - b_i|^2$ in 10 dimensions and the gradient $A_i^T(A_i x - b_i)$, where the
singular values of $A_i$ are equally spaced from 0.5 to 1, $|x^*| = r_0$ and x starts at 0;
$\zeta^2$ is the mean squared gradient of the workers at $x^*$. The gap $f(\bar x) - f^*$ is read at
about 600 steps, equally spaced on a logarithmic axis. A step size is rejected if the gap rises
before it is at most $10^{-6}$; the best of the others takes the fewest steps. The authors bisect
step sizes, and store half of the best one; here a grid is refined twice.
"""

from __future__ import annotations

import jax
import numpy as np

import algorithms
import dsgd
import topologies
from dsgd import problems
from experiments.published.outcomes import Number, Outcome, Panel
from experiments.published.searches import fewest_steps
from experiments.shared.studies import with_sgd

TARGET, DIMENSION, RATES = 1e-6, 10, np.geomspace(0.0005, 2, 16)
READ = np.unique(np.geomspace(1, 20_000, 1_000).round().astype(int))  # steps
GAP = "steps to $f(\\bar x) - f^* \\leq 10^{-6}$"
FIGURE_8 = {  # method: steps to the target for zeta^2 = 0, 0.01, 0.1
    "RelaySGD": (8, 8, 8),
    "D2": (65, 65, 65),
    "gradient tracking": (9, 280, 295),
}


def quadratics(n: int, zeta2: float, r0: float, seed: int) -> dsgd.Problem:
    """Returns random quadratics of n workers."""
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(n, DIMENSION, DIMENSION)))
    H = np.einsum("nij,j,nkj->nik", Q, np.linspace(0.5, 1, DIMENSION) ** 2, Q)
    optima = rng.normal(size=(n, DIMENSION))
    x = np.linalg.solve(H.sum(axis=0), np.einsum("nij,nj->i", H, optima))
    gradients = np.einsum("nij,nj->ni", H, x - optima)
    gradients *= np.sqrt(zeta2 / np.mean(np.sum(gradients**2, axis=1)))
    x = rng.normal(size=DIMENSION)
    return problems.quadratic(H, H @ (r0 * x / np.linalg.norm(x)) - gradients)


def first_below(history: dict[str, np.ndarray]) -> float:
    """Returns the steps to the target; infinite if the gap rises before it."""
    gap = 2 * history["gap"][0]  # ours has the factor 1/2
    read = READ[: np.searchsorted(READ, len(gap))]
    below = np.flatnonzero(gap[read] <= TARGET)
    falls = below.size and not np.any(np.diff(gap[read][: below[0] + 1]) > 0)
    return float(read[below[0]]) if falls else np.inf


def fewest(build, n: int, zeta2: float, r0: float, seeds: int) -> list[float]:
    """Returns the fewest steps to the target for each seed."""
    made = (quadratics(n, zeta2, r0, seed) for seed in range(seeds))
    return [fewest_steps(build, problem, first_below, RATES, 16_384)[0] for problem in made]


@jax.enable_x64(True)
def relaysgd_8(quick: bool) -> Outcome:
    """Figure 8: RelaySGD, D2 and gradient tracking on a star of 32 workers."""
    star = topologies.star(32)
    cases = {
        "RelaySGD": with_sgd(algorithms.relay_sgd, star),
        "D2": with_sgd(algorithms.d2, star),
        "gradient tracking": with_sgd(algorithms.atc_tracking, star),
    }
    seeds, zetas = 2 if quick else 10, (0, 0.01, 0.1)
    found = {
        name: [fewest(build, 32, zeta2, 1, seeds) for zeta2 in zetas]
        for name, build in cases.items()
    }
    rows = [
        Number(f"{name}, zeta^2 = {zeta2:g}: steps", published, ours, "authors' outputs")
        for name, values in FIGURE_8.items()
        for zeta2, published, ours in zip(zetas, values, found[name], strict=True)
    ]
    lines = {name: (zetas, np.transpose(ours)) for name, ours in found.items()}
    circles = {name: (zetas, values) for name, values in FIGURE_8.items()}
    panel = Panel("$\\zeta^2$", GAP, lines, circles)
    return Outcome(rows, [panel], "One seed is published, so its number may be outside our range.")
