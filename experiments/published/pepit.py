r"""PEPit: Goujaud et al., "PEPit: computer-assisted worst-case analyses of first-order optimization
methods in Python", 2024.

Worst cases of gradient methods over smooth convex functions, each by a semidefinite program.
Published values are those in the docstrings of PEPit's examples. PEPit is given symbolic points;
here `theory_checks.worst_case` reads the coefficients of the points from the code of
`algorithms.minibatch_sgd` with optax's optimizers, which also runs on data.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax

import algorithms
from experiments.published.outcomes import Number, Outcome, Panel
from theory_checks import Smooth, worst_case


def silver(steps: int, smoothness: float) -> optax.GradientTransformation:
    """Returns the silver step sizes of Altschuler and Parrilo for convex functions."""
    k = np.arange(1, steps + 1)
    sizes = (1 + (1 + np.sqrt(2)) ** (np.log2(k & -k) - 1)) / smoothness
    return optax.sgd(lambda count: jnp.asarray(sizes)[count])


def worst(optimizer: optax.GradientTransformation, functions: Smooth, steps: int) -> float:
    """Returns the largest f(x) - f* after the last step."""
    return worst_case(algorithms.minibatch_sgd(optimizer), functions, steps=steps).value


def pepit_examples(quick: bool) -> Outcome:
    """Examples: the largest f(x) - f* of gradient descent, heavy ball and silver step sizes."""
    unit = Smooth(L=1.0, distance=1.0)
    momentum = float(np.sqrt(0.95 * 0.5))
    cases = {
        "gradient descent, γ = 1 / L, L = 3, T = 4": (
            0.166667,
            worst(optax.sgd(1 / 3), Smooth(L=3.0, distance=1.0), 4),
        ),
        "heavy ball, γ = 0.5, L = 1, μ = 0.1, T = 2": (
            0.753493,
            worst(optax.sgd(0.5, momentum=momentum), Smooth(L=1.0, mu=0.1, gap=1.0), 2),
        ),
        "silver step sizes, L = 10, T = 7": (
            0.184215,
            worst(silver(7, 10.0), Smooth(L=10.0, distance=1.0), 7),
        ),
    }
    rows = [
        Number(what, published, ours, "authors' code", tolerance=1e-4)
        for what, (published, ours) in cases.items()
    ]
    rounds = np.array([1, 3, 7] if quick else [1, 3, 7, 15])
    lines = {
        "γ = 1 / L": [worst(optax.sgd(1.0), unit, T) for T in rounds.tolist()],
        "silver step sizes": [worst(silver(T, 1.0), unit, T) for T in rounds.tolist()],
    }
    theory = {"γ = 1 / L": (rounds, 1 / (4 * rounds + 2))}
    panel = Panel(
        "rounds T",
        r"largest $f(x_T) - f^*$",
        {name: (rounds, values) for name, values in lines.items()},
        theory,
        "xy",
    )
    return Outcome(
        rows, [panel], "The same programs; circles in the figure: the theorem 1 / (4 T + 2)."
    )
