"""Mistakes in problems and their data."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

SUM, DRAWN, POOL = (
    "dsgd/problems/finite_sum.py",
    "dsgd/problems/examples.py",
    "dsgd/engine/pooled.py",
)
UNIT = "tests/dsgd/problems/test_"
DRAW, READ, SPARSE = f"{UNIT}examples.py::test_", f"{UNIT}data.py::test_", f"{UNIT}sparse.py::test_"
LIKES = "tests/dsgd/test_array_likes.py::test_"
LIKE, SETS, FILES = ("dsgd/array_likes.py", "dsgd/problems/data.py", "dsgd/problems/files.py")
HISTORY = f"{UNIT}weights.py::test_the_history_has_the_weighted_objective_and_its_gradient"
CLIPPED = f"{UNIT}per_sample.py::test_gradients_are_clipped_sample_by_sample_before_their_mean"
PADDED = f"'{UNIT}pooled.py::test_runs_are_those_of_padded_arrays[exact at local models]'"
KEPT = f"{LIKES}values_that_jax_stores_are_kept_up_to_rounding"
REFUSED = f"{LIKES}containers_without_numbers_are_refused_with_a_remedy"
DAMAGED = f"{READ}damaged_files_are_named_and_not_unpacked"
REGULAR = f"{UNIT}regularizers.py::test_"
MISTAKES = [
    # Regularizers.
    Mistake(
        "dsgd/problems/regularizers.py",
        "jnp.abs(x) - step * penalty",
        "jnp.abs(x) - penalty",
        f"{REGULAR}the_proximal_step_minimizes_its_strongly_convex_objective[l1]",
    ),
    Mistake(
        "dsgd/problems/regularizers.py",
        "least = step * penalty * groups.shape[1] ** 0.5",
        "least = step * penalty",
        f"{REGULAR}the_proximal_step_minimizes_its_strongly_convex_objective[rows]",
    ),
    Mistake(
        "dsgd/engine/oracle.py",
        'scalars["loss"] + r.value(trained)',
        'scalars["loss"]',
        f"{REGULAR}the_history_has_the_composite_objective_and_the_prox_gradient",
    ),
    Mistake(
        "dsgd/runs/plans.py",
        "problem.weights is None and problem.regularizer is None",
        "problem.weights is None",
        f"{REGULAR}methods_that_do_not_use_the_regularizer_are_refused",
    ),
    Mistake(
        "dsgd/problems/solutions.py",
        "if size(x) <= small:",
        "if attempt or size(x) <= small:",
        f"{UNIT}solutions.py::test_a_problem_without_a_minimizer_or_with_fixed_leaves_is_refused",
    ),
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
        f"{DRAW}a_small_client_steps_along_the_mean_over_its_own_samples",
    ),
    Mistake(
        SUM,
        "shares = 1 / (len(sizes) * sizes)",
        "shares = 1 / sizes",
        HISTORY,
    ),
    Mistake(
        SUM,
        "tuple((numbers / numbers.mean()).tolist())",
        "tuple(numbers.tolist())",
        HISTORY,
    ),
    Mistake(
        SUM,
        "value / len(test.weights)",
        "value",
        f"{UNIT}adapters.py::test_evaluation_is_that_of_flax_with_the_averaged_statistics",
    ),
    Mistake(
        SUM,
        "[values(m) for m in (2, 3)]",
        "[values(m) for m in (2, 2)]",
        f"{UNIT}finite_sum.py::test_arguments_that_do_not_fit_are_refused",
    ),
    Mistake(
        DRAWN,
        "counted = jnp.arange(B) < size",
        "counted = jnp.arange(B) <= size",
        f"{DRAW}workers_draw_their_own_samples_without_replacement",
    ),
    Mistake(
        DRAWN,
        "jnp.arange(longest) < size, lots, -1",
        "jnp.arange(longest) < size, lots, 1",
        f"{DRAW}all_ordered_batches_are_equally_likely",
    ),
    Mistake(
        DRAWN,
        "later = place >= m",
        "later = place > m",
        f"{DRAW}each_epoch_visits_each_sample_once",
    ),
    Mistake(
        DRAWN, "k % m * size % m\n", "k % m * size\n", f"{DRAW}each_epoch_visits_each_sample_once"
    ),
    Mistake(
        DRAWN,
        "pivot + (m - x)",
        "pivot + m",
        f"{DRAW}all_ordered_batches_are_equally_likely {DRAW}each_epoch_visits_each_sample_once",
    ),
    Mistake(
        DRAWN,
        "padding > sum(sizes) and padding",
        "padding > 100 * sum(sizes) and padding",
        f"{UNIT}pooled.py::test_memory_is_that_of_the_samples",
    ),
    Mistake(POOL, "rows - data.offset[owner] < data.size[owner]", "rows >= 0", PADDED),
    Mistake(POOL, "data.offset + m * data.piece", "data.offset + m", PADDED),
    Mistake(
        "dsgd/problems/partition.py",
        "whole).sum(axis=1).min(axis=1)",
        "whole).sum(axis=1).max(axis=1)",
        f"{UNIT}partition.py::test_every_part_has_at_least_min_samples",
    ),
    Mistake(
        "dsgd/problems/per_sample.py",
        "ratio * power > 1, wide * (1 / ratio)",
        "ratio * power > 0, wide * (1 / ratio)",
        CLIPPED,
    ),
    Mistake(
        "dsgd/problems/per_sample.py",
        "l2 * leaf, trained",
        "2 * l2 * leaf, trained",
        CLIPPED,
    ),
    Mistake(
        "dsgd/problems/targets.py",
        "low, high) == (1, K)",
        "low, high) == (0, K)",
        f"{UNIT}targets.py::test_labels_outside_the_classes_are_refused",
    ),
    Mistake(
        "dsgd/problems/averages.py",
        "1 - a))",
        "1 + a))",
        f"{UNIT}adapters.py::test_running_averages_are_the_means_over_batches_of_the_workers",
    ),
    Mistake(
        "dsgd/problems/sparse.py",
        "longest * 2 >=",
        "longest * 200 >=",
        f"{SPARSE}sparse_features_give_the_losses_and_gradients_of_dense_ones",
    ),
    Mistake(
        LIKE,
        "limits.min <= value <= limits.max",
        "limits.min <= value",
        REFUSED,
    ),
    Mistake(
        LIKE,
        "np.isinf(rounded) & np.isfinite(array)",
        "np.isinf(rounded)",
        KEPT,
    ),
    Mistake(
        LIKE,
        "np.abs(rounded).max() <",
        "np.abs(rounded).min() <",
        KEPT,
    ),
    Mistake(
        LIKE,
        "nullable = not isinstance(",
        "nullable = isinstance(",
        REFUSED,
    ),
    Mistake(
        LIKE,
        "MaskedArray) and np.ma.is_masked(values)",
        "MaskedArray)",
        f"{LIKES}containers_of_numbers_are_converted",
    ),
    Mistake(
        SETS,
        "members[first : first + second]",
        "members[:second]",
        f"{READ}digits_are_split_as_scikit_learn_splits_them",
    ),
    Mistake(
        SETS,
        "targets != np.round(targets)).any()",
        "targets != np.round(targets)).all()",
        f"{READ}invalid_data_are_refused",
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
        DAMAGED,
    ),
    Mistake(
        FILES,
        "file.read(count + 1)",
        "file.read()",
        DAMAGED,
    ),
    Mistake(
        "dsgd/problems/sparse.py",
        'mode="fill"',
        'mode="clip"',
        f"{SPARSE}sparse_rows_are_the_matrix",
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
        DAMAGED,
    ),
    Mistake(
        "dsgd/problems/targets.py",
        "found[:2].min() < -1)",
        "found[:2].max() < -1)",
        f"{UNIT}targets.py::test_binary_labels_outside_0_and_1_are_refused",
    ),
    Mistake(
        "dsgd/problems/language_model.py",
        "max(len(text) - 1, 0)",
        "len(text)",
        f"{UNIT}language_model.py::test_windows_of_the_workers_and_of_the_test_are_those_of_loops",
    ),
    Mistake(
        "dsgd/problems/quadratic.py",
        "smoothness=float(np.abs(A",
        "smoothness=float((A",
        f"{UNIT}quadratic.py::test_constants_agree_with_brute_force",
    ),
]


def test_mistakes_are_found(stride):
    assert mistakes.survivors(MISTAKES[::stride]) == []
