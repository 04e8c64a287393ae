"""Mistakes in problems and their data."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

SUM, DRAWN, POOL = (
    "dsgd/problems/finite_sum.py",
    "dsgd/problems/examples.py",
    "dsgd/engine/pooled.py",
)
RISKS, MODELS, DATA = (
    "tests/cases/test_empirical_risks.py::test_",
    "tests/cases/test_models.py::test_",
    "tests/cases/test_data.py::test_",
)
LIKE, SETS, FILES, READ = (
    "dsgd/array_likes.py",
    "dsgd/problems/data.py",
    "dsgd/problems/files.py",
    "tests/dsgd/problems/test_data.py::test_",
)
PADDED = "'tests/cases/test_empirical_risks.py::test_runs_are_those_of_padded_arrays[exact at local models]'"
UNIT = "tests/dsgd/problems/test_"
MISTAKES = [
    Mistake(
        SUM,
        "0.5 * self.l2 * optax",
        "self.l2 * optax",
        f"{UNIT}finite_sum.py::test_regression_is_that_of_numpy",
    ),
    Mistake(
        SUM,
        "losses / jnp.sum(batch.weights)",
        "losses / len(batch.weights)",
        f"{RISKS}a_small_client_steps_along_the_mean_over_its_own_samples",
    ),
    Mistake(
        SUM,
        "shares = 1 / (len(sizes) * sizes)",
        "shares = 1 / sizes",
        f"{RISKS}the_history_has_the_weighted_objective_and_its_gradient",
    ),
    Mistake(
        SUM,
        "tuple((numbers / numbers.mean()).tolist())",
        "tuple(numbers.tolist())",
        f"{RISKS}the_history_has_the_weighted_objective_and_its_gradient",
    ),
    Mistake(
        SUM,
        "value / len(test.weights)",
        "value",
        f"{MODELS}evaluation_is_that_of_flax_with_the_statistics_that_are_taken_home",
    ),
    Mistake(
        SUM,
        "[values(m) for m in (2, 3)]",
        "[values(m) for m in (2, 2)]",
        f"{UNIT}finite_sum.py::test_what_does_not_fit_is_refused",
    ),
    Mistake(
        DRAWN,
        "counted = jnp.arange(B) < size",
        "counted = jnp.arange(B) <= size",
        f"{RISKS}without_replacement_a_small_client_has_each_sample_once",
    ),
    Mistake(
        DRAWN,
        "jnp.arange(longest) < size, lots, -1",
        "jnp.arange(longest) < size, lots, 1",
        f"{UNIT}examples.py::test_pairs_of_a_batch_are_uniform",
    ),
    Mistake(
        DRAWN,
        "later = place >= m",
        "later = place > m",
        f"{RISKS}each_epoch_visits_each_sample_once",
    ),
    Mistake(
        DRAWN, "k % m * size % m\n", "k % m * size\n", f"{RISKS}each_epoch_visits_each_sample_once"
    ),
    Mistake(
        DRAWN,
        "pivot + (m - x)",
        "pivot + m",
        f"{RISKS}all_orders_of_an_epoch_are_equally_likely "
        f"{RISKS}each_epoch_visits_each_sample_once",
    ),
    Mistake(
        DRAWN,
        "padding > sum(sizes) and padding",
        "padding > 100 * sum(sizes) and padding",
        f"{RISKS}memory_is_that_of_the_samples",
    ),
    Mistake(POOL, "rows - data.offset[owner] < data.size[owner]", "rows >= 0", PADDED),
    Mistake(POOL, "data.offset + m * data.piece", "data.offset + m", PADDED),
    Mistake(
        "dsgd/problems/partition.py",
        "whole).sum(axis=1).min(axis=1)",
        "whole).sum(axis=1).max(axis=1)",
        f"{RISKS}every_part_has_at_least_min_samples",
    ),
    Mistake(
        "dsgd/problems/per_sample.py",
        "/ jnp.maximum(1, optax",
        "/ jnp.minimum(1, optax",
        f"{MODELS}gradients_are_clipped_sample_by_sample_before_their_mean",
    ),
    Mistake(
        "dsgd/problems/per_sample.py",
        "l2 * leaf, trained",
        "2 * l2 * leaf, trained",
        f"{MODELS}gradients_are_clipped_sample_by_sample_before_their_mean",
    ),
    Mistake(
        "dsgd/problems/targets.py",
        "low, high) == (1, K)",
        "low, high) == (0, K)",
        f"{MODELS}labels_outside_the_classes_are_refused",
    ),
    Mistake(
        "dsgd/problems/averages.py",
        "1 - a))",
        "1 + a))",
        f"{MODELS}running_averages_are_the_means_over_batches_of_the_workers",
    ),
    Mistake(
        "dsgd/problems/sparse.py",
        "longest * 2 >=",
        "longest * 200 >=",
        f"{DATA}sparse_features_give_the_losses_and_gradients_of_dense_ones",
    ),
    Mistake(
        LIKE,
        "limits.min <= value <= limits.max",
        "limits.min <= value",
        f"{DATA}values_that_jax_cannot_store_are_refused",
    ),
    Mistake(
        LIKE,
        "np.isinf(rounded) & np.isfinite(array)",
        "np.isinf(rounded)",
        f"{DATA}values_that_jax_stores_are_kept_up_to_rounding",
    ),
    Mistake(
        LIKE,
        "np.abs(rounded).max() <",
        "np.abs(rounded).min() <",
        f"{DATA}values_that_jax_stores_are_kept_up_to_rounding",
    ),
    Mistake(
        LIKE,
        "nullable = not isinstance(",
        "nullable = isinstance(",
        f"{DATA}what_holds_no_numbers_is_refused_with_the_remedy",
    ),
    Mistake(
        LIKE,
        "MaskedArray) and np.ma.is_masked(values)",
        "MaskedArray)",
        f"{DATA}what_holds_numbers_is_converted",
    ),
    Mistake(
        SETS,
        "members[first : first + second]",
        "members[:second]",
        f"{READ}digits_are_in_the_train_or_the_test_set_and_never_in_both",
    ),
    Mistake(
        SETS,
        "targets != np.round(targets)).any()",
        "targets != np.round(targets)).all()",
        f"{READ}data_that_are_none_are_refused",
    ),
    Mistake(
        SETS,
        "dataset.train_inputs.std(",
        "dataset.test_inputs.std(",
        f"{READ}breast_cancer_is_standardised_by_its_training_samples",
    ),
    Mistake(
        FILES,
        "labels - images.first",
        "labels",
        f"{READ}emnist_images_are_upright_and_classes_count_from_zero",
    ),
    Mistake(
        FILES,
        ".transpose(0, 2, 3, 1)",
        ".transpose(0, 3, 2, 1)",
        f"{READ}cifar_files_are_read_back_exactly",
    ),
    Mistake(
        FILES,
        "if argument > stored:",
        "if argument < 0:",
        f"{READ}a_pickle_that_would_grow_is_refused",
    ),
    Mistake(
        FILES,
        "file.read(count + 1)",
        "file.read()",
        f"{READ}what_a_gzip_file_has_beyond_its_header_is_not_unpacked",
    ),
    Mistake(
        "dsgd/problems/sparse.py", 'mode="fill"', 'mode="clip"', f"{DATA}sparse_rows_are_the_matrix"
    ),
    Mistake(
        "dsgd/problems/svmlight.py",
        "matrix[:, first:]",
        "matrix[:, 1:]",
        f"{READ}libsvm_files_are_found_by_their_published_names",
    ),
    Mistake(
        "dsgd/problems/tables.py",
        "if not all(entry.strip()",
        "if not any(entry.strip()",
        f"{READ}damaged_csv_files_are_named",
    ),
    Mistake(
        "dsgd/problems/targets.py",
        "found[:2].min() < -1)",
        "found[:2].max() < -1)",
        f"{MODELS}binary_labels_outside_0_and_1_are_refused",
    ),
    Mistake(
        "dsgd/problems/language_model.py",
        "max(len(text) - 1, 0)",
        "len(text)",
        f"{UNIT}language_model.py::test_windows_are_those_of_a_loop",
    ),
    Mistake(
        "dsgd/problems/quadratic.py",
        "smoothness=float(np.abs(A",
        "smoothness=float((A",
        f"{UNIT}quadratic.py::test_constants_are_those_of_brute_force",
    ),
]


def test_mistakes_are_found(long):
    assert mistakes.survivors(MISTAKES) == []
