"""Mistakes in compressors."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

HERE = "tests/dsgd/compressors/"
CONTRACT, COMBINATORS, SPARSE, QUANTIZATION, LOW_RANK = (
    f"{HERE}test_{name}.py"
    for name in ("contract", "combinators", "sparsification", "quantization", "low_rank")
)
THRESHOLDS, ROTATIONS = (f"{HERE}test_{name}.py" for name in ("thresholds", "rotations"))
QUANTIZERS, SPARSIFIERS = "dsgd/compressors/quantization.py", "dsgd/compressors/sparsification.py"

TERNARY = "dsgd/compressors/ternary.py"

MISTAKES = [
    Mistake(
        "dsgd/compressors/scales.py",
        "jnp.float32) < place - floor)",
        "jnp.float32) > place - floor)",
        f"{QUANTIZATION} -k random_quantization",
    ),
    Mistake(
        QUANTIZERS,
        "d / (4 * levels**2)",
        "d / (8 * levels**2)",
        f"{QUANTIZATION} -k 'it_reaches and qsgd'",
    ),
    Mistake(
        QUANTIZERS,
        "1 + (d - 1) / levels**2",
        "1 + (d - 1) / (2 * levels**2)",
        f"{QUANTIZATION} -k 'it_reaches and linf'",
    ),
    Mistake(TERNARY, "1 - sent, 1 + sent", "1 + sent, 1 + sent", f"{QUANTIZATION} -k ternary"),
    Mistake(
        "dsgd/compressors/scales.py",
        "jnp.sqrt(jnp.mean(shares**2))",
        "jnp.mean(jnp.abs(shares))",
        f"{QUANTIZATION} -k clipped_ternary_rounds",
    ),
    Mistake(
        QUANTIZERS,
        "delta=lambda d: 1 / d)",
        "delta=lambda d: 2 / d)",
        f"{QUANTIZATION} -k sign_attains",
    ),
    Mistake(
        QUANTIZERS,
        ">> (32 - MANTISSA)) < mantissa",
        ">> (31 - MANTISSA)) < mantissa",
        f"{QUANTIZATION} -k natural",
    ),
    Mistake(
        SPARSIFIERS, "d / k * (1 + inner) - 1", "d / k + inner - 1", f"{SPARSE} -k constants_are"
    ),
    Mistake(SPARSIFIERS, "log / 3 + math.sqrt", "log / 6 + math.sqrt", f"{SPARSE} -k capacity"),
    Mistake(
        SPARSIFIERS,
        "each = 8 * x.dtype.itemsize +",
        "each = FLOAT_BITS +",
        f"{CONTRACT} -k counts_elements",
    ),
    Mistake(
        "dsgd/compressors/dct.py",
        "np.sqrt(1 / c), np.sqrt(2 / c)",
        "np.sqrt(2 / c), np.sqrt(2 / c)",
        "tests/dsgd/compressors/test_dct.py -k largest",
    ),
    Mistake(
        "dsgd/compressors/dct.py",
        "reshape(down, across, first, second)",
        "reshape(across, down, first, second)",
        "tests/dsgd/compressors/test_dct.py -k largest",
    ),
    Mistake(
        "dsgd/compressors/combinators.py",
        "(min(d, size), d % size)",
        "(min(d, size),)",
        f"{COMBINATORS} -k constants_of_buckets",
    ),
    Mistake(
        "dsgd/compressors/combinators.py",
        "jax.random.fold_in(key, i)",
        "key",
        f"{COMBINATORS} -k its_own_key",
    ),
    Mistake(
        "dsgd/compressors/low_rank.py",
        "jnp.where(size > 0, start, normal(key, last.shape, last.dtype))",
        "start",
        f"{LOW_RANK} -k starts_cold",
    ),
    Mistake(
        "dsgd/compressors/floats.py",
        "(1 << (cut - 1)) - 1 + (significand >> cut & 1)",
        "1 << (cut - 1)",
        f"{HERE}test_floats.py -k ties",
    ),
    Mistake(
        "dsgd/compressors/floats.py",
        "else ~draws >> (32 - cut)",
        "else ~draws >> (31 - cut)",
        f"{QUANTIZATION} -k 'rounded_up and float8_e4m3fn'",
    ),
    Mistake(
        "dsgd/compressors/floats.py",
        "y * 2.0 ** (levels - 1))",
        "y * 2.0**levels)",
        f"{QUANTIZATION} -k 'rounded_up and natural_dithering'",
    ),
    Mistake(
        "dsgd/compressors/codebooks.py",
        "x.shape[0] - below)",
        "x.shape[0])",
        f"{HERE}test_codebooks.py -k one_bit_sends",
    ),
    Mistake(
        "dsgd/compressors/codebooks.py",
        "jnp.floor(part)",
        "jnp.round(part)",
        f"{HERE}test_codebooks.py -k finds_the_nearest",
    ),
    Mistake(
        "dsgd/compressors/thresholds.py",
        "~(jnp.abs(x) <= v)",
        "~(jnp.abs(x) < v)",
        f"{THRESHOLDS} -k a_threshold",
    ),
    Mistake(
        "dsgd/compressors/thresholds.py",
        "lambda: xla.among_largest(x, k), lambda:",
        "lambda: jnp.zeros_like(reached), lambda:",
        f"{THRESHOLDS} -k 'sampled and equal'",
    ),
    Mistake(
        "dsgd/compressors/thresholds.py",
        "magnitude < least + factor",
        "magnitude < factor",
        f"{THRESHOLDS} -k estimated_threshold",
    ),
    Mistake(
        "dsgd/compressors/places.py",
        "place + half * W",
        "place + half",
        f"{THRESHOLDS} -k places_of_a_mask",
    ),
    Mistake(
        "dsgd/compressors/variance_optimal.py",
        "(k - new) /",
        "k /",
        f"{THRESHOLDS} -k optimal_probabilities",
    ),
    Mistake(
        "dsgd/compressors/chunks.py",
        "jnp.sum(relative**2, axis=1)",
        "jnp.sum(relative, axis=1)",
        f"{SPARSE} -k block_top_k",
    ),
    Mistake(
        "dsgd/compressors/rotations.py",
        "for i in reversed(range(rounds)):",
        "for i in range(rounds):",
        f"{ROTATIONS} -k undone",
    ),
    Mistake(
        "dsgd/compressors/rotations.py",
        "scales = along / _sums(c * c)",
        "scales = along / _sums(y * y)",
        f"{ROTATIONS} -k its_equations",
    ),
    Mistake(
        "dsgd/compressors/rotations.py",
        "0.324, 0.109",
        "0.32, 0.109",
        f"{ROTATIONS} -k three_moments",
    ),
    Mistake(
        "dsgd/compressors/combinators.py",
        "variance * (1 - left)",
        "variance",
        f"{COMBINATORS} -k compressed_error",
    ),
    Mistake(
        "dsgd/compressors/combinators.py",
        "inner**times",
        "inner",
        f"{COMBINATORS} -k remaining_error",
    ),
    Mistake(
        "dsgd/compressors/combinators.py",
        "jnp.zeros_like(term)",
        "jnp.zeros_like(wide(x))",
        f"{COMBINATORS} -k float64_terms",
    ),
    Mistake(
        "dsgd/compressors/rotations.py",
        "seed_key, common = common.fold_in(0).key, common.fold_in(1)",
        "common = common.fold_in(1)",
        f"{HERE}test_common.py -k rotated_basis",
    ),
    Mistake(
        "dsgd/compressors/check.py",
        "int(counted[0]) == capacity",
        "int(counted[0]) <= capacity",
        f"{HERE}test_check.py -k fewer",
    ),
    Mistake(
        "dsgd/compressors/codes.py",
        "(drawn + jax.random.randint(of_rotation, (), 0, d)) % d",
        "drawn % d",
        f"{HERE}test_common.py -k each_element",
    ),
    Mistake(
        "dsgd/compressors/codes.py",
        "line[:k] + line[d:]",
        "line[:k]",
        f"{HERE}test_common.py -k each_element",
    ),
    Mistake(
        "dsgd/compressors/codes.py",
        "-rotations % columns",
        "rotations",
        f"{HERE}test_common.py -k is_the_papers_with_its_hashes",
    ),
    Mistake(
        "dsgd/compressors/codes.py",
        "draw_seed(key if common is None else common.key)",
        "draw_seed(key)",
        f"{HERE}test_common.py -k senders_of_an_exchange",
    ),
    Mistake(
        "dsgd/compressors/correlated.py",
        "wide(values) * width(d)",
        "wide(values) * N",
        f"{HERE}test_common.py -k divides_the_elements",
    ),
    Mistake(
        "dsgd/compressors/correlated.py",
        "stratum, stratum - N)",
        "stratum, stratum)",
        f"{HERE}test_common.py -k equal_vectors_have",
    ),
    Mistake(
        "dsgd/compressors/combinators.py",
        "common=common and common.fold_in(number))",
        "common=common)",
        f"{HERE}test_common.py -k buckets_have",
    ),
]


def test_mistakes_are_found(stride):
    assert mistakes.survivors(MISTAKES[::stride]) == []
