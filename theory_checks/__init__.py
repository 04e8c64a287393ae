"""The theorems' bounds, with explicit constants, held against the project's own code:
`python -m theory_checks`.

Each family has its file: the derivation, `hypotheses` (which one fails), the recommended
`step_size`, the right-hand side `bound`, the `rate` at that step size with its iterations to a
given accuracy, and `check`, which measures the left side.
"""

from theory_checks import bounds
from theory_checks.machinery.rates import Rate
from theory_checks.machinery.search import Tape
from theory_checks.machinery.statement import Condition, Outcome, Statement
from theory_checks.statements import (
    asynchronous_sgd,
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

__all__ = [
    "Condition",
    "Outcome",
    "Rate",
    "Statement",
    "Tape",
    "asynchronous_sgd",
    "bounds",
    "compressed_sgd",
    "decentralized_sgd",
    "dropcompute",
    "dropcompute_convex",
    "ef21",
    "error_compensated_sgd",
    "gradient_descent",
    "local_sgd",
    "minibatch_sgd",
    "sgd",
]
