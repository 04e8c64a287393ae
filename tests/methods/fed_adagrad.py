"""FedAdagrad: Reddi et al., 2021, algorithm 2."""

from algorithms import fed_adagrad
from tests.methods import fed_avg
from tests.methods.fed_avg import H
from tests.methods.fed_opt import adaptive, cases

bits = fed_avg.bits
CASES = cases(
    lambda given: fed_adagrad(given.optimizer, H, 0.1, 0.3, 0.05),
    lambda: adaptive("adagrad", 0.1, 0.3, 0.0, 0.05),
)
