"""Ctrl-C and SIGTERM: a run ends soon, and its results are kept."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd.engine import loop
from dsgd.runs import chunks, interrupts, progress
from tests.dsgd.by_hand import run

FOREVER = 2_000_000_000
SIGNALS = [signal.SIGINT, signal.SIGTERM]


def factory(learning_rate: float) -> dsgd.Algorithm:
    return algorithms.minibatch_sgd(optax.sgd(learning_rate))


METHOD = factory(0.1)


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@contextmanager
def send_signal(number: signal.Signals, monkeypatch) -> Iterator[None]:
    """Sends the signal to this process when the second chunk has been read; it must have an effect
    within three seconds.
    """
    assert threading.current_thread() is threading.main_thread()
    assert signal.getsignal(number) != signal.SIG_IGN
    update, read, at = progress.Progress.update, itertools.count(1), []

    def interrupt(self, *args):
        update(self, *args)
        if next(read) == 2:
            at.append(time.monotonic())
            os.kill(os.getpid(), number)

    monkeypatch.setattr(progress.Progress, "update", interrupt)
    with interrupts.terminable():  # outside the run, the signal would end this process
        yield
    assert time.monotonic() - at[0] < 3
    monkeypatch.undo()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_run_ends_with_its_history_and_its_checkpoint(number, problem, tmp_path, monkeypatch):
    run(METHOD, problem, 1, record_every=1_000)  # compiles the program
    options = {"record_every": 1_000, "checkpoint": tmp_path}
    with (
        send_signal(number, monkeypatch),
        pytest.raises(
            dsgd.Interrupted, match=r"minibatch_sgd: interrupted after round (\d+) "
        ) as stopped,
    ):
        run(METHOD, problem, FOREVER, **options)
    assert isinstance(stopped.value, KeyboardInterrupt)
    done = int(stopped.value.history["step"][-1])
    assert f"after round {done} " in str(stopped.value)
    with np.load(tmp_path / "dsgd-run.npz") as saved:
        assert saved["records/step"][-1] == done
    np.testing.assert_equal(run(METHOD, problem, done, **options).history, stopped.value.history)


def test_a_sweep_ends_with_its_history_and_resumes_from_its_checkpoint(
    problem, mesh, key, tmp_path, monkeypatch
):
    options = {
        "key": key,
        "mesh": mesh,
        "seeds": 2,
        "record_every": 1_000,
        "learning_rate": [0.01, 0.1, 0.2],
    }
    dsgd.sweep(factory, problem, steps=1, **options)
    with send_signal(signal.SIGTERM, monkeypatch), pytest.raises(dsgd.Interrupted) as stopped:
        dsgd.sweep(factory, problem, steps=FOREVER, checkpoint=tmp_path, **options)
    done = int(stopped.value.history["step"][-1])
    assert stopped.value.history["loss"].shape == (3, 2, len(stopped.value.history["step"]))
    resumed = dsgd.sweep(factory, problem, steps=done + 2_000, checkpoint=tmp_path, **options)
    straight = dsgd.sweep(factory, problem, steps=done + 2_000, **options)
    np.testing.assert_equal(resumed.history, straight.history)
    np.testing.assert_array_equal(resumed.params, straight.params)
    options["learning_rate"] = [0.5]
    with pytest.raises(
        ValueError, match=r"grid learning_rate = \[0.0\d+, .*\] in the checkpoint, \[0.5\]"
    ):
        dsgd.sweep(factory, problem, steps=FOREVER, checkpoint=tmp_path, **options)


def test_a_signal_at_the_very_end_is_not_swallowed(problem, monkeypatch):
    """The signal arrives while the models are copied to the host."""
    take_home = chunks.programs.call

    def call(function, *arguments, **options):
        if function is loop.models:
            signal.raise_signal(signal.SIGINT)
        return take_home(function, *arguments, **options)

    monkeypatch.setattr(chunks.programs, "call", call)
    with pytest.raises(dsgd.Interrupted, match="after round 3") as stopped:
        run(METHOD, problem, 3)
    np.testing.assert_array_equal(stopped.value.history["step"], [0, 1, 2, 3])


def test_batches_that_never_come_are_not_waited_for(problem):
    waiting = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))

    def batches():
        yield jax.tree.map(np.asarray, problem.data)
        waiting.start()
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(dsgd.Interrupted, match="after round 1 ") as stopped:
        run(METHOD, problem, FOREVER, batches=batches())
    assert time.monotonic() - began < 50
    np.testing.assert_array_equal(stopped.value.history["step"], [0, 1])


def test_the_third_signal_does_not_wait():
    with interrupts.Stop() as stop:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            assert stop.asked
        with pytest.raises(KeyboardInterrupt, match="SIGINT"):
            signal.raise_signal(signal.SIGINT)


def test_in_a_script_sigterm_is_as_ctrl_c():
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), interrupts.terminable():
        signal.raise_signal(signal.SIGTERM)
