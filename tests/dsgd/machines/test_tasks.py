"""Independent calls in processes and executors: results, errors, losses, interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dsgd
from dsgd.machines import executors, remote_calls, tasks


def square(x: int) -> int:
    return x * x


class Losing:
    """An executor that loses the first calls; it ends them in reverse order.

    Args:
        losses: number of calls that are lost.
    """

    def __init__(self, losses: int) -> None:
        self.losses, self.calls = losses, 0
        self.waiting: list[Future] = []

    def submit(self, function, call):
        self.calls += 1
        job = Job(self, Future())
        if self.calls <= self.losses:
            job.future.set_exception(ChildProcessError("its machine was switched off"))
        else:
            job.future.set_result(function(call))
            self.waiting.append(job.future)
        return job


class Job:
    def __init__(self, executor: Losing, future: Future) -> None:
        self.executor, self.future = executor, future

    def done(self) -> bool:
        waiting = self.executor.waiting
        if self.future not in waiting:
            return True
        if self.future is not waiting[-1]:
            return False
        waiting.pop()
        return True

    def result(self) -> bytes:
        return self.future.result()

    def cancel(self) -> None:
        pass


def test_results_are_in_the_order_of_the_items_and_lost_calls_are_made_again():
    executor = Losing(tasks.ATTEMPTS - 1)
    assert dsgd.parallel_map(square, [3, 5, 7], on=executor, jobs=2) == [9, 25, 49]
    assert executor.calls == 3 + tasks.ATTEMPTS - 1
    executor = Losing(0)
    done = tasks.completed("where", square, [3, 5, 7], on=executor)
    assert list(done) == [(2, 49), (1, 25), (0, 9)]


def test_a_call_that_is_always_lost_is_an_error():
    executor = Losing(99)
    with pytest.raises(ChildProcessError, match=r"with 3 was lost 3 times.*switched off"):
        dsgd.parallel_map(square, [3], on=executor)
    assert executor.calls == tasks.ATTEMPTS


class Mistake(Exception):
    """Cannot be restored from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_errors_of_the_function_are_raised_at_once_and_not_repeated():
    calls = []

    def fail(x):
        calls.append(x)
        if x == 4:
            raise Mistake("not", "pickled")
        raise dsgd.Diverged(f"diverged with {x}", {"loss": np.ones(x)})

    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(dsgd.Diverged, match="diverged with 3") as raised:
            dsgd.parallel_map(fail, [3], on=executor)
        assert raised.value.history["loss"].shape == (3,)
        assert isinstance(raised.value.__cause__, remote_calls.RemoteTraceback)
        assert "in fail\n" in str(raised.value.__cause__)
        with pytest.raises(RuntimeError, match="Mistake: not pickled"):
            dsgd.parallel_map(fail, [4], on=executor)


def test_warnings_of_the_function_are_issued_here():
    def careful(x):
        warnings.warn(f"careful with {x}", stacklevel=1)
        return x

    with (
        ThreadPoolExecutor(1) as executor,
        pytest.warns(UserWarning, match="careful with 6") as seen,
    ):
        assert dsgd.parallel_map(careful, [6], on=executor) == [6]
    assert seen[0].filename == __file__


@pytest.mark.parametrize("on", [None, "executor"])
def test_the_same_call_resumes_from_finished_results(tmp_path, on):
    made = []

    def once(x):
        made.append(x)
        if x == 8 and made.count(x) == 1:
            raise KeyboardInterrupt if on is None else Mistake("an", "interruption")
        return -x

    def call(items):
        if on is None:
            return dsgd.parallel_map(once, items, folder=tmp_path / "kept")
        return dsgd.parallel_map(Here(once), items, folder=tmp_path / "kept", on=Losing(0), jobs=1)

    with pytest.raises((KeyboardInterrupt, RuntimeError)):
        call([2, 4, 8])
    assert call([2, 4, 8]) == [-2, -4, -8]
    assert made == [2, 4, 8, 8]
    with pytest.raises(ValueError, match=r"0.pickle has the result of .*\(2\), not of .*\(3\)"):
        call([3, 4, 8])


class Here:
    """A function that is not copied when it is pickled."""

    functions: list = []  # noqa: RUF012 (shared on purpose)

    def __init__(self, function) -> None:
        self.functions.append(function)

    def __call__(self, x):
        return self.functions[-1](x)


def test_invalid_arguments_are_refused(tmp_path):
    for words, options in (
        (r"on = 'rai'; expected None, 'processes', 'ray', 'slurm', or an executor", {"on": "rai"}),
        ("jobs = 0", {"jobs": 0}),
    ):
        with pytest.raises(ValueError, match=words):
            dsgd.parallel_map(square, [1], **options)
    with pytest.raises(ValueError, match=r"parallel_map: .* cannot be pickled"):
        dsgd.parallel_map(square, [threading.Lock()], on=Losing(0))


def test_processes_have_their_own_cores_and_compute_the_same(tmp_path):
    """One of them is killed in its first call. JAX has the same settings and devices."""
    killed = tmp_path / "killed"

    def compute(x):
        if x == 5 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        print("not shown")
        # large enough that XLA splits its sums among threads
        many = jnp.sin(jnp.arange(x * 400_000.0)).reshape(-1, 400)
        numbers = jax.jit(lambda a: ((a.T @ a).sum(), a[0] @ a[1], (a @ a[0]).sum()))(many)
        share = remote_calls.cores()
        return [float(each) for each in numbers], jax.device_count(), jnp.float_(0).dtype, share

    with jax.enable_x64():
        items = [4, 5, 6]
        found = dsgd.parallel_map(compute, items, on="processes", jobs=2)
        expected = [compute(x)[:-1] for x in items]
    assert [each[:-1] for each in found] == expected
    if hasattr(os, "sched_setaffinity"):
        shares = {tuple(each[-1]) for each in found}
        everything = remote_calls.cores()
        assert len(shares) == min(2, len(everything))
        assert sorted(core for share in shares for core in share) == everything


SCRIPT = """
import subprocess, sys, time
import dsgd

def wait(path):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300) # " + path])
    open(path, "w").close()
    time.sleep(300)

if __name__ == "__main__":
    dsgd.parallel_map(wait, sys.argv[1:], on="processes")
"""


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)]
)
def test_an_interruption_ends_all_processes(tmp_path, number):
    script, begun = tmp_path / "script.py", tmp_path / "begun"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, script, begun], env=environment, stderr=subprocess.PIPE, text=True
    )
    wait_until(begun.exists)
    assert running(begun)
    process.send_signal(number)
    _, words = process.communicate(timeout=60)
    assert number == signal.SIGKILL or words.strip().endswith("KeyboardInterrupt")
    wait_until(lambda: not running(begun))


def running(begun: Path) -> list[str]:
    """Returns the processes that the script has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode()
        except OSError:
            continue
        if str(begun) in words:
            found.append(words)
    return found


def wait_until(holds) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_process_that_exits_says_why(tmp_path):
    process = executors.Process(remote_calls.cores(), tmp_path / "log")
    job = process.begin(remote_calls.pack("where", os._exit, 7))
    wait_until(job.done)
    with pytest.raises(ChildProcessError, match="exited with status 7: no message"):
        job.result()
    process.end()
