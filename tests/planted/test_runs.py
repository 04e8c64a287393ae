"""Mistakes in runs, the engine, machines, and the modules directly in `dsgd`."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

RUNS, ENGINE = "tests/dsgd/runs", "tests/dsgd/engine"
OF_STAGES = (
    f"{RUNS}/test_checkpoints.py"
    "::test_a_run_that_ended_between_records_continues_with_the_records_of_an_uninterrupted_one"
)
OF_CLOCKS = f"{ENGINE}/test_clock.py"

MISTAKES = [
    Mistake("dsgd/runs/chunks.py", "count = 1 if since else most", "count = most", OF_STAGES),
    Mistake(
        "dsgd/runs/chunks.py",
        "if log.steps[-1] > job.last:",
        "if log.steps[-1] > job.last + 1:",
        f"{RUNS}/test_checkpoints.py::test_a_folder_of_another_run_is_refused_by_what_differs",
    ),
    Mistake(
        "dsgd/runs/chunks.py",
        "job.feed.skip(queue.sent - job.before)",
        "job.feed.skip(0)",
        f"{RUNS}/test_checkpoints.py::test_a_run_interrupted_by_its_batches_is_saved_and_resumes",
    ),
    Mistake(
        "dsgd/runs/chunks.py",
        "rounds = evaluated - sent",
        "rounds = left",
        f"{RUNS}/test_evaluate_every.py::test_until_is_called_if_the_last_record_has_a_loss",
    ),
    Mistake(
        "dsgd/runs/history.py",
        "axis=self.axis, dtype=np.uint64)",
        "axis=-1, dtype=np.uint64)[..., ::1] + 1",
        f"{RUNS}/test_history_log.py",
    ),
    Mistake(
        "dsgd/runs/history.py",
        "for piece in self.pieces[-2:]]",
        "for piece in self.pieces[-1:]]",
        f"{RUNS}/test_history_log.py",
    ),
    Mistake(
        "dsgd/runs/history.py",
        "before = self.steps[records[first - 1]]",
        "before = self.steps[records[first]]",
        f"{RUNS}/test_history_log.py",
    ),
    Mistake(
        "dsgd/runs/feed.py",
        "            raise self._ended(skipped)\n        self._taken += rounds\n",
        "            raise self._ended(skipped)\n",
        f"{RUNS}/test_feed_chunks.py",
    ),
    Mistake(
        "dsgd/runs/feed.py",
        "rows[rounds:] = rows[rounds - 1]",
        "rows[rounds - 1 :] = rows[0]",
        f"{RUNS}/test_feed_chunks.py",
    ),
    Mistake(
        "dsgd/runs/fingerprint.py",
        "if name not in _TOOLS]",
        "if name in _TOOLS]",
        f"{RUNS}/test_fingerprint.py",
    ),
    Mistake(
        "dsgd/runs/checkpoints.py",
        "array.shape != kept.shape or array.dtype != kept.dtype",
        "array.shape != kept.shape",
        f"{RUNS}/test_checkpoints.py::test_the_saved_state_is_restored_once",
    ),
    Mistake(
        "dsgd/runs/checkpoints.py",
        "time.monotonic() - self._written > _SECONDS",
        "time.monotonic() - self._written > 2 * _SECONDS",
        f"{RUNS}/test_checkpoints.py::test_a_checkpoint_is_due_after_the_time_that_an_interruption_may_lose",
    ),
    Mistake(
        "dsgd/runs/interrupts.py",
        "self._count > _MOST",
        "self._count > _MOST + 1",
        f"{RUNS}/test_interrupts.py::test_the_third_signal_does_not_wait",
    ),
    Mistake(
        "dsgd/runs/sweeps.py",
        "sign = -1 if largest_is_best(metric, largest) else 1",
        "sign = 1",
        "tests/dsgd/runs/test_sweep.py::test_the_best_point_is_in_the_metric_s_direction",
    ),
    Mistake(
        "dsgd/runs/starts.py",
        "measured = filled(np.nan, like.clock.timings)",
        "measured = filled(0, like.clock.timings)",
        f"{ENGINE}/test_measurements.py::test_a_run_that_continues_another_has_no_measurements_at_first",
    ),
    Mistake(
        "dsgd/engine/tape.py",
        "carried = down if lost is None else down + lost",
        "carried = down",
        f"{OF_CLOCKS}::test_lost_bits_occupy_the_port_and_are_not_measured",
    ),
    Mistake(
        "dsgd/engine/clock.py",
        "return _moved(clock, seconds, seconds - done, timings)",
        "return _moved(clock, seconds, done - seconds, timings)",
        f"{OF_CLOCKS}::test_a_worker_that_finished_earlier_starts_earlier",
    ),
    Mistake(
        "dsgd/runs/replays.py",
        "jnp.where(i < end, a, b)",
        "jnp.where(i <= end, a, b)",
        f"{RUNS}/test_replays.py::test_a_sweep_on_many_clusters_is_each_run_on_each_cluster",
    ),
    Mistake(
        "dsgd/runs/replays.py",
        "before + i, read(series))",
        "i, read(series))",
        f"{RUNS}/test_replays.py::test_a_run_that_continues_has_the_draws_of_its_rounds",
    ),
    Mistake(
        "dsgd/engine/loop.py",
        'if name in ("cluster", "clock", "timings"):',
        "if name in ():",
        f"{RUNS}/test_replays.py::test_methods_that_stop_workers_or_measure_times_are_refused",
    ),
    Mistake(
        "dsgd/engine/clock.py",
        "return finish - (1 - round.cluster.overlap.first)",
        "return finish - round.cluster.overlap.first",
        f"{ENGINE}/test_work_clock.py::test_overlapping_messages_start_with_the_first_bucket_and_the_last_follows_the_gradient",
    ),
    Mistake(
        "dsgd/engine/measurements.py",
        "overlap.first * backward",
        "backward / overlap.first",
        f"{ENGINE}/test_work_clock.py::test_pieces_of_a_batch_take_as_long_as_the_batch",
    ),
    Mistake(
        "dsgd/engine/participation.py",
        "jnp.any(round.present)",
        "jnp.all(round.present)",
        "tests/algorithms/test_participation.py::test_states_are_kept_without_participation_unless_the_method_says_otherwise",
    ),
    Mistake(
        "dsgd/engine/oracle.py",
        "jnp.where(work.weights > 0, work.samples, 0)",
        "jnp.where(work.weights >= 0, work.samples, 0)",
        f"{ENGINE}/test_oracle.py::test_the_loss_of_queried_workers_is_over_their_weighted_samples",
    ),
    Mistake(
        "dsgd/engine/units.py",
        "jnp.where(places < count, rows, n)",
        "rows",
        f"{ENGINE}/test_units.py",
    ),
    Mistake(
        "dsgd/engine/accumulate.py",
        "begin + jnp.arange(size) >= first",
        "begin + jnp.arange(size) > first",
        f"{ENGINE}/test_accumulate.py::test_every_row_counts_once",
    ),
    Mistake(
        "dsgd/engine/loop.py",
        "| (at == end)",
        "",
        f"{RUNS}/test_evaluate_every.py::test_a_stage_begins_and_ends_with_an_evaluation",
    ),
    Mistake(
        "dsgd/engine/protocol.py",
        'for part in ("server", "workers"):',
        'for part in ("server",):',
        f"{ENGINE}/test_protocol.py::test_invalid_results_of_members_are_refused_by_name",
    ),
    Mistake(
        "dsgd/contract/collectives.py",
        "if MESSAGE in scopes:\n            continue",
        "if UPDATE in scopes:\n            continue",
        "tests/dsgd/contract/test_forgotten_messages.py::test_a_collective_outside_the_communicator_is_found_by_name_and_line",
    ),
    Mistake(
        "dsgd/machines/local_processes.py",
        "first = min(logs",
        "first = max(logs",
        "tests/dsgd/machines/test_local_processes.py::test_the_first_failure_is_reported",
    ),
    Mistake(
        "dsgd/machines/heartbeat.py",
        "watch.words(0) in (ended, left)",
        "watch.words(0) in (ended,)",
        "tests/dsgd/machines/test_runtime.py::test_messages_of_process_0_are_not_repeated",
    ),
    Mistake(
        "dsgd/work.py",
        "xp.clip(each[:, None] - B * np.arange(M",
        "xp.clip(each[:, None] - np.arange(M",
        "tests/dsgd/test_work.py",
    ),
    Mistake(
        "dsgd/frames.py",
        "np.tile(step, seeds)",
        "np.repeat(step, seeds)",
        "tests/dsgd/test_frames.py",
    ),
    Mistake(
        "dsgd/records.py",
        "values[..., worker]",
        "values[..., 0]",
        "tests/dsgd/test_frames.py -k has_a_column",
    ),
    Mistake(
        "dsgd/checks.py",
        "value.shape != (() if typed_key else (2,))",
        "value.shape != (() if typed_key else (2,)) and not typed_key",
        "tests/dsgd/runs/test_run.py::test_keys_that_are_not_one_key_or_depend_on_the_devices_are_refused",
    ),
    Mistake(
        "dsgd/checks.py",
        "value.bit_length() > 128",
        "value.bit_length() > 1280000",
        "tests/dsgd/test_checks.py::test_other_numbers_and_functions_are_refused_by_name",
    ),
]


def test_mistakes_are_found(stride):
    assert mistakes.survivors(MISTAKES[::stride]) == []
