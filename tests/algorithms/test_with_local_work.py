"""Methods with unequal local work, compared with the same methods on a problem that gets the
weighted samples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from algorithms import delays, with_diagnostics, with_local_work
from dsgd import LocalWork, compressors, problems, work, workers
from dsgd.communication import communicate
from tests.methods.files import form
from theory_checks.machinery.rounds import place_on_one_device

N, D, B, M, STEPS = 8, 6, 3, 4, 6
SIZES = np.array([[12, 1, 0, 7, 5, 4, 9, 10], [3, 3, 12, 1, 0, 0, 2, 8]])  # used in turn
SGD = optax.sgd(0.05, momentum=0.5)
METHODS = {
    "minibatch_sgd": algorithms.minibatch_sgd(SGD),
    "error_compensated_sgd": algorithms.error_compensated_sgd(
        SGD, compressors.sign, compressors.top_k(0.5)
    ),
    "local_sgd": algorithms.local_sgd(
        optax.sgd(0.05),
        2,
        # a worker that computes nothing makes no step; with momentum, a gradient of 0 makes one
    ),
    "dsgd": algorithms.decentralized_sgd(optax.sgd(0.05), topologies.ring(N)),
    # (with emergent staleness, the order of workers depends on the work)
    "asgd": algorithms.asynchronous_sgd(SGD, delays.uniform(2)),
}


class Batch(NamedTuple):
    """Samples of one worker `[m, ...]`, with the weights of their losses, which add up to 1 in a
    batch.
    """

    a: jax.Array
    y: jax.Array
    weights: jax.Array


def cut(batch: Batch, samples: jax.Array) -> Batch:
    return batch._replace(weights=jnp.where(jnp.arange(B) < samples, 1.0, 0.0) / samples)


def loss(x: jax.Array, batch: Batch) -> jax.Array:
    return jnp.sum(batch.weights * (batch.a @ x - batch.y) ** 2)


@cache
def items() -> tuple[np.ndarray, np.ndarray]:
    """Returns a `[rounds, N, M B, d]` and y `[rounds, N, M B]` of all rounds."""
    rng = np.random.default_rng(2)
    a = rng.normal(size=(STEPS, N, M * B, D))
    return a, a @ rng.normal(size=D) + rng.normal(size=(STEPS, N, M * B)) + np.arange(N)[
        None, :, None
    ]


def problem(**fields: Any) -> dsgd.Problem:
    a, y = items()
    data = Batch(jnp.asarray(a[0]), jnp.asarray(y[0]), jnp.full((N, M * B), 1 / M / B))
    return dsgd.Problem(
        lambda key: jnp.zeros(D), loss, data, dsgd.Sampler(lambda key, mine: mine, **fields)
    )


def alternate(state: dsgd.State, round: dsgd.Round) -> LocalWork:
    """Returns sizes that change from round to round."""
    return work.local_batches(jnp.asarray(SIZES)[round.step % 2], batch_size=B, micro_batches=M)


@pytest.mark.parametrize("name", ["error_compensated_sgd", "local_sgd", "asgd"])
def test_a_method_with_local_work_equals_one_on_the_weighted_samples(name):
    """The first method splits each worker's item into micro-batches, whose first samples are used,
    on two devices; the second, without local work, gets each sample with the resulting weight.
    """
    method = METHODS[name]
    with jax.enable_x64(True):
        plain = [Batch(a, y, np.full(y.shape, 1 / B)) for a, y in zip(*items(), strict=True)]
        cuttable = problem(batch_size=B, truncate=cut)
        run = partial(dsgd.run, steps=STEPS, key=jax.random.key(1))
        ours = run(with_local_work(method, alternate), cuttable, batches=plain, mesh=2)
        # mask of the first samples, [2, N, M B]
        counts = np.arange(M * B)[None] < SIZES[:, :, None]
        per_sample = N * counts / SIZES.sum(axis=1)[:, None, None]
        weighted = [batch._replace(weights=per_sample[t % 2]) for t, batch in enumerate(plain)]
        theirs = run(method, problem(), batches=weighted, mesh=1)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12),
        ours.state.workers,
        theirs.state.workers,
    )
    np.testing.assert_allclose(ours.params, theirs.params, rtol=1e-9)
    for column in ("loss", "consensus", "bits"):
        np.testing.assert_allclose(
            ours.history[column], theirs.history[column], rtol=1e-9, atol=1e-12
        )
    computed = ours.history["samples"][1:]
    expected = SIZES[np.arange(STEPS) % 2]
    if name == "asgd":
        expected = np.where(np.arange(N)[None] == ours.history["worker"][1:, None], expected, 0)
    np.testing.assert_array_equal(computed, expected)


def test_methods_with_their_own_clock_are_queried_with_the_work(mesh, key):
    """The worker whose gradient arrives next is found in the query, and again in the update: both
    use the same work.
    """
    seen = []

    def query(state, round):
        seen.append(round.work)
        return method.query(state, round)

    def update(state, gradients, round):
        seen.append(round.work)
        return method.update(state, gradients, round)

    method = algorithms.asynchronous_sgd(SGD)
    spy = method._replace(query=query, update=update)
    dsgd.compile_round(
        with_local_work(spy, work.micro_batches(np.eye(N, 2) > 0)),
        problems.robust_regression(N, D, batch_size=B),
        mesh,
    )
    assert len(seen) == 2
    assert all(given.samples.shape == (N, 2) and given.samples.dtype == jnp.int32 for given in seen)


def norms(tree: Any) -> np.ndarray:
    """Returns squared norms of rows, `[n]`."""
    return sum(
        np.sum(np.asarray(leaf).reshape(leaf.shape[0], -1) ** 2, axis=1)
        for leaf in jax.tree.leaves(tree)
    )


def test_recorded_norms_are_those_of_the_gradients(key):
    """At the start, with streamed batches, compared with gradients in numpy. Without a clock no
    seconds are measured.
    """
    a, y = items()
    outside = [
        Batch(
            a[0].astype(np.float32), y[0].astype(np.float32), np.full(y[0].shape, 1 / B, np.float32)
        )
    ]
    method = with_diagnostics(with_local_work(algorithms.minibatch_sgd(SGD), alternate))
    history = dsgd.run(
        method, problem(batch_size=B, truncate=cut), steps=1, key=key, batches=outside, mesh=2
    ).history
    # at x = 0
    sums = np.stack([-2 * (a[0, n, :size].T @ y[0, n, :size]) for n, size in enumerate(SIZES[0])])
    with np.errstate(invalid="ignore"):
        # NaN for workers without work
        np.testing.assert_allclose(
            history["local_sqnorms"][1], norms(sums / SIZES[0][:, None]), rtol=1e-4
        )
    np.testing.assert_allclose(
        history["global_sqnorm"][1], norms(sums.sum(axis=0)[None] / SIZES[0].sum())[0], rtol=1e-4
    )
    assert np.isnan(history["local_sqnorms"][0]).all()
    assert not [name for name in history if name.startswith("measured")]


def test_norms_of_an_asynchronous_method_are_those_of_one_worker(mesh, key):
    history = dsgd.run(
        with_diagnostics(algorithms.asynchronous_sgd(SGD)), problem(), steps=4, key=key, mesh=mesh
    ).history
    there = ~np.isnan(history["local_sqnorms"][1:])
    np.testing.assert_array_equal(np.argmax(there, axis=1), history["worker"][1:])
    np.testing.assert_array_equal(there.sum(axis=1), 1)
    np.testing.assert_allclose(
        history["local_sqnorms"][1:][there], history["global_sqnorm"][1:], rtol=1e-6
    )


MB, THREE = METHODS["minibatch_sgd"], work.weighted(np.ones((3, 2)))
REFUSED = {
    "for others": (
        lambda: dsgd.compile_round(with_local_work(METHODS["dsgd"], THREE), problem(), 1),
        r"decentralized_sgd.* with samples as bool\[3, 2\]; expected .* \[8, M\]",
    ),
    "one axis": (
        lambda: with_local_work(MB, LocalWork(np.ones(3, bool), np.ones(3))),
        r"samples as bool\[3\]; expected integers or bool \[N, M\]",
    ),
    "against": (
        lambda: with_local_work(MB, LocalWork(np.ones((3, 1), int), -np.ones((3, 1)))),
        "with weights -1 to -1; expected finite numbers",
    ),
    "a number": (
        lambda: dsgd.compile_round(with_local_work(MB, lambda state, round: 3), problem(), 1),
        "work as 3; expected a dsgd.LocalWork",
    ),
    "twice": (
        lambda: dsgd.compile_round(
            with_local_work(with_local_work(MB, alternate), alternate), problem(), 1
        ),
        "set the local work themselves",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_local_work_that_a_method_cannot_do_is_refused(mistake):
    wrong, message = REFUSED[mistake]
    with pytest.raises(ValueError, match=message):
        wrong()


def test_square_norms_of_half_precision_are_summed_in_float32():
    rows = {"a": jnp.full((2, 3000), 0.1, jnp.bfloat16), "b": jnp.ones((2, 2, 2), jnp.bfloat16)}
    exact = 3000 * float(jnp.bfloat16(0.1)) ** 2 + 4
    np.testing.assert_allclose(workers.sqnorm_rows(rows), exact, rtol=1e-5)


def test_a_worker_that_computes_nothing_makes_no_step(mesh, key):
    """With momentum, a gradient of 0 would be a step."""
    first, method = (
        LocalWork(jnp.ones((N, 1), bool), jnp.ones((N, 1))),
        algorithms.decentralized_sgd(SGD, topologies.ring(N)),
    )
    later = first._replace(samples=first.samples.at[0].set(False))

    def given(state, round):
        return jax.tree.map(lambda one, other: jnp.where(round.step == 0, one, other), first, later)

    runs = [
        dsgd.run(
            with_local_work(method, given), problem(), steps=steps, key=key, mesh=mesh
        ).state.workers.optimizer
        for steps in (2, 4)
    ]
    for before, after in zip(*map(jax.tree.leaves, runs), strict=True):
        np.testing.assert_array_equal(before[0], after[0])
        assert (before[1:] != after[1:]).any()


class Ends(NamedTuple):
    """The states before and after a round."""

    before: dsgd.State
    after: dsgd.State


def one_round(
    name: str, step: int, active: np.ndarray, arrive: bool = True, **optimizer: float
) -> Ends:
    """Runs a round of a registered method from a state of random positive numbers, on which its
    corrections and memories act.

    Args:
        step: number of the round.
        active: which workers compute, bool `[N]`; the gradients of others are 0.
        arrive: whether the messages of workers arrive.
        optimizer: options of `optax.sgd`.
    """
    draw, method = np.random.default_rng(0), algorithms.make(name, optax.sgd(0.1, **optimizer), N)

    def randomize(leaf):
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(draw.uniform(0.5, 1.5, leaf.shape), leaf.dtype) if floating else leaf

    def step_once(state):
        this = dsgd.Round(
            jnp.int32(step), N, jax.random.key(0), work=work.micro_batches(active[:, None])
        )
        query = method.query(state._replace(step=this.step), this)
        answers = jax.tree.map(
            lambda query: (jnp.zeros(N), gradients) if query.loss else gradients,
            query,
            is_leaf=lambda node: isinstance(node, dsgd.Query),
        )
        lost = None if arrive else NO_MESSAGE
        with workers.with_participation(lost):
            return communicate(method, state, answers, this, jax.random.key(1))[0]

    gradients = jnp.asarray(draw.uniform(0.5, 1.5, (N, D)) * active[:, None], jnp.float32)
    before = jax.tree.map(randomize, method.init(jnp.ones(D), N))
    return Ends(before, jax.jit(place_on_one_device(step_once))(before))


NO_MESSAGE = workers.Participation(
    jnp.ones(N, bool),
    jnp.zeros(N, bool),
    lambda i, j: jnp.zeros(jnp.broadcast_shapes(i.shape, j.shape), bool),
)
IDLE = np.arange(N) == 2
LOCAL = 2  # the number of a round in which most methods with periods send nothing


def sends(name: str, t: int) -> bool:
    """Returns whether a registered method sends, or may send, in round t."""
    stated = form(name)(t, N, D)
    each = stated if isinstance(stated, list) else [stated]
    ways = [way for one in each for way in (one if isinstance(one, tuple) else (one,))]
    return any(way is None or np.any(way) for way in ways)


# with rounds in which they send nothing, and the others
IN_PERIODS = [
    name for name in algorithms.ALGORITHMS if {sends(name, t) for t in range(4)} == {True, False}
]


@pytest.mark.parametrize("name", [name for name in IN_PERIODS if not sends(name, LOCAL)])
def test_a_worker_that_computes_nothing_keeps_its_model_between_exchanges(name):
    """Only its model and its optimizer are compared: SCAFFOLD, for example, counts its last control
    variate.
    """
    found, moved = one_round(name, LOCAL, ~IDLE), set[bool]()
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(found.before.workers),
        jax.tree.leaves(found.after.workers),
        strict=True,
    ):
        if ".params" in (where := jax.tree_util.keystr(path)) or ".optimizer" in where:
            np.testing.assert_array_equal(new[IDLE], old[IDLE], err_msg=where)
            moved.add(bool((new[0] != old[0]).any()))
    assert True in moved


LAST_ONES: dict[str, Callable[[Any], Any]] = {
    "marina": lambda gradient: gradient,
    **dict.fromkeys(("lag", "clag", "three_point"), lambda points: points.gradient),
    "adacomm": lambda inner: inner.memory.loss,
}


@pytest.mark.parametrize("name", LAST_ONES)
def test_a_worker_that_computes_nothing_keeps_its_last_gradient_or_loss(name):
    found = one_round(name, LOCAL, ~IDLE)
    before, after = (LAST_ONES[name](each.workers) for each in (found.before, found.after))
    np.testing.assert_array_equal(after[IDLE], before[IDLE])
    assert (after[0] != before[0]).any()


def test_a_worker_that_computes_nothing_sends_its_model_without_momentum():
    """In QG-DSGDm the momentum of the other workers moves their models."""
    found = one_round("quasi_global_momentum", LOCAL, ~IDLE, momentum=0.5)
    x, _, d = (found.before.workers[part] for part in range(3))
    (before, *_), (after, *_) = (
        jax.tree.leaves(each.workers.optimizer) for each in (found.before, found.after)
    )
    half = np.where(IDLE[:, None], x, x - 0.1 * after - 0.9 * d)
    mixed = topologies.ring(N).W @ half
    np.testing.assert_allclose(found.after.workers.params, mixed, rtol=1e-5)
    np.testing.assert_array_equal(after[IDLE], before[IDLE])


SENDS = [(name, step) for name in IN_PERIODS for step in range(4) if sends(name, step)]


@pytest.mark.parametrize(("name", "step"), [*SENDS, ("sketched_sgd", 3), ("fetch_sgd", 3)])
def test_a_round_in_which_no_message_arrives_does_not_change_the_servers_state(name, step):
    """Unless the method refuses lost messages. SCAFFOLD's control variate is the mean of the
    workers', which it is not in a random state.
    """
    momentum = {} if name in IN_PERIODS else {"momentum": 0.5}
    try:
        found = one_round(name, step, ~IDLE, arrive=False, **momentum)
    except ValueError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "lost" in refused
        return
    for leaf in jax.tree.leaves(found.after):
        assert np.isfinite(leaf).all()
    if name != "scaffold":
        jax.tree.map(np.testing.assert_array_equal, found.after.server, found.before.server)
