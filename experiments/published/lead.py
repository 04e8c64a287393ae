r"""LEAD: Liu et al., "Linear convergent decentralized optimization with compression", 2021.

Eight workers on a ring of thirds have $|A_n x - b_n|^2 + 0.1 |x|^2$ in 200 dimensions with normal
$A_n$, exact gradients, and messages of 2 bits per element with the largest element as scale. All
use the step size 0.1; LEAD has $\eta = 1$ and $\alpha = 0.5$, CHOCO-SGD and DeepSqueeze the
consensus step of a grid with the smallest last error.

The first claim is that of the abstract; the others describe figure 1 from memory, whose curves were
not available as numbers. The scale of $A_n$ was not found either: elements have the variance
1 / 200 here, so that the step size is just below 1 / L. QDGD is not part of the library.
"""

from __future__ import annotations

import jax
import numpy as np
import optax

import algorithms
import dsgd
import topologies
from dsgd import compressors, problems
from experiments.published.outcomes import Claim, Outcome, Panel

N, D, STEPS, RATE = 8, 200, 400, 0.1
STEP_SIZES = (0.05, 0.1, 0.2, 0.4, 0.8)  # of consensus


def linear_regression(seed: int) -> dsgd.Problem:
    """Returns the random problem."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(N, D, D)) / np.sqrt(D)
    b = A @ rng.normal(size=D) + rng.normal(size=(N, D))
    hessians = 2 * (np.einsum("nji,njk->nik", A, A) + 0.1 * np.eye(D))
    return problems.quadratic(hessians, 2 * np.einsum("nji,nj->ni", A, b))


def errors(history: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the distance of the workers' models from the optimum, `[..., records]`."""
    return np.sqrt(history["distance"] + history["consensus"])


@jax.enable_x64(True)
def lead_1(quick: bool) -> Outcome:
    """Figure 1: linear regression with messages of 2 bits on a ring of 8 workers."""
    ring, sgd = topologies.ring(N), optax.sgd(RATE)
    two_bits = compressors.buckets(compressors.qsgd(2, "linf"), 512)
    short = compressors.contraction(two_bits)
    exact = {
        "LEAD": algorithms.lead(sgd, ring, two_bits),
        "NIDS": algorithms.nids(RATE, ring),
        "DGD": algorithms.dgd(sgd, ring),
    }
    tuned = {
        "CHOCO-SGD": lambda step: algorithms.choco_sgd(sgd, ring, short, step),
        "DeepSqueeze": lambda step: algorithms.deepsqueeze(sgd, ring, short, step),
    }
    found = {name: [] for name in (*exact, *tuned)}
    bits = {}
    for seed in range(1 if quick else 5):
        problem, key = linear_regression(seed), jax.random.key(seed)
        for name, method in exact.items():
            history = dsgd.run(method, problem, steps=STEPS, key=key).history
            found[name].append(errors(history))
            # models that are not compressed would be sent as float32, in half of these bits
            bits[name] = history["bits_up"] / (1 if name == "LEAD" else 2)
        for name, build in tuned.items():
            swept = dsgd.sweep(build, problem, steps=STEPS, key=key, step=STEP_SIZES)
            found[name].append(min(errors(swept.history)[:, 0], key=lambda error: error[-1]))
            bits[name] = swept.history["bits_up"][0, 0]
    last = {name: np.array(all_seeds)[:, -1] for name, all_seeds in found.items()}
    rounds = {name: np.argmax(np.array(found[name]) <= 1e-10, axis=1) for name in ("LEAD", "NIDS")}
    share = bits["LEAD"][-1] / bits["NIDS"][-1]
    rows = [
        Claim(
            "LEAD: |x - x*| after 400 rounds",
            "linear, to rounding",
            last["LEAD"],
            "paper's text",
            None,
            1e-12,
        ),
        Claim(
            "LEAD / NIDS: rounds to 1e-10",
            "as fast",
            rounds["LEAD"] / rounds["NIDS"],
            "from memory",
            0.8,
            1.25,
        ),
        Claim(
            "LEAD / NIDS: bits per round",
            "far fewer bits",
            share,
            "from memory",
            None,
            0.15,
        ),
        *(
            Claim(f"{name}: |x - x*| after 400 rounds", "stalls", last[name], "from memory", 1e-3)
            for name in ("DGD", *tuned)
        ),
    ]
    panels = [
        Panel(
            "rounds",
            "|x - x*|, all workers",
            {k: (np.arange(STEPS + 1), v) for k, v in found.items()},
        ),
        Panel(
            "megabits sent per worker",
            "|x - x*|, all workers",
            {k: (bits[k] / 1e6, v) for k, v in found.items()},
        ),
    ]
    return Outcome(
        rows, panels, "A step size of each method, and the scale of the data, were chosen here."
    )
