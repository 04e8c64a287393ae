"""Properties of every compressor, including combinations."""

from __future__ import annotations

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from budgets import smoke_cases

from dsgd import Compressor, compressors
from dsgd.compressors import (
    block_top_k,
    buckets,
    cast,
    chunked_top_k,
    clipped_ternary,
    clipping,
    contraction,
    correlated_quantization,
    count_sketch,
    dct_top_k,
    drive,
    e3m0,
    eden,
    eight_bit,
    identity,
    induced,
    low_rank,
    natural,
    natural_dithering,
    one_bit,
    perm_k,
    qsgd,
    random_block,
    random_k,
    random_quantization,
    random_sparsification,
    repeated,
    rotated,
    sampled_top_k,
    shared_random_k,
    sidco,
    sign,
    ternary,
    threshold,
    top_k,
    two_bit,
    variance_optimal,
    whole_model,
    with_seed,
)
from dsgd.compressors.members import constant_at
from dsgd.compressors.sizes import fixed_bits
from tests.dsgd.compressors.shared import (
    EPS,
    HUGE,
    STANDARD_ERRORS,
    UNOPTIMIZED,
    normal,
    packed_bytes,
    quantized_bits,
    see,
    sqnorm,
    standard_error,
)

RUN = (1, 8, 9)  # compiled sizes, 2^k and 2^k + 1
LONGER = (64, 65, 333)
HALVES = 9
D = 31
DRAWS = 4000


def index_bits(d: int) -> int:
    return math.ceil(math.log2(d))


def root(d: int) -> int:
    return math.ceil(math.sqrt(d))


def chunk(d: int) -> int:
    """The largest divisor that is at most 8."""
    return max(c for c in range(1, 9) if d % c == 0)


def powers(d: int) -> list[int]:
    """The powers of two that add up to d."""
    return [1 << i for i in range(d.bit_length()) if d >> i & 1]


def chunk_elements(k: int, chunk: int, d: int) -> int:
    return d // chunk * k + min(k, d % chunk)


# Each with the bits of its message for d elements; None where they are random.
COMPRESSORS = {
    identity: lambda d: 32 * d,
    random_quantization(3): lambda d: quantized_bits(d, 3),
    qsgd(8): lambda d: 8 * packed_bytes(d, 5) + 32,
    qsgd(2, "linf"): lambda d: 8 * packed_bytes(d, 3) + 32,
    ternary: lambda d: 8 * -(-d // 5) + 32,
    clipped_ternary(2.5): lambda d: 8 * -(-d // 5) + 32,
    natural: lambda d: 8 * packed_bytes(d, 9),
    sign: lambda d: 8 * -(-d // 8) + 32,
    clipping(7): lambda d: 16 * d,
    e3m0: lambda d: 8 * packed_bytes(d, 4) + 32,
    natural_dithering(3): lambda d: 8 * packed_bytes(d, 3) + 32,
    cast("bfloat16", stochastic=True): lambda d: 16 * d,
    cast("float8_e4m3fn"): lambda d: 8 * d + 32,
    cast("float8_e5m2", "power", stochastic=True): lambda d: 8 * d + 8,
    cast("float4_e2m1fn", stochastic=True): lambda d: 8 * packed_bytes(d, 4) + 32,
    buckets(cast("float4_e2m1fn", "power"), 4): lambda d: (
        8 * (d // 4 * 2 + packed_bytes(d % 4, 4)) + 8 * -(-d // 4)
    ),
    one_bit: lambda d: 8 * -(-d // 8) + 2 * 32,
    eight_bit: lambda d: 8 * d + 32,
    two_bit: lambda d: 8 * packed_bytes(d, 2) + 4 * 32,
    chunked_top_k(2, 4): lambda d: (
        chunk_elements(2, 4, d) * 32 + 8 * packed_bytes(chunk_elements(2, 4, d), 2)
    ),
    low_rank(1): lambda d: 32 * (root(d) + -(-d // root(d))),
    top_k(0.1): lambda d: -(-d // 10) * 32 + 8 * packed_bytes(-(-d // 10), index_bits(d)),
    top_k(0.5, qsgd(3)): lambda d: (
        8 * packed_bytes(-(-d // 2), 3) + 32 + 8 * packed_bytes(-(-d // 2), index_bits(d))
    ),
    dct_top_k(2, 8): lambda d: (
        (k := d // chunk(d) * min(2, chunk(d))) * 32 + 8 * packed_bytes(k, index_bits(chunk(d)))
    ),
    random_k(0.25): lambda d: -(-d // 4) * 32 + 8 * packed_bytes(-(-d // 4), index_bits(d)),
    shared_random_k(0.25): lambda d: -(-d // 4) * 32 + 64,
    with_seed(random_block(0.5)): lambda d: -(-d // 2) * 32 + 64,
    with_seed(count_sketch(3, 4)): lambda d: 3 * 4 * 32 + 64,
    perm_k(4): lambda d: -(-d // 4) * 32 + 64 + 32,
    correlated_quantization(3): lambda d: 8 * packed_bytes(d, 3) + 32,
    random_sparsification(0.2): None,
    threshold(0.5): None,
    sampled_top_k(0.3, 0.5): None,
    sidco(0.3, 2): None,
    variance_optimal(0.2): None,
    block_top_k(0.4, 4): lambda d: (
        (k := -(-2 * (n := -(-d // 4)) // 5)) * min(4, d) * 32 + 8 * packed_bytes(k, index_bits(n))
    ),
    rotated(qsgd(8)): lambda d: 8 * packed_bytes(d, 5) + 32 + 64,
    drive(): lambda d: 8 * packed_bytes(d, 1) + 32 * d.bit_count() + 64,
    eden(2.5): lambda d: (
        8 * packed_bytes(more := sum(-(-p // 2) for p in powers(d)), 3)
        + 8 * packed_bytes(d - more, 2)
        + 32 * d.bit_count()
        + 64
    ),
    induced(sign, random_k(0.25)): lambda d: (
        8 * -(-d // 8) + 32 + -(-d // 4) * 32 + 8 * packed_bytes(-(-d // 4), index_bits(d))
    ),
    repeated(sign, 3): lambda d: 3 * (8 * -(-d // 8) + 32),
    buckets(random_sparsification(0.3), 8): None,
    contraction(buckets(ternary, 5)): lambda d: 40 * -(-d // 5),
}
WHOLE = whole_model(top_k(0.1))  # otherwise the same as the compressor that it wraps
every_compressor = pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: c.name)
SOME = [
    "random_k",
    "random_block",
    "random_sparsification",
    "perm_k",
]  # compressors that send only some elements
BIASED = {
    "sign",
    "e3m0",
    "cast(float8_e4m3fn)",
    "buckets(cast(float4_e2m1fn, power), 4)",
    "one_bit",
    "eight_bit",
    "two_bit",
    "chunked_top_k",
    "clipped_ternary",
    "clipping",
    "top_k",
    "block_top_k",
    "sampled_top_k",
    "threshold",
    "sidco",
    "drive",
    "eden",
    "repeated",
    "dct_top_k",
    "low_rank",
    "contraction",
    "whole_model",
}

FINITE = {
    "zeros": np.zeros,
    "normal": normal,
    "huge": lambda d: HUGE * normal(d),
    "denormal": lambda d: 1e-40 * normal(d).astype(np.float64),
    "constant": lambda d: np.full(d, -3.25),
    "scales": lambda d: normal(d) * np.logspace(-30, 15, d),
}
VECTORS = FINITE | {
    "halves": lambda d: normal(d).astype(jnp.bfloat16),
    "nan": lambda d: np.where(np.arange(d) == d // 2, np.nan, normal(d)),
    "inf": lambda d: np.where(np.arange(d) == d // 2, np.inf, normal(d)),
    "-inf": lambda d: np.where(np.arange(d) == d // 2, -np.inf, normal(d)),
    "all nan": lambda d: np.full(d, np.nan),
}
ROW = {name: row for row, name in enumerate(VECTORS)}
HARD = np.stack(
    [normal(D), np.r_[1, np.full(D - 1, -0.15)], np.where(normal(D) < 0, 2, -2)]
).astype(np.float32)


@cache
def run(compressor: Compressor) -> tuple[dict, jax.Array, jax.Array, dict]:
    """Returns (messages, decoded messages, the sender's decoded messages) by size, for all vectors
    `[vectors, ...]`; the decoded halves in their own type; many draws of the hard vectors, `[hard,
    draws, D]`; and the bits by size, from one program.
    """
    bits = {}

    def travel(x):
        message, decoded = compressors.encode(compressor, jax.random.key(1), x)
        bits[x.shape[0]] = compressor.bits(message)
        return message, compressor.decompress(message, x.shape[0]), decoded

    def all_of(x, halves, hard):
        draws = jax.vmap(
            lambda x: jax.vmap(lambda key: see(compressor, key, x))(
                jax.random.split(jax.random.key(0), DRAWS)
            )
        )(hard)
        return (
            {d: jax.vmap(travel)(x[d]) for d in x},
            see(compressor, jax.random.key(1), halves),
            draws,
        )

    x = {d: np.stack([vector(d) for vector in VECTORS.values()]).astype(np.float32) for d in RUN}
    return *jax.jit(all_of, compiler_options=UNOPTIMIZED)(
        x, jnp.asarray(VECTORS["halves"](HALVES)), HARD
    ), bits


@every_compressor
def test_messages_are_arrays_with_enough_bits_that_all_decode_equally(compressor):
    """Bit for bit, so that copies of a model that are updated by messages stay equal. Under jit,
    when values are not known, there is no error: a run that diverges must decode the value, if the
    element is sent.
    """
    expected, (messages, *_, bits) = COMPRESSORS[compressor], run(compressor)
    for d in RUN:
        message, received, decoded = jax.tree.map(np.asarray, messages[d])
        leaves = jax.tree.leaves(message)
        assert {leaf.dtype for leaf in leaves} <= {np.dtype(t) for t in ("u1", "u4", "f4")}
        if expected is None:
            assert (bits[d].dtype, bits[d].shape) == (jnp.uint32, ())
            assert fixed_bits(compressor, d) is None
        else:
            assert isinstance(bits[d], int)
            assert bits[d] == sum(8 * leaf[0].nbytes for leaf in leaves) == expected(d)
        np.testing.assert_array_equal(decoded, received)
        assert (received.shape, received.dtype) == ((len(VECTORS), d), decoded.dtype)
        assert received.dtype == np.float32
        assert np.isfinite(received[: len(FINITE)]).all()
        np.testing.assert_array_equal(received[ROW["zeros"]], 0)
        all_nan = received[ROW["all nan"]]
        assert (np.isnan(all_nan) | (all_nan == 0)).all()  # 0 if it is not sent
        assert expected is None or np.isnan(all_nan).any()
        if not any(some in compressor.name for some in SOME):
            assert np.isnan(received[ROW["nan"], d // 2])
            assert not np.isfinite(received[[ROW["inf"], ROW["-inf"]], d // 2]).any()
    for d in LONGER if expected else ():
        assert compressors.mean_bits(compressor, d) == fixed_bits(compressor, d) == expected(d)


@every_compressor
def test_half_precision_is_decoded_as_float32(compressor):
    draw = run(compressor)[1]
    assert draw.dtype == (jnp.bfloat16 if compressor is identity else jnp.float32)
    expected = np.asarray(run(compressor)[0][HALVES][1][ROW["halves"]])
    # The sums of a rotation cancel up to rounding, so that an element may be 0 in one program only.
    cancelled = 4 * EPS * np.abs(expected).max()
    np.testing.assert_allclose(draw.astype(jnp.float32), expected, rtol=1e-6, atol=cancelled)


@every_compressor
def test_bounds_and_means_hold_over_draws(compressor):
    for x, draws in zip(HARD, run(compressor)[2], strict=True):
        error = np.asarray(draws, np.float64) - x
        sqdist, size = sqnorm(error), sqnorm(x)
        slack = STANDARD_ERRORS * standard_error(sqdist) + 1e-5 * size
        omega, delta = (
            constant_at(compressor.omega, D),
            constant_at(compressor.delta, D),
        )
        assert omega is None or sqdist.mean() <= omega * size + slack
        assert delta is None or sqdist.mean() <= (1 - delta) * size + slack
        if compressor.unbiased:
            assert (
                np.abs(error.mean(axis=0))
                <= STANDARD_ERRORS * np.sqrt(sqdist.mean() / DRAWS) + 8 * EPS
            ).all()
            for seed in range(5):
                along = error @ np.random.default_rng(seed).choice([-1.0, 1.0], D)
                assert abs(along.mean()) <= STANDARD_ERRORS * standard_error(along) + 1e-5


@pytest.mark.parametrize("name", smoke_cases({each.name: each for each in COMPRESSORS}, set()))
def test_it_passes_its_check(name):
    (compressor,) = (each for each in COMPRESSORS if each.name == name)
    compressors.check(compressor, D).require()


@pytest.mark.parametrize("compressor", [*COMPRESSORS, WHOLE], ids=lambda c: c.name)
def test_constants_are_numbers_or_none(compressor):
    for d in (1, 2, 3, 31, 333, 10**6):
        omega, delta = (
            constant_at(compressor.omega, d),
            constant_at(compressor.delta, d),
        )
        assert omega is None or (isinstance(omega, float) and 0 <= omega < math.inf)
        assert delta is None or (isinstance(delta, float) and 0 < delta <= 1)
        if compressor.unbiased:
            assert omega is not None
            assert delta == (None if omega >= 1 else pytest.approx(1 - omega))
    assert compressor.unbiased == (
        compressor.name.split("(")[0] not in BIASED and compressor.name not in BIASED
    )
    assert compressor.warm == (compressor.name.split("(")[0] == "low_rank")
    assert compressor.layer_wise == ("whole_model" not in compressor.name)


# of a message for 12 elements: the number of elements of the vector, and of computed numbers
FLOATS: dict[Compressor, tuple[int, int]] = {
    identity: (12, 0),
    random_quantization(3, 4): (6, 0),
    qsgd(8): (0, 1),
    ternary: (1, 0),
    sign: (0, 1),
    clipping(7): (0, 0),
    cast("float8_e4m3fn", "power"): (0, 0),
    low_rank(1): (0, 3 + 4),
    top_k(0.25): (3, 0),
    top_k(0.5, qsgd(3)): (0, 1),
    shared_random_k(0.25): (3, 0),
    with_seed(count_sketch(3, 2)): (0, 6),
    induced(sign, random_k(0.25)): (0, 1 + 3),
}


@pytest.mark.parametrize("compressor", FLOATS, ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("dtype", "element", "computed"), [(np.float64, 64, 64), (jnp.bfloat16, 16, 32)]
)
def test_elements_are_sent_and_counted_in_their_own_type(compressor, dtype, element, computed):
    elements, numbers = FLOATS[compressor]

    def bits(dtype):
        found = []
        x = jax.ShapeDtypeStruct((12,), dtype)
        jax.eval_shape(
            lambda key, x: found.append(
                compressor.bits(compressors.encode(compressor, key, x).message)
            ),
            jax.random.key(0),
            x,
        )
        return found[0]

    with jax.enable_x64(True):
        assert bits(dtype) - bits(np.float32) == elements * (element - 32) + numbers * (
            computed - 32
        )


WHOLE_FLOATS = [
    shared_random_k(1.0),
    with_seed(random_block(1.0)),
    with_seed(count_sketch(1, 12)),
    perm_k(1),
    identity,
    top_k(1.0),
    random_sparsification(1.0),
    random_quantization(1),
    low_rank(2),
    contraction(random_k(1.0)),
]


def test_float64_arrives_as_it_was_sent():
    """Kept elements, the ends of a range and low-rank factors are all in float64."""
    # outside the range of float32, and of rank 1
    x = np.where(np.arange(12) % 2, np.pi, -np.e) * 1e300
    near = 1 + 1e-12 * np.arange(8.0)

    @partial(jax.jit, compiler_options=UNOPTIMIZED)
    def seen(x, near):
        return [see(compressor, jax.random.key(0), x) for compressor in WHOLE_FLOATS], see(
            top_k(0.25), jax.random.key(0), near
        )

    with jax.enable_x64(True):
        draws, largest = jax.tree.map(np.asarray, seen(jnp.asarray(x), jnp.asarray(near)))
    for compressor, draw in zip(WHOLE_FLOATS, draws, strict=True):
        assert draw.dtype == np.float64
        np.testing.assert_allclose(
            draw, x, rtol=1e-14 if "low_rank" in compressor.name else 0, err_msg=compressor.name
        )
    np.testing.assert_array_equal(largest, np.where(np.arange(8) >= 6, near, 0))
