"""Runs of several processes: equal to one process with the same devices; errors, signals and
differences between processes.
"""

from __future__ import annotations

from functools import partial

import jax
import multiprocess_cases
import numpy as np
import pytest

import dsgd

SECONDS = 1200.0  # maximal time of the processes on a busy machine


def assert_equal(found, expected, **tolerance) -> None:
    """Checks that results are equal to the bit, unless a tolerance is given."""
    if not tolerance:
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    else:
        jax.tree.map(partial(np.testing.assert_allclose, **tolerance), found, expected)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with the checkpoint of a run that one process started on two devices."""
    there = tmp_path_factory.mktemp("many")
    multiprocess_cases.run_with_checkpoint(there / "one", 6, 2)
    return there


@pytest.fixture(scope="module")
def both(folder, request):
    """Returns the results of two processes."""
    whole = request.config.getoption("--long")
    exchanges = [
        exchange
        for exchange in multiprocess_cases.METHODS
        if whole or exchange in multiprocess_cases.BRIEFLY
    ]
    return dsgd.run_local_processes(
        2, partial(multiprocess_cases.two, folder, exchanges, whole), timeout=SECONDS
    )


@pytest.mark.parametrize(
    "exchange",
    [
        pytest.param(
            exchange, marks=() if exchange in multiprocess_cases.BRIEFLY else pytest.mark.long
        )
        for exchange in multiprocess_cases.METHODS
    ],
)
def test_two_processes_are_one_with_two_devices_to_the_bit(exchange, both):
    expected = multiprocess_cases.iterates(exchange, 2)
    for found in both:
        assert_equal(found[exchange], expected)


@pytest.fixture(scope="module")
def four():
    return dsgd.run_local_processes(4, multiprocess_cases.four, timeout=SECONDS)


@pytest.mark.long
@pytest.mark.parametrize("exchange", multiprocess_cases.OF_FOUR)
def test_four_processes_are_one_with_four_devices(exchange, four):
    """Bit-identical in all processes, and to one process if no all-reduce sums in another order."""
    expected = multiprocess_cases.iterates(exchange, 4)
    for found in four:
        assert_equal(found[exchange]["history"], expected["history"], rtol=1e-5, atol=1e-6)
        assert_equal(
            found[exchange]["state"],
            expected["state"],
            **({} if exchange != "all-reduce" else {"rtol": 1e-5, "atol": 1e-6}),
        )
        assert_equal(found[exchange], four[0][exchange])
        assert found["mesh"].startswith("ValueError: mesh: devices = 2 in 4 processes; expected")


@pytest.mark.long
def test_a_sweep_of_two_processes_equals_one_process(both):
    for found in both:
        assert_equal(found["sweep"], multiprocess_cases.swept(2))


def test_each_process_has_only_the_data_of_its_workers(both):
    whole = np.asarray(multiprocess_cases.digits().data.inputs)
    for i, found in enumerate(both):
        everything, ((rows, values),) = found["own rows"]
        assert not everything
        assert rows == slice(2 * i, 2 * i + 2)
        np.testing.assert_array_equal(values, whole[rows])


def test_each_process_loads_only_its_data(both):
    expected, loaded = multiprocess_cases.run_by_worker(2)
    assert loaded == [0, 1, 2, 3]
    for i, found in enumerate(both):
        result, mine = found["by worker"]
        assert mine == [2 * i, 2 * i + 1]
        assert_equal(result, expected)


def test_checkpoints_resume_with_other_numbers_of_processes(both, folder):
    """Two processes resume from a checkpoint of one, and one from a checkpoint of two."""
    straight = multiprocess_cases.run_with_checkpoint(folder / "straight", 12, 2)
    assert_equal([found["resumed"] for found in both], [straight, straight])
    assert_equal(multiprocess_cases.run_with_checkpoint(folder / "two", 12, 2), straight)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "method",
            "method = decentralized_sgd(ring(4)) in process 0, decentralized_sgd(star(4)) in "
            "process 1",
        ),
        ("steps", "steps = 3 in process 0, 4 in process 1"),
        ("calls", "process 0 is at what is run, process 1 at data by worker"),
    ],
)
def test_processes_with_different_arguments_raise_and_name_the_difference(what, message, both):
    first, second = (found["differently"][what] for found in both)
    assert first == second
    assert first.startswith("ValueError: the processes run different configurations (")
    assert message in first


def test_a_signal_to_one_process_stops_all_after_the_same_round(both):
    (message, _, steps), (again, _, others) = (found["interrupted"] for found in both)
    assert message == again
    assert "interrupted after round" in message
    assert steps == others


def test_a_failure_in_one_process_is_raised_in_the_others(both):
    ended = "ValueError: batches ended after round 20"
    assert both[1]["batches"].startswith(ended)
    assert both[0]["batches"].startswith(f"PeerFailed: process 1 of 2 left the run: {ended}")


def test_process_0_decides_when_a_run_ends(both):
    assert both[0]["until"] == both[1]["until"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            "workers",
            "mesh has 2 devices for 3 workers; expected a number of devices that divides 3",
        ),
        ("rows", "3 workers in 2 processes; expected a number of processes that divides 3"),
        ("mesh", "other processes hold a part of the data"),
    ],
)
def test_processes_that_do_not_divide_the_workers_are_refused(what, words, both):
    for found in both:
        assert found[what].startswith(f"ValueError: {words}")


def test_invalid_folders_raise_in_all_processes(both, folder):
    for found in both:
        assert "expected a folder that can be written to" in found["folders"]["nowhere"]
        assert found["folders"]["full"].startswith("OSError: ")
        assert "File too large" in found["folders"]["full"]
    assert not list((folder / "full").glob(".dsgd-run-*"))


@pytest.mark.long
def test_a_method_is_checked_on_the_devices_of_both_processes(both):
    for found in both:
        bad, *good = found["checked"]
        assert all(findings.holds for findings in good)
        by_name = {finding.what: finding for finding in bad.findings}
        assert {name for name, finding in by_name.items() if finding.holds is False} == {
            "2 devices",
            "4 devices",
        }
        assert "differs between devices" in by_name["2 devices"].found


def test_processes_still_run_after_all_errors(both):
    for found in both:
        assert_equal(found["again"], found["permutes"])
