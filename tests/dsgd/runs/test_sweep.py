"""`dsgd.sweep`: every grid point is the run with its hyperparameters, in one program; the best
point; metrics with one number for each worker.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import checks, clusters
from dsgd.engine import programs
from dsgd.runs.results import Settings
from tests.dsgd.by_hand import method, run

N, STEPS = 4, 30


def factory(learning_rate, momentum=0.0):
    return algorithms.decentralized_sgd(
        optax.sgd(learning_rate, momentum=momentum), topologies.ring(N)
    )


def sweep(factory, problem, steps=STEPS, **options):
    return dsgd.sweep(
        factory, problem, steps=steps, **({"key": jax.random.key(0), "mesh": 1} | options)
    )


RATES, DECAYS = [0.01, 0.2, 900.0], [0.0, 0.5]


@pytest.fixture(scope="module")
def swept(problem):
    options = {"seeds": 2, "mesh": 2, "train_loss": True}
    return sweep(factory, problem, learning_rate=RATES, momentum=DECAYS, **options)


def test_every_point_is_the_run_with_its_hyperparameters(swept, problem):
    """On another number of devices. Axes are the grids in order, then seeds, then records."""
    assert list(swept.grid) == ["learning_rate", "momentum"]
    for i, j in ((0, 1), (1, 0)):
        assert swept.point((i, j)) == {"learning_rate": RATES[i], "momentum": DECAYS[j]}
        alone = run(factory(**swept.point((i, j))), problem, STEPS, seeds=2, train_loss=True)
        of_list = swept.at([i, j])  # as an index, a list would select rows
        np.testing.assert_array_equal(of_list["loss"], swept.at((i, j))["loss"])
        found = swept.at((i, j)), swept.params[i, j], swept.state.workers.params[i, j]
        expected = alone.history, alone.params, alone.state.workers.params
        jax.tree.map(
            lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-6),
            found,
            expected,
        )


def test_a_point_that_diverges_does_not_stop_the_others_and_is_never_best(swept):
    loss = swept.history["loss"]
    assert not np.isfinite(loss[2, :, :, -1]).any()
    assert np.isfinite(loss[:2]).all()
    best = swept.best()
    assert best[0] == 1
    ends = dsgd.history.tail_mean(loss).mean(axis=-1)
    assert ends[best] == np.nanmin(ends)
    diverged = swept._replace(history=swept.history | {"loss": np.full_like(loss, np.nan)})
    with pytest.raises(ValueError, match=r"learning_rate = \[0.01, 0.2, 900.0\].* diverged"):
        diverged.best()
    with pytest.raises(ValueError, match="metric = 'accuracy' is not in the history"):
        swept.best("accuracy")


def test_twenty_step_sizes_compile_once_and_are_reused(problem):
    before = programs.count_compiled()
    sweep(factory, problem, 5, seeds=2, learning_rate=np.logspace(-3, -1, 20))
    after = programs.count_compiled()
    assert after == before + 3, "the start, the loop, and the models to take home"
    sweep(factory, problem, 5, seeds=2, learning_rate=np.logspace(-2, 0, 20))
    assert programs.count_compiled() == after


def test_a_function_of_numbers_returns_the_clusters(problem):
    """The seconds of each run are those of the same run on its cluster."""

    def cluster(latency, mbit=1.0):
        return clusters.Cluster(
            clusters.exponential(0.3), up=clusters.constant(1e6 * mbit), latency=latency
        )

    given: dict[str, Any] = {"latency": [0.02, 2.0], "mbit": [3e-4]}
    found = sweep(factory, problem, learning_rate=[0.1, 0.2], cluster=cluster, **given).history
    for i, latency in enumerate(given["latency"]):
        for j, mbit in enumerate(given["mbit"]):
            alone = sweep(
                factory, problem, learning_rate=[0.1, 0.2], cluster=cluster(latency, mbit)
            ).history
            np.testing.assert_allclose(found["clock"][:, i, j], alone["clock"], 1e-5)
            np.testing.assert_allclose(found["loss"][:, i, j], alone["loss"], 1e-5, 1e-6)


def with_python(factor):
    return clusters.Cluster(clusters.constant(3.0 if factor > 1 else 2.0))


def with_participation(factor):
    return clusters.Cluster(clusters.constant(3.0), present=clusters.bernoulli(factor, 1.0))


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (with_python, "sweep: factor is used as a Python value"),
        (with_participation, "sweep: cluster returns clusters with another participation"),
    ],
)
def test_clusters_that_differ_in_more_than_numbers_are_refused(cluster, words, problem):
    with pytest.raises(ValueError, match=words):
        sweep(factory, problem, learning_rate=[0.1], cluster=cluster, factor=[0.5, 0.25])


USES = {
    "if": lambda factor: 0.1 if factor > 1 else 0.2,
    "shape": lambda factor: jnp.sum(jnp.ones(factor)),
    "our own refusal": lambda factor: 0.1 * checks.natural("factor", factor),
}


@pytest.mark.parametrize("use", USES)
def test_a_hyperparameter_that_is_used_as_a_python_value_is_named(use, problem):
    with pytest.raises(ValueError, match=r"sweep: factor is used as a Python value"):
        sweep(
            lambda scale, factor: factory(scale * USES[use](factor)),
            problem,
            scale=[1.0, 2.0],
            factor=[0, 1],
        )


# --- The best point of constructed histories.


def made_up(
    metric: str, ends: np.ndarray, loss: np.ndarray | None = None, **grid: list[float]
) -> dsgd.Sweep:
    """Returns a sweep whose metric has these values at its points, with one seed and one record."""
    loss = np.zeros_like(ends) if loss is None else loss
    history = {"step": np.arange(1), "loss": loss[..., None, None], metric: ends[..., None, None]}
    grids = {name: np.asarray(values) for name, values in grid.items()}
    state = dsgd.State(jnp.zeros((), jnp.int32))
    return dsgd.Sweep(grids, history, state, (), settings=Settings(method="made_up"))


SOME = np.array([0.5, 0.1, 0.9, 0.6, 2.0, 0.0])
DIVERGED = np.array([1.0, 1.0, 1.0, 1.0, np.nan, np.inf])


@pytest.mark.parametrize(
    ("metric", "options", "index"),
    [
        ("accuracy", {}, 2),
        ("test_accuracy", {"largest": False}, 1),
        ("bits", {}, 1),
        ("clock", {}, 1),
        ("test_error", {}, 1),
        ("f1", {"largest": True}, 2),
    ],
)
def test_the_best_point_is_in_the_metric_s_direction(metric, options, index):
    """Points that diverged are not best in any metric."""
    found = made_up(metric, SOME, DIVERGED, rate=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert found.best(metric, **options) == (index,)


def test_a_metric_of_unknown_direction_requires_a_direction():
    with pytest.raises(ValueError, match=r"best: metric = 'f1'.*; pass largest=False or"):
        made_up("f1", SOME, rate=[*range(6)]).best("f1")


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ([1.0, 2.0, 3.0], "^best: made_up: rate = 3 .* largest value of its grid"),
        ([3.0, 2.0, 1.0], "rate = 1 .* smallest value of its grid"),
    ],
)
def test_a_best_value_at_the_edge_of_its_grid_is_warned_of(rates, words):
    """Both values of a grid of two are at its edge."""
    ends = np.array([[9.0, 8.0], [3.0, 2.0], [2.0, 1.0]])
    grids = {"rate": rates, "of_two": [0.0, 1.0]}
    with pytest.warns(UserWarning, match=words) as caught:
        assert made_up("loss", ends, ends, **grids).best() == (2, 1)
    assert len(caught) == 1
    assert made_up("loss", ends[[0, 2, 1]], ends[[0, 2, 1]], **grids).best() == (1, 1)


def test_tail_mean_is_of_the_last_tenth():
    values = np.arange(30.0)[None, :]
    assert dsgd.history.tail_mean(values) == np.mean([27, 28, 29])
    assert dsgd.history.tail_mean(values[:, :4]) == 3
    assert dsgd.history.tail_mean(values, 0.5) == np.mean(np.arange(15, 30))


# --- Metrics with one number for each worker.


def counting(size=0.1) -> dsgd.Algorithm:
    """Returns a method whose metric is `[N]`: the round, plus a different decimal for each
    worker.
    """

    def update(state, gradients, round):
        round.log(rounds=(round.step + 1) * 10.0 ** jnp.arange(round.workers))
        return dsgd.State(state.server - size * round.mean(gradients))

    return method(update=update)


def rounds(steps: int) -> np.ndarray:
    counted = np.arange(1, steps + 1)[:, None] * 10.0 ** np.arange(N)
    return np.concatenate([np.full((1, N), np.nan), counted])


def test_metrics_of_workers_are_recorded_worker_by_worker(problem):
    alone = run(counting(), problem, 5, record_every=2, mesh=N).history["rounds"]
    np.testing.assert_allclose(alone, rounds(5)[[0, 2, 4, 5]])
    found = sweep(counting, problem, 5, seeds=2, size=[0.1, 0.2, 0.3])
    np.testing.assert_allclose(found.history["rounds"], np.broadcast_to(rounds(5), (3, 2, 6, N)))
    with pytest.raises(ValueError, match="best: metric = 'rounds' has one number per worker"):
        found.best("rounds")


def test_a_diverged_run_keeps_its_records_until_then(problem):
    """More records than workers, so that the axes are distinguishable."""
    with pytest.raises(dsgd.Diverged, match=r"mine: the loss .*; try a smaller step") as caught:
        run(counting(1e4), problem, 100, seeds=2)
    history = caught.value.history
    count = len(history["step"])
    assert N < count < 100
    assert history["loss"].shape == (2, count)
    np.testing.assert_allclose(history["rounds"], np.broadcast_to(rounds(count - 1), (2, count, N)))
