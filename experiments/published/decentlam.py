r"""DecentLaM: Yuan, Chen, Huang, Zhang, Pan, Xu, Yin, "DecentLaM: decentralized momentum SGD for
large-batch deep training", 2021.

Published: the propositions on the bias $\frac1n \sum_i |x_i - x^\star|^2$ with exact gradients. It
is $O(\gamma^2)$ for decentralized SGD (DSGD), $O(\gamma^2 / (1 - \beta)^2)$ for DmSGD, which has
momentum, and $O(\gamma^2)$ for DecentLaM. The set-up is from memory: linear regression $\frac12
|A_i x - b_i|^2$ on 8 workers with $A_i$ of 50 rows and 30 columns, $\gamma = 0.001$ and $\beta =
0.8$.
"""

from __future__ import annotations

import jax
import numpy as np
import optax

import algorithms
import dsgd
import topologies
from dsgd import problems
from experiments.published.outcomes import Claim, Number, Outcome, Panel

WORKERS, ROWS, COLUMNS, STEPS = 8, 50, 30, 16_000
RATES, MOMENTA = (0.0000625, 0.00025, 0.001), (0.5, 0.8, 0.9)
RATE, MOMENTUM, EVERY = 0.001, 0.8, 20


@jax.enable_x64(True)
def decentlam(quick: bool) -> Outcome:
    """Bias of DSGD with momentum against the step size and the momentum, in linear regression."""
    seeds = range(1 if quick else 5)
    mesh = topologies.torus(2, 4)
    methods = {
        "DSGD": lambda rate, momentum: algorithms.decentralized_sgd(optax.sgd(rate), mesh),
        "DmSGD": lambda rate, momentum: algorithms.decentralized_sgd(
            optax.sgd(rate, momentum=momentum), mesh
        ),
        "DecentLaM": lambda rate, momentum: algorithms.decentlam(optax.sgd(rate), mesh, momentum),
    }
    found = {
        name: np.stack([_errors(build, _regression(seed)) for seed in seeds])
        for name, build in methods.items()
    }  # [seeds, rates, momenta, steps]
    bias = {name: errors[..., -1] for name, errors in found.items()}
    last = RATES.index(RATE)
    rows = []
    for j, momentum in enumerate(MOMENTA):
        ratio = bias["DecentLaM"][:, last, j] / bias["DSGD"][:, last, j]
        rows.append(Number(f"DecentLaM / DSGD, β = {momentum}", 1, ratio, "theorem", None, 0.001))
    for j, momentum in enumerate(MOMENTA):
        ratio = bias["DmSGD"][:, 0, j] / bias["DSGD"][:, 0, j]
        what = f"DmSGD / DSGD, β = {momentum}"
        rows.append(Number(what, 1 / (1 - momentum) ** 2, ratio, "theorem", None, 0.1))
    at = MOMENTA.index(MOMENTUM)
    for name, values in bias.items():
        slope = np.log(values[:, 1, at] / values[:, 0, at]) / np.log(RATES[1] / RATES[0])
        rows.append(Claim(f"{name}: power of γ", "2", slope, "theorem", 1.8, 2.2))
    steps = np.arange(0, STEPS + 1, EVERY)
    title = f"γ = {RATE}, β = {MOMENTUM}"
    shown = slice(0, 2_000 // EVERY)
    lines = {name: (steps[shown], errors[:, last, at, shown]) for name, errors in found.items()}
    biases = {name: (RATES, values[:, :, at]) for name, values in bias.items()}
    label = r"$\frac{1}{n} \sum_i |x_i - x^\star|^2$"
    panels = [
        Panel("rounds", label, lines, title=title),
        Panel("step size γ", f"{label}, limit", biases, log="xy", title=f"β = {MOMENTUM}"),
    ]
    return Outcome(
        rows,
        panels,
        f"DmSGD / DSGD and the powers are limits for γ → 0; they are measured at γ = {RATES[0]:g}.",
    )


def _regression(seed: int) -> dsgd.Problem:
    """Returns linear regression with data of different models."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(WORKERS, ROWS, COLUMNS))
    b = np.einsum("nij,nj->ni", A, rng.normal(size=(WORKERS, COLUMNS)))
    return problems.quadratic(A.mT @ A, np.einsum("nij,ni->nj", A, b))


def _errors(build, problem: dsgd.Problem) -> np.ndarray:
    """Returns the mean squared distance of the workers to the optimum, `[rates, momenta, t]`."""
    key = jax.random.key(0)
    found = dsgd.sweep(
        build,
        problem,
        steps=STEPS,
        key=key,
        record_every=EVERY,
        rate=RATES,
        momentum=MOMENTA,
    ).history
    return (found["distance"] + found["consensus"])[:, :, 0]
