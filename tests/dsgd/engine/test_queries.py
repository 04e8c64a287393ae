"""Several queries in a round: two points with the same samples, exact gradients in some rounds,
chosen samples, and losses. Answers are compared with those of single queries and of numpy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
from dsgd import Query, State, clusters, problems, work, workers
from dsgd.engine import pooled, queries, units
from dsgd.engine.oracle import Oracle

N, B, D = 4, 3, 6
KEY, ROWS = jax.random.key(5), P(workers.AXIS)
RNG = np.random.default_rng(0)
INPUTS, CLASSES = RNG.normal(size=(40, D)), np.arange(40) % 2
SIZES = (5, 20, 3, 12)
PARTS = np.split(np.arange(40), np.cumsum(SIZES)[:-1])
ACTIVE = np.array([True, False, False, True])
MODEL = problems.Model(
    lambda key: {"w": jnp.zeros(D), "b": jnp.zeros(())},
    lambda params, inputs: inputs @ params["w"] + params["b"],
)


def log_loss(outputs: jax.Array, classes: jax.Array) -> jax.Array:
    return optax.sigmoid_binary_cross_entropy(outputs, classes.astype(outputs.dtype))


@cache
def problem(layout: str = "padded", **options: Any) -> dsgd.Problem:
    """Returns a logistic regression with workers of unequal sizes."""
    defaults = {"batch_size": B, "partition": PARTS, "l2": 0.1, "workers": N}
    of = problems.finite_sum(MODEL, log_loss, (INPUTS, CLASSES), **defaults | options)
    if layout == "padded":
        return of
    train = np.asarray(of.data.inputs), np.asarray(of.data.targets)
    inputs, targets = (
        np.concatenate([leaf[n, :size] for n, size in enumerate(SIZES)]) for leaf in train
    )
    return of._replace(data=pooled.pool(inputs, targets, list(PARTS), problems.Examples))


def gradients(query: Query, devices: int = 2, layout: str = "padded", **options: Any) -> Any:
    """Returns the answer to a query at stacked models."""
    of = problem(layout, **options)
    one = jax.eval_shape(of.init, KEY)

    def block(data, params):
        asked = queries.convert(query._replace(params=params), one, of, N)
        return Oracle(of, N, data).gradients(asked, KEY)

    mesh, data = workers.mesh(devices), pooled.lay_out(of.data, devices)
    specs = {"mesh": mesh, "in_specs": ROWS, "out_specs": ROWS, "check_vma": False}
    return jax.tree.map(np.asarray, jax.jit(jax.shard_map(block, **specs))(data, models(of)))


def models(of: dsgd.Problem) -> Any:
    """Returns a different model for each worker, leaves `[N, ...]`."""
    rng = np.random.default_rng(1)
    like = jax.eval_shape(of.init, KEY)
    return jax.tree.map(lambda leaf: rng.normal(size=(N, *leaf.shape)).astype(np.float32), like)


def numpy_answer(n: int, samples: Any) -> tuple[float, np.ndarray]:
    """Returns the mean loss of these samples of worker n and its gradient with respect to all
    parameters, at its model.
    """
    of, rows = problem(), PARTS[n][np.asarray(samples)]

    def loss(x):
        return of.loss(
            x,
            problems.Examples(
                jnp.asarray(INPUTS[rows], jnp.float32),
                jnp.asarray(CLASSES[rows]),
                jnp.ones(len(rows)),
            ),
        )

    mine = jax.tree.map(lambda leaf: leaf[n], models(of))
    value, slope = jax.value_and_grad(loss)(mine)
    return float(value), flat(slope)


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def row(tree: Any, n: int) -> np.ndarray:
    return flat(jax.tree.map(lambda leaf: leaf[n], tree))


@pytest.mark.parametrize(("layout", "devices"), [("padded", 1), ("padded", 2), ("pool", 2)])
def test_a_chosen_batch_has_exactly_its_samples(layout, devices):
    """A sample that is chosen twice counts twice."""
    samples = np.array([[4, 0], [7, 7], [2, 1], [11, 3]], np.int32)
    losses, slopes = gradients(Query((), samples=samples, loss=True), devices, layout)
    for n in range(N):
        value, slope = numpy_answer(n, samples[n])
        np.testing.assert_allclose(losses[n], value, rtol=1e-5)
        np.testing.assert_allclose(row(slopes, n), slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("layout", "devices"), [("padded", 2), ("pool", 4)])
def test_workers_that_are_not_active_get_zeros_and_the_others_the_same(exact, layout, devices):
    whole = gradients(Query((), exact=exact), devices, layout)
    some = gradients(Query((), exact=exact, active=jnp.asarray(ACTIVE), loss=True), devices, layout)
    for n in range(N):
        expected = row(whole, n) if ACTIVE[n] else 0 * row(whole, n)
        np.testing.assert_allclose(row(some[1], n), expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(some[0] > 0, ACTIVE)


def test_losses_are_means_over_each_worker_s_samples():
    """With unequal local work, and with weights of the problem if gradients have them."""
    given = work.local_batches([6, 2, 0, 3], batch_size=B, micro_batches=2)
    exact, _ = gradients(Query((), exact=True, loss=True))
    for n in range(N):
        assert exact[n] == pytest.approx(numpy_answer(n, np.arange(SIZES[n]))[0], rel=1e-5)
    drawn, _ = gradients(Query((), loss=True))
    some, _ = gradients(
        Query((), work=work.to_samples(given, B), loss=True), weights=(1.0, 2.0, 4.0, 1.0)
    )
    assert some[2] == 0
    assert some[3] == pytest.approx(drawn[3] / 2, rel=1e-5), "the same three samples, weight 1/2"


# --- Methods


def twice(state: Any, round: dsgd.Round) -> Any:
    return Query(state.server), Query(state.server)


def asking(query: Any, name: str = "mine") -> dsgd.Algorithm:
    """Returns gradient descent along the first of the answers, which logs how much the second one
    differs from it.
    """

    def update(state, answer, round):
        one, other, *_ = answer if isinstance(answer, tuple) else (answer, answer)
        difference = jax.tree.map(lambda a, b: jnp.sum(jnp.abs(a - b)), one, other)
        with round.unrecorded():
            round.log(difference=workers.sum(jnp.stack(jax.tree.leaves(difference))).sum())
        return State(jax.tree.map(lambda x, g: x - 0.1 * g, state.server, round.mean(one)))

    return dsgd.Algorithm(
        name, lambda params, N: State(params), query, update, lambda state: state.server
    )


def snapshot_query(state: Any, round: dsgd.Round) -> Any:
    """Queries two batches, and the exact gradient in every third round, as SVRG does."""
    return *twice(state, round), Query(state.server, exact=True, active=round.step % 3 == 0)


def one_sample_query(state: Any, round: dsgd.Round) -> Any:
    """Queries one sample of each worker, as SAGA does."""
    return Query(state.server, samples=round.draw_samples()[:, :1])


@pytest.mark.parametrize("replacement", [True, "epoch"])
def test_all_queries_of_a_round_draw_the_same_batches(replacement):
    """Batches of epochs are counted once, so that both methods continue with the same ones."""
    single, of = asking(lambda state, round: Query(state.server)), problem(replacement=replacement)
    found, plain = (
        dsgd.run(method, of, steps=9, key=KEY, mesh=2).history for method in (asking(twice), single)
    )
    assert not found["difference"][1:].any()
    np.testing.assert_allclose(found["loss"], plain["loss"], rtol=1e-6)
    sizes = np.minimum(SIZES, B) if replacement == "epoch" else np.full(N, B)
    np.testing.assert_array_equal(found["samples"][1:], np.tile(2 * sizes, (9, 1)))


def test_nothing_is_computed_if_no_worker_of_any_run_is_active():
    """Runs that are mapped over share the branch."""
    computed = []

    def of_run(active, value):
        def compute():
            jax.debug.callback(lambda: computed.append(1))
            return value * jnp.ones(2)

        return units.if_any(active, compute)

    runs, values = jax.jit(jax.vmap(of_run)), jnp.array([2.0, 3.0])
    np.testing.assert_array_equal(runs(np.zeros((2, 2), bool), values), np.zeros((2, 2)))
    jax.effects_barrier()
    assert not computed
    found = runs(np.array([[False, False], [False, True]]), values)
    jax.effects_barrier()
    np.testing.assert_array_equal(found[1], [3, 3])
    assert computed


def test_every_query_counts_its_samples():
    """An exact gradient has all samples of a worker."""
    history = dsgd.run(asking(snapshot_query), problem(), steps=7, key=KEY, seeds=2, mesh=1).history
    exact = np.outer([1, 0, 0, 1, 0, 0, 1], SIZES)
    np.testing.assert_array_equal(history["samples"][:, 1:], [2 * B + exact] * 2)
    chosen = dsgd.run(asking(one_sample_query), problem(), steps=2, key=KEY, mesh=1).history[
        "samples"
    ]
    np.testing.assert_array_equal(chosen[1:], np.ones((2, N)))


def test_every_query_takes_its_time():
    """Two batches of three samples; an exact gradient takes that of the most samples, 20."""
    cluster = clusters.Cluster(clusters.constant(0.0), per_sample=clusters.constant(1.0))

    def seconds(method, **fields):
        run = {"steps": 4, "key": KEY, "mesh": 1, "cluster": replace(cluster, **fields)}
        return np.diff(dsgd.run(method, problem(), **run).history["clock"])

    np.testing.assert_allclose(seconds(asking(snapshot_query)), [26, 6, 6, 26])
    np.testing.assert_allclose(seconds(asking(snapshot_query), micro_batches=2), [32, 12, 12, 32])
    np.testing.assert_allclose(seconds(asking(one_sample_query)), [1, 1, 1, 1])
    random = seconds(asking(twice), per_sample=clusters.exponential(1.0))
    assert (random != seconds(asking(twice), per_sample=clusters.exponential(1.0))).sum() == 0
    assert (np.abs(random / 6 - np.round(random / 6, 2)) > 0).any()


ONES = np.ones((N, 1), np.int32)
MISTAKES = {
    "no query": (
        lambda state, round: (state.server,),
        "query returns .* expected a dsgd.Query, or",
    ),
    "an empty tuple": (lambda state, round: (), "query returns .* expected a dsgd.Query, or"),
    "workers among several": (
        lambda state, round: (Query(state.server), Query(state.server, workers=jnp.array([1]))),
        "2 queries, one of them with workers; .* pass active",
    ),
    "a traced exact": (
        lambda state, round: Query(state.server, exact=round.step % 2 == 0),
        r"exact = a traced .* return two queries: \(Query\(x\), Query\(x, exact=True, active=",
    ),
    "a traced loss": (
        lambda state, round: Query(state.server, loss=round.step % 2 == 0),
        "loss = a traced .* expected True or False",
    ),
    "active for other workers": (
        lambda state, round: Query(state.server, active=np.ones(3, bool)),
        r"active = .* expected None, a bool scalar, or bool \[4\]",
    ),
    "active numbers": (
        lambda state, round: Query(state.server, active=np.ones(N)),
        r"active = .* expected None, a bool scalar, or bool \[4\]",
    ),
    "samples of other workers": (
        lambda state, round: Query(state.server, samples=ONES[1:]),
        r"samples = .* integers \[4\], or integers \[4, b\]",
    ),
    "samples that are no integers": (
        lambda state, round: Query(state.server, samples=ONES * 1.0),
        r"samples = .* integers \[4\], or integers \[4, b\]",
    ),
    "samples and exact": (
        lambda state, round: Query(state.server, samples=ONES, exact=True),
        "query returns samples and exact = True; expected samples alone",
    ),
    "samples and work": (
        lambda state, round: Query(state.server, samples=ONES, work=work.weighted(ONES * 1.0)),
        "query returns samples and work; expected samples alone",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_queries_that_cannot_be_answered_are_refused(mistake, mesh):
    query, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=f"mine: .*{message}"):
        dsgd.compile_round(asking(query), problem(), mesh)


def test_samples_that_do_not_exist_end_the_run():
    """The second worker has 20 samples, the third has 3."""
    right = asking(lambda state, round: Query(state.server, samples=np.array([4, 19, 2, 11])))
    dsgd.run(right, problem(), steps=2, key=KEY, mesh=2)
    wrong = asking(lambda state, round: Query(state.server, samples=2 + 0 * ONES + round.step))
    with pytest.raises(ValueError, match=r"query chooses sample 3; expected numbers from 0 to m_n"):
        dsgd.run(wrong, problem(), steps=4, key=KEY, mesh=2)


def test_diagnostics_and_losses_of_one_query():
    """The pair of losses and gradients; `train_loss` is the mean of the same losses."""

    def update(state, answer, round):
        losses, _ = answer
        with round.unrecorded():
            round.log(mean=workers.mean(losses))
        return State(state.server)

    method = asking(lambda state, round: Query(state.server, loss=True))._replace(update=update)
    method = algorithms.with_diagnostics(method)
    history = dsgd.run(method, problem(), steps=2, key=KEY, mesh=2, train_loss=True).history
    np.testing.assert_allclose(history["mean"][1:], history["train_loss"][1:], rtol=1e-6)
    assert (history["local_sqnorms"][1:] > 0).all()
