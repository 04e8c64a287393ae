"""Independent calls as jobs of submitit, which also runs them without Slurm."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

import dsgd

submitit = pytest.importorskip("submitit")


def test_jobs_return_results_and_errors_and_a_lost_job_is_made_again(tmp_path: Path):
    killed = tmp_path / "killed"

    def divide(x):
        if x == 4 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 12 // x

    executor = submitit.AutoExecutor(tmp_path / "jobs", cluster="local")
    assert dsgd.parallel_map(divide, [3, 4], on=executor) == [4, 3]
    assert killed.exists()
    with pytest.raises(ZeroDivisionError):
        dsgd.parallel_map(divide, [0], on=executor)


@pytest.mark.skipif(shutil.which("sbatch") is not None, reason="this is a Slurm cluster")
def test_slurm_needs_a_folder_and_a_cluster(tmp_path: Path):
    for folder, words in ((None, "without a folder"), (tmp_path, "a machine of a Slurm cluster")):
        with pytest.raises(ValueError, match=f"on = 'slurm'.*{words}"):
            dsgd.parallel_map(abs, [1], on="slurm", folder=folder)
