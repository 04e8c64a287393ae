r"""EquiTopo: Song, Li, Jin, Shi, Yan, Yin, Yuan, "Communication-efficient topologies for
decentralized learning with O(1) consensus rate", 2022.

Published: stored outputs of the authors' notebook consensus.ipynb: eigenvalues in a legend, errors
at the centres of markers, and the rounds in which lines cross the grid. Their errors have a factor
$\sqrt n$ (a difference of a row and a column is a matrix), and so have ours.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, eye_array

import dsgd
import topologies
from experiments.published.consensus import errors, rounds_to
from experiments.published.outcomes import Claim, Number, Outcome, Panel

N, SHIFTS, OUTPUT = 300, 9, "authors' outputs"
STATIC = {  # λ2; rounds, and log10 of the error
    "exponential": (0.80, [21, 61, 101, 121], [-0.99, -4.85, -8.78, -10.75]),
    "D-EquiStatic": (0.71, [21, 41, 61, 81], [-1.78, -4.74, -7.76, -10.79]),
    "U-EquiStatic": (0.63, [21, 41, 61], [-2.81, -6.82, -10.83]),
}
ONE_PEER = {
    "one-peer exp.": ([79, 105], [-5.35, -7.79]),
    "OU-EquiDyn": ([27, 40, 53, 66, 79, 92], [-1.26, -2.83, -4.49, -6.22, -7.87, -9.60]),
    "OD-EquiDyn": ([27, 40, 53, 66], [-2.40, -3.82, -8.15, -10.98]),
}
SIZES = {2_000: 29.2, 3_000: 32.2, 4_000: 27.8, 5_000: 35.5}  # rounds to 1e-9


def equitopo_static(quick: bool) -> Outcome:
    """300 workers with 9 neighbours: EquiStatic mixes faster than the exponential graph."""
    lines, rows = {}, []
    for name, (value, *_) in STATIC.items():
        exponential, both = name == "exponential", name[0] == "U"
        graph = topologies.exponential(N) if exponential else _authors_draw(N, SHIFTS, both)
        lines[name] = _curve([graph])
        rows.append(Number(f"λ2, {name}", value, _second(graph), OUTPUT, tolerance=0.005 / value))
        if not exponential:
            seeds = range(5 if quick else 40)
            draws = [topologies.equi_static(N, SHIFTS, seed, symmetric=both) for seed in seeds]
            rows.append(Number("  with our draws", value, list(map(_second, draws)), OUTPUT))
    published = {name: curve for name, (_, *curve) in STATIC.items()}
    note = "Lines: the authors' shifts. If all 9 are odd, as for our seed 0, λ2 is 0.99."
    rows += _rounds(lines, published, 1e-10, 0.01)
    return Outcome(rows, [_panel(lines, published)], note)


def equitopo_one_peer(quick: bool) -> Outcome:
    """300 workers that send one message in a round: EquiDyn mixes faster than other graphs."""
    seeds = range(3 if quick else 20)
    graphs = {
        "one-peer exp.": [topologies.one_peer_exponential(N)],
        "OU-EquiDyn": [topologies.equi_dynamic(N, 130, seed, symmetric=True) for seed in seeds],
        "OD-EquiDyn": [topologies.equi_dynamic(N, 130, seed) for seed in seeds],
        "ring": [topologies.ring(N)],
    }
    lines = {name: _curve(drawn) for name, drawn in graphs.items()}
    rows = _rounds(lines, ONE_PEER, 1e-7, 0.05)
    last = lines["ring"][1][:, -1]
    rows.append(Claim("error of the ring, round 130", "hardly falls", last, OUTPUT, at_least=10))
    return Outcome(rows, [_panel(lines, ONE_PEER)], "A line with steps is read to 5 %.")


def equitopo_sizes(quick: bool) -> Outcome:
    """2,000 to 5,000 workers: the consensus rate of EquiTopo does not depend on their number."""
    static, dynamic, rows = {}, {}, []
    for n in list(SIZES)[: 2 if quick else None]:
        graph = _authors_draw(n, int(5 * np.log(n)), symmetric=False)
        static[f"n = {n:,}"] = _curve([graph], 60, range(3))
        pairs = [topologies.equi_dynamic(n, 170, seed, symmetric=True) for seed in range(3)]
        dynamic[f"n = {n:,}"] = _curve(pairs, 170, range(100, 103))
        reached = rounds_to(static[f"n = {n:,}"][1][0], 1e-9)
        rows.append(Number(f"rounds to 1e-9, n = {n:,}", SIZES[n], reached, OUTPUT, tolerance=0.03))
    ends = [np.median([rounds_to(y, 1e-7) for y in ys]) for _, ys in dynamic.values()]
    claim = "no trend"
    rows.append(
        Claim("OU-EquiDyn, largest / smallest n", claim, ends[-1] / ends[0], OUTPUT, 0.9, 1.1)
    )
    panels = [_panel(static, title="D-EquiStatic"), _panel(dynamic, title="OU-EquiDyn")]
    note = "D-EquiStatic has the authors' 5 ln(n) shifts, from which their OU-EquiDyn draws, too."
    return Outcome(rows, panels, note)


def _curve(graphs, rounds=130, starts=range(0, 1_000, 100)):
    found = [np.sqrt(graph.n) * errors(graph, rounds, starts) for graph in graphs]
    return np.arange(rounds + 1), np.stack(found)


def _rounds(lines, published, target, tolerance):
    """Returns the rows with the rounds to a target, interpolated between published points."""
    rows = []
    for name, (at, logs) in published.items():
        value = np.interp(-np.log10(target), -np.array(logs), at)
        ours = [rounds_to(y, target) for y in lines[name][1]]
        rows.append(Number(f"rounds to {target:.0e}, {name}", value, ours, OUTPUT, None, tolerance))
    return rows


def _panel(lines, published=None, title=""):
    circles = {name: (at, 10.0 ** np.array(logs)) for name, (at, logs) in (published or {}).items()}
    return Panel("rounds", r"$\sqrt{n}\,|x - \bar x|$", lines, circles, title=title)


def _second(graph):
    return float(np.sort(np.abs(np.linalg.eigvals(graph.W)))[-2])


def _authors_draw(n: int, shifts: int, symmetric: bool) -> dsgd.Topology:
    """Returns EquiStatic with the shifts that the authors' code draws."""
    drawn = np.random.RandomState(0).choice(np.arange(1, n), shifts)
    ids, weights = np.tile(np.arange(n), shifts), np.full(n * shifts, (n - 1) / n / shifts)
    W = (
        csr_array((weights, (ids, (ids + np.repeat(drawn, n)) % n)), shape=(n, n))
        + eye_array(n) / n
    )
    return topologies.from_matrix((W + W.T) / 2 if symmetric else W)
