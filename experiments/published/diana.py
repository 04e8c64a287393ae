r"""DIANA: Mishchenko, Gorbunov, Takac and Richtarik, "Distributed learning with compressed gradient
differences", 2019.

The claims are those of the abstract: methods that compress gradients do not converge to the optimum
even with exact gradients, and DIANA does. The figures are on the data set mushrooms, without
numbers; the number of workers, the penalty and the rounds are ours. The data set is that of LIBSVM,
read from the folder `DSGD_DATA` of the environment.

10 workers have contiguous parts of the file, f is the logistic loss plus $\frac{0.1}{2} |x|^2$, and
x starts at 0. Messages are ternary, of the Euclidean norm (QSGD with one level) or of the largest
magnitude (TernGrad). Step sizes are $1 / L (1 + 6 \omega / N)$ with the $\omega$ of each, and DIANA
has $\alpha = 1 / (1 + \omega)$.
"""

from __future__ import annotations

from typing import Literal

import jax
import numpy as np
import optax

import algorithms
import dsgd
from algorithms.mechanisms.memories import Up
from dsgd import compressors, problems
from experiments.published import libsvm
from experiments.published.outcomes import Claim, Outcome, Panel

WORKERS, CLOSE = 10, 1e-8
DIFFERENCES = """Gaps are medians over the last tenth of the rounds, of each seed."""
NORMS: dict[str, Literal["l2", "linf"]] = {"Euclidean norm": "l2", "largest magnitude": "linf"}


@jax.enable_x64(True)
def diana_1(quick: bool) -> Outcome:
    """Figures on mushrooms: DIANA and compressed gradient descent with ternary messages."""
    data = libsvm.load("mushrooms")
    features = data.train_inputs.shape[1]
    given = problems.binary_logistic_regression(data, WORKERS, "blocks", l2=0.1)
    given = problems.solved(given)
    L, rounds = problems.constants(given).smoothness, 1_000 if quick else 3_000
    rows, panels = [], []
    for name, norm in NORMS.items():
        ternary = compressors.whole_model(compressors.qsgd(1, norm))
        assert ternary.omega is not None
        step = optax.sgd(1 / (L * (1 + 6 * ternary.omega(features) / WORKERS)))
        cases = {
            "compressed gradients": algorithms.error_feedback(step, Up(ternary)),
            "DIANA": algorithms.diana(step, ternary),
        }
        lines = {}
        for label, method in cases.items():
            history = dsgd.run(
                method,
                given,
                steps=rounds,
                key=jax.random.key(0),
                seeds=2,
                record_every=rounds // 200,
            ).history
            lines[label] = history["step"], history["gap"]
        ends = {label: np.median(y[:, -20:], axis=1) for label, (_, y) in lines.items()}
        for label, claim, bounds in (
            ("compressed gradients", "stalls", (CLOSE, None)),
            ("DIANA", "converges", (None, CLOSE)),
        ):
            what = f"{name}, {label}: gap"
            rows.append(Claim(what, claim, ends[label], "paper's text", *bounds))
        panels.append(Panel("rounds", "$f(x) - f^\\star$", lines, title=name))
    return Outcome(rows, panels, DIFFERENCES)
