"""Pair averaging: KungFu, Mai et al., 2020, with the partners that the method draws."""

from functools import partial

import numpy as np

from algorithms import pair_averaging_sgd
from tests.methods.asynchronous_gossip_sgd import average, pairs_case
from tests.methods.bits import FLOAT, Bits, bits_of_some

CASES = {
    "": pairs_case(
        lambda given: pair_averaging_sgd(given.optimizer, given.graph),
        partial(average, pulls=True),
        pulls=True,
    )
}


def bits(t: int, N: int, d: int) -> Bits:
    """One worker sends its model, and another one receives it."""
    one = np.sort(bits_of_some(1, d * FLOAT, N))
    return None if t else (one, one)
