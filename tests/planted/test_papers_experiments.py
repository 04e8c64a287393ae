"""Mistakes in the experiments of the papers on Kimad, DropCompute and Cannikin, and in the
benchmarks.
"""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

T = "tests/experiments"
KIMAD = "experiments/kimad/quadratics.py"
KIMAD_TESTS = f"{T}/test_kimad_experiments.py"
SUMS = "experiments/dropcompute/exact.py"
SPEEDUP_TESTS = f"{T}/test_dropcompute_speedup.py"
TRAINING_TESTS = f"{T}/test_dropcompute_training.py"
REAL = "experiments/dropcompute_processes.py"
REAL_TESTS = f"{T}/test_dropcompute_processes.py"
OPTPERF_TESTS = f"{T}/test_cannikin_optperf.py"
CANNIKIN_TESTS = f"{T}/test_cannikin_training.py"
BENCHMARK_TESTS = f"{T}/test_benchmarks.py"

MISTAKES = [
    Mistake(
        KIMAD,
        "reached[0] / reached[1]",
        "reached[1] / reached[0]",
        f"{KIMAD_TESTS}::test_speedups_compare_seconds_to_a_loss_that_both_reach",
    ),
    Mistake(
        KIMAD,
        "low > 1 and middle >= NEGLIGIBLE",
        "low > 1",
        f"{KIMAD_TESTS}::test_faster_means_beyond_the_interval_and_beyond_5_percent",
    ),
    Mistake(
        KIMAD,
        "choices.sizes(d, dtype), start=1)",
        "choices.sizes(d, dtype))",
        f"{KIMAD_TESTS}::test_indices_that_are_not_counted_cost_no_bits",
    ),
    Mistake(
        KIMAD,
        "dsgd.tail_mean(self.losses).mean(axis=-1)",
        "dsgd.tail_mean(self.losses).max(axis=-1)",
        f"{KIMAD_TESTS}::test_the_best_point_has_the_smallest_finite_mean_of_logarithms",
    ),
    Mistake(
        "experiments/kimad_variability.py",
        "least = 2 * mean / (1 + ratio)",
        "least = mean / (1 + ratio)",
        f"{KIMAD_TESTS}::test_patterns_have_equal_means_and_the_stated_range",
    ),
    Mistake(
        "experiments/kimad_quadratic.py",
        "if not 0 < least <= most < math.inf",
        "if not 0 <= least <= most < math.inf",
        f"{T}/test_refusals.py::test_invalid_flags_print_one_line_and_exit_with_status_2[kimad_quadratic-1]",
    ),
    Mistake(
        "experiments/kimad/deep_results.py",
        "COMPUTATION + 2 * mean_size / bandwidth",
        "COMPUTATION + mean_size / bandwidth",
        f"{T}/test_kimad_deep.py::test_seconds_of_ef21_are_those_expected_without_noise",
    ),
    Mistake(
        "experiments/kimad/deep_runs.py",
        "axis=1) < 5",
        "axis=1) <= 5",
        f"{T}/test_kimad_deep.py::test_top_5_counts_a_class_among_the_five_largest_logits",
    ),
    Mistake(
        SUMS,
        "np.searchsorted(self.share, 1 - drop_rate)",
        "np.searchsorted(self.share, drop_rate)",
        f"{SPEEDUP_TESTS}::test_a_step_is_shorter_by_the_share_that_its_threshold_saves",
    ),
    Mistake(
        SUMS,
        "ready = 1 - (later + beyond) / 2",
        "ready = 1 - later",
        f"{SPEEDUP_TESTS}::test_exact_speedups_of_normal_times_are_those_of_quadrature",
    ),
    Mistake(
        "experiments/dropcompute/simulated.py",
        "both[: setting.iterations, :N], both[setting.iterations :, :N]",
        "both[: setting.iterations, :N], both[: setting.iterations, :N]",
        f"{SPEEDUP_TESTS}::test_thresholds_are_evaluated_on_other_iterations",
    ),
    Mistake(
        "experiments/dropcompute/noises.py",
        "most**power * of.sf(most)",
        "most * of.sf(most)",
        f"{SPEEDUP_TESTS}::test_noises_are_drawn_from_their_distributions",
    ),
    Mistake(
        "experiments/dropcompute/training.py",
        "math.ceil((1 - rate) * ends.size) - 1",
        "math.ceil((1 - rate) * ends.size) - 2",
        f"{TRAINING_TESTS}::test_a_threshold_drops_at_most_its_share",
    ),
    Mistake(
        "experiments/dropcompute/convergence.py",
        "clock_at(history, second) / clock_at(without, first)",
        "clock_at(history, first) / clock_at(without, first)",
        f"{TRAINING_TESTS}::test_steps_to_a_loss_are_found_between_rounds",
    ),
    Mistake(
        "experiments/dropcompute/local_sgd.py",
        "np.sum(1 - below)) / period",
        "np.sum(1 - below))",
        f"{TRAINING_TESTS}::test_expected_seconds_of_local_sgd_are_those_of_many_draws",
    ),
    Mistake(
        "experiments/dropcompute/local_sgd.py",
        "chance * workers / server",
        "chance * server / workers",
        f"{TRAINING_TESTS}::test_a_single_server_has_the_same_mean_number_of_stragglers",
    ),
    Mistake(
        REAL,
        "slice(args.rounds), slice(args.rounds, None)",
        "slice(args.rounds), slice(None)",
        f"{REAL_TESTS}::test_plans_use_the_first_steps_and_comparisons_the_later_ones",
    ),
    Mistake(
        REAL,
        "target, end = max(",
        "target, end = min(",
        f"{REAL_TESTS}::test_a_race_ends_at_the_loss_that_both_reach",
    ),
    Mistake(
        "experiments/cannikin/driving.py",
        "model.gamma * backward, np.full",
        "backward, np.full",
        f"{OPTPERF_TESTS}::test_exact_times_predict_exactly_and_inverse_variances_help_with_a_noisy_node",
    ),
    Mistake(
        "experiments/cannikin/devices.py",
        "        2 * q,\n",
        "        q,\n",
        f"{OPTPERF_TESTS}::test_devices_are_those_of_the_paper",
    ),
    Mistake(
        "experiments/cannikin/devices.py",
        "LINK * (parameters or of.parameters) / of.parameters",
        "LINK * of.parameters / (parameters or of.parameters)",
        f"{CANNIKIN_TESTS}::test_links_are_slower_by_the_factor_by_which_the_model_is_smaller",
    ),
    Mistake(
        "experiments/cannikin/race_results.py",
        "seconds(runs[CANNIKIN]) / seconds(runs[system])",
        "seconds(runs[system]) / seconds(runs[CANNIKIN])",
        f"{CANNIKIN_TESTS}::test_only_seeds_that_reach_the_target_with_both_are_compared",
    ),
    Mistake(
        "experiments/cannikin_processes.py",
        "zip(trials, own, strict=True) if not mine",
        "zip(trials, own, strict=True)",
        f"{T}/test_cannikin_processes.py::test_a_split_is_not_predicted_from_itself",
    ),
    Mistake(
        "experiments/benchmark/by_hand.py",
        "return (half + jnp.roll(half, 1, axis=0) + jnp.roll(half, -1, axis=0)) / 3",
        "return (half + jnp.roll(half, 1, axis=0) + jnp.roll(half, 1, axis=0)) / 3",
        f"{BENCHMARK_TESTS}::test_the_benchmarks_versions_compute_the_same[decentralized_sgd]",
    ),
    Mistake(
        "experiments/benchmark/mixing.py",
        "rounds // 2, lambda",
        "rounds, lambda",
        f"{BENCHMARK_TESTS}::test_the_benchmark_of_mixing_times_the_given_rounds_of_dsgd[True]",
    ),
    Mistake(
        "experiments/benchmark/peers.py",
        "if not apart[name] <= AGREE",
        "if apart[name] > AGREE",
        f"{BENCHMARK_TESTS}::test_versions_that_differ_are_reported",
    ),
]


def test_mistakes_are_found(stride):
    assert mistakes.survivors(MISTAKES[::stride]) == []
