"""What must hold for the data of empirical risks: weights, small clients, partitions, epochs and
very unequal clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters, problems
from dsgd.engine import loop, oracle, pooled
from dsgd.problems.examples import pad

SIZES = [1, 2, 4, 9]
N, M = len(SIZES), sum(SIZES)
KEY = jax.random.key(0)
PARTS = np.split(np.arange(M), np.cumsum(SIZES)[:-1])
CENTERS = np.array([-8.0, -4.0, 2.0, 4.0])
TARGETS = np.repeat(CENTERS, SIZES)
W = np.array(SIZES) * N / M


def _zeros(key: jax.Array) -> jax.Array:
    return jnp.zeros(2)


def _constant(params: jax.Array, inputs: jax.Array) -> jax.Array:
    return jnp.broadcast_to(params, (len(inputs), 2))


def _squared(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    return (outputs - targets[:, None]) ** 2


@cache
def means(weights: str | tuple[float, ...] = "samples", **options: Any) -> dsgd.Problem:
    """f_n(x) = |x - c_n|^2 / 2 for x in R^2 and worker n's center c_n, with exact gradients: each
    batch is all that a worker has.
    """
    data = (np.zeros((M, 1)), TARGETS)
    options = {"batch_size": max(SIZES), "replacement": False, **options}
    return problems.finite_sum(
        problems.Model(_zeros, _constant), _squared, data, N, PARTS, weights=weights, **options
    )


def minimizer(weights: Sequence[float] | np.ndarray) -> float:
    return float(np.average(CENTERS, weights=weights))


# Weights.


# One of each way in which weights enter; the recorded histories of all methods have weights, too.
WAYS = ["asgd", "choco-sgd", "ef21", "scaffold"]


@pytest.mark.parametrize("name", WAYS)
def test_every_method_converges_to_the_weighted_minimizer(name):
    rate = optax.exponential_decay(0.15, 100, 0.5)
    method = algorithms.make(name, optax.sgd(rate), N)
    found = dsgd.run(method, means(), steps=1000, key=KEY, mesh=1, record_every=500).params
    wanted, unweighted = minimizer(W), minimizer(np.ones(N))
    assert abs(wanted - unweighted) > 1
    np.testing.assert_allclose(found, wanted, atol=0.1 * abs(wanted - unweighted))


def objective(x: np.ndarray, weights: Sequence[float] | np.ndarray) -> float:
    return float(np.average([np.mean((x - center) ** 2) for center in CENTERS], weights=weights))


@pytest.mark.parametrize(
    ("weights", "numbers", "devices"),
    [("samples", W, 4), ((0.0, 3.0, 2.0, 1.0), np.array([0.0, 3.0, 2.0, 1.0]), 1)],
)
def test_the_history_has_the_weighted_objective_and_its_gradient(weights, numbers, devices):
    """The batches are all data, so that the loss on them is the objective at the model before."""
    method = algorithms.minibatch_sgd(optax.sgd(0.1))
    history = dsgd.run(
        method, means(weights), steps=2, key=KEY, mesh=devices, train_loss=True
    ).history
    x, slope = np.zeros(2), -2 * minimizer(numbers) / 2 * np.ones(2)
    assert history["loss"][0] == pytest.approx(objective(x, numbers), rel=1e-5)
    # over all samples
    assert weights != "samples" or history["loss"][0] == pytest.approx(
        np.mean(TARGETS**2), rel=1e-5
    )
    assert history["train_loss"][1] == pytest.approx(objective(x, numbers), rel=1e-5)
    assert history["grad_sqnorm"][0] == pytest.approx(np.sum(slope**2), rel=1e-5)
    assert history["loss"][1] == pytest.approx(objective(x - 0.1 * slope, numbers), rel=1e-5)
    assert history["train_loss"][2] == pytest.approx(history["loss"][1], rel=1e-5)


def test_local_sgd_averages_models_with_weights_after_plain_local_steps():
    """FedAvg: (1/N) sum_n w_n x_n, where each x_n has made two steps with the step size that was
    given.
    """
    found = dsgd.run(
        algorithms.local_sgd(optax.sgd(0.1), 2), means(), steps=2, key=KEY, mesh=4
    ).params
    local = CENTERS * (1 - (1 - 0.1) ** 2)
    np.testing.assert_allclose(found, np.average(local, weights=W), rtol=1e-5)


def test_of_those_who_take_part_the_average_of_models_has_their_weights():
    method = algorithms.scaffold(optax.sgd(0.1), 1)
    there = np.array([True, False, False, True])
    cluster = clusters.Cluster(
        clusters.constant(1.0), present=clusters.trace(there[:, None].astype(float), 1.0)
    )
    result = dsgd.run(method, means(), steps=1, key=KEY, mesh=1, cluster=cluster)
    np.testing.assert_allclose(
        result.state.workers.params[3],
        np.average(0.1 * CENTERS[there], weights=W[there]),
        rtol=1e-5,
    )
    np.testing.assert_allclose(result.state.server, -np.sum((W * CENTERS)[there]) / N, rtol=1e-5)


def test_wrapped_methods_have_the_weights_of_what_they_wrap():
    given = dsgd.work.micro_batches(np.ones((N, 2), bool), average="workers")
    wrapped = algorithms.observed(
        algorithms.unequal_work(algorithms.local_sgd(optax.sgd(0.1), 1), given)
    )
    found = dsgd.run(wrapped, means(), steps=1, key=KEY, mesh=1).params
    np.testing.assert_allclose(found, 0.1 * minimizer(W), rtol=1e-5)


def test_a_problem_without_an_evaluation_of_its_own_has_weights_by_one_field():
    quadratic = problems.quadratic(np.ones((N, 1)), CENTERS[:, None])
    weighted = quadratic._replace(evaluate=None, weights=W)
    result = dsgd.run(
        algorithms.gradient_descent(optax.sgd(1.0)), weighted, steps=1, key=KEY, mesh=4
    )
    np.testing.assert_allclose(result.params, minimizer(W), rtol=1e-5)
    np.testing.assert_allclose(result.history["loss"][1], -0.5 * minimizer(W) ** 2, rtol=1e-5)
    with pytest.raises(ValueError, match="has weights, but its evaluate does not use them"):
        dsgd.run(
            algorithms.gradient_descent(optax.sgd(1.0)),
            quadratic._replace(weights=W),
            steps=1,
            key=KEY,
            mesh=1,
        )


def test_a_run_warns_if_the_optimizers_of_the_workers_cancel_their_weights():
    momentum, adam = optax.sgd(0.1, momentum=0.9), optax.adam(0.1)
    with pytest.warns(UserWarning, match="the weights have no effect; pass optax.sgd"):
        dsgd.compile_round(algorithms.make("dsgd", adam, N), means(), 1)
    for name, optimizer in (("dsgd", momentum), ("local-sgd", adam)):
        dsgd.compile_round(algorithms.make(name, optimizer, N), means(), 1)


@pytest.mark.parametrize(
    "weights", ["sizes", [1.0, 2.0], [1.0, -1.0, 1.0, 1.0], [0.0] * N, [np.nan, 1, 1, 1]]
)
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(
        ValueError,
        match=r"finite_sum: weights = .*(expected 4|expected 'equal'|expected a string, a list)",
    ):
        means.__wrapped__(weights)
    if not isinstance(weights, str):
        wrong = problems.random_quadratic(N, 2)._replace(weights=weights, evaluate=None)
        with pytest.raises(
            ValueError, match=r"weights = .*expected 4 finite numbers, at least 0, with mean 1"
        ):
            dsgd.run(algorithms.gradient_descent(optax.sgd(1.0)), wrong, steps=1, key=KEY, mesh=1)


def test_a_checkpoint_knows_the_weights(tmp_path):
    method = algorithms.minibatch_sgd(optax.sgd(0.1))
    dsgd.run(method, means(), steps=1, key=KEY, mesh=1, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"contains another run.*data = "):
        dsgd.run(method, means("equal"), steps=1, key=KEY, mesh=1, checkpoint=tmp_path)


def test_the_smoothness_is_that_of_the_weighted_functions():
    data = np.random.default_rng(0).normal(size=(M, 2)), np.arange(M) % 2
    options: dict[str, Any] = {"partition": "dirichlet", "alpha": 0.3, "seed": 3}
    plain = problems.logistic_regression(data, N, **options)
    heavy = problems.logistic_regression(data, N, weights=[4.0, 0.0, 0.0, 0.0], **options)
    rows = np.asarray(plain.data.inputs[0])[np.asarray(plain.data.weights[0]) > 0]
    features = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    first = np.linalg.norm(features, 2) ** 2 / (2 * len(rows)) + 1e-4
    assert plain.constants.smoothness is not None
    assert heavy.constants.smoothness == pytest.approx(
        max(4 * first, plain.constants.smoothness), rel=1e-5
    )


# Clients with fewer samples than the batch.


def one_batch(problem: dsgd.Problem, n: int, seed: int = 0) -> problems.Examples:
    return problem.sample(jax.random.key(seed), jax.tree.map(lambda leaf: leaf[n], problem.data))


def test_without_replacement_a_small_client_has_each_sample_once():
    problem = numbered(batch_size=4)
    for n in range(N):
        batch = one_batch(problem, n)
        counted = np.asarray(batch.weights) > 0
        assert batch.weights.shape == (4,)
        drawn = np.asarray(batch.targets)[counted]
        assert len(set(drawn)) == len(drawn) == min(4, SIZES[n])
        assert set(drawn) <= set(PARTS[n])


def test_with_replacement_a_small_client_draws_whole_batches():
    batch = one_batch(numbered(batch_size=20, replacement=True), 1)
    np.testing.assert_array_equal(batch.weights, np.ones(20))
    assert set(np.asarray(batch.targets)) == set(PARTS[1])


def numbered(**options: Any) -> dsgd.Problem:
    """Worker n's samples are the numbers in `PARTS[n]`."""
    data = np.zeros((M, 1)), np.arange(float(M))
    return problems.finite_sum(
        problems.Model(_zeros, _constant),
        _squared,
        data,
        N,
        PARTS,
        **{"replacement": False, **options},
    )


def test_a_small_client_steps_along_the_mean_over_its_own_samples():
    found = dsgd.run(
        algorithms.minibatch_sgd(optax.sgd(0.5)),
        numbered(batch_size=50),
        steps=1,
        key=KEY,
        mesh=1,
        train_loss=True,
    )
    means_of = [part.mean() for part in PARTS]
    np.testing.assert_allclose(found.params, 0.5 * np.mean(means_of), rtol=1e-5)
    assert found.history["train_loss"][1] == pytest.approx(
        np.mean([np.mean(part**2.0) for part in PARTS]), rel=1e-5
    )


def test_take_counts_the_samples_that_there_are():
    problem = numbered(batch_size=4)
    assert problem.take is not None
    for n, size in enumerate(SIZES):
        for count in (1, 3, 4):
            assert np.sum(problem.take(one_batch(problem, n), jnp.int32(count)).weights) == min(
                count, size, 4
            )


def test_a_custom_problem_draws_and_cuts_the_batches_of_a_finite_sum():
    """`problems.minibatch` has the batch size, the cut and the numbers of batches."""

    def loss(x, batch):
        losses = _squared(_constant(x, batch.inputs), batch.targets)
        return jnp.average(jnp.mean(losses, axis=1), weights=batch.weights)

    made = numbered(batch_size=4, replacement="epoch")
    custom = dsgd.Problem(made.init, loss, made.data, problems.minibatch(4, "epoch"))
    sizes = dsgd.work.local_batches([1, 2, 7, 8], batch_size=4, micro_batches=2)
    method = algorithms.unequal_work(algorithms.minibatch_sgd(optax.sgd(0.1)), sizes)
    one, other = (dsgd.run(method, problem, steps=5, key=KEY, mesh=1) for problem in (made, custom))
    np.testing.assert_allclose(one.params, other.params, rtol=1e-5)
    np.testing.assert_array_equal(one.history["samples"], other.history["samples"])


def test_a_cluster_charges_small_clients_for_their_own_samples():
    """Without work, and with it: 2 seconds a batch and 1 a sample."""
    cluster = clusters.Cluster(clusters.constant(2.0), per_sample=clusters.constant(1.0))
    plain = algorithms.minibatch_sgd(optax.sgd(0.1))
    whole = algorithms.unequal_work(
        plain, dsgd.work.micro_batches(np.ones((N, 1), bool), average="workers")
    )
    for method in (plain, whole):
        measured = dsgd.run(
            algorithms.observed(method),
            numbered(batch_size=4),
            steps=2,
            key=KEY,
            mesh=1,
            cluster=cluster,
        ).history
        np.testing.assert_allclose(
            measured["measured_compute"][2], 2 + np.minimum(SIZES, 4), rtol=1e-5
        )
    np.testing.assert_array_equal(measured["samples"][1], np.minimum(SIZES, 4))


def test_work_of_more_samples_than_a_small_client_has_is_refused():
    given = dsgd.work.local_batches([4] * N, batch_size=4)
    method = algorithms.unequal_work(algorithms.minibatch_sgd(optax.sgd(0.1)), given)
    with pytest.raises(
        ValueError,
        match=r"4 samples in a micro-batch of worker 0, which has only 1 samples.*replacement=True",
    ):
        dsgd.run(method, numbered(batch_size=4), steps=1, key=KEY, mesh=1)


# Partitions with a minimum.


def test_dirichlet_partitions_of_digits_work_with_defaults():
    labels = problems.load("digits").train_targets
    seed = next(
        seed
        for seed in range(20)
        if min(map(len, problems.split(labels, 20, "dirichlet", alpha=0.1, seed=seed))) < 16
    )
    problem = problems.logistic_regression(
        "digits", 20, "dirichlet", alpha=0.1, seed=seed, batch_size=16
    )
    assert problem.workers == 20
    problem = problems.logistic_regression(
        "digits", 20, "dirichlet", alpha=0.1, seed=seed, batch_size=16, min_samples=16
    )
    assert problem.batch_sizes is None


@pytest.mark.parametrize("least", [1, 16])
def test_every_part_has_at_least_min_samples(least):
    labels = np.repeat(np.arange(10), 144)
    for seed in range(5):
        parts = problems.split(labels, 20, "dirichlet", alpha=0.1, seed=seed, min_samples=least)
        assert min(map(len, parts)) >= least
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(1440))
        again = problems.split(labels, 20, "dirichlet", alpha=0.1, seed=seed, min_samples=least)
        assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


def test_a_partition_that_has_enough_is_the_one_without_a_minimum():
    labels = np.repeat(np.arange(10), 144)
    for one, other in zip(
        *(
            problems.split(labels, 5, "dirichlet", alpha=5.0, min_samples=least)
            for least in (1, 50)
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_a_minimum_that_is_not_found_says_what_the_best_draw_had():
    labels = np.repeat(np.arange(10), 144)
    with pytest.raises(
        ValueError,
        match=r"worker \d+ with \d+ samples in the best of 10000 draws; expected at least 70",
    ):
        problems.split(labels, 20, "dirichlet", alpha=0.1, min_samples=70)
    with pytest.raises(
        ValueError, match="worker 0 has 1 samples; expected at least min_samples = 2"
    ):
        numbered(min_samples=2)


# Epochs by reshuffling.


def _entry(params: jax.Array, inputs: jax.Array) -> jax.Array:
    return params[inputs]


def _minus(outputs: jax.Array, targets: tuple[()]) -> jax.Array:
    return -outputs


def _entries(key: jax.Array) -> jax.Array:
    return jnp.zeros(M)


@cache
def counting(batch_size: int = 3) -> dsgd.Problem:
    """The gradient of a batch is -1/b at the numbers of its samples: a method's step counts
    them.
    """
    model = problems.Model(_entries, _entry)
    return problems.finite_sum(
        model, _minus, (np.arange(M), ()), N, PARTS, batch_size=batch_size, replacement="epoch"
    )


def visits(params: jax.Array, batch_size: int = 3) -> list[np.ndarray]:
    """How often each worker has drawn each of its samples, after steps of size N along the mean."""
    return [np.asarray(params)[part] * min(batch_size, len(part)) for part in PARTS]


COUNTING = algorithms.minibatch_sgd(optax.sgd(float(N)))


@pytest.mark.parametrize("steps", [2, 7, 36])
def test_each_epoch_visits_each_sample_once(steps):
    found = dsgd.run(COUNTING, counting(), steps=steps, key=KEY, mesh=1).params
    for times, size in zip(visits(found), SIZES, strict=True):
        whole, more = divmod(steps * min(3, size), size)
        np.testing.assert_allclose(
            np.sort(times), [whole] * (size - more) + [whole + 1] * more, rtol=1e-5
        )


def order(n: int, key: jax.Array, batches: range, batch_size: int = 3) -> list[int]:
    """The samples in worker n's batches of a run."""
    problem = counting(batch_size)
    data = jax.tree.map(lambda leaf: leaf[n], problem.data)
    sample = jax.jit(problem.sample)
    drawn = [sample(key, data, jnp.int32(k)) for k in batches]
    return [int(sample) for batch in drawn for sample in batch.inputs[batch.weights > 0]]


def test_orders_differ_by_epoch_worker_and_seed():
    nine = order(3, KEY, range(3))
    assert sorted(nine) == list(PARTS[3])
    assert order(3, KEY, range(3, 6)) != nine
    assert order(3, jax.random.key(1), range(3)) != nine
    runs = dsgd.run(COUNTING, counting(), steps=1, key=KEY, mesh=1, seeds=5).params
    assert len({tuple(np.flatnonzero(run)) for run in np.asarray(runs)}) > 1


def test_all_orders_of_an_epoch_are_equally_likely():
    problem, M = counting(4), 4
    data = jax.tree.map(lambda leaf: leaf[2], problem.data)
    keys = jax.random.split(KEY, 24 * 400)
    drawn = np.asarray(
        jax.jit(jax.vmap(lambda key: problem.sample(key, data, jnp.int32(7)).inputs))(keys)
    )
    _, times = np.unique(drawn @ (10 ** np.arange(M)), return_counts=True)
    assert len(times) == 24
    # chi^2 with 23 degrees of freedom: 1 in 30,000 is above
    assert ((times - 400) ** 2 / 400).sum() < 60


def test_epochs_do_not_depend_on_devices_chunks_or_interruptions(tmp_path):
    whole = dsgd.run(COUNTING, counting(), steps=7, key=KEY, mesh=1)
    np.testing.assert_array_equal(
        dsgd.run(COUNTING, counting(), steps=7, key=KEY, mesh=4).params, whole.params
    )
    for steps in (2, 5, 7):
        resumed = dsgd.run(COUNTING, counting(), steps=steps, key=KEY, mesh=1, checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.params, whole.params)
    first = dsgd.run(COUNTING, counting(), steps=3, key=KEY, mesh=1)
    np.testing.assert_array_equal(
        dsgd.run(COUNTING, counting(), steps=4, key=KEY, mesh=1, start=first).params, whole.params
    )


def test_micro_batches_that_are_not_computed_wait_for_the_next_round():
    """In 6 rounds each worker computes 9 batches, in places that change: worker 3 three epochs of
    its 9 samples.
    """

    def places(state, round):
        counted = jnp.stack([jnp.full(N, round.step % 2 == 1), jnp.ones(N, bool)], axis=1)
        return dsgd.Work(counted, jnp.ones((N, 2)))

    found = dsgd.run(
        algorithms.unequal_work(COUNTING, places), counting(), steps=6, key=KEY, mesh=1
    ).params
    np.testing.assert_allclose(visits(found)[3], 3, rtol=1e-5)


def test_a_stage_goes_on_after_all_micro_batches_of_the_rounds_before():
    method = algorithms.unequal_work(
        COUNTING, dsgd.Work(np.ones((N, 3), bool), np.ones((N, 3), np.float32))
    )
    first = dsgd.run(method, counting(), steps=1, key=KEY, mesh=1)
    np.testing.assert_allclose(visits(first.params)[3], 1, rtol=1e-5)
    second = dsgd.run(method, counting(), steps=1, key=KEY, mesh=1, start=first)
    np.testing.assert_allclose(visits(second.params)[3], 2, rtol=1e-5)


def test_a_worker_that_was_away_goes_on_in_its_epoch():
    there = np.array([[True] * N, [False] * N, [True] * N, [True] * N])
    cluster = clusters.Cluster(
        clusters.constant(1.0), present=clusters.trace(there.T.astype(float), 1.0)
    )
    found = dsgd.run(COUNTING, counting(), steps=4, key=KEY, mesh=1, cluster=cluster).params
    np.testing.assert_allclose(visits(found)[3], 1, rtol=1e-5)


def test_a_worker_that_is_asked_goes_on_in_its_own_epoch():
    """Of SGD, which asks one worker a round: each has drawn its samples equally often, or once
    more.
    """
    found = dsgd.run(algorithms.sgd(optax.sgd(1.0)), counting(), steps=20, key=KEY, mesh=1)
    for times in visits(found.params):
        assert np.ptp(np.round(times)) <= 1
    assert (
        sum(
            round(times.sum() / min(3, size))
            for times, size in zip(visits(found.params), SIZES, strict=True)
        )
        == 20
    )


# Very unequal clients.

UNEQUAL = [3, 5, 2, 4000, 7, 1, 10, 6]
FEATURES = 100
ROWS = np.random.default_rng(0).normal(size=(sum(UNEQUAL), FEATURES)).astype(np.float32)
VALUES = (ROWS[:, :9] @ np.ones(9) + np.arange(len(ROWS)) % 7).astype(np.float32)


def _linear(params: jax.Array, inputs: jax.Array) -> jax.Array:
    return inputs @ params


def _start(key: jax.Array) -> jax.Array:
    return jnp.zeros(FEATURES)


@cache
def unequal(**options: Any) -> dsgd.Problem:
    parts = np.split(np.random.default_rng(1).permutation(len(ROWS)), np.cumsum(UNEQUAL)[:-1])
    options = {"batch_size": 4, **options}
    return problems.finite_sum(
        problems.Model(_start, _linear), optax.squared_error, (ROWS, VALUES), 8, parts, **options
    )


@cache
def with_padding(**options: Any) -> dsgd.Problem:
    """The same problem with the arrays `[N, longest, ...]`."""
    problem = unequal(**options)
    rows = [pooled.of_worker(problem.data, n) for n in range(8)]
    inputs, targets = (np.concatenate([leaf[which] for leaf in rows]) for which in range(2))
    return problem._replace(
        data=pad(inputs, targets, np.split(np.arange(len(ROWS)), np.cumsum(UNEQUAL)[:-1]))
    )


def bytes_of(data: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(data))


def test_memory_is_that_of_the_samples():
    samples = ROWS.nbytes + VALUES.nbytes
    assert bytes_of(unequal().data) < 1.01 * samples
    assert bytes_of(with_padding().data) > 7 * samples
    data = problems.ByWorker(lambda n: (ROWS[: UNEQUAL[n]], VALUES[: UNEQUAL[n]]))
    by_worker = problems.finite_sum(problems.Model(_start, _linear), optax.squared_error, data, 8)
    assert bytes_of(by_worker.data) < 1.01 * samples


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_each_device_has_at_most_the_rows_of_the_one_with_the_most(devices):
    sizes = np.array(UNEQUAL).reshape(devices, -1)
    data = pooled.laid_out(unequal().data, devices)
    n = 8 // devices
    assert data.inputs.shape[1] == -(-sizes.sum(axis=1).max() // n)
    for n_th, size in enumerate(UNEQUAL):
        device = n_th // n
        flat = np.asarray(data.inputs)[device * n : (device + 1) * n].reshape(-1, FEATURES)
        begin = int(data.offset[n_th])
        np.testing.assert_array_equal(
            flat[begin : begin + size], pooled.of_worker(unequal().data, n_th).inputs
        )


MB = algorithms.minibatch_sgd(optax.sgd(0.01))
GOSSIP = algorithms.decentralized_sgd(optax.sgd(0.01), topologies.ring(8))
RUNS = {
    "without replacement": (algorithms.local_sgd(optax.sgd(0.01), 2), {"replacement": False}),
    "epochs": (MB, {"replacement": "epoch"}),
    "exact": (algorithms.gradient_descent(optax.sgd(0.01)), {"weights": "samples", "l2": 0.1}),
    "exact at local models": (
        GOSSIP._replace(query=lambda state, round: GOSSIP.query(state, round)._replace(exact=True)),
        {"chunk": 64},
    ),
    "one worker": (algorithms.sgd(optax.sgd(0.01)), {"weights": "samples"}),
    "micro-batches": (
        algorithms.unequal_work(MB, dsgd.work.micro_batches(np.arange(24).reshape(8, 3) % 2 == 0)),
        {},
    ),
}


SHORT = {"exact at local models", "micro-batches"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else pytest.mark.long) for name in RUNS]
)
def test_runs_are_those_of_padded_arrays(name):
    method, options = RUNS[name]
    train_loss = name.startswith("exact")
    one, other = (
        dsgd.run(method, problem(**options), steps=3, key=KEY, mesh=devices, train_loss=train_loss)
        for problem, devices in ((unequal, 4), (with_padding, 1))
    )
    np.testing.assert_allclose(one.params, other.params, rtol=2e-5, atol=1e-6)
    for scalar in ("loss", "grad_sqnorm", *["train_loss"] * train_loss):
        np.testing.assert_allclose(one.history[scalar], other.history[scalar], rtol=2e-5)


def test_the_objective_of_a_pool_without_an_evaluation_of_its_own():
    problem = unequal(weights="samples")._replace(evaluate=None)
    history = dsgd.run(COUNTING, problem, steps=1, key=KEY, mesh=2).history
    assert history["loss"][0] == pytest.approx(np.mean(VALUES.astype(float) ** 2), rel=1e-5)


def test_a_pool_resumes_on_another_number_of_devices(tmp_path):
    method = algorithms.minibatch_sgd(optax.sgd(0.01))
    dsgd.run(method, unequal(), steps=1, key=KEY, mesh=1, checkpoint=tmp_path)
    resumed = dsgd.run(method, unequal(), steps=2, key=KEY, mesh=4, checkpoint=tmp_path)
    np.testing.assert_allclose(
        resumed.params,
        dsgd.run(method, unequal(), steps=2, key=KEY, mesh=1).params,
        rtol=1e-5,
        atol=1e-7,
    )


def test_a_pool_laid_out_for_other_devices_is_refused():
    with pytest.raises(ValueError, match="data laid out for 2 devices"):
        dsgd.run(
            COUNTING,
            unequal()._replace(data=pooled.laid_out(unequal().data, 2)),
            steps=1,
            key=KEY,
            mesh=1,
        )


# Real processes.


def test_a_worker_alone_computes_its_weighted_loss():
    """As processes and actors do."""
    problem = means()
    x = jnp.ones(2)
    for n in range(N):
        alone, data = oracle.of_worker(problem, n), pooled.of_worker(problem.data, n)
        loss, slope = oracle.with_loss(alone)(x, alone.sample(KEY, data))
        assert float(loss) == pytest.approx(W[n] * (1 - CENTERS[n]) ** 2, rel=1e-5)
        np.testing.assert_allclose(slope, W[n] * (1 - CENTERS[n]), rtol=1e-5)


def test_a_worker_alone_draws_the_batches_of_the_loop():
    """The third round's batch of epochs, which one step along the mean shows."""
    stage = dsgd.run(COUNTING, counting(), steps=2, key=KEY, mesh=1)
    third = dsgd.run(COUNTING, counting(), steps=1, key=KEY, mesh=1, start=stage)
    seen = np.flatnonzero(np.asarray(third.params - stage.params))
    key = loop.split(KEY)[1]
    for n, part in enumerate(PARTS):
        batch = loop.batch_of(counting(), key, 2, n, pooled.of_worker(counting().data, n))
        assert set(np.asarray(batch.inputs)[np.asarray(batch.weights) > 0]) == set(seen) & set(part)
