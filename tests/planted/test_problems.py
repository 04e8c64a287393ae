"""Mistakes in problems and their data."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

SUM, DRAWN, POOL = "dsgd/problems/finite_sum.py", "dsgd/problems/examples.py", "dsgd/engine/pooled.py"
RISKS, MODELS, DATA = "tests/cases/test_empirical_risks.py::test_", "tests/cases/test_models.py::test_", "tests/cases/test_data.py::test_"
UNIT = "tests/dsgd/problems/test_"
MISTAKES = [
    Mistake(SUM, "0.5 * self.l2 * optax", "self.l2 * optax", f"{UNIT}finite_sum.py::test_loss_of_a_batch_is_its_plain_mean"),
    Mistake(
        SUM,
        "losses / jnp.sum(batch.weights)",
        "losses / len(batch.weights)",
        f"{RISKS}a_small_client_steps_along_the_mean_over_its_own_samples",
    ),
    Mistake(
        SUM, "shares = 1 / (len(sizes) * sizes)", "shares = 1 / sizes", f"{RISKS}the_history_has_the_weighted_objective_and_its_gradient"
    ),
    Mistake(
        SUM,
        "tuple((numbers / numbers.mean()).tolist())",
        "tuple(numbers.tolist())",
        f"{RISKS}the_history_has_the_weighted_objective_and_its_gradient",
    ),
    Mistake(SUM, "value / len(test.weights)", "value", f"{MODELS}evaluation_is_that_of_flax_with_the_statistics_that_are_taken_home"),
    Mistake(SUM, "[values(m) for m in (2, 3)]", "[values(m) for m in (2, 2)]", f"{UNIT}any_model.py::test_what_does_not_fit_is_refused"),
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
        f"{UNIT}finite_sum.py::test_pairs_of_a_batch_are_uniform",
    ),
    Mistake(DRAWN, "later = place >= m", "later = place > m", f"{RISKS}each_epoch_visits_each_sample_once"),
    Mistake(DRAWN, "k % m * size % m\n", "k % m * size\n", f"{RISKS}each_epoch_visits_each_sample_once"),
    Mistake(
        DRAWN, "pivot + (m - x)", "pivot + m", f"{RISKS}all_orders_of_an_epoch_are_equally_likely {RISKS}each_epoch_visits_each_sample_once"
    ),
    Mistake(DRAWN, "more > sum(sizes) and more", "more >= 0 * sum(sizes) and more", f"{RISKS}memory_is_that_of_the_samples"),
    Mistake(POOL, "rows - data.offset[owner] < data.size[owner]", "rows >= 0", f"{RISKS}runs_are_those_of_padded_arrays[exact-1]"),
    Mistake(POOL, "data.offset + m * data.piece", "data.offset + m", f"{RISKS}runs_are_those_of_padded_arrays[exact-1]"),
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
    Mistake("dsgd/problems/targets.py", "low, high) == (1, K)", "low, high) == (0, K)", f"{MODELS}labels_outside_the_classes_are_refused"),
    Mistake("dsgd/problems/averages.py", "1 - a))", "1 + a))", f"{MODELS}running_averages_are_the_means_over_batches_of_the_workers"),
    Mistake(
        "dsgd/problems/sparse.py",
        "longest * 2 >=",
        "longest * 200 >=",
        f"{DATA}sparse_features_give_the_losses_and_gradients_of_dense_ones",
    ),
]


def test_mistakes_are_found(long):
    assert mistakes.survivors(MISTAKES) == []
