r"""Scaffnew: Mishchenko, Malinovsky, Stich and Richtarik, "ProxSkip: yes! Local gradient steps
provably lead to communication acceleration! Finally!", 2022.

Published numbers are stored outputs of the public reproduction Glebzok/ProxSkip, and settings are
those of its code. That Scaffnew is faster than SCAFFOLD, and this as fast as gradient descent, is
the claim of the paper's figure 1, stated from memory. The data set w8a of LIBSVM is read from the
folder `DSGD_DATA` of the environment.

f is the logistic loss plus $10^{-4} \frac L2 |x|^2$ on the first 49,740 samples, which are sorted
by label and divided equally, so that most workers have one label; x starts at 0 and gradients are
exact. L is that of the loss. Scaffnew has the step size 1 / L, 100 local steps of SCAFFOLD 1 / (100
L).
"""

from __future__ import annotations

import jax
import numpy as np
import optax

import algorithms
import dsgd
from dsgd import problems
from experiments.published import libsvm
from experiments.published.outcomes import Claim, Number, Outcome, Panel

SAMPLES, LOCAL = 49_740, 100
DIFFERENCES = """Samples with the same label are divided in the order of the file, there in that
of an unstable sort, which changes the mean of |f_n'(x*)|^2 in the third digit."""
ROUNDS, GAP = "rounds of communication", "$f(x) - f^\\star$"
L, HETEROGENEITY = 0.661069029263127, 2.733343592131268e-3


def problem(workers: int, l2: float = 1e-4 * L) -> dsgd.Problem:
    """Returns logistic regression on w8a, sorted by label."""
    data = libsvm.load("w8a")
    parts = np.split(np.argsort(data.train_targets[:SAMPLES], kind="stable"), workers)
    return problems.binary_logistic_regression(data, workers, parts, l2=l2)


def scaffnew_1(quick: bool) -> Outcome:
    """Figure 1: Scaffnew, SCAFFOLD and gradient descent with 20 workers."""
    smoothness = problems.constants(problem(1, 0.0)).mean_smoothness
    given = problems.solved(problem(20))
    heterogeneity = problems.constants(given).heterogeneity ** 2
    fast, rounds = optax.sgd(1 / L), 5 if quick else 20
    cases = {
        "GD": (algorithms.gradient_descent(fast), 1),
        "SCAFFOLD": (algorithms.scaffold(optax.sgd(1 / L / LOCAL), LOCAL), LOCAL),
        "Scaffnew": (algorithms.scaffnew(fast, 1 / LOCAL), LOCAL),
    }
    found = {}
    for name, (method, local) in cases.items():
        history = dsgd.run(
            method, given, steps=rounds * local, key=jax.random.key(0), record_every=local
        ).history
        found[name] = history["communications"], history["gap"][None]
    last = {name: y[0, -1] for name, (_, y) in found.items()}
    outputs, figure = "others' outputs", "from memory"
    what = f"gap after {rounds} rounds,"
    rows = [
        Number("L of the loss", L, smoothness, outputs, tolerance=1e-6),
        Number("mean |f_n'(x*)|^2", HETEROGENEITY, heterogeneity, outputs, tolerance=0.01),
        Claim(f"{what} SCAFFOLD / GD", "equal", last["SCAFFOLD"] / last["GD"], figure, 0.8, 1.25),
        Claim(
            f"{what} SCAFFOLD / Scaffnew", "faster", last["SCAFFOLD"] / last["Scaffnew"], figure, 2
        ),
    ]
    return Outcome(rows, [Panel(ROUNDS, GAP, found)], DIFFERENCES)
