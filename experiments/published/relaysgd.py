r"""RelaySGD: Vogels et al., "RelaySum for decentralized deep learning on heterogeneous data", 2021.

Worker i has $|A_i x - b_i|^2$ in 10 dimensions and the gradient $A_i^T(A_i x - b_i)$, where the
singular values of $A_i$ are equally spaced from 0.5 to 1, $|x^*| = r_0$ and x starts at 0;
$\zeta^2$ is the mean squared gradient of the workers at $x^*$. Step sizes are bisected to the
fewest steps to $f(\bar x) - f^* \le 10^{-6}$ by the rule in the authors' code: the gap is read at
about 600 steps, and must not rise before. That of gossip (decentralized SGD), which has a bias, is
bisected to a plateau at $10^{-6}$. Gradient tracking adapts, then combines; SGP averages twice per
step; the W of D2 has the eigenvalue -1/3.

Published values are stored outputs of the notebooks in paper-figures of the authors' repository:
for figure 2 medians and ranges over 10 seeds (gossip: 6 or 7), for the others one seed. Ours are
over 10 other random problems.
"""

from __future__ import annotations

import jax
import networkx as nx
import numpy as np

import algorithms
import dsgd
import topologies
from dsgd import problems
from experiments.published.outcomes import Claim, Number, Outcome, Panel, Source
from experiments.published.searches import Bisection
from experiments.shared.studies import with_sgd

OUTPUTS: Source = "authors' outputs"
GAP = 0.5e-6  # of our f, which has the factor 1/2
GAP_LABEL = r"gap $f(\bar x) - f^*$"
FASTEST = Bisection(20, 10_000, GAP)  # of figures 7 and 8
SIZES = (6, 12, 24, 48, 96)
GOSSIP = "gossip, ring (r₀ = 10)"
FIGURE_2 = {  # case, zeta^2: median, smallest and largest number of steps for each size
    ("RelaySGD, chain", 1): "21 19 23  38 36 40  70.5 65 74  128 122 133  244 238 248",
    ("RelaySGD, tree", 1): "15 14 17  21 20 22  27 25 28  33 32 35  36.5 34 38",
    ("D2, ring", 1): "19 18 26  45 36 52  72.5 57 110  208.5 103 236  205 193 268",
    ("tracking, ring", 1): "49 47 51  197 191 211  711.5 575 774  2596 2107 2865  7956.5 5967 9699",
    ("tracking, tree", 1): "158.5 130 170  404 375 444  885.5 790 963  1745 1565 1927  "
    "3259.5 2700 3782",
    ("all-reduce", 1): "9 8 10  7 7 9  7 6 8  6 6 7  6 5 6",
    ("SGP, exponential", 1): "1031.5 458 1798  1111.5 687 1780  535 320 1002  572 290 782  "
    "338.5 271 431",
    ("SGP, exponential", 0.01): "109.5 40 162  98 65 173  37.5 27 95  42 18 59  20.5 15 31",
    (GOSSIP, 0.01): "276 201 391  616 458 1222  1362 526 1678  1303.5 201 3708",
    (GOSSIP, 0.1): "963 687 1349  2149 1628 4135  5143 2469 6524  7955 2005 15303",
}
UNAFFECTED = ("RelaySGD, chain", "RelaySGD, tree", "D2, ring")  # by zeta^2
STEPS_7 = {  # by zeta^2 = 0, 0.1, 10
    "RelaySGD": (51, 51, 54),
    "D2": (18, 34, 54),
    "tracking": (10, 301, 641),
    "gossip": (13, 1469, 19818),
}
GAPS_7 = {  # after 2,000 steps with noise
    "RelaySGD": (8.09e-7, 9.53e-7, 2.54e-7),
    "D2": (9.81e-7, 1.197e-6, 1.258e-6),
    "tracking": (9.91e-7, 6.32e-7, 5.21e-7),
    "gossip": (8.03e-7, 1.262e-6, 0.0990),
}
STEPS_8 = {  # by zeta^2 = 0, 0.01, 0.1
    "RelaySGD": (8, 8, 8),
    "D2": (65, 65, 65),
    "tracking": (9, 280, 295),
}


def quadratics(n: int, zeta2: float, r0: float, seed: int, noise: float = 0.0) -> dsgd.Problem:
    """Returns random quadratics of n workers."""
    spectrum = np.linspace(0.5, 1, 10) ** 2
    return problems.random_quadratic(
        n,
        10,
        spectrum=spectrum,
        heterogeneity=float(np.sqrt(zeta2)),
        distance=float(r0),
        noise=noise,
        seed=seed,
    )


def cases(n: int) -> dict:
    """Returns the methods of figure 2 for n workers."""
    ring = topologies.ring(n)
    tree = topologies.from_graph(nx.Graph([(k, k // 2) for k in range(1, n)]))
    d = int(np.log2(n - 1)) + 1
    once = [(np.eye(n) + np.roll(np.eye(n), 2**i, axis=0)) / 2 for i in range(d)]
    twice = [once[(2 * i + 1) % d] @ once[2 * i % d] for i in range(d)]
    return {
        "RelaySGD, chain": with_sgd(algorithms.relay_sgd, topologies.chain(n)),
        "RelaySGD, tree": with_sgd(algorithms.relay_sgd, tree),
        "D2, ring": with_sgd(algorithms.d2, ring, allow_unproven=True),
        "tracking, ring": with_sgd(algorithms.atc_tracking, ring),
        "tracking, tree": with_sgd(algorithms.atc_tracking, tree),
        "all-reduce": with_sgd(algorithms.minibatch_sgd),
        "SGP, exponential": with_sgd(algorithms.decentralized_sgd, topologies.from_matrix(twice)),
        GOSSIP: with_sgd(algorithms.decentralized_sgd, ring),
    }


def steps_of_figure_2(case: str, build, n: int, zeta2: float, seeds: int) -> list[float]:
    """Returns the fewest steps of each seed."""
    search = Bisection(20 if "SGP" in case else 200, 20_000, GAP)
    if case == GOSSIP:
        made = (quadratics(n, zeta2, 10, seed) for seed in range(seeds))
        return [search.plateau(build, problem)[0] for problem in made]
    made = (quadratics(n, zeta2, 100, seed) for seed in range(seeds))
    return [search.fewest(build, problem)[0] for problem in made]


@jax.enable_x64(True)
def relaysgd_2(quick: bool) -> Outcome:
    """Figure 2: steps to a gap of 1e-6 against the number of workers, r₀ = 100."""
    sizes, seeds = (SIZES[:3], 2) if quick else (SIZES, 10)
    keys = dict.fromkeys([*FIGURE_2, *((case, 0.01) for case in UNAFFECTED)])
    published = {
        key: np.array(FIGURE_2.get(key, "").split(), float).reshape(-1, 3)[: len(sizes)]
        for key in keys
    }
    found = {key: np.full((len(sizes), seeds), np.nan) for key in keys}
    for i, n in enumerate(sizes):
        methods = cases(n)
        for case, zeta2 in keys:
            if case != GOSSIP or n < 96:
                steps = steps_of_figure_2(case, methods[case], n, zeta2, seeds)
                found[case, zeta2][i] = steps
    rows: list[Number | Claim] = [
        Number(f"{case}, ζ² = {zeta2}, n = {n}", middle, ours, OUTPUTS, (low, high))
        for (case, zeta2), numbers in published.items()
        for n, (middle, low, high), ours in zip(sizes, numbers, found[case, zeta2], strict=False)
    ]
    for case in UNAFFECTED:
        ratios = (found[case, 1] / found[case, 0.01]).ravel()
        rows.append(Claim(f"{case}: steps for ζ² = 1 / 0.01", "1", ratios, OUTPUTS, 0.9, 1.1))
    panels = []
    for zeta2 in (1, 0.01):
        shown = [
            (case, found.get((case, zeta2), np.full((len(sizes), 1), np.nan))) for case in cases(6)
        ]
        lines = {case: (sizes, steps.T) for case, steps in shown}
        circles = {
            case: (sizes[: len(p)], p[:, 0]) for (case, z), p in published.items() if z == zeta2
        }
        panels.append(
            Panel(
                "workers n",
                "steps to a gap of $10^{-6}$",
                lines,
                circles,
                "xy",
                f"$\\zeta^2 = {zeta2}$",
            )
        )
    return Outcome(
        rows,
        panels,
        "The random problems are other draws. D2: bisections end at different step sizes, so that "
        "n = 48 has 107 to 220 steps, and some differ between ζ² = 0.01 and 1. SGP's medians for "
        "ζ² = 0.01 are up to 1.5 times the published ones, within the ranges; no reason was found.",
    )


def tuned(methods: dict, published: dict, zetas: tuple, seeds: int) -> tuple[list, dict]:
    """Returns rows of the fewest steps on quadratics of 32 workers with r₀ = 1, and the step sizes
    by method and zeta^2, `[seeds]`.
    """
    rows, rates = [], {}
    for case, numbers in published.items():
        search = Bisection(20, 70_000, GAP).plateau if case == "gossip" else FASTEST.fewest
        for zeta2, number in zip(zetas, numbers, strict=True):
            made = (quadratics(32, zeta2, 1, seed) for seed in range(seeds))
            found, rates[case, zeta2] = np.transpose(
                [search(methods[case], problem) for problem in made]
            )
            rows.append(Number(f"{case}, ζ² = {zeta2}: steps", number, found, OUTPUTS))
    return rows, rates


def curves(build, problem: dsgd.Problem, rate: float, steps: int, seed: int) -> np.ndarray:
    """Returns the gap in the authors' scale at each 20th step; infinite if there is no rate."""
    if np.isnan(rate):
        return np.full(steps // 20 + 1, np.inf)
    key = jax.random.key(seed)
    swept = dsgd.sweep(
        build, problem, steps=steps, key=key, record_every=20, learning_rate=[float(rate)]
    )
    return 2 * swept.history["gap"][0, 0]


@jax.enable_x64(True)
def relaysgd_7(quick: bool) -> Outcome:
    """Figure 7: tuned step sizes, and the gap with noise, on a ring or chain of 32 workers."""
    seeds, steps = (2, 2_000) if quick else (10, 2_000)
    ring, W = topologies.ring(32), np.eye(32) * (1 / 3 + 0.02)
    W += (1 / 3 - 0.01) * (np.roll(np.eye(32), 1, axis=0) + np.roll(np.eye(32), -1, axis=0))
    slower = topologies.from_matrix(W)
    methods = {
        "RelaySGD": with_sgd(algorithms.relay_sgd, topologies.chain(32)),
        "D2": with_sgd(algorithms.d2, ring, allow_unproven=True),
        "tracking": with_sgd(algorithms.atc_tracking, ring),
        "gossip": with_sgd(algorithms.decentralized_sgd, ring),
    }
    with_noise = methods | {
        "D2": with_sgd(algorithms.d2, slower),
        "tracking": with_sgd(algorithms.atc_tracking, slower),
    }
    zetas = (0, 0.1, 10)
    rows, rates = tuned(methods, STEPS_7, zetas, seeds)
    gaps: dict[tuple, list] = {}
    for (case, zeta2), found in rates.items():
        # The authors draw curves with half of the step size, at most 0.02 or 0.2.
        most = 0.2 if case == "RelaySGD" else 0.02
        chosen = np.minimum(found if case == "gossip" else found / 2, most)
        gaps[case, zeta2] = [
            curves(with_noise[case], quadratics(32, zeta2, 1, seed, 0.05), rate, steps, seed)
            for seed, rate in enumerate(chosen)
        ]
    rows += [
        Number(f"{case}, ζ² = {z}: gap", number, np.transpose(gaps[case, z])[-1], OUTPUTS)
        for case, numbers in GAPS_7.items()
        for z, number in zip(zetas, numbers, strict=True)
    ]
    at = np.arange(0, steps + 1, 20)
    panels = [
        Panel("steps", GAP_LABEL, {case: (at, gaps[case, z]) for case in GAPS_7}, title=f"ζ² = {z}")
        for z in zetas
    ]
    return Outcome(
        rows,
        panels,
        "One problem is published, on which W's slow modes are weak: in the outputs of figure 2, "
        "gossip takes 1,834 to 9,049 steps for 32 workers and ζ² = 0.1. Last gaps are those of one "
        "draw of the noise.",
    )


@jax.enable_x64(True)
def relaysgd_8(quick: bool) -> Outcome:
    """Figure 8: RelaySGD, D2 and gradient tracking on a star of 32 workers."""
    star, seeds = topologies.star(32), 2 if quick else 10
    methods = {
        "RelaySGD": with_sgd(algorithms.relay_sgd, star),
        "D2": with_sgd(algorithms.d2, star),
        "tracking": with_sgd(algorithms.atc_tracking, star),
    }
    zetas = (0, 0.01, 0.1)
    rows, rates = tuned(methods, STEPS_8, zetas, seeds)
    for zeta2 in zetas:
        made = (quadratics(32, zeta2, 1, seed) for seed in range(seeds))
        ours = [FASTEST.steps(methods["D2"], problem, 0.15625) for problem in made]
        rows.append(Number(f"D2 with the authors' step size, ζ² = {zeta2}", 65, ours, OUTPUTS))
    at = np.arange(0, 201, 20)
    panels = []
    for zeta2 in zetas:
        lines = {
            case: (
                at,
                [
                    curves(build, quadratics(32, zeta2, 1, seed), rate / 2, 200, seed)
                    for seed, rate in enumerate(rates[case, zeta2])
                ],
            )
            for case, build in methods.items()
        }
        panels.append(Panel("steps", GAP_LABEL, lines, title=f"ζ² = {zeta2}"))
    return Outcome(
        rows,
        panels,
        "One problem is published. For D2 our bisection accepts step sizes of 0.17 to 0.2, which "
        "are faster than the authors' 0.15625: the smaller numbers come from the search.",
    )
