"""SparseLoCo: Sarfi et al., 2025; and the recursion of all methods with outer gradients that are
compressed with error memory.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import optax

from algorithms import diloco, sparse_loco
from dsgd import compressors
from tests.methods.bits import FLOAT, Bits, packed_bits, period_end
from tests.methods.compressors import Compression, largest
from tests.methods.fed_avg import H, Outer
from tests.methods.given import MOMENTUM, Case, Given, Rounds

DECAY, ETA, K, CHUNK = 0.85, 0.9, 2, 4


def remember(
    given: Given,
    outer: Outer,
    C: Compression,
    exchange: Callable[[int], dict] | None = None,
    *,
    beta: float = 1.0,
    fresh: bool = False,
) -> Rounds:
    r"""Yields the rounds of H local steps, $e_n \leftarrow \beta e_n + x - y_n$, $m_n = C(e_n)$,
    $e_n \leftarrow e_n - m_n$, $x \leftarrow \mathrm{Outer}(x, \frac1N \sum_n m_n)$.

    Args:
        exchange: t -> the bits of the last round of a period; None: those of an all-gather.
        fresh: whether the local step's memory is empty after each synchronization.
    """
    x, Y, step, e = given.x, given.X, given.step(), np.zeros_like(given.X)
    for t in given.rounds:
        Y, sent = Y + step(given.G(t, Y), given.present(t)), given.nothing()
        if (t + 1) % H == 0:
            S, total = given.contributes(t), beta * e + x - Y
            m = C(given, total)
            e = np.where(S[:, None], total - m, e)
            x = outer(x, m[S].mean(axis=0)) if S.any() else x
            Y, step = np.tile(x, (given.N, 1)), given.step() if fresh else step
            sent = exchange(t) if exchange else given.all_gather(t, C.bits(given))
        yield {"params": Y, "memory": e, "server": x} | sent


def chunk_codes(x: np.ndarray, k: int = K, chunk: int = CHUNK) -> np.ndarray:
    """Keeps the k largest elements of each chunk."""
    chunks = np.split(x, range(chunk, len(x), chunk))
    return np.concatenate([largest(each, k) for each in chunks])


def size(d: int, word: int, k: int = K, chunk: int = CHUNK) -> int:
    """Returns the bits of the numbers of these elements, and of their indices in the chunk."""
    sent = d // chunk * k + min(k, d % chunk)
    return packed_bits((chunk - 1).bit_length(), sent) + sent * word


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, (N - 1) * (size(d, 0, 4, 8) + two_bits(d // 8 * 4 + min(4, d % 8))))


def two_bits(d: int) -> int:
    """Returns the bits of a message of `two_bit`: codes, and a table of four numbers."""
    return packed_bits(2, d) + 4 * FLOAT


SYMBOLS = {"memory": "workers.memory", "server": "server.params"}
CHUNKS = Compression(compressors.chunked_top_k(K, CHUNK), chunk_codes, size)
CASES = {
    "": Case(
        lambda given: sparse_loco(
            given.optimizer, H, CHUNKS.compressor, optax.sgd(ETA), decay=DECAY
        ),
        partial(remember, outer=lambda x, delta: x - ETA * delta, C=CHUNKS, beta=DECAY),
        optimizer="adam",
        symbols=SYMBOLS,
    )
}
EQUALS = {
    "all elements": (
        lambda: sparse_loco(MOMENTUM, 4, compressors.chunked_top_k(5, 5), optax.sgd(0.7)),
        lambda: diloco(MOMENTUM, 4, optax.sgd(0.7)),
    ),
}
