"""Mistakes in Kimad, DropCompute and Cannikin."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

KIMAD, DROPCOMPUTE, CANNIKIN = (
    "tests/algorithms/kimad",
    "tests/algorithms/dropcompute",
    "tests/algorithms/cannikin",
)
STATEMENT = "'tests/theory_checks/test_statements.py::test_statement_holds"
SCALED = (
    "        optax.GradientTransformation("
    "lambda params: Scale(jnp.ones((), jnp.float32)), update),\n"
)

MISTAKES = [
    Mistake(
        "algorithms/kimad/allocation.py",
        "jnp.where(left >= 0, F[",
        "jnp.where(left > 0, F[",
        f"{KIMAD}/test_allocation.py::test_allocations_are_nearly_optimal",
    ),
    Mistake(
        "algorithms/kimad/budgets.py",
        "return Budget(up, a * up)",
        "return Budget(up, up)",
        f"{KIMAD}/test_budgets.py::test_both_messages_fill_the_time_that_computation_leaves",
    ),
    Mistake(
        "algorithms/kimad/choices.py",
        "jnp.cumsum(ties, dtype=jnp.int32) <= room",
        "jnp.cumsum(ties, dtype=jnp.int32) < room",
        f"{KIMAD}/test_choices.py::test_top_k_is_the_papers_with_real_messages[ties-False]",
    ),
    Mistake(
        "algorithms/kimad/exchange.py",
        "jnp.maximum(jnp.max(missing), answer.missing)",
        "jnp.max(missing)",
        f"{KIMAD}/test_method.py::test_missing_is_the_most_bits_by_which_a_message_exceeded_its_budget",
    ),
    Mistake(
        "algorithms/kimad/exchange.py",
        "fits = available >= smallest + header",
        "fits = available >= smallest",
        f"{KIMAD}/test_exchange.py::test_the_header_is_reserved_and_a_budget_that_is_too_small_sends_the_smallest",
    ),
    Mistake(
        "algorithms/kimad/budgets.py",
        "begin = computing - (1 - 1 / period) * longest",
        "begin = computing",
        f"{KIMAD}/test_budgets.py::test_the_server_answers_two_latencies_after_the_last_message_began",
    ),
    Mistake(
        "algorithms/kimad/method.py",
        "if not isinstance(round_time, Tracer) and not seconds.max() < round_time:",
        "if False:",
        f"{KIMAD}/test_choices.py::test_invalid_arguments_are_refused",
    ),
    Mistake(
        "algorithms/kimad/processes.py",
        "link.observe(min(frame.heard for frame in frames))",
        "link.observe(max(frame.heard for frame in frames))",
        f"{KIMAD}/test_processes.py::test_the_server_and_its_workers_run_algorithm_1_and_follow_the_slowest_links",
    ),
    Mistake(
        "algorithms/kimad/monitors.py",
        "observe=lambda memory, rates: jnp.where(jnp.isnan(rates), memory, rates),",
        "observe=lambda memory, rates: jnp.where(jnp.isnan(memory), rates, memory),",
        f"{KIMAD}/test_method.py::test_errors_of_estimates_are_bounded_by_the_change_of_the_bandwidth",
    ),
    Mistake(
        "algorithms/dropcompute/stopping.py",
        "done = starts <= threshold",
        "done = starts < threshold",
        f"{DROPCOMPUTE}/test_processes.py::test_a_stopwatch_stops_at_the_time_given_by_known_durations",
    ),
    Mistake(
        "algorithms/dropcompute/speedups.py",
        "(iteration.whole + iteration.communication) / some",
        "iteration.whole / some",
        f"{DROPCOMPUTE}/test_speedups.py::test_the_speedup_is_that_of_algorithm_2",
    ),
    Mistake(
        "algorithms/dropcompute/thresholds.py",
        "place * compute.shape[1])",
        "place)",
        f"{DROPCOMPUTE}/test_method.py::test_a_threshold_is_chosen_after_the_last_round_that_is_measured",
    ),
    Mistake(
        "algorithms/dropcompute/method.py",
        "(round.step + 1) % self.period == 0",
        "round.step % self.period == 0",
        f"{STATEMENT}[DropCompute, local SGD, every round]'",
    ),
    Mistake(
        "algorithms/dropcompute/expectations.py",
        "-np.expm1(N * np.log1p(-np.minimum(beyond, 1)))",
        "-np.expm1(np.log1p(-np.minimum(beyond, 1)))",
        f"{DROPCOMPUTE}/test_expectations.py::test_ends_of_the_scale",
    ),
    Mistake(
        "algorithms/dropcompute/expectations.py",
        "step = np.minimum(tau + _added(model, tau, N), whole)",
        "step = np.minimum(tau + _added(model, tau, N), whole + communication)",
        f"{DROPCOMPUTE}/test_expectations.py::test_as_printed_equation_11_counts_communication_twice",
    ),
    Mistake(
        "algorithms/dropcompute/expectations.py",
        "step = _step_time(model, tau, N)",
        "step = whole",
        f"{DROPCOMPUTE}/test_expectations.py::test_the_speedup_of_unbounded_latencies_grows_without_bound",
    ),
    Mistake(
        "algorithms/dropcompute/speedups.py",
        "xp.minimum(thresholds, whole)",
        "xp.minimum(thresholds, whole) / 2",
        f"{DROPCOMPUTE}/test_expectations.py -k bounded",
    ),
    Mistake(
        "algorithms/dropcompute/simulation.py",
        "np.maximum(squares - total**2 / rounds, 0) / (rounds - 1)",
        "np.maximum(squares - total**2 / rounds, 0) / rounds",
        f"{DROPCOMPUTE}/test_simulation.py::test_means_and_their_errors_are_those_of_stored_rounds",
    ),
    Mistake(
        "algorithms/dropcompute/processes.py",
        "return (1.0 if isinstance(correction, str) else correction) / (M * N)",
        "return (1.0 if isinstance(correction, str) else correction) / M",
        f"{DROPCOMPUTE}/test_processes.py::test_corrections_of_unequal_workers",
    ),
    Mistake(
        "algorithms/cannikin/model.py",
        "if b <= limits[i] else np.inf",
        "if b < limits[i] else np.inf",
        f"{CANNIKIN}/test_model.py::test_integer_splits_equal_those_given_sample_by_sample",
    ),
    Mistake(
        "algorithms/cannikin/learning.py",
        "variance = measured.products[often, 0, 0] / (count - 1) / count",
        "variance = measured.products[often, 0, 0] / (count - 1)",
        f"{CANNIKIN}/test_learning.py::test_a_model_is_the_best_fit_of_all_measurements",
    ),
    Mistake(
        "algorithms/cannikin/learning.py",
        "_MORE, _FEWER = 1.5, 0.5",
        "_MORE, _FEWER = 0.5, 1.5",
        f"{CANNIKIN}/test_learning.py::test_sizes_that_would_be_repeated_are_alternately_halved_and_increased",
    ),
    Mistake(
        "algorithms/cannikin/noise_scale.py",
        "return NoiseScale(noise, whole - noise / B)",
        "return NoiseScale(noise, whole + noise / B)",
        f"{CANNIKIN}/test_noise_scale.py::test_noise_is_estimated_from_the_differences_of_the_nodes_gradients",
    ),
    Mistake(
        "algorithms/cannikin/noise_scale.py",
        'if weights == "best":',
        'if weights == "":',
        f"{CANNIKIN}/test_noise_scale.py::test_the_best_weights_vary_least_and_the_papers_are_negative_somewhere",
    ),
    Mistake(
        "algorithms/cannikin/scalings.py",
        f"        optimizer,\n{SCALED}",
        f"{SCALED}        optimizer,\n",
        f"{CANNIKIN}/test_policies.py::test_steps_of_adam_are_scaled_not_its_gradients",
    ),
    Mistake(
        "algorithms/cannikin/paper.py",
        'np.argsort(s, kind="stable")',
        'np.argsort(s + q * (model.t_overlap / (1 - model.gamma) - m) / k, kind="stable")',
        f"{CANNIKIN}/test_paper.py::test_with_q_its_batches_take_longer_than_predicted",
    ),
    Mistake(
        "algorithms/cannikin/candidates.py",
        "refreshed[at] = seconds",
        "refreshed[0] = seconds",
        f"{CANNIKIN}/test_policies.py::test_candidates_are_cached_until_bottlenecks_change",
    ),
    Mistake(
        "algorithms/cannikin/policies.py",
        "if seconds.max() > memory.seconds:",
        "if seconds.max() >= memory.seconds:",
        f"{CANNIKIN}/test_policies.py::test_lb_bsp_takes_the_last_change_back_only_if_the_slowest_became_slower",
    ),
    Mistake(
        "algorithms/cannikin/policies.py",
        "(batches > 2) & (batches - 1 != seen_at)",
        "(batches > 2)",
        f"{CANNIKIN}/test_policies.py::test_nodes_at_their_only_size_swap_a_sample",
    ),
    Mistake(
        "algorithms/cannikin/epochs.py",
        "factor = plan.scaling(noise, total, first_batch)",
        "factor = plan.scaling(noise, first_batch, total)",
        f"{CANNIKIN}/test_epochs.py::test_an_epoch_has_the_rounds_of_its_samples_and_its_own_step_size",
    ),
    Mistake(
        "algorithms/cannikin/training.py",
        '"global_sqnorm"][1:]',
        '"global_sqnorm"][:-1]',
        f"{CANNIKIN}/test_training.py::test_a_run_equals_that_of_one_worker_with_all_samples",
    ),
    Mistake(
        "algorithms/cannikin/processes.py",
        "communication.min(axis=1, keepdims=True)",
        "communication.max(axis=1, keepdims=True)",
        f"{CANNIKIN}/test_processes.py::test_an_epoch_returns_the_measurements_of_all_nodes",
    ),
]


def test_mistakes_are_found(stride):
    assert mistakes.survivors(MISTAKES[::stride]) == []
