"""TernGrad: Wen et al., 2017. It draws ternary digits; tests/algorithms/test_one_bit_methods.py
checks their mean and variance.
"""

from tests.methods.bits import FLOAT, Bits, packed_bits


def bits(t: int, N: int, d: int) -> Bits:
    """Of the largest magnitude to all others, and of ternary digits, five in a byte."""
    largest = (N - 1) * FLOAT
    return largest + 8 * -(-d // 5), largest + packed_bits((2 * N).bit_length(), d)
