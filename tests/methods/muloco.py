"""MuLoCo: Thérien et al., 2025; with momentum instead of Muon."""

import optax

from algorithms import diloco, muloco
from dsgd import compressors
from tests.methods.bits import Bits, period_end
from tests.methods.compressors import SHORT, SHORTS
from tests.methods.diloco import nesterov
from tests.methods.fed_avg import H
from tests.methods.given import MOMENTUM, Case, Given, Rounds
from tests.methods.sparse_loco import SYMBOLS, remember, two_bits
from tests.methods.streaming_diloco import OUTER

DECAY, ETA, MU = 0.85, 0.6, 0.8


def recursion(given: Given) -> Rounds:
    return remember(given, nesterov(ETA, MU), SHORTS, beta=DECAY)


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, (N - 1) * two_bits(d))


CASES = {
    "": Case(
        lambda given: muloco(
            given.optimizer,
            H,
            SHORT,
            optax.sgd(ETA, momentum=MU, nesterov=True),
            decay=DECAY,
        ),
        recursion,
        optimizer="momentum",
        symbols=SYMBOLS,
    )
}
EQUALS = {
    "uncompressed": (
        lambda: muloco(MOMENTUM, 4, compressors.identity, OUTER),
        lambda: diloco(MOMENTUM, 4, OUTER),
    ),
}
