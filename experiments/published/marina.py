r"""MARINA: Gorbunov, Burlachenko, Li and Richtarik, "MARINA: faster non-convex distributed learning
with compression", 2021.

Settings are those of `experiment_no_vr_all.py` in the authors' repository burlachenkok/marina. Its
figures have no numbers, so that the claim of the abstract is verified, that MARINA is faster. The
data sets are those of LIBSVM, read from the folder `DSGD_DATA` of the environment.

5 workers have contiguous parts of the file, without the remainder. f is the mean of $(1 - 1 / (1 +
e^{-y a^T x}))^2$ with a bias, plus $10^{-6} \frac L2 |x|^2$; x starts at 0, gradients are exact and
a worker sends k random elements. Step sizes are those of the theorems, with $\omega = d / k - 1$
and L the largest $0.15405 |a|^2$: MARINA has $1 / L (1 + \omega / \sqrt 5)$ and $p = k / d$, DIANA
$1 / (10 L \sqrt{1 + \omega / 5}\, (2 + \omega))$.
"""

from __future__ import annotations

import jax
import numpy as np
import optax

import algorithms
import dsgd
from dsgd import compressors, problems
from experiments.published import libsvm
from experiments.published.outcomes import Claim, Outcome, Panel

WORKERS, KEPT = 5, (1, 5, 10)
SETS = ("mushrooms", "phishing")
DIFFERENCES = """In the authors' code DIANA steps along the mean of the shifts after their
update; here along the unbiased estimate of the paper. a9a and w8a are left out,
and the authors run 40,000 rounds."""


def problem(name: str) -> tuple[dsgd.Problem, int, float]:
    """Returns the problem on a data set, its dimension, and L."""
    data = libsvm.load(name)
    features = data.train_inputs.shape[1]
    parts = problems.split(data.train_targets, WORKERS, "blocks", remainder="drop")
    longest = np.max(np.sum(np.square(data.train_inputs[np.concatenate(parts)]), axis=1)) + 1
    L = 0.15405 * float(longest)
    made = problems.binary_logistic_regression(
        data, WORKERS, parts, loss="squared", bias=True, l2=1e-6 * L
    )
    return made, features + 1, L * (1 + 1e-6)


def marina_1(quick: bool) -> Outcome:
    """Figure 1: MARINA and DIANA with random k and the step sizes of their theorems."""
    rounds, seeds = (1_000, 2) if quick else (4_000, 2)
    rows, panels = [], []
    for name in SETS[: 1 if quick else None]:
        given, d, L = problem(name)
        lines = {}
        for k in KEPT:
            omega, random_k = d / k - 1, compressors.whole_model(compressors.random_k(k=k))
            marina = optax.sgd(1 / (L * (1 + omega / np.sqrt(WORKERS))))
            diana = optax.sgd(1 / (10 * L * np.sqrt(1 + omega / WORKERS) * (2 + omega)))
            cases = {"MARINA": algorithms.marina(marina, random_k, k / d)}
            cases["DIANA"] = algorithms.diana(diana, random_k)
            shared = {"steps": rounds, "key": jax.random.key(0), "seeds": seeds}
            for label, method in cases.items():
                found = dsgd.run(method, given, record_every=rounds // 50, **shared).history
                lines[f"{label}, k = {k}"] = found["bits_up"].mean(axis=0), found["grad_sqnorm"]
            curves = [lines[f"{label}, k = {k}"] for label in cases]
            sent = min(bits[-1] for bits, _ in curves)
            ours, others = (y[:, np.searchsorted(bits, sent)] for bits, y in curves)
            what = f"{name}, k = {k}: |f'|^2 of DIANA / MARINA, equal bits"
            rows.append(Claim(what, "MARINA is faster", others / ours, "paper's text", 1))
        panels.append(Panel("bits sent per worker", "$|f'(x)|^2$", lines, title=name))
    return Outcome(rows, panels, DIFFERENCES)
