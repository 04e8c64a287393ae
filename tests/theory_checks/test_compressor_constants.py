"""The rows for the constants of compressors: all compressors have one, and the worst vectors attain
the constants.
"""

from __future__ import annotations

import pytest

from dsgd import compressors
from theory_checks.statements.compressor_constants import LENGTHS, WORST, worst

WITHOUT = {
    # linear codes, which with_seed makes compressors of
    "LinearCode",
    "count_sketch",
    "random_block",
    "random_places",
    "apply",
    "check",
    "encode",
    "fixed_size",
    "mean_bits",
    "clipped_ternary",  # neither unbiased nor a contraction
    "identity",  # omega = 0
    "sidco",  # none
    "threshold",  # an absolute error
    "whole_model",  # that of the compressor of the whole vector
}
NEAR = {
    # Equal to 1 only if 4 s^2 is a sum of d odd squares.
    "qsgd(1)": {2: 0.8},
    "qsgd(2)": {2: 0.6, 7: 0.99},
    # Elements of a rotated vector cannot have the distribution that attains the bound.
    "eden(2)": {2: 0.6, 7: 0.4, 16: 0.3},
    # The error of the largest element, 0.7 percent of it, is rounded to float32.
    "eight_bit": dict.fromkeys(LENGTHS, 0.9999),
    "two_bit": dict.fromkeys(LENGTHS, 0.0) | {16: 0.5},
    # The matrix is padded; errors of the padding are not counted.
    "low_rank(1)": {7: 0.9},
}
"""Ratios that the worst vectors reach, by length, where they do not attain the constant."""


def kind(name: str) -> str:
    return name.partition("(")[0]


def test_every_public_compressor_has_a_row():
    assert {kind(compressor.name) for compressor in WORST} == set(compressors.__all__) - WITHOUT


@pytest.mark.parametrize("compressor", WORST, ids=lambda compressor: compressor.name)
def test_worst_vectors_attain_the_constant_at_every_length(compressor):
    outcomes = worst(compressor)
    assert len(outcomes) == len(LENGTHS)
    for d, outcome in zip(LENGTHS, outcomes, strict=True):
        if outcome.bound > 0:
            least = NEAR.get(compressor.name, {}).get(d, 1 - 1e-5)
            assert outcome.ratio + 5 * outcome.error / outcome.bound >= least, outcome.case
