"""FedAdam, without correction of the moments: Reddi et al., 2021, algorithm 2."""

from algorithms import fed_adam
from tests.methods import fed_avg
from tests.methods.fed_avg import H
from tests.methods.fed_opt import adaptive, cases

NUMBERS = 0.1, 0.6, 0.9, 0.05

bits = fed_avg.bits
CASES = cases(
    lambda given: fed_adam(given.optimizer, H, *NUMBERS), lambda: adaptive("adam", *NUMBERS)
)
