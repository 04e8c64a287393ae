"""Qsparse-local-SGD: Basu et al., 2019, algorithm 1, with equal rounds of all workers."""

from functools import partial

from algorithms import qsparse_local_sgd
from dsgd import compressors
from tests.methods.bits import Bits, at_end, largest, packed, tenth
from tests.methods.compressors import SHORT, Compression, clipped, largest_half
from tests.methods.fed_avg import H, averaging
from tests.methods.given import Case
from tests.methods.sparse_loco import SYMBOLS, remembered


def size(d: int, word: int) -> int:
    """Returns the bits of half of the elements, with 12 bits each, and of their indices."""
    k = -(-d // 2)
    return largest(k, d, 0) + packed(12, k)


def bits(t: int, N: int, d: int) -> Bits:
    return at_end(t, (N - 1) * tenth(d))


C = Compression(compressors.top_k(0.5, SHORT), lambda x: clipped(largest_half(x)), size)
CASES = {
    "": Case(
        lambda given: qsparse_local_sgd(given.optimizer, H, C.compressor),
        partial(remembered, outer=averaging, C=C),
        optimizer="momentum",
        symbols=SYMBOLS,
    )
}
