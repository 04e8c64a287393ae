"""`dsgd.run`: its history, its seeds, its chunks, what it refuses, and how it stops."""

from __future__ import annotations

import itertools
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
from dsgd import problems
from dsgd.engine import loop, programs
from dsgd.runs import chunks, plans

N = 4


@pytest.fixture(scope="module")
def method():
    return algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring(N))


def test_history_has_the_public_names_and_shapes(method, problem, mesh, key):
    result = dsgd.run(method, problem, steps=10, key=key, seeds=3, mesh=mesh)
    assert set(result.history) == {"step", "bits", "loss", "grad_sqnorm", "consensus"}
    assert all(values.shape == (3, 11) for name, values in result.history.items() if name != "step")
    assert result.params.shape == (3, 3)
    assert result.state.workers.params.shape == (3, N, 3)
    alone = dsgd.run(method, problem, steps=10, key=key, mesh=mesh)
    assert all(values.shape == (11,) for values in alone.history.values())
    assert alone.params.shape == (3,)


def test_seed_r_is_the_run_with_the_r_th_key(method, problem, mesh, key):
    together = dsgd.run(method, problem, steps=10, key=key, seeds=3, mesh=mesh)
    for r, own in enumerate(jax.random.split(key, 3)):
        alone = dsgd.run(method, problem, steps=10, key=own, mesh=mesh)
        np.testing.assert_allclose(together.history["loss"][r], alone.history["loss"], rtol=1e-5)
        np.testing.assert_allclose(together.params[r], alone.params, rtol=1e-5)


def test_metrics_are_those_of_the_averaged_model(method, problem, mesh, key):
    result = dsgd.run(method, problem, steps=7, key=key, mesh=mesh)
    local = np.asarray(result.state.workers.params, np.float64)
    mean = local.mean(axis=0)
    A, b = np.asarray(problem.data.A, np.float64), np.asarray(problem.data.b, np.float64)
    loss = np.mean([mean @ A[n] @ mean / 2 - b[n] @ mean for n in range(N)])
    slope = A.mean(axis=0) @ mean - b.mean(axis=0)
    np.testing.assert_allclose(result.params, mean, rtol=1e-5)
    np.testing.assert_allclose(result.history["loss"][-1], loss, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.history["grad_sqnorm"][-1], slope @ slope, rtol=1e-3)
    np.testing.assert_allclose(
        result.history["consensus"][-1], np.mean(np.sum((local - mean) ** 2, axis=1)), rtol=1e-4
    )


def test_sparse_records_are_those_of_every_round(method, problem, mesh, key):
    """Also if the last interval is shorter, or is the only one."""
    every = dsgd.run(method, problem, steps=11, key=key, mesh=mesh).history
    for record_every in (5, 2**30):
        some = dsgd.run(
            method, problem, steps=11, key=key, mesh=mesh, record_every=record_every
        ).history
        np.testing.assert_array_equal(some["step"], sorted({*range(0, 12, record_every), 11}))
        for name in ("loss", "grad_sqnorm", "consensus"):
            np.testing.assert_allclose(some[name], every[name][some["step"]], rtol=1e-4, atol=1e-7)
        np.testing.assert_array_equal(some["bits"], every["bits"][some["step"]])


def test_any_number_of_steps_and_any_equal_problem_share_one_program(method, mesh, key):
    def run(steps, seed):
        fresh = problems.random_quadratic(N, 3, noise=0.3, seed=seed)
        return dsgd.run(method, fresh, steps=steps, key=jax.random.key(seed), mesh=mesh)

    run(5, 0)
    compiled = programs.compiled()
    run(9, 1)
    run(200, 2)  # several chunks
    assert programs.compiled() == compiled


def test_an_equal_method_made_anew_is_not_compiled_again_and_another_is(problem, mesh, key):
    """Equal and different in nothing but the numbers of W."""

    def run(own_weight):
        W = np.full((N, N), (1 - own_weight) / (N - 1))
        np.fill_diagonal(W, own_weight)
        method = algorithms.decentralized_sgd(optax.sgd(0.1), topologies.from_matrix(W))
        return dsgd.run(method, problem, steps=5, key=key, mesh=mesh)

    first, compiled = run(0.4), programs.compiled()
    again = run(0.4)
    assert programs.compiled() == compiled
    other = run(0.7)
    assert programs.compiled() > compiled
    np.testing.assert_array_equal(again.history["consensus"], first.history["consensus"])
    assert (other.history["consensus"][1:] > first.history["consensus"][1:]).all()


def test_one_method_runs_with_several_numbers_of_workers_and_both_kinds_of_key(mesh):
    """Programs that do not use the data, or the type of the key, lower to the same text."""
    method = algorithms.minibatch_sgd(optax.sgd(0.1))
    for N in (1, 4):
        few = problems.random_quadratic(N, 3, heterogeneity=0.0, seed=0)
        ends = [
            dsgd.run(method, few, steps=5, key=key, mesh=mesh).history["loss"][-1]
            for key in (jax.random.key(0), jax.random.PRNGKey(0))
        ]
        assert ends[0] == ends[1]


@pytest.fixture
def advances(monkeypatch) -> list[int]:
    """The rounds of each chunk, of runs that know no pace yet, and whose chunks may take as long as
    they like.
    """
    call, found = programs.call, []

    def told(function, plan, *args, **options):
        if function is loop.advance:
            found.append(int(args[-1].rounds))
        return call(function, plan, *args, **options)

    monkeypatch.setattr(programs, "call", told)
    monkeypatch.setattr(chunks, "_CHUNK_SECONDS", 1e6)
    monkeypatch.setattr(chunks, "_paces", WeakKeyDictionary())
    return found


def test_chunks_leave_no_seam(method, problem, mesh, key, advances):
    """A run of several chunks passes through the state of a shorter run, of one: a run begins at
    the pace of the one before.
    """
    long = dsgd.run(method, problem, steps=150, key=key, mesh=mesh)
    assert (advances[0], sum(advances)) == (1, 150)
    assert len(advances) > 2
    advances.clear()
    short = dsgd.run(method, problem, steps=100, key=key, mesh=mesh)
    assert advances == [100]
    np.testing.assert_array_equal(long.history["loss"][:101], short.history["loss"])
    np.testing.assert_array_equal(long.history["step"], np.arange(151))


def test_state_is_donated(method, problem, mesh, key):
    plan = plans.make_plan(
        plans.Always(method), method, problem, mesh, runs=0, size=1, record_every=1
    )
    state = programs.call(loop.first_carry, plan, {}, key)
    arguments = (
        {},
        key,
        problem.data,
        problem.shared,
        None,
        loop.Chunk(*map(np.int32, (0, 1, 1, 1))),
    )
    programs.call(loop.advance, plan, state, *arguments, donate=(0,))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_bits_neither_overflow_nor_round(problem, mesh, key):
    """2^40 + 1 bits up in every round: more than a 32-bit integer holds, and odd, which a float32
    cannot tell.
    """
    method = algorithms.sgd(optax.sgd(0.1))
    huge = 2**40 + 1

    def update(state, gradients, round):
        up, nothing = (dsgd.counts.of(bits, round.workers) for bits in (huge, 0))
        round.sent(up, nothing, dsgd.network.local)
        return method.update(state, gradients, round)

    chatty = method._replace(update=update)
    for record_every in (1, 4):
        sent = dsgd.run(
            chatty, problem, steps=10, key=key, mesh=mesh, record_every=record_every
        ).history
        np.testing.assert_array_equal(sent["bits"], sent["step"] * float(huge))


def test_a_methods_own_scalars_are_in_the_history(problem, mesh, key):
    method = algorithms.minibatch_sgd(optax.sgd(0.1))

    def update(state, gradients, round):
        round.log(squared_step=1.0 * state.step**2)
        return method.update(state, gradients, round)

    history = dsgd.run(
        method._replace(update=update),
        problem,
        steps=6,
        key=key,
        seeds=2,
        mesh=mesh,
        record_every=2,
    ).history
    np.testing.assert_array_equal(history["squared_step"], [[np.nan, 1, 9, 25]] * 2)


def test_train_loss_is_that_of_the_drawn_batches(mesh, key):
    """Batches from outside, by hand; also on two devices, with sparse records, and with a gradient
    of the problem's own.
    """
    problem, method = own_problem(), algorithms.minibatch_sgd(optax.sgd(0.1))
    inputs, targets = map(np.asarray, problem.data)
    batches = [
        (inputs[:, at], targets[:, at]) for at in np.random.default_rng(0).integers(0, 20, (6, 5))
    ]
    options = {"steps": 6, "key": key, "batches": batches, "train_loss": True}
    history = dsgd.run(method, problem, mesh=mesh, **options).history
    plain = dsgd.run(method, problem, mesh=mesh, **(options | {"train_loss": False})).history
    assert history.keys() - plain.keys() == {"train_loss"}
    np.testing.assert_allclose(history["loss"], plain["loss"], rtol=1e-5)
    assert np.isnan(history["train_loss"][0])
    model = np.zeros(3)
    for batch, told in zip(batches, history["train_loss"][1:], strict=True):
        errors = batch[0].astype(np.float64) @ model - batch[1]
        np.testing.assert_allclose(told, np.mean(errors**2), rtol=1e-4)
        model = model - 0.1 * np.mean([2 * errors[n] @ batch[0][n] / 5 for n in range(N)], axis=0)
    alone = problem._replace(loss=dsgd.Loss(problem.loss, jax.grad(problem.loss)))
    for other, devices, every in ((problem, 2, 4), (alone, 1, 1)):
        again = dsgd.run(method, other, mesh=devices, record_every=every, **options).history
        np.testing.assert_allclose(
            again["train_loss"], history["train_loss"][again["step"]], rtol=1e-4
        )


def test_train_loss_of_one_worker_is_its_own(key):
    """SGD asks one worker: each has a loss of its own, and no gradient."""
    problem = dsgd.Problem(
        init=lambda key: jnp.zeros(2),
        loss=lambda params, batch: 0.0 * jnp.sum(params) + batch,
        data=jnp.arange(1.0, 5.0),
        sample=lambda key, mine: mine,
    )
    history = dsgd.run(
        algorithms.sgd(optax.sgd(0.1)), problem, steps=60, key=key, mesh=2, train_loss=True
    ).history
    assert set(history["train_loss"][1:]) == {1.0, 2.0, 3.0, 4.0}


def test_float64_problems_run_in_float64(mesh, key):
    with jax.enable_x64(True):
        problem = problems.random_quadratic(N, 3, seed=0)
        history = dsgd.run(
            algorithms.gradient_descent(optax.sgd(1.0)), problem, steps=400, key=key, mesh=mesh
        ).history
    assert history["loss"].dtype == np.float64
    assert history["loss"][-1] - problem.constants.minimum < 1e-14


def own_problem() -> dsgd.Problem:
    """Least squares as a user would write it, with none of the optional parts."""
    inputs = jax.random.normal(jax.random.key(0), (N, 20, 3))
    targets = inputs @ jnp.array([1.0, -2.0, 3.0])

    def loss(params, batch):
        x, y = batch
        return jnp.mean((x @ params - y) ** 2)

    def sample(key, mine):
        chosen = jax.random.randint(key, (5,), 0, 20)
        return jax.tree.map(lambda leaf: leaf[chosen], mine)

    return dsgd.Problem(
        init=lambda key: jnp.zeros(3), loss=loss, data=(inputs, targets), sample=sample
    )


def test_a_run_on_more_data_does_not_begin_at_the_pace_of_a_shorter_one(mesh, key, advances):
    few, method = own_problem(), algorithms.minibatch_sgd(optax.sgd(0.1))
    more = few._replace(
        data=jax.tree.map(lambda leaf: np.tile(leaf, (1, 2, 1)[: leaf.ndim]), few.data)
    )
    for problem, first in ((few, 1), (few, 20), (more, 1), (more, 20), (few, 20)):
        advances.clear()
        dsgd.run(method, problem, steps=20, key=key, mesh=mesh)
        assert advances[0] == first


def test_batches_from_outside_are_used_one_a_round(mesh, key):
    """With the whole data as every batch, mini-batch SGD is gradient descent; also on several
    devices and with sparse records.
    """
    problem = own_problem()
    everything = jax.tree.map(np.asarray, problem.data)
    exact = dsgd.run(
        algorithms.gradient_descent(optax.sgd(0.1)), problem, steps=37, key=key, mesh=mesh
    )
    method = algorithms.minibatch_sgd(optax.sgd(0.1))
    fed = dsgd.run(
        method,
        problem,
        steps=37,
        key=key,
        mesh=2,
        record_every=5,
        batches=itertools.repeat(everything),
    )
    np.testing.assert_allclose(fed.params, exact.params, rtol=1e-5)
    np.testing.assert_allclose(
        fed.history["loss"], exact.history["loss"][fed.history["step"]], rtol=1e-4, atol=1e-10
    )


def test_batches_come_in_order_and_none_is_lost(gradient_is_batch, mesh, key):
    """The gradient of batch t is t: after T rounds x = -sum of 0 .. T-1."""
    batches = (np.full(N, float(t), np.float32) for t in itertools.count())
    result = dsgd.run(
        algorithms.minibatch_sgd(optax.sgd(1.0)),
        gradient_is_batch,
        steps=50,
        key=key,
        mesh=mesh,
        batches=batches,
    )
    np.testing.assert_array_equal(result.history["loss"], -np.cumsum([0, *range(50)]))


def test_a_loss_that_diverges_stops_the_run_and_keeps_the_history(problem, mesh, key):
    method = algorithms.minibatch_sgd(optax.sgd(50.0))
    with pytest.raises(
        dsgd.Diverged,
        match=r"minibatch_sgd: the loss is (inf|nan) after round \d+; try a smaller step size",
    ) as error:
        dsgd.run(method, problem, steps=2_000, key=key, mesh=mesh)
    loss = error.value.history["loss"]
    first = int(np.flatnonzero(~np.isfinite(loss))[0])
    assert f"after round {error.value.history['step'][first]};" in str(error.value)
    assert first > 5
    assert first == len(loss) - 1, "it ends with the record that shows it"


def test_a_divergence_between_records_is_bracketed(problem, mesh, key):
    with pytest.raises(
        dsgd.Diverged, match=r"after round (\d+) \(finite after \d+\); try a smaller step size"
    ) as error:
        dsgd.run(
            algorithms.minibatch_sgd(optax.sgd(50.0)),
            problem,
            steps=2_000,
            key=key,
            mesh=mesh,
            record_every=7,
        )
    steps = error.value.history["step"]
    assert f"after round {steps[-1]} (finite after {steps[-2]})" in str(error.value)


def with_a_nan(array: jax.Array) -> np.ndarray:
    spoilt = np.array(array)
    spoilt[2, 1] = np.nan
    return spoilt


def test_a_loss_that_is_not_finite_for_its_data_says_so(mesh, key):
    """Data, a start, batches, and a loss that is infinite where it should not be; not the step
    size.
    """
    problem, method = own_problem(), algorithms.minibatch_sgd(optax.sgd(0.1))
    options = {"steps": 40, "key": key, "mesh": mesh}
    with pytest.raises(
        dsgd.Diverged,
        match=r"the loss is nan after round 0: problem: data\[1\] is not finite; expected finite numbers",
    ):
        dsgd.run(
            method, problem._replace(data=(problem.data[0], with_a_nan(problem.data[1]))), **options
        )
    with pytest.raises(
        dsgd.Diverged, match=r"the loss is nan after round 0: problem: the start is not finite"
    ):
        dsgd.run(method, problem._replace(init=lambda key: jnp.full(3, jnp.nan)), **options)
    state = dsgd.run(method, problem, **options).state
    spoilt = jax.tree.map(lambda leaf: leaf * jnp.nan if leaf.dtype == jnp.float32 else leaf, state)
    with pytest.raises(
        dsgd.Diverged,
        match=r"the loss is nan after round 40: start: state.server.params is not finite",
    ):
        dsgd.run(method, problem, start=spoilt, **options)
    with pytest.raises(
        dsgd.Diverged,
        match=r"the loss is inf after round 0: it was not finite before the first round, with finite data",
    ):
        dsgd.run(
            method,
            problem._replace(loss=lambda params, batch: jnp.sum(params) + jnp.inf),
            **options,
        )
    everybody = jax.tree.map(np.asarray, problem.data)
    batches = [everybody] * 17 + [(everybody[0], with_a_nan(everybody[1]))] * 23
    with pytest.raises(
        dsgd.Diverged,
        match=r"the loss is nan after round 18: batch 17 is not finite; expected finite numbers",
    ):
        dsgd.run(method, problem, batches=batches, **options)


def given(**changed) -> dict[str, Any]:
    """What a run takes, some of it wrong: options of `dsgd.run`, or members of its problem."""
    problem = own_problem()
    members = {name: changed.pop(name) for name in problem._fields & changed.keys()}
    return {
        "algorithm": algorithms.minibatch_sgd(optax.sgd(0.1)),
        "problem": problem._replace(**members),
        "steps": 5,
        "mesh": 1,
        **changed,
    }


def evaluating(**scalars: float) -> dict[str, Any]:
    return given(evaluate=lambda params, data, shared: (jax.tree.map(jnp.float32, scalars), params))


def logging_a_loss() -> dict[str, Any]:
    method = algorithms.minibatch_sgd(optax.sgd(0.1))

    def update(state, gradients, round):
        round.log(loss=jnp.float32(0))
        return method.update(state, gradients, round)

    return given(algorithm=method._replace(update=update))


WHOLE = tuple(map(np.asarray, own_problem().data))
REFUSED = {
    "steps = 0; expected an integer, at least 1": lambda: given(steps=0),
    "steps = -3": lambda: given(steps=-3),
    "seeds = 0": lambda: given(seeds=0),
    "record_every = 0": lambda: given(record_every=0),
    r"steps = 2147483648; expected fewer than 2\^31 rounds in total": lambda: given(steps=2**31),
    r"record_every = 2147483648; expected at most 2\^30": lambda: given(
        steps=3, record_every=2**31
    ),
    "mesh has 3 devices for 4 workers; expected a number of devices that divides 4": lambda: given(
        mesh=3
    ),
    "batches ended after round 3; expected one for each of the 5 rounds": lambda: given(
        batches=[WHOLE] * 3
    ),
    r"leaf of shape \(2, 20, 3\)": lambda: given(batches=[tuple(leaf[:2] for leaf in WHOLE)] * 5),
    r"batch 4 is .*\(4, 7, 3\).*; expected equal structures, shapes": lambda: given(
        batches=[*[WHOLE] * 4, tuple(x[:, :7] for x in WHOLE)]
    ),
    "asks for exact gradients, but batches are given": lambda: given(
        algorithm=algorithms.gradient_descent(optax.sgd(0.1)), batches=itertools.repeat(WHOLE)
    ),
    "expected 'loss', and none of .*step": lambda: evaluating(loss=0.0, step=1.0),
    "returns .'accuracy'.; expected 'loss'": lambda: evaluating(accuracy=1.0),
    r"logs metrics \['bits', 'loss'\]; expected names other than": logging_a_loss,
    r"decentralized_sgd\(ring\(5\)\) .* has 5 nodes but the problem has 4 workers": lambda: given(
        algorithm=algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring(5))
    ),
    r"must be floating point, but \['phases'\] has dtype complex64; expected its real": lambda: (
        given(init=lambda key: {"weights": jnp.zeros(3), "phases": jnp.zeros(3, jnp.complex64)})
    ),
    "parameters have no floating-point leaf; expected at least one to be trained": lambda: given(
        init=lambda key: jnp.zeros(3, jnp.int32)
    ),
    r"data\[1\] has shape \(3, 20\); expected a leading axis for the 4 workers": lambda: given(
        data=(WHOLE[0], WHOLE[1][:3])
    ),
    "data have no worker axis": lambda: given(data=()),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_run_is_refused(message, key):
    with pytest.raises(ValueError, match=message):
        dsgd.run(key=key, **REFUSED[message]())


def test_half_precision_losses_keep_exact_bits(mesh, key):
    problem = dsgd.Problem(
        init=lambda key: jnp.ones(700, jnp.bfloat16),
        loss=lambda params, batch: jnp.mean(params**2) * batch,
        data=jnp.ones(N, jnp.bfloat16),
        sample=lambda key, mine: mine,
    )
    history = dsgd.run(
        algorithms.parameter_server_sgd(optax.sgd(0.1)), problem, steps=3, key=key, mesh=mesh
    ).history
    np.testing.assert_array_equal(history["bits"], history["step"] * 2.0 * 16 * 700)


def test_progress_shows_rounds_speed_and_loss(method, problem, mesh, key, capsys):
    dsgd.run(method, problem, steps=30, key=key, mesh=mesh, progress=True)
    shown = capsys.readouterr().out
    assert "30/30" in shown
    assert "rounds/s" in shown
    assert "loss" in shown
    dsgd.run(method, problem, steps=30, key=key, mesh=mesh)
    assert capsys.readouterr().out == ""


def test_a_round_compiled_on_its_own_is_the_first_of_a_run(problem, key):
    method = algorithms.minibatch_sgd(optax.sgd(0.1))
    first, rounds = jax.random.split(key)
    state, statistics = dsgd.compile_round(method, problem, mesh=1)(
        method.init(problem.init(first), 4), rounds, problem.data
    )
    result = dsgd.run(method, problem, steps=1, key=key, mesh=1)
    np.testing.assert_allclose(state.server.params, result.params, rtol=1e-6)
    assert state.step == 1
    assert dsgd.counts.to_int(np.asarray(statistics.bits.up)).tolist() == [2 * 3 * 32 * 3 // 4] * 4


def test_a_compiled_round_shows_what_crosses_devices(problem):
    """Three floats, all-reduced round a ring of two."""
    program = dsgd.compile_round(algorithms.minibatch_sgd(optax.sgd(0.1)), problem, mesh=2)
    assert dsgd.workers.traffic(program) == {"all-reduce": 12}


def test_a_compiled_round_may_be_on_a_cluster(problem):
    """Without one, backup workers would not know who is slow."""
    method, cluster = (
        algorithms.backup_workers_sgd(optax.sgd(0.1), 1),
        dsgd.clusters.Cluster(dsgd.clusters.exponential(1.0)),
    )
    with pytest.raises(ValueError, match="without a cluster"):
        dsgd.compile_round(method, problem, mesh=2)
    assert dsgd.workers.traffic(dsgd.compile_round(method, problem, mesh=2, cluster=cluster)) == {
        "all-reduce": 12
    }


@pytest.mark.parametrize(("N", "devices"), [(4, 4), (6, 6), (9, 3), (11, 1), (16, 8)])
def test_the_default_mesh_has_as_many_devices_as_divide_the_workers(N, devices):
    assert plans._mesh(None, N).size == devices
