r"""FedNova: Wang, Liu, Liang, Joshi, Poor, "Tackling the objective inconsistency problem in
heterogeneous federated optimization", 2020.

Published: the paper's case study. Client i has $\frac12 |x - e_i|^2$ and makes $\tau_i$ local steps
with step size $\gamma$. The limit of FedAvg is the mean of the $e_i$ with weights $1 - (1 -
\gamma)^{\tau_i}$, and thus with weights $\tau_i$ as $\gamma \to 0$, instead of equal weights. The
same recursion with normalised changes has the weights $(1 - (1 - \gamma)^{\tau_i}) / \tau_i$, which
become equal: FedNova is consistent.
"""

from __future__ import annotations

import jax
import numpy as np
import optax

import algorithms
import dsgd
from dsgd import problems, work
from experiments.published.outcomes import Claim, Number, Outcome, Panel

STEPS = np.array([1, 2, 3, 5, 8, 13])  # local steps of the clients
RATES = (0.001, 0.01, 0.1)


@jax.enable_x64(True)
def fed_nova(quick: bool) -> Outcome:
    """The limits of FedAvg and FedNova when clients make different numbers of local steps."""
    targets = np.random.default_rng(0).normal(size=(len(STEPS), 5))
    problem = problems.quadratic(np.ones_like(targets), targets)
    methods = {"FedAvg": algorithms.fed_avg, "FedNova": algorithms.fed_nova}
    rates = RATES[1:] if quick else RATES
    rows, lines, errors = [], {}, {}
    for name, method in methods.items():
        for rate in rates:
            rounds = int(5 / rate)
            model, distance = _run(method, problem, rate, rounds)
            progress = 1 - (1 - rate) ** STEPS
            weights = progress if name == "FedAvg" else progress / STEPS
            published = _distance(np.average(targets, axis=0, weights=weights), targets)
            errors[name, rate] = _distance(model, targets)
            what = f"distance of the limit, {name}, γ = {rate:g}"
            rows.append(Number(what, published, errors[name, rate], "theorem", tolerance=1e-4))
            lines[f"{name}, γ = {rate:g}"] = (np.arange(1, rounds + 1) * rate, distance[None, 1:])
    wrong = _distance(np.average(targets, axis=0, weights=STEPS), targets)
    rows += [
        Number(
            "FedAvg, smallest γ: distance", wrong, errors["FedAvg", rates[0]], "theorem", None, 0.05
        ),
        Claim(
            "FedNova, distance with γ / with γ/10",
            "falls with γ",
            errors["FedNova", 0.1] / errors["FedNova", 0.01],
            "theorem",
            8,
            12,
        ),
    ]
    panel = Panel("communication rounds x γ", r"$|x - x^\star|$", lines)
    return Outcome(rows, [panel], "None: the limits are those of the recursions.")


def _distance(x: np.ndarray, targets: np.ndarray) -> float:
    """Returns the distance to the optimum."""
    return float(np.linalg.norm(x - targets.mean(axis=0)))


def _run(method, problem: dsgd.Problem, rate: float, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the last model, and the distance to the optimum after each communication round."""
    most = int(STEPS.max())

    def count_steps(state, round):
        return work.micro_batches((round.step % most < STEPS)[:, None], average="workers")

    local = algorithms.with_local_work(method(optax.sgd(rate), most), count_steps)
    result = dsgd.run(local, problem, steps=most * rounds, record_every=most, key=jax.random.key(0))
    return np.asarray(result.params), np.sqrt(result.history["distance"])
