"""Runs and sweeps: callers' buffers, keys, exceptions in other processes, what the history reports,
paths.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import os
import pickle
import re
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dsgd
from algorithms import (
    deepsqueeze,
    local_sgd,
    minibatch_sgd,
    scaffold,
    unequal_work,
)
from dsgd import checks, clusters, compressors, problems, work
from dsgd.engine import loop
from dsgd.problems import texts
from dsgd.runs import plans
from dsgd.runs.checkpoints import Checkpoint
from dsgd.runs.jobs import Job
from experiments.shared import commands
from topologies import ring

N, D, T = 4, 3, 5
KEY = jax.random.key(0)


def linear(data=None) -> dsgd.Problem:
    """The gradient is the mean of the batch, or of the worker's data."""
    rows = np.zeros((N, 2, D), np.float32) if data is None else data
    return dsgd.Problem(
        init=lambda key: jnp.zeros(D),
        loss=lambda x, batch: jnp.mean(batch @ x),
        data=rows,
        sample=lambda key, own: own,
        name="linear",
    )


def buffer(shape, dtype: Any = np.float32) -> np.ndarray:
    """Zeros at an address that JAX uses without a copy on CPUs."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + size].view(dtype).reshape(shape)


def drawn(t) -> np.ndarray:
    return np.random.default_rng(t).normal(size=(N, 2, D)).astype(np.float32)


@pytest.mark.parametrize(
    "as_given", [jnp.asarray, lambda array: {"rows": [array]}], ids=["jax", "tree"]
)
def test_a_generator_may_refill_the_array_that_it_yielded(as_given):
    def refilled():
        rows = buffer((N, 2, D))
        for t in range(T):
            rows[:] = drawn(t)
            yield as_given(rows)
            rows[:] = np.nan

    problem = linear()
    problem = problem._replace(
        loss=lambda x, batch: jnp.mean(jax.tree.leaves(batch)[0] @ x),
        sample=lambda key, own: as_given(own),
    )
    result = dsgd.run(
        minibatch_sgd(optax.sgd(1.0)), problem, steps=T, key=KEY, mesh=1, batches=refilled()
    )
    np.testing.assert_allclose(
        result.params, -sum(drawn(t).mean(axis=(0, 1)) for t in range(T)), rtol=1e-5, atol=1e-6
    )


def test_a_load_function_may_refill_one_array():
    inputs, targets = buffer((5, D)), buffer((5,))

    def load(worker):
        inputs[:] = worker + 1
        targets[:] = 10 * worker
        return inputs, targets

    problem = problems.finite_sum(problems.Model(lambda key: jnp.zeros(D), lambda x, rows: rows @ x), lambda out, y: (out - y) ** 2,
                                  problems.ByWorker(load), workers=N, batch_size=2)  # fmt: skip
    np.testing.assert_array_equal(problem.data.inputs[:, 0, 0], 1 + np.arange(N))
    np.testing.assert_array_equal(problem.data.targets[:, 0], 10 * np.arange(N))


def test_a_problem_s_arrays_may_be_changed_while_a_run_uses_them():
    rows = buffer((N, 2, D))
    rows[:] = 1

    def until(history):
        rows[:] = np.nan
        return False

    result = dsgd.run(
        minibatch_sgd(optax.sgd(1.0)), linear(rows), steps=T, key=KEY, mesh=1, until=until
    )
    np.testing.assert_array_equal(result.params, np.full(D, -T))


def filled(shape, value, dtype: Any = np.float32):
    array = buffer(shape, dtype)
    array[...] = value
    return array


@pytest.mark.parametrize("shape", [(), (N,), (N, 3)])
def test_a_quantity_keeps_the_numbers_that_it_was_made_of(shape):
    array = filled(shape, 2)
    made = (
        [clusters.constant(array)]
        if len(shape) < 2
        else [clusters.measured(array), clusters.trace(array, 1.0)]
    )
    array[...] = 7
    assert [float(quantity.sample(KEY, jnp.float32(0), 0)) for quantity in made] == [2] * len(made)


def test_work_keeps_the_numbers_that_it_was_made_of():
    weights, given = filled((N, 1), 2), dsgd.Work(filled((N, 1), 1, np.int32), filled((N, 1), 2))
    methods = [
        unequal_work(minibatch_sgd(optax.sgd(1.0)), each)
        for each in (work.weighted(weights), given)
    ]
    for array in (weights, given.samples, given.weights):
        array[...] = 0
    for method in methods:
        result = dsgd.run(method, linear(filled((N, 2, D), 1)), steps=1, key=KEY, mesh=1)
        np.testing.assert_array_equal(result.params, np.full(D, -2))


def test_a_sweep_keeps_its_grid():
    rates = np.array([0.1, 0.2])
    found = dsgd.sweep(
        lambda rate: minibatch_sgd(optax.sgd(rate)), linear(), steps=1, key=KEY, mesh=1, rate=rates
    )
    rates[:] = 7
    assert found.grid["rate"].tolist() == [0.1, 0.2]


def test_the_history_of_a_point_may_be_changed():
    found = swept("loss", np.ones(3), np.ones(3), rate=[1.0, 2.0, 3.0])
    found.at((1,))["loss"][:] = 0
    assert (found.history["loss"] == 1).all()


def test_raw_keys_draw_what_typed_keys_draw():
    method, problem = minibatch_sgd(optax.sgd(0.1)), linear(filled((N, 2, D), 1))
    problem = problem._replace(sample=lambda key, own: own + jax.random.normal(key, own.shape))
    found, expected = (
        dsgd.run(method, problem, steps=3, key=key, seeds=2, mesh=1)
        for key in (np.asarray(jax.random.PRNGKey(5)), jax.random.key(5))
    )
    np.testing.assert_array_equal(found.params, expected.params)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (
            jax.random.split(KEY, 3),
            r"run: key = key<fry>\[3\]; expected one key, .*; pass one of these keys, keys\[0\]",
        ),
        (
            jax.random.split(jax.random.PRNGKey(0), 3),
            r"uint32\[3, 2\]; expected one key, .*; pass one of these keys",
        ),
        (jnp.zeros(3, jnp.uint32), r"uint32\[3\]; expected one key"),
        (
            jax.random.key(0, impl="rbg"),
            "run: key has the implementation 'rbg'.*number of devices; .*pass jax.random.key",
        ),
        (jax.random.PRNGKey(0, impl="rbg"), "'rbg'"),
        (0, "expected one JAX key"),
    ],
)
def test_keys_that_are_not_one_key_or_depend_on_the_devices_are_refused(key, told):
    with pytest.raises(ValueError, match=told):
        dsgd.run(minibatch_sgd(optax.sgd(0.1)), linear(), steps=1, key=key)


def test_rbg_as_jax_s_default_is_refused_and_our_own_keys_are_not_of_it():
    with jax.default_prng_impl("rbg"):
        with pytest.raises(ValueError, match=r"'rbg'.*impl='threefry2x32'"):
            dsgd.run(minibatch_sgd(optax.sgd(0.1)), linear(), steps=1, key=jax.random.key(0))
        assert compressors.check(compressors.sign, 8).holds
        assert str(jax.random.key_impl(checks.default_key())) == "threefry2x32"


def swept(
    metric: str, ends: np.ndarray, loss: np.ndarray | None = None, **grid: list[float]
) -> dsgd.Sweep:
    """A sweep whose metric has these values at its points, with one seed and one record."""
    loss = np.zeros_like(ends) if loss is None else loss
    history = {"step": np.arange(1), "loss": loss[..., None, None], metric: ends[..., None, None]}
    return dsgd.Sweep(
        {name: np.asarray(values) for name, values in grid.items()},
        history,
        dsgd.State(jnp.zeros((), jnp.int32)),
        (),
    )


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
    found = swept(metric, np.array([0.5, 0.1, 0.9, 0.6]), rate=[1.0, 2.0, 3.0, 4.0])
    assert found.best(metric, **options) == (index,)


def test_a_metric_of_unknown_direction_needs_it():
    with pytest.raises(
        ValueError, match=r"best: metric = 'f1'.*; pass largest=False or largest=True"
    ):
        swept("f1", np.array([0.5, 0.1, 0.9, 0.6]), rate=[1.0, 2.0, 3.0, 4.0]).best("f1")


def test_points_that_diverged_are_not_best_in_any_metric():
    loss = np.array([np.nan, 1.0, 1.0, 1.0, np.inf])
    found = swept(
        "test_accuracy", np.array([1.0, 0.1, 0.4, 0.2, 1.0]), loss, rate=[1.0, 2.0, 3.0, 4.0, 5.0]
    )
    assert found.best("test_accuracy") == (2,)
    assert swept(
        "bits", np.array([1.0, 6.0, 4.0, 5.0, 1.0]), loss, rate=[1.0, 2.0, 3.0, 4.0, 5.0]
    ).best("bits") == (2,)


def test_records_that_were_not_evaluated_do_not_count_for_the_best_point():
    loss = np.array([[[5.0, np.nan, 1.0]], [[4.0, np.nan, 2.0]]])
    history = {"step": np.arange(3), "loss": loss, "evaluated": ~np.isnan(loss)}
    assert dsgd.Sweep(
        {"rate": np.array([1.0, 2.0])}, history, dsgd.State(jnp.zeros((), jnp.int32)), ()
    ).best(share=0.7) == (0,)


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        (
            [1.0, 2.0, 3.0],
            "best: rate = 3 has the best loss and is the largest value of its grid; a larger value",
        ),
        (
            [3.0, 2.0, 1.0],
            "best: rate = 1 has the best loss and is the smallest value of its grid; a smaller value",
        ),
    ],
)
def test_a_best_value_at_the_edge_of_its_grid_is_warned_of(rates, told):
    ends = np.array([[9.0, 8.0], [3.0, 2.0], [2.0, 1.0]])
    with pytest.warns(UserWarning, match=told) as caught:
        assert swept("loss", ends, ends, rate=rates, of_two=[0.0, 1.0]).best() == (2, 1)
    assert len(caught) == 1  # both values of a grid of two are at its edge
    assert swept(
        "loss", ends[[0, 2, 1]], ends[[0, 2, 1]], rate=[1.0, 2.0, 3.0], of_two=[0.0, 1.0]
    ).best() == (1, 1)


USES = {
    "if": lambda factor: minibatch_sgd(optax.sgd(0.1 if factor > 1 else 0.2)),
    "shape": lambda factor: minibatch_sgd(optax.sgd(jnp.sum(jnp.ones(factor)))),
    "our own refusal": lambda factor: minibatch_sgd(
        optax.sgd(0.1 * checks.natural("factor", factor))
    ),
}


@pytest.mark.parametrize("use", USES)
def test_a_hyperparameter_that_is_used_as_a_python_value_is_named(use):
    with pytest.raises(
        ValueError,
        match=r"sweep: factor is used as a Python value.*one sweep for each value of factor",
    ):
        dsgd.sweep(
            lambda scale, factor: scaled(USES[use](factor), scale),
            linear(),
            steps=1,
            key=KEY,
            mesh=1,
            scale=[1.0, 2.0],
            factor=[0, 1],
        )


def scaled(method: dsgd.Algorithm, scale) -> dsgd.Algorithm:
    def update(state, gradients, round):
        return method.update(state, jax.tree.map(lambda leaf: scale * leaf, gradients), round)

    return method._replace(update=update)


def test_a_mistake_that_is_not_a_hyperparameter_s_stays_as_it_is():
    def factory(rate):
        method = minibatch_sgd(optax.sgd(rate))
        return method._replace(update=lambda state, gradients, round: len(round.workers))

    with pytest.raises(TypeError, match="has no len"):
        dsgd.sweep(factory, linear(), steps=1, key=KEY, mesh=1, rate=[0.1, 0.2])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([True, False], "expected numbers; run one sweep for each value of rate"),
        ([1, 3_000_000_000], "3000000000 is out of range for int32"),
        ([1.0, 1e300], "is out of range for float32"),
        ([1.0, 1e-300], "is out of range for float32"),
    ],
)
def test_values_of_a_grid_that_would_be_changed_are_refused(values, told):
    with pytest.raises(ValueError, match=f"grid rate = .*{told}"):
        dsgd.sweep(
            lambda rate: minibatch_sgd(optax.sgd(rate)),
            linear(),
            steps=1,
            key=KEY,
            mesh=1,
            rate=values,
        )


EXCEPTION = re.compile(
    r"^class (\w+)\(.*(Error|Exception|Interrupt|Warning|WithHistory)\b.*\):", re.MULTILINE
)


def exceptions() -> list[tuple[str, str]]:
    """Module and name of each exception that the packages define."""
    root = Path(__file__).parents[2]
    sources = [
        path
        for package in ("dsgd", "algorithms", "topologies", "theory_checks", "experiments")
        for path in (root / package).rglob("*.py")
    ]
    return [
        (".".join(path.relative_to(root).with_suffix("").parts), name)
        for path in sorted(sources)
        for name, _ in EXCEPTION.findall(path.read_text())
    ]


def test_there_are_exceptions_of_runs():
    assert {"Diverged", "Interrupted", "Lost", "Elsewhere"} <= {name for _, name in exceptions()}


@pytest.mark.parametrize(("module", "name"), exceptions())
def test_exceptions_survive_pickling_and_copying(module, name):
    kind = getattr(pytest.importorskip(module), name)
    history = {"step": np.arange(3), "loss": np.arange(6.0).reshape(2, 3)}
    error = (
        kind("what happened", history)
        if "history" in inspect.signature(kind.__init__).parameters
        else kind("what happened")
    )
    error.add_note("a note")
    error.more = 7
    for again in (
        *(pickle.loads(pickle.dumps(error, protocol)) for protocol in range(2, 6)),
        copy.copy(error),
        copy.deepcopy(error),
    ):
        assert type(again) is kind
        assert (str(again), again.args, again.__notes__, again.more) == (
            "what happened",
            ("what happened",),
            ["a note"],
            7,
        )
        assert again.__dict__.keys() == error.__dict__.keys()
        for series in history if hasattr(error, "history") else ():
            np.testing.assert_array_equal(again.history[series], history[series])


def test_a_process_that_was_forked_after_jax_started_is_told_so():
    problem, method = linear(), minibatch_sgd(optax.sgd(0.1))
    jax.block_until_ready(jnp.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns, too
        child = os.fork()
    if not child:
        refused = 0
        for call in (
            lambda: dsgd.run(method, problem, steps=1, key=KEY),
            lambda: problems.quadratic(np.ones((2, 2)), np.ones((2, 2))),
        ):
            try:
                call()
            except RuntimeError as error:
                refused += "forked after JAX had been initialised" in str(
                    error
                ) and "get_context('spawn')" in str(error)
        os._exit(10 + refused)
    for _ in range(100):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child waits for threads that it does not have")
    assert os.waitstatus_to_exitcode(status) == 12
    dsgd.run(method, problem, steps=1, key=KEY, mesh=1)


# which links, or parts, are up in a round
LINKS = np.array([[(5 * number + 3 * t) % 4 > 0 for number in range(N * N)] for t in range(8)])
HERE = np.array([[(n + t) % 5 > 0 for n in range(N)] for t in range(8)])  # which workers take part


def by_round(table: np.ndarray) -> clusters.Quantity:
    """The table's numbers, `[rounds, numbers]`, where a round takes a second."""
    values = np.asarray(table, np.float32)
    return clusters.Quantity(
        lambda key, clock, number: jnp.asarray(values)[jnp.round(clock).astype(jnp.int32), number],
        "table",
        False,
    )


def of_gossip(t: int, away: bool) -> tuple[int, int]:
    """Messages on the ring in round t: sent, and arrived."""
    here = HERE[t] if away else np.ones(N, bool)
    pairs = [(i, j) for i in range(N) for j in ((i - 1) % N, (i + 1) % N) if here[i] and here[j]]
    return len(pairs), sum(LINKS[t, min(pair) * N + max(pair)] for pair in pairs)


def of_parts(t: int, away: bool) -> tuple[int, int]:
    """Parts of a sum over all in round t."""
    here = HERE[t] if away else np.ones(N, bool)
    return here.sum(), (here & LINKS[t, :N]).sum()


METHODS = {
    "compressed": (deepsqueeze(optax.sgd(0.1), ring(N), compressors.sign, 0.5), of_gossip, 1),
    "local steps": (local_sgd(optax.sgd(0.1), 2), of_parts, 2),
}


@pytest.mark.parametrize(
    ("name", "devices", "every"),
    [("compressed", 1, 3), ("local steps", 4, 1)],
)
def test_the_history_has_the_share_of_messages_that_arrived(name, devices, every):
    method, counted, period = METHODS[name]
    away = period == 1
    cluster = clusters.Cluster(
        clusters.constant(1.0), present=by_round(HERE) if away else None, delivered=by_round(LINKS)
    )
    history = dsgd.run(
        method, linear(), steps=7, key=KEY, mesh=devices, cluster=cluster, record_every=every
    ).history
    numbers = [counted(t, away) if (t + 1) % period == 0 else (0, 0) for t in range(7)]
    of_records = [np.sum(numbers[a:b], axis=0) for a, b in itertools.pairwise(history["step"])]
    expected = [np.nan, *(came / sent if sent else np.nan for sent, came in of_records)]
    np.testing.assert_array_equal(history["arrived"], expected)
    assert 0 < np.nanmean(history["arrived"]) < 1


PERIODIC = {
    "local SGD": lambda period: local_sgd(optax.sgd(0.1), period),
    "SCAFFOLD": lambda period: scaffold(optax.sgd(0.1), period),
}


def clients(present_for: int) -> clusters.Cluster:
    return clusters.Cluster(
        clusters.constant(1.0), present=clusters.sampled(2, of=N), present_for=present_for
    )


def warn_of_draws(method: dsgd.Algorithm, steps: int, cluster: clusters.Cluster | None) -> None:
    """As a run does before its first round."""
    plan = plans.make_plan(
        plans.Always(method), method, linear(), 1, runs=0, size=1, record_every=1, cluster=cluster
    )
    plans.warn_if_drawn_again(Job(plan, (method,), linear(), {}, KEY, steps))


@pytest.mark.parametrize(("name", "present_for"), [("local SGD", 1), ("SCAFFOLD", 4)])
def test_workers_that_come_and_go_between_two_averagings_are_warned_of(name, present_for):
    told = rf"every 2 rounds, but participation is drawn every present_for = {present_for} rounds, .*pass Cluster\(..., present_for=2\)"
    with pytest.warns(UserWarning, match=told) as caught:
        warn_of_draws(PERIODIC[name](2), 2, clients(present_for))
    assert len(caught) == 1


def test_a_period_longer_than_the_run_is_warned_of():
    with pytest.warns(
        UserWarning,
        match=r"messages every 3 rounds, but the run has steps = 2, so nothing is sent; pass steps >= 3",
    ):
        first = dsgd.run(local_sgd(optax.sgd(0.1), 3), linear(), steps=2, key=KEY, mesh=1)
    dsgd.run(local_sgd(optax.sgd(0.1), 3), linear(), steps=2, key=KEY, mesh=1, start=first)


def test_workers_that_are_drawn_once_for_the_whole_run_are_warned_of():
    with pytest.warns(
        UserWarning,
        match="present_for = 4 rounds, so the same workers participate in all steps = 3",
    ):
        warn_of_draws(minibatch_sgd(optax.sgd(0.1)), 3, clients(4))
    warn_of_draws(minibatch_sgd(optax.sgd(0.1)), 4, clients(4))


def test_periods_that_fit_are_not_warned_of():
    for method in (PERIODIC["local SGD"](2), PERIODIC["SCAFFOLD"](1)):
        warn_of_draws(method, 2, clients(2))
    warn_of_draws(PERIODIC["local SGD"](2), 2, clusters.Cluster(clusters.constant(1.0)))
    warn_of_draws(PERIODIC["local SGD"](2), 2, None)


def test_workers_that_come_and_go_by_the_clock_are_not_drawn():
    present = clusters.trace(np.array([[1.0, 0.0]] * N), 2.0)
    for quantity in (
        present,
        clusters.constant([1.0, 1.0, 1.0, 0.0]),
        clusters.bernoulli(1.0, 1.0),
    ):
        warn_of_draws(
            local_sgd(optax.sgd(0.1), 2),
            2,
            clusters.Cluster(clusters.constant(1.0), present=quantity),
        )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "None"),
        (np.array([True, False]), r"bool\[2\]"),
        (np.float32(0.5), r"float32\[\]"),
        ([True], "a list"),
    ],
)
def test_until_has_to_return_one_truth_value(given, told):
    with pytest.raises(ValueError, match=rf"run: until returned {told}; expected True or False"):
        dsgd.run(
            minibatch_sgd(optax.sgd(0.1)),
            linear(),
            steps=2,
            key=KEY,
            mesh=1,
            until=lambda history: given,
        )


def test_until_may_return_any_truth_value():
    for given in (np.True_, jnp.array(True)):
        history = dsgd.run(
            minibatch_sgd(optax.sgd(0.1)),
            linear(),
            steps=10**6,
            key=KEY,
            mesh=1,
            until=lambda history: given,  # noqa: B023
        ).history
        assert history["step"][-1] < 10**6


def test_an_error_in_until_says_where_it_comes_from():
    def until(history):
        return bool(history["accuracy"][-1] > 1)

    with pytest.raises(KeyError) as caught:
        dsgd.run(minibatch_sgd(optax.sgd(0.1)), linear(), steps=2, key=KEY, mesh=1, until=until)
    assert (
        caught.value.__notes__[-1]
        == "dsgd: until, of a run of minibatch_sgd raised KeyError: 'accuracy'"
    )


def of_workers(workers: int) -> dsgd.Problem:
    return linear(np.ones((workers, 2, D), np.float32))


def test_a_start_with_another_number_of_workers_is_refused_with_both_numbers():
    options = {"steps": 2, "key": KEY, "seeds": 2, "mesh": 1}
    first = dsgd.run(local_sgd(optax.sgd(0.1), 2), of_workers(2), **options)
    with pytest.raises(
        ValueError,
        match=r"start has a state of 2 workers; expected 4, as the problem has; .*problem._replace\(init=",
    ):
        dsgd.run(local_sgd(optax.sgd(0.1), 2), of_workers(4), start=first, **options)


def test_a_checkpoint_of_another_number_of_workers_is_refused_with_both_numbers(tmp_path):
    with Checkpoint(tmp_path, {"workers": "2"}) as first:
        first.save(loop.Carry(dsgd.State(), ()), {"step": np.zeros(1)})
    with pytest.raises(
        ValueError, match=r"contains a run of 2 workers; expected 4; .*problem._replace\(init="
    ):
        Checkpoint(tmp_path, {"workers": "4"})


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_home_folder_is_known_wherever_a_path_is_taken(home):
    equal = clusters.Equal(latency=1e-4, bandwidth=1e9)
    clusters.save("~/cluster.json", equal)
    assert clusters.load(Path("~/cluster.json")) == equal
    assert (home / "cluster.json").exists()
    dsgd.run(minibatch_sgd(optax.sgd(0.1)), linear(), steps=1, key=KEY, mesh=1, checkpoint="~/run")
    assert (home / "run" / "dsgd-run.npz").exists()
    (home / "book.txt").write_text("to be or not to be")
    assert texts.documents("~/book.txt", 0) == [b"to be or not to be"]
    with pytest.raises(FileNotFoundError, match=str(home / "files")):
        problems.load("mnist", "~/files")
    assert not Path("~").exists()


def test_scripts_know_the_home_folder(home):
    @dataclasses.dataclass(frozen=True)
    class Args:
        out: Path = Path("~/results")
        data_dir: Path | None = Path("~/files")
        steps: int = 1

    found = []
    commands.launch(found.append, Args())
    assert found == [Args(home / "results", home / "files", 1)]


@pytest.mark.parametrize(
    "call",
    [
        lambda path: clusters.save(path, clusters.Equal(1e-4, 1e9)),
        clusters.load,
        lambda path: dsgd.run(
            minibatch_sgd(optax.sgd(0.1)), linear(), steps=1, key=KEY, mesh=1, checkpoint=path
        ),
        lambda path: problems.load("mnist", path),
        lambda path: problems.language_model(text=path),
    ],
    ids=["save", "load", "checkpoint", "data", "text"],
)
def test_paths_that_cannot_be_are_refused_in_one_line(call):
    with pytest.raises(ValueError, match=r"= 'a\\x00b': expected a path without null bytes"):
        call("a\0b")
    with pytest.raises(
        ValueError,
        match=r"= '~nobody-there/x': the home folder of '~' is not known; expected an absolute path",
    ):
        call("~nobody-there/x")


def test_a_checkpoint_is_of_the_values_that_everybody_has(tmp_path):
    def problem(shared):
        return linear()._replace(
            evaluate=dsgd.Evaluation(
                lambda x, data, shared: ({"loss": jnp.sum(x) + jnp.sum(shared)}, None), shared
            )
        )

    options = {"steps": 1, "key": KEY, "mesh": 1, "checkpoint": tmp_path}
    dsgd.run(minibatch_sgd(optax.sgd(0.1)), problem(np.zeros(2, np.float32)), **options)
    with pytest.raises(ValueError, match=r"contains another run \(data = "):
        dsgd.run(minibatch_sgd(optax.sgd(0.1)), problem(np.ones(2, np.float32)), **options)
