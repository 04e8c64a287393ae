"""`dsgd.sweep`: every grid point is the run that it says, in one program."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd.engine import programs

N, STEPS = 4, 30


def factory(learning_rate, momentum=0.0):
    return algorithms.decentralized_sgd(
        optax.sgd(learning_rate, momentum=momentum), topologies.ring(N)
    )


@pytest.fixture(scope="module")
def swept(problem):
    return dsgd.sweep(
        factory,
        problem,
        steps=STEPS,
        key=jax.random.key(0),
        seeds=2,
        mesh=dsgd.workers.mesh(2),
        train_loss=True,
        learning_rate=[0.01, 0.2, 900.0],
        momentum=[0.0, 0.5],
    )


def test_every_point_is_the_run_with_its_hyperparameters(swept, problem, mesh):
    """On another number of devices."""
    for i, j in ((0, 1), (1, 0)):
        assert swept.point((i, j)) == {"learning_rate": [0.01, 0.2][i], "momentum": [0.0, 0.5][j]}
        alone = dsgd.run(
            factory(**swept.point((i, j))),
            problem,
            steps=STEPS,
            key=jax.random.key(0),
            seeds=2,
            mesh=mesh,
        )
        at = swept.at((i, j))
        for name, values in alone.history.items():
            np.testing.assert_allclose(at[name], values, rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(swept.params[i, j], alone.params, rtol=1e-4)
        np.testing.assert_allclose(
            swept.state.workers.params[i, j], alone.state.workers.params, rtol=1e-4
        )


def test_axes_are_the_grids_in_order_then_seeds_then_records(swept):
    assert swept.history["loss"].shape == (3, 2, 2, STEPS + 1)
    assert swept.history["step"].shape == (STEPS + 1,)
    assert (
        swept.history["train_loss"][0, :, :, 2:] != swept.history["train_loss"][1, :, :, 2:]
    ).all()
    assert list(swept.grid) == ["learning_rate", "momentum"]


def test_a_point_that_diverges_does_not_stop_the_others_and_is_never_best(swept):
    assert not np.isfinite(swept.history["loss"][2, :, :, -1]).any()
    assert np.isfinite(swept.history["loss"][:2]).all()
    best = swept.best()
    assert best[0] == 1
    ends = dsgd.tail_mean(swept.history["loss"]).mean(axis=-1)
    assert ends[best] == np.nanmin(ends)


def test_twenty_step_sizes_compile_once_and_again_not_at_all(problem, mesh, key):
    def run(rates):
        return dsgd.sweep(
            factory, problem, steps=5, key=key, seeds=2, mesh=mesh, learning_rate=rates
        )

    before = programs.compiled()
    run(np.logspace(-3, -1, 20))
    after = programs.compiled()
    assert after == before + 3, "the start, the loop, and the models to take home"
    run(np.logspace(-2, 0, 20))
    assert programs.compiled() == after


def test_all_points_diverged(swept):
    diverged = swept._replace(
        history={**swept.history, "loss": np.full_like(swept.history["loss"], np.nan)}
    )
    with pytest.raises(
        ValueError,
        match=r"every point of the grid learning_rate = \[0.01, 0.2, 900.0\], momentum = .* diverged",
    ):
        diverged.best()
    with pytest.raises(
        ValueError,
        match="metric = 'accuracy' is not in the history; expected one of step, bits, consensus",
    ):
        swept.best("accuracy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "sweep: no grid given"),
        (
            {"learning_rate": []},
            "grid learning_rate = .*; expected a non-empty sequence of finite numbers",
        ),
        ({"learning_rate": 0.1}, "expected a non-empty sequence"),
        ({"learning_rate": [0.1, float("nan")]}, "finite"),
        ({"learning_rate": ["a"]}, "numbers"),
        ({"learning_rate": [0.1], "seeds": 0}, "seeds = 0"),
        ({"learning_rate": [0.1], "steps": 0}, "steps = 0"),
    ],
)
def test_bad_options_are_refused(options, message, problem, mesh, key):
    with pytest.raises(ValueError, match=message):
        dsgd.sweep(factory, problem, **{"steps": 3, "key": key, "mesh": mesh, **options})


def test_tail_mean_is_of_the_last_tenth():
    values = np.arange(30.0)[None, :]
    assert dsgd.tail_mean(values) == np.mean([27, 28, 29])
    assert dsgd.tail_mean(values[:, :4]) == 3
    assert dsgd.tail_mean(values, 0.5) == np.mean(np.arange(15, 30))
