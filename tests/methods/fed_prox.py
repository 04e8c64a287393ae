"""FedProx: Li et al., 2020, algorithm 2."""

import algorithms
from algorithms import fed_prox
from tests.methods import fed_avg
from tests.methods.fed_avg import H, averaging
from tests.methods.fed_opt import cases
from tests.methods.given import SGD

MU = 0.4

bits = fed_avg.bits
CASES = cases(lambda given: fed_prox(given.optimizer, H, MU), lambda: averaging, proximal=MU)
EQUALS = {
    "without its term": (lambda: fed_prox(SGD, 4, 0.0), lambda: algorithms.fed_avg(SGD, 4)),
    "one step": (lambda: fed_prox(SGD, 1, 3.0), lambda: algorithms.fed_avg(SGD, 1)),
}
