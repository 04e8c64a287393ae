"""`dsgd.run`: history, seeds, chunks, batches, invalid arguments, warnings, and how it ends."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import re
import signal
import time
import warnings
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters, problems
from dsgd.engine import loop, programs
from dsgd.machines import agreement
from dsgd.runs import chunks, plans
from dsgd.runs.run_spec import RunSpec
from tests.dsgd.by_hand import run

N = 4
RING = algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring(N))
SGD = algorithms.minibatch_sgd(optax.sgd(0.1))


def own_problem() -> dsgd.Problem:
    """Least squares as a user would write it, without optional members."""
    inputs = jax.random.normal(jax.random.key(0), (N, 20, 3))

    def loss(params, batch):
        x, y = batch
        return jnp.mean((x @ params - y) ** 2)

    def sample(key, mine):
        chosen = jax.random.randint(key, (5,), 0, 20)
        return jax.tree.map(lambda leaf: leaf[chosen], mine)

    targets = inputs @ jnp.array([1.0, -2.0, 3.0])
    return dsgd.Problem(lambda key: jnp.zeros(3), loss, (inputs, targets), sample)


LEAST_SQUARES = own_problem()
INPUTS, TARGETS = WHOLE = tuple(map(np.asarray, LEAST_SQUARES.data))


def test_seed_r_is_the_run_with_the_r_th_key(problem, key):
    """Each seed has its own clock."""
    seconds, bandwidths = (clusters.lognormal(mean, 1.0) for mean in (0.0, 4.0))
    cluster = clusters.Cluster(seconds, up=bandwidths, latency=0.25)
    together = run(RING, problem, 10, seeds=3, cluster=cluster)
    assert len(np.unique(together.history["clock"][:, -1])) == 3
    for r, own in enumerate(jax.random.split(key, 3)):
        alone = run(RING, problem, 10, key=own, cluster=cluster)
        for name, values in alone.history.items():
            of_seed = np.broadcast_to(together.history[name], (3, 11))[r]
            np.testing.assert_allclose(of_seed, values, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(together.params[r], alone.params, rtol=1e-5)


def test_metrics_are_those_of_the_averaged_model(problem):
    result = run(RING, problem, 7)
    local = np.asarray(result.state.workers.params, np.float64)
    mean = local.mean(axis=0)
    A, b = np.asarray(problem.data.A, np.float64), np.asarray(problem.data.b, np.float64)
    slope = A.mean(axis=0) @ mean - b.mean(axis=0)
    np.testing.assert_allclose(result.params, mean, rtol=1e-5)
    for name, value in {
        "loss": np.mean([mean @ A[n] @ mean / 2 - b[n] @ mean for n in range(N)]),
        "grad_sqnorm": slope @ slope,
        "consensus": np.mean(np.sum((local - mean) ** 2, axis=1)),
    }.items():
        np.testing.assert_allclose(result.history[name][-1], value, rtol=1e-3, atol=1e-5)


def test_sparse_records_are_those_of_every_round(problem):
    """Also if the last interval is shorter, or is the only one."""
    every = run(RING, problem, 11).history
    for record_every in (5, 2**30):
        some = run(RING, problem, 11, record_every=record_every).history
        np.testing.assert_array_equal(some["step"], sorted({*range(0, 12, record_every), 11}))
        for name in ("loss", "grad_sqnorm", "consensus", "bits"):
            np.testing.assert_allclose(some[name], every[name][some["step"]], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("devices", [1, 4])
def test_methods_that_differ_in_numbers_of_their_optimizers_share_programs(problem, devices):
    """The result is the same as that of a process that runs the method alone."""

    def loss(rate, decay):
        optimizer = optax.chain(optax.add_decayed_weights(decay), optax.adam(rate, b2=0.98))
        method = algorithms.decentralized_sgd(optimizer, topologies.ring(N))
        return run(method, problem, 20, mesh=devices, seeds=2).history["loss"]

    first, compiled = loss(0.03, 0.2), programs.count_compiled()
    other = loss(0.07, 0.3)
    assert programs.count_compiled() == compiled
    assert (np.abs(other - first)[:, 1:] > 1e-3).all()
    programs.clear()
    np.testing.assert_array_equal(loss(0.07, 0.3), other)


def test_programs_are_shared_by_other_steps_and_data_and_by_equal_methods():
    """Methods that differ only in the numbers of W have different programs."""

    def consensus(own_weight, steps, seed):
        W = np.full((N, N), (1 - own_weight) / (N - 1))
        np.fill_diagonal(W, own_weight)
        method = algorithms.decentralized_sgd(optax.sgd(0.1), topologies.from_matrix(W))
        fresh = problems.random_quadratic(N, 3, noise=0.3, seed=seed)
        return run(method, fresh, steps, key=jax.random.key(seed)).history["consensus"]

    first, compiled = consensus(0.4, 5, 0), programs.count_compiled()
    np.testing.assert_array_equal(consensus(0.4, 200, 0)[:6], first)  # several chunks
    consensus(0.4, 9, 1)
    assert programs.count_compiled() == compiled
    assert (consensus(0.7, 5, 0)[1:] > first[1:]).all()
    assert programs.count_compiled() > compiled


@pytest.mark.parametrize(("workers", "noise"), [(1, 0.0), (4, 0.0), (4, 0.3)])
def test_raw_keys_draw_what_typed_keys_draw_for_any_number_of_workers(workers, noise):
    """Programs that do not use the data, or the type of the key, have the same text."""
    few = problems.random_quadratic(workers, 3, heterogeneity=0.0, noise=noise, seed=0)
    raw, typed = (
        run(SGD, few, 5, key=key, seeds=2)
        for key in (np.asarray(jax.random.PRNGKey(5)), jax.random.key(5))
    )
    np.testing.assert_array_equal(raw.params, typed.params)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (jax.random.split(jax.random.key(0), 3), r"key<fry>\[3\]; .*pass one of these keys"),
        (jax.random.split(jax.random.PRNGKey(0), 3), r"uint32\[3, 2\]; .*pass one of these keys"),
        (jnp.zeros(3, jnp.uint32), r"uint32\[3\]; expected one key"),
        (jax.random.key(0, impl="rbg"), "'rbg'.*number of devices; .*pass jax.random.key"),
        (jax.random.PRNGKey(0, impl="rbg"), "'rbg'"),
    ],
)
def test_keys_that_are_not_one_key_or_depend_on_the_devices_are_refused(key, words):
    with pytest.raises(ValueError, match=words):
        run(SGD, LEAST_SQUARES, 1, key=key)


@pytest.fixture
def advances(monkeypatch) -> list[int]:
    """Yields the rounds of each chunk of runs without known speed, whose chunks may take any
    time.
    """
    call, found = programs.call, []

    def error_context(function, plan, *args, **options):
        if function is loop.advance:
            found.append(int(args[-1].rounds))
        return call(function, plan, *args, **options)

    monkeypatch.setattr(programs, "call", error_context)
    monkeypatch.setattr(chunks, "_CHUNK_SECONDS", 1e6)
    monkeypatch.setattr(chunks, "_paces", WeakKeyDictionary())
    return found


def test_results_do_not_depend_on_chunks(problem, advances):
    """A run of several chunks passes through the state of a shorter run of one chunk: a run starts
    with the chunk length of the previous one.
    """
    long = run(RING, problem, 150)
    assert (advances[0], sum(advances)) == (1, 150)
    assert len(advances) > 2
    advances.clear()
    short = run(RING, problem, 100)
    assert advances == [100]
    np.testing.assert_array_equal(long.history["loss"][:101], short.history["loss"])
    np.testing.assert_array_equal(long.history["step"], np.arange(151))


def test_bits_neither_overflow_nor_round(problem):
    """2^40 + 1 bits up in every round: more than a 32-bit integer can hold, and odd, which float32
    cannot represent.
    """
    huge = 2**40 + 1

    def update(state, gradients, round):
        up, nothing = (dsgd.wire.counts.from_bits(bits, round.workers) for bits in (huge, 0))
        round.sent(up, nothing, dsgd.network.ring_shift)
        return state

    for record_every in (1, 4):
        sent = run(SGD._replace(update=update), problem, 10, record_every=record_every).history
        np.testing.assert_array_equal(sent["bits"], sent["step"] * float(huge))


def test_train_loss_is_that_of_the_drawn_batches():
    """Streamed batches, compared with numpy; also on two devices, with sparse records, and with a
    custom gradient.
    """
    drawn = np.random.default_rng(0).integers(0, 20, (6, 5))
    options = {"batches": [(INPUTS[:, at], TARGETS[:, at]) for at in drawn], "train_loss": True}
    history = run(SGD, LEAST_SQUARES, 6, **options).history
    assert np.isnan(history["train_loss"][0])
    model = np.zeros(3)
    for (x, y), loss in zip(options["batches"], history["train_loss"][1:], strict=True):
        errors = x.astype(np.float64) @ model - y
        np.testing.assert_allclose(loss, np.mean(errors**2), rtol=1e-4)
        model = model - 0.1 * np.mean([2 * errors[n] @ x[n] / 5 for n in range(N)], axis=0)
    gradient = jax.grad(LEAST_SQUARES.loss)
    alone = LEAST_SQUARES._replace(loss=dsgd.Loss(LEAST_SQUARES.loss, gradient))
    for other, devices, every in ((LEAST_SQUARES, 2, 4), (alone, 1, 1)):
        again = run(SGD, other, 6, mesh=devices, record_every=every, **options).history
        np.testing.assert_allclose(
            again["train_loss"], history["train_loss"][again["step"]], rtol=1e-4
        )


def spoil(array: np.ndarray) -> np.ndarray:
    spoilt = np.array(array)
    spoilt[2, 1] = np.nan
    return spoilt


def spoilt_start() -> dsgd.State:
    state = run(SGD, LEAST_SQUARES, 40).state
    return jax.tree.map(lambda leaf: leaf * jnp.nan if leaf.dtype == jnp.float32 else leaf, state)


NOT_FINITE = {
    r"is nan after round 0: problem: data\[1\]": lambda: {"data": (INPUTS, spoil(TARGETS))},
    "is nan after round 0: problem: the start": lambda: {"init": lambda key: jnp.full(3, jnp.nan)},
    "is nan after round 40: start: state.server.params": lambda: {"start": spoilt_start()},
    "is inf after round 0: .*before the first round, with finite data": lambda: {
        "loss": lambda params, batch: jnp.sum(params) + jnp.inf
    },
    "is nan after round 18: batch 17": lambda: {
        "batches": [WHOLE] * 17 + [(INPUTS, spoil(TARGETS))] * 23
    },
}


def arguments(changed: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments of `dsgd.run`: options, and members of its problem."""
    members = {name: changed[name] for name in LEAST_SQUARES._fields if name in changed}
    options = {name: value for name, value in changed.items() if name not in members}
    problem = LEAST_SQUARES._replace(**members)
    return {"method": SGD, "problem": problem, "steps": 5} | options


@pytest.mark.parametrize("message", NOT_FINITE)
def test_a_loss_that_is_not_finite_because_of_the_data_names_them(message):
    """It does not blame the step size."""
    with pytest.raises(dsgd.Diverged, match=message):
        run(**arguments({"steps": 40} | NOT_FINITE[message]()))


def evaluating(**scalars: float) -> dict[str, Any]:
    return {"evaluate": lambda params, data, shared: (jax.tree.map(jnp.float32, scalars), params)}


def logging_a_loss(state, gradients, round):
    round.log(loss=jnp.float32(0))
    return SGD.update(state, gradients, round)


REFUSED: dict[str, dict[str, Any]] = {
    "steps = 0": {"steps": 0},
    "seeds = 0": {"seeds": 0},
    "record_every = 0": {"record_every": 0},
    r"steps = 2147483648; expected fewer than 2\^31": {"steps": 2**31},
    r"record_every = 2147483648; expected at most 2\^30": {"record_every": 2**31},
    "evaluate_every = 0": {"evaluate_every": 0},
    "evaluate_every = 1024": {"record_every": 2**25, "evaluate_every": 1024},
    "mesh has 3 devices for 4 workers": {"mesh": 3},
    "batches ended after round 3": {"batches": [WHOLE] * 3},
    r"batch 0\[0\] has shape \(2, 20, 3\); expected .* 4 workers": {
        "batches": [tuple(leaf[:2] for leaf in WHOLE)] * 5
    },
    r"batch 4\[0\] is float32\[4, 7, 3\]; expected float32\[4, 20, 3\]": {
        "batches": [*[WHOLE] * 4, (INPUTS[:, :7], TARGETS[:, :7])]
    },
    "asks for exact gradients, but batches are given": {
        "method": algorithms.gradient_descent(optax.sgd(0.1)),
        "batches": [WHOLE] * 5,
    },
    "expected 'loss', and none of .*step": evaluating(loss=0.0, step=1.0),
    "returns .'accuracy'.; expected 'loss'": evaluating(accuracy=1.0),
    r"logs metrics \['loss'\]": {"method": SGD._replace(update=logging_a_loss)},
    r"decentralized_sgd\(ring\(5\)\) .* 5 nodes .* 4 workers": {
        "method": algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring(5))
    },
    r"\['phases'\] has dtype complex64": {
        "init": lambda key: {"weights": jnp.zeros(3), "phases": jnp.zeros(3, jnp.complex64)}
    },
    "parameters have no floating-point leaf": {"init": lambda key: jnp.zeros(3, jnp.int32)},
    r"data\[1\] has shape \(3, 20\)": {"data": (INPUTS, TARGETS[:3])},
    "data have no worker axis": {"data": ()},
    "until returned None": {"until": lambda history: None},
    r"until returned bool\[2\]": {"until": lambda history: np.array([True, False])},
    "cluster: it has 3 workers but the problem has 4": {
        "cluster": clusters.Cluster(clusters.constant(1.0), up=clusters.constant([1.0, 2.0, 3.0]))
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_impossible_runs_are_refused(message):
    with pytest.raises(ValueError, match=message):
        run(**arguments(REFUSED[message]))


def test_an_error_in_until_names_its_origin():
    with pytest.raises(KeyError) as caught:
        run(SGD, LEAST_SQUARES, 2, until=lambda history: history["accuracy"])
    assert "until, of a run of minibatch_sgd raised KeyError" in caught.value.__notes__[-1]


def test_progress_shows_rounds_and_loss_in_process_0(problem, capsys, monkeypatch):
    run(RING, problem, 30, progress=True)
    shown = capsys.readouterr()
    assert all(words in shown.err for words in ("decentralized", "30/30", "loss", "left"))
    run(RING, problem, 30)
    monkeypatch.setattr(agreement, "process_index", lambda: 1)
    run(RING, problem, 30, progress=True)
    assert shown.out + "".join(capsys.readouterr()) == ""


def test_a_round_compiled_on_its_own_is_the_first_of_a_run(problem, key):
    first, rounds = jax.random.split(key)
    state, statistics = dsgd.compile_round(SGD, problem, mesh=1)(
        SGD.init(problem.init(first), N), rounds, problem.data
    )
    np.testing.assert_allclose(state.server.params, run(SGD, problem, 1).params, rtol=1e-6)
    assert state.step == 1
    assert (
        dsgd.wire.counts.to_int(np.asarray(statistics.bits.up)).tolist()
        == [2 * 3 * 32 * 3 // 4] * N
    )


# --- Exceptions, and forked processes.

EXCEPTION = re.compile(
    r"^class (\w+)\(.*(Error|Exception|Interrupt|Warning|WithHistory)\b.*\):", re.MULTILINE
)


def exceptions() -> list[tuple[str, str]]:
    """Yields module and name of each exception that the packages define."""
    root = Path(dsgd.__file__).parents[1]
    return [
        (".".join(path.relative_to(root).with_suffix("").parts), name)
        for package in ("dsgd", "algorithms", "topologies", "theory_checks", "experiments")
        for path in sorted((root / package).rglob("*.py"))
        for name, _ in EXCEPTION.findall(path.read_text())
    ]


@pytest.mark.parametrize(("module", "name"), exceptions())
def test_exceptions_survive_pickling_and_copying(module, name):
    kind = getattr(pytest.importorskip(module), name)
    history = {"step": np.arange(3), "loss": np.arange(6.0).reshape(2, 3)}
    more = (history,) if "history" in inspect.signature(kind.__init__).parameters else ()
    error = kind("what happened", *more)
    error.add_note("a note")
    error.more = 7
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert again.args == ("what happened",)
        assert str(again) == str(error)
        np.testing.assert_equal(again.__dict__, error.__dict__)


def test_a_process_that_was_forked_after_jax_started_is_refused():
    jax.block_until_ready(jnp.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns, too
        child = os.fork()
    if not child:
        refused = 0
        for call in (
            lambda: run(SGD, LEAST_SQUARES, 1),
            lambda: problems.quadratic(np.ones((2, 2)), np.ones((2, 2))),
        ):
            try:
                call()
            except RuntimeError as error:
                refused += "forked" in str(error) and "get_context('spawn')" in str(error)
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
    run(SGD, LEAST_SQUARES, 1)


# --- Partial participation, and lost messages.

# links that are up in a round, and participating workers
LINKS = np.array([[(5 * number + 3 * t) % 4 > 0 for number in range(N * N)] for t in range(8)])
PRESENT = np.array([[(n + t) % 5 > 0 for n in range(N)] for t in range(8)])


def round_table(table: np.ndarray) -> clusters.Quantity:
    """Returns the table's numbers, `[rounds, numbers]`, if a round takes a second."""

    def sample(key, clock, number):
        return jnp.asarray(table, jnp.float32)[jnp.round(clock).astype(jnp.int32), number]

    return clusters.Quantity(sample, "table", False)


def messages(t: int) -> tuple[int, int]:
    """Returns the messages on the ring in round t: sent, and arrived."""
    near = [(i, j) for i in range(N) for j in ((i - 1) % N, (i + 1) % N)]
    sent = [pair for pair in near if t % 2 and PRESENT[t][list(pair)].all()]
    return len(sent), sum(LINKS[t, min(pair) * N + max(pair)] for pair in sent)


def test_the_history_has_the_share_of_messages_that_arrived(problem):
    """The share over the rounds between two records; NaN if no message was sent."""
    cluster = clusters.Cluster(
        clusters.constant(1.0), present=round_table(PRESENT), delivered=round_table(LINKS)
    )
    method = algorithms.local_sgd(optax.sgd(0.1), 2, topologies.ring(N))
    history = run(method, problem, 7, mesh=4, cluster=cluster, record_every=3).history
    numbers = [np.sum([*map(messages, range(*pair))], axis=0) for pair in ((0, 3), (3, 6))]
    expected = [np.nan, *(arrived / sent for sent, arrived in numbers), np.nan]
    np.testing.assert_array_equal(history["arrived"], expected)
    assert 0 < np.nanmean(history["arrived"]) < 1


def present(quantity: clusters.Quantity, **options: Any) -> clusters.Cluster:
    return clusters.Cluster(clusters.constant(1.0), present=quantity, **options)


def two_workers(participation_period: int) -> clusters.Cluster:
    """Returns a cluster in which two workers at a time participate, drawn every few rounds."""
    return present(clusters.sampled(2, of=N), participation_period=participation_period)


LOCAL = algorithms.local_sgd(optax.sgd(0.1), 2)
SCAFFOLD = {period: algorithms.scaffold(optax.sgd(0.1), period) for period in (1, 2)}
BETWEEN = r"every 2 rounds, but .*_period = {0} .*pass Cluster\(..., participation_period=2\)"
WARNED = [
    (LOCAL, 2, two_workers(1), BETWEEN.format(1)),
    (SCAFFOLD[2], 2, two_workers(4), BETWEEN.format(4)),
    (
        SGD,
        3,
        two_workers(4),
        "participation_period = 4 rounds, so the same workers participate in all steps = 3",
    ),
    (SGD, 4, two_workers(4), None),
    (LOCAL, 2, two_workers(2), None),
    (SCAFFOLD[1], 2, two_workers(2), None),
    (LOCAL, 2, None, None),
    # a recording; nothing is drawn
    (LOCAL, 2, present(clusters.trace(np.array([[1.0, 0.0]] * N), 2.0)), None),
    (LOCAL, 2, present(clusters.constant([1.0, 1.0, 1.0, 0.0])), None),
    (LOCAL, 2, present(clusters.bernoulli(1.0, 1.0)), None),
]


@pytest.mark.parametrize(("method", "steps", "cluster", "words"), WARNED)
def test_periods_of_participation_that_do_not_fit_are_warned_of(
    method, steps, cluster, words, problem, key
):
    plan = plans.make_plan(
        plans.ConstantFactory(method),
        method,
        problem,
        1,
        runs=0,
        size=1,
        record_every=1,
        cluster=cluster,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plans.warn_if_drawn_again(RunSpec(plan, (method,), problem, {}, key, steps))
    assert len(caught) == (words is not None)
    assert all(re.search(words, str(warning.message)) for warning in caught)


def test_a_period_longer_than_the_run_is_warned_of(problem):
    """Except in a later stage."""
    method = algorithms.local_sgd(optax.sgd(0.1), 3)
    with pytest.warns(UserWarning, match="every 3 rounds, but .*steps = 2, so nothing is sent"):
        first = run(method, problem, 2)
    run(method, problem, 2, start=first)


@pytest.mark.parametrize(("workers", "devices"), [(4, 4), (9, 3), (11, 1), (16, 8)])
def test_the_default_mesh_has_as_many_devices_as_divide_the_workers(workers, devices):
    assert plans._mesh(None, workers).size == devices
