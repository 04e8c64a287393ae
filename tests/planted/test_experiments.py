"""Mistakes in the code shared by all experiments, and in the survey's experiments."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

TESTS = "tests/experiments/"
MISTAKES = [
    Mistake(
        "experiments/shared/commands.py",
        "gradient = found.compute + args.batch_size * found.per_sample",
        "gradient = found.compute + found.per_sample",
        TESTS + "test_calibrate.py::test_experiments_take_the_numbers_of_a_cluster",
    ),
    Mistake(
        "experiments/shared/commands.py",
        "there[name] != mine[name]\n",
        "there[name] == mine[name]\n",
        TESTS + "test_command_line.py::test_results_of_another_configuration_are_not_overwritten",
    ),
    Mistake(
        "experiments/shared/statistics.py",
        "np.flatnonzero(values.mean(axis=0) <= target)",
        "np.flatnonzero(values.mean(axis=0) < target)",
        TESTS
        + "test_compare.py::test_diverged_methods_are_left_out_and_a_target_not_reached_is_marked",
    ),
    Mistake(
        "experiments/compare.py",
        "2 * sum(loss <= end",
        "sum(loss <= end",
        TESTS + "test_compare.py::test_the_default_target_is_reached_by_all_and_immediately_by_few",
    ),
    Mistake(
        "experiments/compare.py",
        'np.minimum.accumulate(history["loss"].mean(axis=0))[1:]',
        'history["loss"].mean(axis=0)[1:]',
        TESTS
        + "test_compare.py::test_every_method_has_its_own_look_in_the_line_style_of_its_folder",
    ),
    Mistake(
        "experiments/shared/statistics.py",
        "np.interp(target, ends, at[[first, before]])",
        "np.interp(target, ends, at[[before, first]])",
        TESTS + "test_stragglers.py::test_seconds_to_a_loss_are_between_records",
    ),
    Mistake(
        "experiments/asynchrony.py",
        "full.rate >= FULL * full.rate.max()",
        "full.rate >= full.rate.mean()",
        TESTS + "test_asynchrony.py::test_the_server_saturates_at_the_workers_given_by_its_ports",
    ),
    Mistake(
        "experiments/switch_timelines.py",
        "other is not own and other.arrived >= model.start",
        "other.arrived >= model.start",
        TESTS + "test_switch_timelines.py::test_staleness_by_hand",
    ),
    Mistake(
        "experiments/switch_timelines.py",
        "after = tuple(first + i for i in message.after) or last_round",
        "after = tuple(first + i for i in message.after)",
        TESTS + "test_switch_timelines.py::test_the_next_round_begins_when_all_have_the_model",
    ),
    Mistake(
        "experiments/survey/switch_charts.py",
        'Span(receiver, "receive", "receive", comes, p.arrived, sender)',
        'Span(receiver, "receive", "receive", p.start, p.arrived, sender)',
        TESTS
        + "test_switch_timelines.py::test_blocks_are_the_passages_and_no_lane_has_two_at_once",
    ),
    Mistake(
        "experiments/survey/calibrate_switch.py",
        "value, high, low = (factor",
        "value, low, high = (factor",
        TESTS + "test_calibrate.py::test_one_switch_fits_all_collectives_and_ignores_a_busy_moment",
    ),
    Mistake(
        "experiments/survey/calibrate_measuring.py",
        "Cost(2 * (N - 1), 2 * (N - 1) / N)",
        "Cost(2 * (N - 1), 2 * (N - 1))",
        TESTS + "test_calibrate.py::test_costs_are_those_of_the_patterns",
    ),
    Mistake(
        "experiments/survey/calibrate_switch.py",
        "        + parts.codec\n",
        "",
        TESTS + "test_calibrate.py::test_predictions_are_gradient_and_codec_and_messages",
    ),
    Mistake(
        "experiments/survey/calibrate_switch.py",
        "np.exp(x - a * (y - x) / (b - a))",
        "np.exp(x + a * (y - x) / (b - a))",
        TESTS + "test_calibrate.py::test_crossovers_lie_where_lines_meet",
    ),
    Mistake(
        "experiments/survey/break_even.py",
        "* (N - 1)\n",
        "* N\n",
        TESTS + "test_compression.py::test_at_break_even_the_saved_bits_take_as_long_as_the_codec",
    ),
    Mistake(
        "experiments/topology.py",
        "return graph.rho ** (1 / graph.period)",
        "return graph.rho",
        TESTS + "test_decentralized.py::test_the_measured_decay_is_rho",
    ),
    Mistake(
        "experiments/directed.py",
        "b - A @ np.linalg.solve(",
        "b + A @ np.linalg.solve(",
        TESTS + "test_directed.py::test_the_minimum_is_0_at_0_and_starts_differ",
    ),
    Mistake(
        "experiments/heterogeneity.py",
        "if min(map(len, parts)) >= args.batch_size:",
        "if max(map(len, parts)) >= args.batch_size:",
        TESTS
        + "test_decentralized.py::test_an_alpha_that_leaves_a_worker_without_a_batch_is_refused",
    ),
    Mistake(
        "experiments/convergence_rates.py",
        "values[chosen].mean(axis=1)",
        "values[chosen].mean(axis=0)",
        TESTS + "test_theory_experiments.py::test_an_interval_covers_the_slope_that_seeds_have",
    ),
    Mistake(
        "experiments/survey/theorems.py",
        "np.sqrt(12 / d)",
        "np.sqrt(6 / d)",
        TESTS
        + "test_theory_experiments.py::test_runs_with_a_dithered_grid_have_the_computed_moments",
    ),
    Mistake(
        "experiments/complexity_table.py",
        "low, high = (low, middle) if average(middle) <= epsilon else (middle, high)",
        "low, high = (middle, high) if average(middle) <= epsilon else (low, middle)",
        TESTS + "test_theory_experiments.py::test_iterations_are_the_least",
    ),
    Mistake(
        "experiments/all.py",
        "process.returncode if in_time else None",
        "process.returncode",
        TESTS + "test_all.py::test_an_experiment_over_its_time_limit_is_interrupted",
    ),
    Mistake(
        "experiments/shared/commands.py",
        "yield from bounds(part)",
        "bounds(part)",
        TESTS
        + "test_command_line.py::test_every_number_of_a_flag_has_a_bound_that_its_default_keeps",
    ),
    Mistake(
        "experiments/shared/commands.py",
        "0 < number < math.inf",
        "0 <= number < math.inf",
        TESTS
        + "test_refusals.py::test_invalid_flags_print_one_line_and_exit_with_status_2[compare-6]",
    ),
    Mistake(
        "experiments/shared/tables.py",
        "lines[len(title) :]",
        "lines",
        TESTS + "test_all.py::test_a_table_is_the_same_in_the_terminal_in_its_file_and_in_docs",
    ),
    Mistake(
        "experiments/shared/tuning.py",
        "compute += clusters.exponential(delay)",
        "compute = clusters.exponential(delay)",
        TESTS + "test_compare.py::test_a_delay_is_added_to_the_seconds_of_a_batch",
    ),
]


def test_mistakes_are_found(stride):
    assert mistakes.survivors(MISTAKES[::stride]) == []
