r"""MoTEF: Islamov, Gao and Stich, "Near optimal decentralized optimization with compression and
momentum tracking", 2024.

Settings are those of `experiments.ipynb` in the authors' repository mlolab/MoTEF, and the published
values those of its figure `nonconvex_logreg_accuracy_topology_a9a`, in which the curves of the five
graphs coincide. The problem and the graphs are those of BEER: a9a of LIBSVM, read from the folder
`DSGD_DATA` of the environment, sorted by label, 40 workers, batches of 100; $\gamma = 0.05$, $\eta
= 0.5$, $\lambda = 0.01$ and 16 levels.
"""

from __future__ import annotations

import jax
import numpy as np
import optax

import algorithms
import dsgd
import topologies
from experiments.published import beer
from experiments.published.outcomes import Claim, Number, Outcome, Panel
from experiments.published.weights import fastest

PUBLISHED = 83.5  # %, at the end
DIFFERENCES = """The published accuracy is that of the test set a9a.t, ours that of all samples.
It passes 76, 82 and 73 %, which neither this start gives nor that of the code,
whose averages start at 0; its axis ends at 1e9 bits, where 6,000 rounds have
1.5e8 by the notebook's count, so that the figure is one of other settings."""


def motef_2(quick: bool) -> Outcome:
    """Figure on graphs: MoTEF on five graphs of 40 workers."""
    graphs = {
        "ring": topologies.ring(40),
        "star": topologies.star(40),
        "grid": topologies.grid(8, 5),
        "ER, p = 0.2": topologies.erdos_renyi(40, 0.2),
        "ER, p = 0.5": topologies.erdos_renyi(40, 0.5),
    }
    given, found, accuracies = beer.problem(40, 100), {}, []
    samples, rounds = given.data, 1_500 if quick else 6_000
    for name, graph in graphs.items():
        method = algorithms.motef(optax.sgd(0.05), fastest(graph), beer.LEVELS, 0.5, 0.01)
        result = dsgd.run(method, given, steps=rounds, key=jax.random.key(0), record_every=50)
        found[name] = result.history["step"], result.history["loss"][None]
        right = (samples.inputs @ result.params > 0) == (samples.targets == 1)
        accuracies.append(100 * float(np.mean(right)))
    spread = max(accuracies) - min(accuracies)
    rows: list[Claim | Number] = [
        Claim("spread of five accuracies, %", "coincide", spread, "authors' outputs", None, 1)
    ]
    if not quick:
        what = "accuracy after 6,000 rounds, %"
        rows.append(Number(what, PUBLISHED, accuracies, "authors' outputs", tolerance=0.01))
    return Outcome(rows, [Panel("rounds", "f(mean of x)", found, log="")], DIFFERENCES)
