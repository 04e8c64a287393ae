"""Qsparse-local-SGD: Basu et al., 2019, algorithm 1, with equal rounds of all workers."""

from functools import partial

from algorithms import error_compensated_sgd, local_sgd, qsparse_local_sgd, sparse_loco
from dsgd import compressors
from tests.methods.bits import Bits, largest, packed_bits, period_end, tenth
from tests.methods.compressors import HALF, SHORT, Compression, clip, largest_half
from tests.methods.fed_avg import H, averaging
from tests.methods.given import MOMENTUM, SGD, Case
from tests.methods.sparse_loco import SYMBOLS, remember


def size(d: int, word: int) -> int:
    """Returns the bits of half of the elements, with 12 bits each, and of their indices."""
    k = -(-d // 2)
    return largest(k, d, 0) + packed_bits(12, k)


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, (N - 1) * tenth(d))


C = Compression(compressors.top_k(0.5, SHORT), lambda x: clip(largest_half(x)), size)
CASES = {
    "": Case(
        lambda given: qsparse_local_sgd(given.optimizer, H, C.compressor),
        partial(remember, outer=averaging, C=C),
        optimizer="momentum",
        symbols=SYMBOLS,
    )
}
# The shards of the six servers of EC-SGD are the chunks of this compressor.
CHUNKS = compressors.whole_model(compressors.chunked_top_k(2, 4))
IDENTITY = compressors.whole_model(compressors.identity)
EQUALS = {
    "all elements": (
        lambda: qsparse_local_sgd(MOMENTUM, 4, compressors.top_k(1.0)),
        lambda: local_sgd(MOMENTUM, 4),
    ),
    "SparseLoCo": (
        lambda: qsparse_local_sgd(MOMENTUM, 4, HALF),
        lambda: sparse_loco(MOMENTUM, 4, HALF, decay=1.0),
    ),
    "one step": (
        lambda: qsparse_local_sgd(SGD, 1, CHUNKS),
        lambda: error_compensated_sgd(SGD, CHUNKS, IDENTITY),
    ),
}
