"""Bounds of the papers' theorems with explicit constants, checked numerically against the
implementation: `python -m theory_checks`.

Each family of methods has a module with the derivation of its bound and these functions:

- `hypotheses` evaluates the theorem's hypotheses for an instance.
- `step_size` returns the recommended step size.
- `bound` returns the right-hand side.
- `rate` returns the bound at the recommended step size as a function of the number of iterations,
  and the number of iterations to a given accuracy.
- `check` measures the left-hand side and compares it with the bound.

`steps` has the step sizes of the theorems from the constants of a problem.

`worst_case` computes what a method reaches in the worst case of a class of functions, exactly and
from its own code; `best_step` finds the step size with the smallest worst case.
"""

from theory_checks import bounds, steps
from theory_checks.machinery.rates import Rate
from theory_checks.machinery.search import ReplayableDraws
from theory_checks.machinery.stability import linear_rate, stable_step
from theory_checks.machinery.statement import Condition, Outcome, Statement
from theory_checks.statements import (
    asynchronous_sgd,
    birch_sgd,
    compressed_sgd,
    decentralized_sgd,
    dropcompute,
    dropcompute_convex,
    ef21,
    error_compensated_sgd,
    gradient_descent,
    local_sgd,
    minibatch_sgd,
    sgd,
)
from theory_checks.worst_cases import BestStep, Smooth, WorstCase, best_step, worst_case

__all__ = [
    "BestStep",
    "Condition",
    "Outcome",
    "Rate",
    "ReplayableDraws",
    "Smooth",
    "Statement",
    "WorstCase",
    "asynchronous_sgd",
    "best_step",
    "birch_sgd",
    "bounds",
    "compressed_sgd",
    "decentralized_sgd",
    "dropcompute",
    "dropcompute_convex",
    "ef21",
    "error_compensated_sgd",
    "gradient_descent",
    "linear_rate",
    "local_sgd",
    "minibatch_sgd",
    "sgd",
    "stable_step",
    "steps",
    "worst_case",
]
