"""DeMo, with the mean over all workers: Peng, Quesnelle and Kingma, 2024, algorithm 1. The method's
m lacks the factor gamma, which changes neither the largest coefficients nor the sign.
"""

import numpy as np
from scipy.linalg import block_diag

from algorithms import demo
from tests.methods.bits import FLOAT, Bits, packed_bits
from tests.methods.compressors import largest
from tests.methods.given import Case, Given, Rounds

BETA = 0.8


def dct(c: int) -> np.ndarray:
    """Returns the orthonormal DCT-II of c elements, `[c, c]`."""
    T = np.array([[np.cos(np.pi * (2 * j + 1) * m / (2 * c)) for j in range(c)] for m in range(c)])
    return T / np.linalg.norm(T, axis=1, keepdims=True)


def recursion(given: Given, k: int, T: np.ndarray, chunks: tuple[int, ...]) -> Rounds:
    """Keeps the k largest of the coefficients T x of each chunk, one chunk after the other."""
    x, m, ends = given.x, np.zeros((given.N, given.d)), np.cumsum(chunks)[:-1]
    for t in given.rounds:
        m = BETA * m + given.gradients_at(t, x)
        split = [np.split(T @ each, ends) for each in m]
        q = np.array(
            [np.concatenate([largest(part, min(k, len(part))) for part in each]) for each in split]
        )
        m = m - q @ T
        x = x - given.gamma * np.sign(T.T @ q.mean(axis=0))
        yield {"x": x, "m": m}


def bits(t: int, N: int, d: int) -> Bits:
    """Of 4 coefficients of each chunk, the largest divisor of d that is at most 64, and their
    places.
    """
    chunk = max(c for c in range(1, 65) if d % c == 0)
    sent = d // chunk * 4
    return (N - 1) * (FLOAT * sent + packed_bits((chunk - 1).bit_length(), sent))


def _case(k: int, chunk: int, T: np.ndarray, chunks: tuple[int, ...]) -> Case:
    return Case(
        lambda given: demo(given.optimizer, BETA, k, chunk),
        lambda given: recursion(given, k, T, chunks),
        symbols={"m": "workers"},
    )


# 7 is a prime number above 4, and so is 5: chunks of one element, and columns of three.
_COLUMNS = block_diag(np.eye(7), np.einsum("kh,jw->jkhw", dct(3), np.eye(5)).reshape(15, 15))
CASES = {
    "blocks": _case(4, 7, block_diag(dct(7), np.kron(dct(3), dct(5))), (7, 15)),
    "columns": _case(2, 4, _COLUMNS, (1,) * 7 + (3,) * 5),
}
