"""Mistakes that differ in kind, each of which must be found by the tests that it names: a factor, a
sign, a tie, a forgotten mask, weight, key, round or error memory, a bound that is too small.
"""

from __future__ import annotations

import shlex

from planted import mistakes
from planted.mistakes import ROOT, Mistake

MISTAKES = [
    Mistake(
        "algorithms/compressed/marina.py",
        "g + N / r * mean",
        "g + mean",
        "tests/methods/test_methods.py -k 'rounds and marina'",
    ),
    Mistake(
        "algorithms/mechanisms/outer.py",
        "optax.tree.sub(total, sent.decoded)",
        "total",
        "tests/methods/test_methods.py -k 'same and sparse_loco'",
    ),
    Mistake(
        "algorithms/decentralized/nids.py",
        "round.when(round.step > 0, combine, x.correction, x.lost)",
        "combine(x.correction, x.lost)",
        "tests/methods/test_methods.py -k 'bits and nids'",
    ),
    Mistake(
        "algorithms/decentralized/lead.py",
        "        common_start=True,\n",
        "",
        "tests/methods/test_methods.py -k 'starts and lead'",
    ),
    Mistake(
        "algorithms/mechanisms/arrivals.py",
        "in_order <= t +",
        "in_order < t +",
        '"tests/algorithms/test_asynchronous_methods.py::test_bounded_staleness_takes_the_first_gradient_that_leaves_an_order_within_the_bound"',
    ),
    Mistake(
        "algorithms/mechanisms/arrivals.py",
        " | new[:, None]",
        " | (new & (jobs == job))[:, None]",
        "tests/algorithms/test_server_events.py -k stops",
    ),
    Mistake(
        "algorithms/local_updates/scaffold.py",
        "round.if_active(gradients, y.control)",
        "gradients",
        "tests/methods/test_methods.py -k 'continues and scaffold'",
    ),
    Mistake(
        "algorithms/mechanisms/memories.py",
        "workers.where_delivered(after, kept)",
        "after",
        "tests/methods/test_methods.py -k 'continues and econtrol'",
    ),
    Mistake(
        "algorithms/local_updates/mime.py",
        "g - g_x + c[None]",
        "g + c[None]",
        "tests/methods/test_methods.py -k 'rounds and mime'",
    ),
    Mistake(
        "algorithms/with_local_work.py",
        "method.query(state, round._replace(work=to_samples(own, *sizes)))",
        "method.query(state, round)",
        '"tests/algorithms/test_with_local_work.py::test_methods_with_their_own_clock_are_queried_with_the_work"',
    ),
    Mistake("dsgd/wire/codecs.py", "<< (k * width)", "<< k", "tests/dsgd/wire/test_codecs.py"),
    Mistake(
        "dsgd/wire/traffic.py",
        "int(trips[1]) + 1, condition",
        "int(trips[1]), condition",
        "tests/dsgd/wire/test_traffic.py -k called",
    ),
    Mistake(
        "dsgd/communication/calls/periods.py",
        "(self.step + 1 - offset) % period == 0",
        "(self.step + 1 - offset) % both == 0",
        "tests/dsgd/communication/test_communicator.py -k 'every and third'",
    ),
    Mistake(
        "dsgd/communication/calls/all_workers.py",
        "jnp.asarray(weights, workers.widen(rows).dtype)",
        "jnp.ones_like(weights, workers.widen(rows).dtype)",
        '"tests/dsgd/problems/test_weights.py::test_a_worker_of_weight_2_counts_as_two_workers[DeMo]"',
    ),
    Mistake(
        "dsgd/network/patterns.py",
        "latency * (degree > 0)",
        "latency * degree",
        "tests/dsgd/network/test_patterns.py -k gossip",
    ),
    Mistake(
        "dsgd/clusters/cluster.py",
        "if self.down else self._sender",
        "if self.down else (_FREE, _DOWN)",
        "tests/dsgd/test_clusters.py -k defaults_of_ports",
    ),
    Mistake(
        "dsgd/problems/finite_sum.py",
        "shares = 1 / (len(sizes) * sizes)",
        "shares = 1 / sizes",
        "tests/dsgd/problems/test_weights.py::test_the_history_has_the_weighted_objective_and_its_gradient",
    ),
    Mistake(
        "dsgd/problems/examples.py",
        "later = place >= m",
        "later = place > m",
        "tests/dsgd/problems/test_examples.py::test_each_epoch_visits_each_sample_once",
    ),
    Mistake(
        "dsgd/problems/data.py",
        "targets != np.round(targets)).any()",
        "targets != np.round(targets)).all()",
        "tests/dsgd/problems/test_data.py::test_invalid_data_are_refused",
    ),
    Mistake(
        "dsgd/runs/chunks.py",
        "job.feed.skip(queue.sent - job.before)",
        "job.feed.skip(0)",
        "tests/dsgd/runs/test_checkpoints.py::test_a_run_interrupted_by_its_batches_is_saved_and_resumes",
    ),
    Mistake(
        "dsgd/engine/participation.py",
        "jnp.any(round.present)",
        "jnp.all(round.present)",
        "tests/algorithms/test_participation.py::test_states_are_kept_without_participation_unless_the_method_says_otherwise",
    ),
    Mistake(
        "dsgd/engine/loop.py",
        "| (at == chunk.end)",
        "",
        "tests/dsgd/runs/test_evaluate_every.py::test_a_stage_begins_and_ends_with_an_evaluation",
    ),
    Mistake(
        "dsgd/contract/collectives.py",
        "if MESSAGE in scopes:\n            continue",
        "if UPDATE in scopes:\n            continue",
        "tests/dsgd/contract/test_forgotten_messages.py::test_a_collective_outside_the_communicator_is_found_by_name_and_line",
    ),
    Mistake(
        "dsgd/frames.py",
        "np.tile(step, seeds)",
        "np.repeat(step, seeds)",
        "tests/dsgd/test_frames.py",
    ),
    Mistake(
        "dsgd/compressors/quantization.py",
        "delta=lambda d: 1 / d)",
        "delta=lambda d: 2 / d)",
        "tests/dsgd/compressors/test_quantization.py -k sign_is",
    ),
    Mistake(
        "dsgd/compressors/combinators.py",
        "jax.random.fold_in(key, i)",
        "key",
        "tests/dsgd/compressors/test_combinators.py -k its_own_key",
    ),
    Mistake(
        "theory_checks/machinery/rates.py",
        "return total / (2 - learning_rate * self.inverse)",
        "return total / 2",
        "tests/theory_checks/test_bounds.py::test_values_are_those_computed_by_hand",
    ),
    Mistake(
        "theory_checks/machinery/random_rounds.py",
        '"k,kji,jl,klm->im"',
        '"k,kij,jl,klm->im"',
        "tests/theory_checks/test_random_rounds.py",
    ),
    Mistake(
        "dsgd/xla/selection.py",
        "_kth_largest(k - larger, to_the_end)",
        "_kth_largest(k, to_the_end)",
        "tests/dsgd/xla/test_selection.py",
    ),
    Mistake(
        "algorithms/kimad/allocation.py",
        "jnp.where(left >= 0, F[",
        "jnp.where(left > 0, F[",
        "tests/algorithms/kimad/test_allocation.py::test_allocations_are_nearly_optimal",
    ),
    Mistake(
        "algorithms/dropcompute/stopping.py",
        "done = starts <= threshold",
        "done = starts < threshold",
        "tests/algorithms/dropcompute/test_processes.py::test_a_stopwatch_stops_at_the_time_given_by_known_durations",
    ),
    Mistake(
        "algorithms/cannikin/noise_scale.py",
        "return NoiseScale(noise, whole - noise / B)",
        "return NoiseScale(noise, whole + noise / B)",
        "tests/algorithms/cannikin/test_noise_scale.py::test_noise_is_estimated_from_the_differences_of_the_nodes_gradients",
    ),
    Mistake(
        "dsgd/workers/mixing.py",
        "arrives &= participants.arrives(axis.ids(topology.n)[:, None], receivers)",
        "pass",
        "tests/dsgd/communication/test_communicator.py -k vectors_of_neighbours",
    ),
    Mistake(
        "experiments/shared/statistics.py",
        "np.flatnonzero(values.mean(axis=0) <= target)",
        "np.flatnonzero(values.mean(axis=0) < target)",
        "tests/experiments/test_compare.py::test_diverged_methods_and_a_target_not_reached_are_marked",
    ),
    Mistake(
        "experiments/dropcompute/simulated.py",
        "both[: setting.iterations, :N], both[setting.iterations :, :N]",
        "both[: setting.iterations, :N], both[: setting.iterations, :N]",
        "tests/experiments/test_dropcompute_speedup.py::test_thresholds_are_evaluated_on_other_iterations",
    ),
]


def test_each_text_occurs_once_and_its_tests_exist():
    for mistake in MISTAKES:
        assert (ROOT / mistake.file).read_text().count(mistake.right) == 1, mistake
        named = [word.split("::") for word in shlex.split(mistake.tests) if word[:6] == "tests/"]
        assert named, mistake
        for file, *test in named:
            text = (ROOT / file).read_text()
            assert all(f"def {name.partition('[')[0]}(" in text for name in test), mistake


def test_mistakes_are_found(long):
    assert mistakes.survivors(MISTAKES) == []
