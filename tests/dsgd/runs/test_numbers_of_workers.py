"""Metrics with one number for each worker: in histories of runs, of sweeps, of runs that diverge or
go on, and in files.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import dsgd
from dsgd import problems
from dsgd.runs.history import Log
from tests.dsgd.by_hand import method

N, SEEDS, STEPS = 4, 2, 5


@pytest.fixture(scope="module")
def problem() -> dsgd.Problem:
    return problems.random_quadratic(N, 3, noise=0.3, seed=0)


def counting(size=0.1) -> dsgd.Algorithm:
    """Its metric is `[N]`: the round, a decimal further for each worker."""

    def update(state, gradients, round):
        round.log(rounds=(round.step + 1) * 10.0 ** jnp.arange(round.workers))
        return dsgd.State(state.server - size * round.mean(gradients))

    return method(update=update)


def expected(steps: int) -> np.ndarray:
    rounds = np.arange(1, steps + 1)[:, None] * 10.0 ** np.arange(N)
    return np.concatenate([np.full((1, N), np.nan), rounds])


@pytest.mark.parametrize("devices", [N])
def test_they_are_recorded_worker_by_worker(devices, problem, key):
    rounds = dsgd.run(counting(), problem, steps=STEPS, key=key, seeds=SEEDS, mesh=devices).history[
        "rounds"
    ]
    np.testing.assert_allclose(rounds, np.broadcast_to(expected(STEPS), (SEEDS, STEPS + 1, N)))
    alone = dsgd.run(
        counting(), problem, steps=STEPS, key=key, record_every=2, mesh=devices
    ).history["rounds"]
    np.testing.assert_allclose(alone, expected(STEPS)[[0, 2, 4, 5]])


def test_a_sweep_has_them_for_each_point_and_does_not_choose_by_them(problem, key, mesh):
    found = dsgd.sweep(
        counting, problem, steps=STEPS, key=key, seeds=SEEDS, mesh=mesh, size=[0.1, 0.2, 0.3]
    )
    assert found.history["rounds"].shape == (3, SEEDS, STEPS + 1, N)
    np.testing.assert_allclose(found.at((2,))["rounds"][1], expected(STEPS))
    with pytest.raises(ValueError, match="best: metric = 'rounds' has one number per worker"):
        found.best("rounds")


@pytest.mark.parametrize("seeds", [SEEDS])
def test_what_diverges_keeps_the_records_until_then(seeds, problem, key, mesh):
    """More records than workers, so that the axes cannot be taken for each other."""
    with pytest.raises(dsgd.Diverged) as caught:
        dsgd.run(counting(1e4), problem, steps=100, key=key, seeds=seeds, mesh=mesh)
    history = caught.value.history
    count = len(history["step"])
    assert N < count < 100
    assert history["rounds"].shape == (*np.shape(history["loss"]), N)
    assert history["loss"].shape[-1] == count
    np.testing.assert_allclose(
        np.reshape(history["rounds"], (-1, count, N))[0], expected(count - 1)
    )


def test_the_mean_of_losses_near_the_largest_number_is_no_overflow():
    """As they are just before a run diverges, if a chunk ends there."""
    log = Log(runs=1, N=3, record_every=1)
    log.extend({"loss": np.full((2, 1), 3e38, np.float32)}, 0)
    assert log.last_loss() == pytest.approx(3e38)
