"""Mistakes in the operations for CPUs, and in the choice of the form."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

SUMS, SELECTION, BARRIERS = "dsgd/xla/sums.py", "dsgd/xla/selection.py", "dsgd/xla/barriers.py"
FORMS, STEPS, CONVOLUTIONS = (
    "dsgd/xla/forms.py",
    "dsgd/xla/steps.py",
    "dsgd/xla/convolutions.py",
)
MODELS = "dsgd/problems/models.py"

IN = "tests/dsgd/xla/"
ROWS = IN + "test_sums.py::test_sums_of_any_number_of_rows[17]"
SPOILT = IN + "test_sums.py::test_a_row_that_is_not_finite_affects_only_its_own_sum[nan]"
CLOSE = (
    IN
    + "test_sums.py"
    + "::test_moments_of_rows_that_almost_agree_are_as_small_as_their_differences[float32]"
)
ELEMENTS = IN + "test_sums.py::test_sums_of_elements_are_those_of_numpy[float32]"
HALVES = IN + "test_sums.py::test_inner_products_are_those_of_numpy_in_float32_at_least[bfloat16]"
SORTED = IN + "test_selection.py"
DERIVATIVES = IN + "test_barriers.py::test_it_is_the_identity_for_derivatives_and_empty_arrays"
BITS = IN + "test_barriers.py::test_materialize_changes_no_bit"
BOTH = IN + "test_forms.py::test_both_forms_are_bit_identical_and_only_cpus_use_theirs"
FEW = IN + "test_forms.py::test_few_elements_use_the_plain_form"
VALUES = IN + "test_forms.py::test_a_wrong_value_of_the_variable_is_refused"

MISTAKES = [
    Mistake(
        SELECTION,
        "above = n >= below",
        "above = n > below",
        f"{SORTED} -k indices_of_long",
    ),
    Mistake(SUMS, "    m = -(-n // most)\n", "    m = n // most\n", ROWS),
    Mistake(SUMS, "new = jnp.arange(m) >= m - left", "new = jnp.arange(m) >= m - left - 1", ROWS),
    Mistake(SUMS, "blocks[1::2]), *odd]", "blocks[1::2])]", ROWS),
    Mistake(
        SUMS,
        "jnp.where(new.reshape(m, *[1] * (x.ndim - 1 - axis)), last, 0)",
        "new.reshape(m, *[1] * (x.ndim - 1 - axis)) * last",
        SPOILT,
    ),
    Mistake(SUMS, "several[:, :1].astype(wide)", "0 * several[:, :1].astype(wide)", CLOSE),
    Mistake(
        SUMS,
        "lax.complex(differences, differences**2)",
        "lax.complex(differences, block.astype(wide) ** 2)",
        CLOSE,
    ),
    Mistake(
        SUMS, "jnp.sum(differences**2, axis=1)", "jnp.sum(wide**2, axis=1)", f"{BOTH}[moments]"
    ),
    Mistake(
        SUMS,
        "blocks_added_up(x, x.ndim - 1, n)[..., 0]",
        "blocks_added_up(x, x.ndim - 1, n - 1)[..., 0]",
        ELEMENTS,
    ),
    Mistake(SUMS, "products = x.astype(_wide(x)) * y.astype(_wide(y))", "products = x * y", HALVES),
    Mistake(SELECTION, "found | jnp.uint8(128) >>", "found | jnp.uint8(64) >>", SORTED),
    Mistake(
        SELECTION, "_kth_largest(k - larger, to_the_end)", "_kth_largest(k, to_the_end)", SORTED
    ),
    Mistake(SELECTION, "d - place, 0)", "place + 1, 0)", SORTED),
    Mistake(
        BARRIERS,
        "materialize(*primals), tangents[0]",
        "materialize(*primals), primals[0]",
        DERIVATIVES,
    ),
    Mistake(
        BARRIERS,
        "lax.population_count(lax.bitcast_convert_type(first, jnp.int32)) < 0",
        "first < 0",
        BITS,
    ),
    Mistake(
        FORMS,
        "default=plain) if ENABLED else",
        "default=on_cpus) if ENABLED else",
        f"{BOTH}[sum_rows]",
    ),
    Mistake(FORMS, "if x.size < many else", "if x.size < 0 else", FEW),
    Mistake(FORMS, 'value not in ("on", "off")', 'value not in ("on", "off", "no")', VALUES),
    Mistake(STEPS, "lambda carry: carry[0] < 1", "lambda carry: carry[0] < 2", f"{BOTH}[in_place]"),
    Mistake(
        CONVOLUTIONS,
        "i : i + height : stride, j : j + width",
        "j : j + height : stride, i : i + width",
        f"{BOTH}[convolve]",
    ),
    Mistake(
        CONVOLUTIONS,
        "around = (size // 2, size // 2)",
        "around = (size // 2 + 1, size // 2)",
        "tests/dsgd/problems/test_models.py::test_convolution_is_that_of_xla",
    ),
    Mistake(
        MODELS,
        "channels, self.features), self.stride\n",
        "channels, self.features)\n",
        "tests/dsgd/problems/test_models.py::test_convolution_is_that_of_xla",
    ),
]


def test_mistakes_are_found(stride):
    assert mistakes.survivors(MISTAKES[::stride]) == []
