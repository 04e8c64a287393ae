"""FedProx: Li et al., 2020, algorithm 2."""

from algorithms import fed_prox
from tests.methods import fed_avg
from tests.methods.fed_avg import H, averaging
from tests.methods.fed_opt import cases

MU = 0.4

bits = fed_avg.bits
CASES = cases(lambda given: fed_prox(given.optimizer, H, MU), lambda: averaging, proximal=MU)
