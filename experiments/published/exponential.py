r"""Exponential graphs: Ying, Yuan, Chen, Hu, Pan, Yin, "Exponential graph is provably efficient
for decentralized deep training", 2021.

Published: the paper's theorems. The spectral gap of the static graph is $2 / (1 + \lceil \log_2 n
\rceil)$ for even n and larger for odd n. The one-peer graph has the exact mean after $\log_2 n$
rounds if n is a power of 2, and after no finite number of rounds otherwise.
"""

from __future__ import annotations

import numpy as np

import topologies
from experiments.published.consensus import errors
from experiments.published.outcomes import Claim, Number, Outcome, Panel

EVEN, ODD, POWERS, OTHERS = (6, 24, 48, 300), (7, 33, 99), (4, 16, 64, 256), (6, 24, 48)
ROUNDS = 20


def exponential_gap(quick: bool) -> Outcome:
    """The spectral gap of the static exponential graph."""
    sizes = np.arange(4, 65 if quick else 129)
    gaps = {n: topologies.exponential(n).spectral_gap for n in [*sizes, *EVEN, *ODD]}
    stated = {n: 2 / (1 + np.ceil(np.log2(n))) for n in gaps}
    rows: list[Number | Claim] = [
        Number(f"gap, n = {n}", stated[n], gaps[n], "theorem", tolerance=1e-9) for n in EVEN
    ]
    larger = [gaps[n] / stated[n] for n in ODD]
    rows.append(Claim(f"gap / stated, n = {ODD}", "larger for odd n", larger, "theorem", 1 + 1e-9))
    curve = np.array([[gaps[n] for n in sizes]])
    published = {"exponential": (EVEN[:3], [stated[n] for n in EVEN[:3]])}
    ring = np.array([[topologies.ring(n).spectral_gap for n in sizes.tolist()]])
    lines = {"exponential": (sizes, curve), "ring": (sizes, ring)}
    return Outcome(
        rows, [Panel("workers n", r"$1 - \rho$", lines, published, "xy")], "As published."
    )


def exponential_one_peer(quick: bool) -> Outcome:
    """The one-peer exponential graph: exact means after a finite number of rounds."""
    lines = {
        f"n = {n}": (
            np.arange(ROUNDS + 1),
            errors(topologies.one_peer_exponential(n), ROUNDS)[None],
        )
        for n in sorted(POWERS + OTHERS)
    }

    def relative(n, t):
        error = lines[f"n = {n}"][1][0]
        return error[t] / error[0]

    exact = [relative(n, n.bit_length() - 1) for n in POWERS]
    before = [relative(n, n.bit_length() - 2) for n in POWERS]
    never = [relative(n, -1) for n in OTHERS]
    what = "relative error, round"
    return Outcome(
        [
            Claim(f"{what} log2(n)", "0 up to rounding", exact, "theorem", at_most=1e-15),
            Claim(f"{what} log2(n) - 1", "not 0", before, "theorem", at_least=1e-3),
            Claim(f"{what} {ROUNDS}, other n", "not 0", never, "theorem", at_least=1e-10),
        ],
        [Panel("rounds", r"$|x - \bar x|$", lines)],
        "As published.",
    )
