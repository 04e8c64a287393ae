"""NIDS with equal step sizes: Li, Shi and Yan, 2019. The first round applies W as in exact
diffusion.
"""

from algorithms import exact_diffusion
from tests.methods import d2
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import Case

APART = True


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d)


CASES = {
    "": Case(
        lambda given: exact_diffusion(given.optimizer, given.graph),
        lambda given: d2.recursion(given, share=0.5),
        "star",
    )
}
