"""The oracle: the work of a query, compared with the same samples processed one worker and
micro-batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
from dsgd import LocalWork, problems, work, workers
from dsgd.engine.oracle import Oracle
from dsgd.engine.queries import Asked
from dsgd.problems import Examples

N, B, M = 8, 4, 3
KEY, ROWS = jax.random.key(5), P(workers.AXIS)
RNG = np.random.default_rng(0)
SIZES = [12, 1, 0, 7, 5, 4, 9, 8]
INPUTS, CLASSES = RNG.normal(size=(96, 6)).astype(np.float32), np.arange(96) % 3


def own_problem() -> dsgd.Problem:
    """A custom problem without a batch size, or a function that truncates batches."""

    def sample(key, mine):
        return jax.tree.map(lambda leaf: leaf[jax.random.randint(key, (B,), 0, 12)], mine)

    def loss(params, batch):
        return jnp.mean((batch[0] @ params - batch[1]) ** 2)

    data = jnp.asarray(INPUTS.reshape(N, 12, 6)), jnp.asarray(CLASSES.reshape(N, 12), jnp.float32)
    return dsgd.Problem(lambda key: jnp.ones(6), loss, data, sample)


@cache
def make(name: str) -> dsgd.Problem:
    options: dict[str, Any] = {"workers": N, "batch_size": B}
    return {
        "logistic": lambda: problems.logistic_regression((INPUTS, CLASSES), **options),
        "mlp": lambda: problems.neural_network(
            problems.MLP(3, (5,)), (INPUTS, CLASSES), l2=0.1, **options
        ),
        "robust": lambda: problems.robust_regression(N, 6, samples=12, batch_size=B),
        "quadratic": lambda: problems.random_quadratic(N, 6, noise=0.5),
        "own": own_problem,
    }[name]()


def sized_problem(batch_size: int, name: str) -> dsgd.Problem:
    """A custom problem that cannot truncate its batches."""
    return make("own")._replace(
        sample=dsgd.Sampler(make("own").sample, batch_size=batch_size), name=name
    )


def some_work(problem: dsgd.Problem) -> LocalWork:
    """Returns work of unequal sizes; for problems that cannot truncate batches, whole ones."""
    if problem.sampler.truncate is None:
        return work.weighted(
            np.linspace(0.5, 2, N * M).reshape(N, M)
            * (np.array(SIZES)[:, None] > B * np.arange(M)[None])
        )
    return work.local_batches(SIZES, batch_size=B, micro_batches=M)


def models(problem: dsgd.Problem) -> Any:
    """Returns a different model for each worker, leaves `[N, ...]`."""
    rng = np.random.default_rng(1)
    params = jax.jit(problem.init)(jax.random.key(0))
    return jax.tree.map(
        lambda leaf: np.asarray(leaf) + 0.1 * rng.normal(size=(N, *leaf.shape)).astype(np.float32),
        params,
    )


def spread(block: Callable, *rows: Any, D: int, out: Any = ROWS) -> Any:
    """Returns the function of the devices' blocks of rows."""
    specs = {"in_specs": ROWS, "out_specs": out, "check_vma": False}
    return jax.jit(jax.shard_map(block, mesh=workers.mesh(D), **specs))(*rows)


def query_gradients(
    problem: dsgd.Problem, given: LocalWork | None, D: int = 2, **fields: Any
) -> Any:
    """Returns gradients; a device has several workers, and only some of them are queried."""
    samples = given and work.to_samples(given, problem.batch_size)

    def block(params, data):
        query = Asked(params, 0, work=samples, **fields)
        return Oracle(problem, N, data).gradients(query, KEY)

    return spread(block, models(problem), problem.data, D=D)


@cache
def one_by_one(name: str) -> Any:
    """Returns each worker's gradient of its work at its own model, leaves `[N, ...]`: means over
    the weighted samples, one at a time.
    """
    problem = make(name)
    given = some_work(problem)
    gradient = problem.gradient or jax.grad(problem.loss)
    keys = [KEY, *(jax.random.fold_in(KEY, 2**31 + m) for m in range(1, M))]

    def micro_batch(key, n, params, mine):
        batch = problem.sample(jax.random.fold_in(key, n), mine)
        one_each = jax.tree.map(
            lambda leaf: leaf[:, None] if isinstance(batch, Examples) else leaf[None], batch
        )
        return jax.vmap(gradient, (None, 0))(params, one_each)

    @jax.jit
    @jax.vmap
    def of_worker(*worker):
        return jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *(micro_batch(key, *worker) for key in keys)
        )

    gradients = of_worker(np.arange(N), models(problem), problem.data)  # [N, M, samples, ...]
    samples = np.asarray(work.to_samples(given, problem.batch_size).samples)[:, :, None]
    places = jax.tree.leaves(gradients)[0].shape[2]
    counts = np.arange(places) < samples
    shares = given.weights[:, :, None] * counts / np.maximum(counts.sum(axis=2, keepdims=True), 1)
    return jax.tree.map(lambda leaf: np.einsum("nms,nms...->n...", shares, leaf), gradients)


def assert_rows(gradients: Any, rows: Any) -> None:
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), gradients, rows)


@pytest.mark.parametrize(("name", "D"), [("logistic", 8), ("quadratic", 1), ("own", 2)])
def test_work_is_the_weighted_sum_over_the_same_samples(name, D):
    assert_rows(query_gradients(make(name), some_work(make(name)), D=D), one_by_one(name))


def test_exact_gradients_have_the_sum_of_the_weights():
    problem = make("logistic")
    exact = query_gradients(problem, None, D=1, exact=True)
    given = some_work(problem)
    total = np.asarray(given.weights).sum(axis=1)
    weighed = jax.tree.map(
        lambda leaf: np.asarray(leaf) * total.reshape(-1, *[1] * (leaf.ndim - 1)), exact
    )
    assert_rows(query_gradients(problem, given, exact=True), weighed)


def test_a_whole_batch_with_weight_1_is_the_plain_gradient_bit_for_bit():
    problem = make("mlp")
    plain = query_gradients(problem, None, D=1)
    for places in (1, 3):
        given = work.local_batches([B] * N, batch_size=B, micro_batches=places)
        jax.tree.map(np.testing.assert_array_equal, query_gradients(problem, given, D=1), plain)


def test_values_that_are_not_computed_do_not_affect_the_rest():
    """One worker draws NaN, but has no work; and a weight is set for samples that are not
    computed.
    """
    problem = make("own")
    poisoned = problem._replace(
        data=jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), problem.data)
    )
    given = some_work(problem)
    given = given._replace(weights=np.where(given.samples, given.weights, 7.0))
    assert_rows(query_gradients(poisoned, given), one_by_one("own"))
    first = LocalWork(given.samples[:, :1], given.weights[:, :1])
    assert np.isfinite(query_gradients(poisoned, first)).all()


def plain_work(samples: int) -> LocalWork:
    """Returns work of two micro-batches for each worker."""
    return LocalWork(np.full((N, 2), samples), np.ones((N, 2), np.float32))


REFUSED = {
    "a cut": (
        "own8",
        work.local_batches(SIZES, batch_size=8, micro_batches=2),
        "own8 cannot truncate its batches .* expected 0 or 8",
    ),
    "more than a batch": (
        "robust",
        plain_work(8),
        "work of 8 to 8 samples in a micro-batch; expected 0 to 4",
    ),
    "nothing at all": ("robust", plain_work(0), "work with samples: all values are 0"),
    "negative samples": ("robust", plain_work(-1), "work of -1 to -1 samples"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_work_that_cannot_be_done_is_refused_by_name(mistake, mesh):
    name, given, message = REFUSED[mistake]
    problem = sized_problem(8, "own8") if name == "own8" else make(name)
    method = algorithms.minibatch_sgd(optax.sgd(0.1))
    wrong = method._replace(
        query=lambda state, round: method.query(state, round)._replace(work=given)
    )
    with pytest.raises(
        ValueError,
        match=f"minibatch_sgd: query returns (work in samples, but )?{message}",
    ):
        dsgd.compile_round(wrong, problem, mesh)


# --- Numbers that are easy to follow: for worker n's batch of b samples the loss and the gradient
# are 1 + n + 10 b.


def distinct() -> dsgd.Problem:
    return dsgd.Problem(
        init=lambda key: jnp.ones(()),
        loss=lambda x, batch: x * (batch[0] + 10 * batch[1]),
        data=jnp.arange(1.0, N + 1),
        sample=dsgd.Sampler(
            lambda key, mine: (mine, jnp.float32(B)),
            batch_size=B,
            truncate=lambda batch, b: (batch[0], b.astype(jnp.float32)),
        ),
    )


SOME_SAMPLES = np.array([[4, 2], [0, 0], [1, 4], [4, 4], [0, 3], [2, 0], [4, 1], [3, 3]])
SOME_WEIGHTS = np.where(
    np.arange(2 * N).reshape(N, 2) % 5 == 0, 0.0, 0.5 + np.arange(2 * N).reshape(N, 2) / 8
)


def losses_and_gradients(
    chosen: list[int] | None, given: LocalWork | None, present: list[bool] | None = None, D: int = 2
) -> tuple[float, Any]:
    problem = distinct()

    def block(data):
        query = Asked(jnp.ones(()), None, None if chosen is None else jnp.array(chosen), work=given)
        there = None if present is None else jnp.array(present)
        return Oracle(problem, N, data).loss_and_gradients(query, KEY, there)

    out = P(), ROWS if chosen is None else P()
    loss, gradients = spread(block, problem.data, D=D, out=out)
    return float(loss), np.asarray(gradients)


@pytest.mark.parametrize(("chosen", "D"), [(None, 1), (None, 2), ([3, 0, 3], 2), ([1], 2)])
def test_the_loss_of_queried_workers_is_over_their_weighted_samples(chosen, D):
    """Without work it is the mean over workers; a worker that is queried twice counts twice."""
    asked = list(range(N)) if chosen is None else chosen
    each = 1.0 + np.arange(N)
    whole = (each + 10 * B)[asked]
    loss, gradients = losses_and_gradients(chosen, None, D=D)
    assert loss == pytest.approx(whole.mean())
    np.testing.assert_allclose(gradients, whole)
    of_samples = each[:, None] + 10 * SOME_SAMPLES
    counted = np.where(SOME_WEIGHTS > 0, SOME_SAMPLES, 0)
    loss, gradients = losses_and_gradients(
        chosen, LocalWork(SOME_SAMPLES, SOME_WEIGHTS.astype(np.float32)), D=D
    )
    total = counted[asked].sum()
    assert loss == pytest.approx(
        (counted * of_samples)[asked].sum() / total if total else np.nan, rel=1e-6, nan_ok=True
    )
    np.testing.assert_allclose(
        gradients,
        np.sum(np.where(SOME_SAMPLES > 0, SOME_WEIGHTS, 0) * of_samples, axis=1)[asked],
        rtol=1e-6,
    )


def test_without_work_the_loss_is_over_the_workers_that_participate():
    present = [True, False, True, True, False, False, False, True]
    whole = 1.0 + np.arange(N) + 10 * B
    loss, _ = losses_and_gradients(None, None, present)
    assert loss == pytest.approx(whole[present].mean())
    assert np.isnan(losses_and_gradients(None, None, [False] * N)[0])
