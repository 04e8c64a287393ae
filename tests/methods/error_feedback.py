"""Any memories; EC-SGD, EF21, DIANA and EF-BV are its cases, and equal it."""

import optax

from algorithms import compressed_sgd, error_feedback, sparse_loco
from algorithms.mechanisms.memories import Down, Up, steps
from dsgd import network
from tests.methods.compressors import HALF
from tests.methods.ef_bv import RANDOM
from tests.methods.given import SGD

EQUALS = {
    "no memories": (
        lambda: error_feedback(SGD, Up(RANDOM), Down(RANDOM, None), via=network.multi_server),
        lambda: compressed_sgd(SGD, RANDOM),
    ),
    "units of the step": (
        lambda: error_feedback(optax.sgd(1.0), Up(HALF, error=1.0), vector=steps(SGD)),
        lambda: error_feedback(SGD, Up(HALF, error=1.0)),
    ),
    "decay": (
        lambda: error_feedback(optax.sgd(1.0), Up(HALF, error=0.7, decay=0.7), vector=steps(SGD)),
        lambda: sparse_loco(SGD, 1, HALF, optax.sgd(1.0), decay=0.7),
    ),
}
