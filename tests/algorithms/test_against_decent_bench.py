"""Iterates compared with those of decent-bench, an independent implementation, if its environment
exists.

`python -m experiments.benchmark peers` creates it, with Python 3.13.
"""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from experiments.benchmark import environments, peers, timing
from experiments.benchmark.jobs import peers as jobs

ROUNDS = 32  # a multiple of the local steps, 4


@pytest.fixture(scope="module")
def decent(tmp_path_factory):
    """Returns, by method, the models after all rounds, `[5, 7]`, of logistic regression on a
    ring.
    """
    folder = environments.default_folder()
    python = environments.find("decent-bench", folder)
    if python is None:
        pytest.skip(
            f"decent-bench is neither installed here nor in {folder}: python -m "
            "experiments.benchmark peers makes an environment"
        )
    data = tmp_path_factory.mktemp("data")
    peers.write_data(data, 5, 7)
    (path := data / "path").mkdir()
    environment = {"PYTHONPATH": str(environments.path_for(path)), "PYTHONSAFEPATH": "1"}

    def run(method: str) -> tuple[jobs.Job, np.ndarray]:
        what = {
            "data": str(data),
            "rounds": ROUNDS,
            "method": method,
            "learning_rate": 0.1,
            "save": str(data / f"{method}.npy"),
        }
        timing.process(
            [
                str(python),
                "-m",
                "experiments.benchmark.jobs.peers",
                "decent-bench",
                json.dumps(what),
            ],
            environment,
            longest=120,
        )
        return jobs.Job(**what), np.load(what["save"])

    return run


# Not its DLM: version 0.3.0 adds received models in place, which also changes the senders' models.
# With a sum that does not, its iterates, one round late, are those of `algorithms.dlm`.
METHODS = (
    *("decentralized_sgd", "dgd", "extra", "exact_diffusion", "atc_tracking"),
    *("nids", "k_gt", "lt_admm"),
)


@pytest.mark.parametrize("method", METHODS)
def test_iterates_are_those_of_decent_bench(method, decent):
    what, theirs = decent(method)
    with jax.enable_x64(True):
        ours = np.asarray(jobs.dsgd_run(what)(ROUNDS))
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)
