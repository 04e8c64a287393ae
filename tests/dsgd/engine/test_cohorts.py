"""Rounds with rows for the workers that participate equal those with rows for all workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import smoke_cases

import algorithms
import dsgd
import topologies
from dsgd import clusters, network, problems, work
from dsgd.compressors import random_k, random_quantization, top_k
from dsgd.engine.cohorts import order
from dsgd.engine.stores import Store

N, M, H, STEPS = 10, 3, 3, 14
SGD, ADAM = optax.sgd(0.07), optax.adam(0.02)
HEAVY = optax.sgd(0.05, momentum=0.6)
STAR = network.star
METHODS: dict[str, Callable[[], dsgd.Algorithm]] = {
    "fed_avg": lambda: algorithms.fed_avg(HEAVY, H),
    "unbiased fed_avg": lambda: algorithms.fed_avg(SGD, H, inclusion="selection"),
    "fed_prox": lambda: algorithms.fed_prox(SGD, H, 0.4),
    "fed_nova": lambda: algorithms.fed_nova(SGD, H),
    "fed_dyn": lambda: algorithms.fed_dyn(SGD, H, 0.3),
    "fed_adam of adam": lambda: algorithms.fed_adam(ADAM, H, 0.03),
    "fed_paq": lambda: algorithms.fed_paq(SGD, H, random_quantization(3)),
    "scaffold": lambda: algorithms.scaffold(SGD, H, via=STAR),
    "mime": lambda: algorithms.mime(HEAVY, H, 0.7),
    "mime_lite": lambda: algorithms.mime_lite(HEAVY, H, 0.7),
    "local_sgd": lambda: algorithms.local_sgd(ADAM, H),
    "des_loc": lambda: algorithms.des_loc(ADAM, H, H, H),
    "diloco": lambda: algorithms.diloco(ADAM, H),
    "slowmo": lambda: algorithms.slowmo(HEAVY, H),
    "easgd": lambda: algorithms.easgd(SGD, H, 0.6),
    "ef21": lambda: algorithms.ef21(SGD, top_k(0.2)),
    "diana": lambda: algorithms.diana(SGD, random_k(0.3), via=STAR),
    "majority_vote": lambda: algorithms.majority_vote(optax.sgd(0.01), 0.6),
    "model_averaging_sgd": lambda: algorithms.model_averaging_sgd(HEAVY),
    "minibatch_sgd": lambda: algorithms.minibatch_sgd(ADAM),
    "ditto": lambda: algorithms.ditto(SGD, H, 0.4),
    "power_of_choice": lambda: algorithms.power_of_choice(
        algorithms.scaffold(SGD, H, via=STAR), 2, H
    ),
}
SELECTIONS = {
    "sampled": clusters.sampled(M, of=N),
    "by size": clusters.sampled(M, N, np.arange(2.0, N + 2)),
    "round robin": clusters.round_robin(M, N),
}


@cache
def problem() -> dsgd.Problem:
    """Clients of 18 to 100 samples, with weights and epochs."""
    return problems.logistic_regression(
        "breast-cancer",
        N,
        "dirichlet",
        alpha=0.8,
        weights="samples",
        batch_size=6,
        replacement="epoch",
    )


def cluster(selection: clusters.Quantity, period: int, everyone: bool = False) -> clusters.Cluster:
    """Returns a cluster on which a round has rows for all workers if `everyone`."""
    if everyone:
        selection = dataclasses.replace(selection, most=None)
    return clusters.Cluster(
        clusters.lognormal(-3.0, 0.7),
        up=clusters.constant(2e6),
        down=clusters.constant(5e6),
        latency=0.003,
        present=selection,
        participation_period=period,
    )


def run(method: dsgd.Algorithm, everyone: bool, **changes: Any) -> dsgd.Result:
    selection, period = changes.pop("selection", "sampled"), changes.pop("period", 2 * H)
    stated = changes.pop("known", everyone)  # whether the selection states no bound
    given = {"steps": STEPS, "record_every": 2, "mesh": 1, "problem": problem()} | changes
    given["cluster"] = cluster(SELECTIONS[selection], period, stated)
    with jax.enable_x64(True):
        result = dsgd.run(method, given.pop("problem"), key=5, progress=False, **given)
    assert isinstance(result.state.workers, dsgd.Clients) != everyone
    return result


def compare(found: dsgd.Result, expected: dsgd.Result) -> None:
    assert found.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=1e-7, atol=1e-12, err_msg=name)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12),
        (found.params, found.state.server),
        (expected.params, expected.state.server),
    )


@pytest.mark.filterwarnings("ignore:.*sends messages every")
@pytest.mark.parametrize(
    "name", smoke_cases(METHODS, {"fed_avg", "scaffold", "ef21"}, METHODS.keys())
)
def test_a_cohort_computes_what_all_workers_compute(name):
    method = METHODS[name]()
    compare(run(method, False), run(method, True))


@pytest.mark.filterwarnings("ignore:.*sends messages every")
@pytest.mark.parametrize("selection", ["by size", "round robin"])
def test_selections_runs_and_local_work(selection):
    def epochs(state, round):
        steps = 1 + np.arange(N) % H
        computing = round.step % H < steps
        return work.micro_batches(computing[:, None], average="workers")

    method = algorithms.with_local_work(algorithms.fed_nova(SGD, H), epochs)
    options = {"selection": selection, "period": H, "seeds": 2, "train_loss": True}
    compare(run(method, False, **options), run(method, True, **options))


@pytest.mark.filterwarnings("ignore:.*sends messages every")
@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["scaffold", "easgd"])
def test_rows_are_spread_over_devices_that_do_not_divide_the_workers(name, devices):
    """3 of 10 workers on 2 or 4 devices: 4 rows, and a store of 10 or 12."""
    method = METHODS[name]()
    found = run(method, False, mesh=devices)
    assert found.state.workers.ids.shape == (4,)
    compare(found, run(method, True))


@pytest.mark.filterwarnings("ignore:.*sends messages every")
def test_runs_continue_in_the_middle_of_a_period(tmp_path):
    method, whole = METHODS["scaffold"](), run(METHODS["scaffold"](), False)
    run(method, False, steps=8, checkpoint=tmp_path)
    compare(run(method, False, checkpoint=tmp_path), whole)


@pytest.mark.filterwarnings("ignore:.*sends messages every")
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_stages_with_and_without_cohorts(before, after):
    """The state of all workers, at the end of a period."""
    method = METHODS["scaffold"]()
    first = run(method, before, steps=2 * H)
    second = run(method, after, steps=2 * H, start=first)
    third = run(method, True, steps=2 * H, start=run(method, True, steps=2 * H))
    compare(second, third)
    with jax.enable_x64(True):
        rows = dsgd.all_rows(second.state).workers
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12),
        rows,
        dsgd.all_rows(third.state).workers,
    )


@pytest.mark.filterwarnings("ignore:.*sends messages every", "ignore:.*the same workers")
@pytest.mark.parametrize("name", ["scaffold", "fed_avg", "ef21"])
def test_stages_that_begin_between_two_synchronizations(name):
    """Workers then have different models, so that all of them have rows; except for EF21, which has
    one model.
    """
    method = METHODS[name]()
    cohort = run(method, False, steps=H + 1)
    everyone = run(method, True, steps=H + 1)
    expected = run(method, True, start=everyone)
    for start in (cohort, everyone):
        found = run(method, name != "ef21", start=start, known=False)
        compare(found, expected)


@pytest.mark.filterwarnings("ignore:.*sends messages every")
@pytest.mark.parametrize("devices", [1, 4])
def test_stages_with_other_numbers_of_rows(devices):
    method = METHODS["scaffold"]()
    start = run(method, False, steps=2 * H, selection="by size", mesh=4)  # 4 rows, a store of 12
    found = run(method, False, steps=2 * H, start=start, mesh=devices)
    expected = run(method, True, steps=2 * H, start=start)
    compare(found, expected)


@pytest.mark.filterwarnings("ignore:.*sends messages every")
def test_states_of_other_workers_are_refused():
    eight = problems.logistic_regression("breast-cancer", 8, batch_size=6)
    start = dsgd.run(METHODS["fed_avg"](), eight, steps=H, key=0, mesh=1)
    with pytest.raises(ValueError, match="a state of 8 workers; expected 10"):
        dsgd.run(
            METHODS["fed_avg"](),
            problem(),
            steps=H,
            key=0,
            mesh=1,
            start=start,
            cluster=cluster(SELECTIONS["sampled"], H),
        )


@pytest.mark.filterwarnings("ignore:.*sends messages every")
def test_sweeps_have_cohorts_if_all_points_synchronize_in_the_same_rounds():
    def swept(factory, everyone, **grid):
        return dsgd.sweep(
            factory,
            problem(),
            steps=12,
            key=2,
            seeds=2,
            record_every=2,
            mesh=1,
            cluster=cluster(SELECTIONS["sampled"], 2 * H, everyone),
            **grid,
        )

    def rated(learning_rate):
        return algorithms.scaffold(optax.sgd(learning_rate), H)

    found, expected = (swept(rated, every, learning_rate=[0.02, 0.3]) for every in (False, True))
    assert isinstance(found.state.workers, dsgd.Clients)
    for name, values in expected.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=1e-4, atol=1e-6)
    periods = swept(lambda period: algorithms.fed_avg(SGD, period), False, period=[2, 3])
    assert not isinstance(periods.state.workers, dsgd.Clients)


def rows_of(method: dsgd.Algorithm, **changes: Any) -> bool:
    """Returns whether rounds have rows for all workers."""
    given = {"selection": SELECTIONS["sampled"], "period": H} | changes
    found = dsgd.run(
        method,
        problem(),
        steps=1,
        key=0,
        mesh=1,
        cluster=cluster(given["selection"], given["period"]),
    )
    return not isinstance(found.state.workers, dsgd.Clients)


@pytest.mark.filterwarnings("ignore")
def test_rows_of_all_workers_where_they_are_needed():
    assert rows_of(METHODS["fed_avg"](), period=2)  # the models are averaged every 3 rounds
    assert rows_of(algorithms.decentralized_sgd(SGD, topologies.ring(N)))
    assert rows_of(algorithms.sparta(SGD, 0.3))
    assert rows_of(METHODS["ef21"](), selection=clusters.bernoulli(0.4, 1.0))


def averaged(H: int, **members: Any) -> dsgd.Algorithm:
    """Local SGD as a user writes it."""

    def update(state, gradients, round):
        x = jax.tree.map(lambda x, g: x - 0.1 * g, state.workers, gradients)
        x = round.if_active(x, state.workers)
        return dsgd.State(workers=round.every(H, round.average, x))

    return dsgd.Algorithm(
        "averaged",
        lambda params, N: dsgd.State(workers=dsgd.workers.replicate(params, N)),
        lambda state, round: dsgd.Query(state.workers),
        **{"update": update, "model": lambda state: state.workers} | members,
    )


@pytest.mark.filterwarnings("ignore:.*sends messages every")
def test_states_that_differ_after_a_synchronization_are_refused():
    def adopt(before, after):
        return after

    compare(run(averaged(H, absent=adopt), False), run(averaged(H, absent=adopt), True))

    def update(state, gradients, round):
        x = jax.tree.map(lambda x, g: x - 0.1 * g, state.workers, gradients)
        mean = round.average(x)
        return dsgd.State(workers=jax.tree.map(lambda x, m: 0.5 * (x + m), x, mean))

    wrong = averaged(H, absent=adopt, update=update)
    with pytest.raises(ValueError, match=r"2 parts of the state of averaged .*AllRows\(absent\)"):
        run(wrong, False)
    run(wrong._replace(absent=dsgd.AllRows(adopt)), True)


def test_more_workers_than_stated_are_refused():
    few = dataclasses.replace(clusters.bernoulli(0.5, 1.0), most=2)
    with pytest.raises(ValueError, match=r"workers participate in a round; expected at most the 2"):
        dsgd.run(METHODS["ef21"](), problem(), steps=20, key=0, cluster=cluster(few, 2))


@pytest.mark.filterwarnings("ignore:.*sends messages every")
def test_a_run_says_what_it_stores_and_refuses_what_does_not_fit(caplog, monkeypatch):
    """62 parameters; SCAFFOLD's workers keep a control variate, those of FedAvg nothing."""
    caplog.set_level("INFO", "dsgd")
    run(METHODS["scaffold"](), False, steps=6, seeds=2)
    run(METHODS["fed_avg"](), False, steps=6)
    run(algorithms.sparta(SGD, 0.3), True, steps=6)
    words = [record.getMessage() for record in caplog.records if "rows" in record.getMessage()]
    assert "3 of 10 workers have rows; all of them keep 496 bytes each" in words[0]
    assert "in 2 runs" in words[0]
    assert "keep 0 bytes" in words[1]
    assert "the rows of all 10 workers are computed" in words[2]
    monkeypatch.setattr("dsgd.graphs.sizes.machine_memory", lambda: 10 * 496 - 1)
    with pytest.raises(ValueError, match=r"10 workers keep .* 496 bytes each, needs.*fed_avg"):
        run(METHODS["scaffold"](), False, steps=6)


@pytest.mark.filterwarnings("ignore:.*sends messages every")
@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("scaffold", 1),
        ("ef21", 1),
        pytest.param("scaffold", 4, marks=pytest.mark.long),
        pytest.param("ditto", 1, marks=pytest.mark.long),
    ],
)
def test_what_workers_keep_can_be_in_files(name, devices, tmp_path):
    """The files have no names; the result has their contents, also as the start of another run."""
    options = {"seeds": 2, "selection": "by size", "mesh": devices}
    method, stages = METHODS[name](), {**options, "steps": 2 * H}
    found = run(method, False, store=tmp_path, **options)
    expected = run(method, False, **options)
    compare(found, expected)
    assert [store.folder for store in found.state.workers.host] == [tmp_path] * 2
    assert not list(tmp_path.iterdir())
    with jax.enable_x64(True):
        rows = [dsgd.all_rows(each.state).workers for each in (found, expected)]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12), *rows)
    first = run(method, False, store=tmp_path, **stages)
    before = [np.copy(store.written) for store in first.state.workers.host]
    compare(
        run(method, False, start=first, store=tmp_path, **options),
        run(method, False, start=run(method, False, **stages), **options),
    )
    compare(  # to and from the memory of the device
        run(method, False, start=first, **options),
        run(method, False, start=run(method, False, **stages), store=tmp_path, **options),
    )
    for written, store in zip(before, first.state.workers.host, strict=True):
        np.testing.assert_array_equal(store.written, written)


@pytest.mark.filterwarnings("ignore:.*sends messages every")
def test_runs_with_files_continue_from_a_checkpoint(tmp_path):
    method, options = METHODS["scaffold"](), {"store": tmp_path / "files", "seeds": 2}
    run(method, False, steps=8, checkpoint=tmp_path, **options)
    found = run(method, False, checkpoint=tmp_path, **options)
    compare(found, run(method, False, seeds=2))
    with jax.enable_x64(True):
        rows = [dsgd.all_rows(each.state).workers for each in (found, run(method, False, seeds=2))]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12), *rows)


@pytest.mark.filterwarnings("ignore:.*sends messages every")
def test_files_that_nothing_can_be_in_are_refused(tmp_path, monkeypatch):
    method = METHODS["scaffold"]()
    with pytest.raises(ValueError, match=r"run: store = .* all workers participate in every round"):
        dsgd.run(method, problem(), steps=1, key=0, store=tmp_path)
    with pytest.raises(
        ValueError, match="the rows of all workers are computed: participation_peri"
    ):
        run(method, False, period=2, store=tmp_path)
    with pytest.raises(ValueError, match="the history reads all of it; expected no store"):
        run(METHODS["easgd"](), False, store=tmp_path)
    monkeypatch.setattr(
        "os.posix_fallocate", partial(_fail, OSError(28, "No space left on device"))
    )
    with pytest.raises(ValueError, match=r"run: store = .*No space left on device.*4,800 bytes"):
        run(method, False, store=tmp_path)


def _fail(error: Exception, *arguments: Any) -> None:
    raise error


def test_the_store_reads_rows_in_advance():
    """Rows that change after they were read in advance, and predictions that are wrong."""
    start, ids = [np.full((2, 3), 0.5, np.float32)], np.arange(4)
    store = Store(start, 7)
    store.expect(np.array([5, 2, 4]))
    store.write(np.array([2, 6]), [np.full((2, 2, 3), 3.0, np.float32)])
    (rows,) = store.read(np.array([5, 2, 4]))
    np.testing.assert_array_equal(rows[:, 1, 2], [0.5, 3.0, 0.5])
    store.expect(np.array([6, 0]))
    np.testing.assert_array_equal(store.read(ids)[0][:, 0, 0], [0.5, 0.5, 3.0, 0.5])
    copy = store.copy(None)
    copy.write(np.array([6]), [np.zeros((1, 2, 3), np.float32)])
    np.testing.assert_array_equal(store.read(np.array([6, 0]))[0][:, 1, 1], [3.0, 0.5])
    assert [part.tolist() for part, _ in copy.pieces()] == [[2, 6]]


def test_the_cohort_begins_with_those_that_participate():
    present = jnp.asarray([False, True, False, False, True, True, False])
    np.testing.assert_array_equal(order(present, 5), [1, 4, 5, 0, 2])
    np.testing.assert_array_equal(order(present, 2), [1, 4])
