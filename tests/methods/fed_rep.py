"""FedRep: Collins et al., 2021, algorithm 1, with several steps on the body, as in the authors'
code.
"""

import numpy as np

from algorithms import fed_rep
from tests.methods import fed_per
from tests.methods.fed_per import HEAD_ELEMENTS, H, cases
from tests.methods.given import Given

TAU = 2


def head_then_body(given: Given, t: int, steps: np.ndarray) -> np.ndarray:
    """Returns which elements move; all of one leaf are local."""
    local = HEAD_ELEMENTS if given.d == len(HEAD_ELEMENTS) else np.ones(given.d, bool)
    return np.where(local, steps < TAU, steps >= TAU) & given.present(t)


bits = fed_per.bits
CASES = cases(lambda optimizer, local: fed_rep(optimizer, H, TAU, local), head_then_body)
