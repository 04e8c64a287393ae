"""Compressors: maps from a vector to a packed message and back. See `dsgd.Compressor` for the
members.
"""

from dsgd import signatures, spelling
from dsgd.compressors.check import check
from dsgd.compressors.chunks import block_top_k, chunked_top_k, two_bit
from dsgd.compressors.codebooks import eight_bit, one_bit
from dsgd.compressors.codes import (
    LinearCode,
    count_sketch,
    random_block,
    random_places,
    shared_random_k,
    with_seed,
)
from dsgd.compressors.combinators import (
    apply,
    buckets,
    contraction,
    identity,
    induced,
    repeated,
    whole_model,
)
from dsgd.compressors.correlated import correlated_quantization, perm_k
from dsgd.compressors.dct import dct_top_k
from dsgd.compressors.floats import cast, natural_dithering
from dsgd.compressors.low_rank import low_rank
from dsgd.compressors.members import encode
from dsgd.compressors.quantization import (
    clipping,
    e3m0,
    natural,
    qsgd,
    random_quantization,
    sign,
)
from dsgd.compressors.rotations import drive, eden, rotated
from dsgd.compressors.sizes import fixed_size, mean_bits
from dsgd.compressors.sparsification import random_k, random_sparsification, top_k
from dsgd.compressors.ternary import clipped_ternary, ternary
from dsgd.compressors.thresholds import sampled_top_k, sidco, threshold
from dsgd.compressors.variance_optimal import variance_optimal

__all__ = [
    "LinearCode",
    "apply",
    "block_top_k",
    "buckets",
    "cast",
    "check",
    "chunked_top_k",
    "clipped_ternary",
    "clipping",
    "contraction",
    "correlated_quantization",
    "count_sketch",
    "dct_top_k",
    "drive",
    "e3m0",
    "eden",
    "eight_bit",
    "encode",
    "fixed_size",
    "identity",
    "induced",
    "low_rank",
    "mean_bits",
    "natural",
    "natural_dithering",
    "one_bit",
    "perm_k",
    "qsgd",
    "random_block",
    "random_k",
    "random_places",
    "random_quantization",
    "random_sparsification",
    "repeated",
    "rotated",
    "sampled_top_k",
    "shared_random_k",
    "sidco",
    "sign",
    "ternary",
    "threshold",
    "top_k",
    "two_bit",
    "variance_optimal",
    "whole_model",
    "with_seed",
]

signatures.simplify(__name__)
spelling.add_suggestions(__name__)
