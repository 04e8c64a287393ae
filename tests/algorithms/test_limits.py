"""Numbers near the limits of half precision and of small types, huge arguments, and invalid results
of users' functions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import ndtr

import algorithms
import dsgd
import topologies
from algorithms import cannikin, delays, dropcompute, kimad
from dsgd import clusters, compressors, problems, work
from dsgd.wire import codecs

N, D = 4, 8
KEY = jax.random.key(0)
SGD, SMALL = optax.sgd(0.1), optax.sgd(0.01)
CLUSTER = clusters.Cluster(
    clusters.constant(0.1), up=clusters.constant(1e4), down=clusters.constant(1e4)
)
QUADRATIC = problems.random_quadratic(N, D, heterogeneity=1.0, noise=0.3, seed=0)
run = partial(dsgd.run, problem=QUADRATIC, key=KEY, mesh=1)


def steep_problem() -> dsgd.Problem:
    """Returns a problem whose workers have the gradients 40000, 30000, 40000 and 50000 everywhere:
    their mean is in the range of float16, but no sum of two is.
    """
    slopes = jnp.tile(jnp.asarray([[40000.0], [30000], [40000], [50000]], jnp.float16), D)
    loss = dsgd.Loss(lambda params, batch: jnp.float32(0), lambda params, batch: batch)
    return dsgd.Problem(lambda key: jnp.zeros(D, jnp.float16), loss, slopes, lambda key, data: data)


METHODS: dict[str, Any] = {
    "mean": algorithms.minibatch_sgd,
    "ring": partial(algorithms.compressed_sgd, compressor=compressors.identity, ring=True),
    "quantized ring": partial(
        algorithms.compressed_sgd, compressor=compressors.random_quantization(8), ring=True
    ),
    "servers": partial(algorithms.compressed_sgd, compressor=compressors.identity),
    "gossip": partial(algorithms.decentralized_sgd, topology=topologies.ring(N)),
    "push": partial(algorithms.stochastic_gradient_push, topology=topologies.exponential(N)),
    "controlled": partial(algorithms.scaffold, period=2),
    "backup": partial(algorithms.backup_workers_sgd, backups=0),
    "weighted": partial(
        algorithms.kimad_sgd,
        compressors=[compressors.identity],
        round_time=1e3,
        weights=[0.25] * 4,
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_sums_of_half_precision_over_workers_do_not_overflow(method):
    """Two workers on each of two devices; a ring sends its partial sums in float32."""
    cluster = CLUSTER if method in ("backup", "weighted") else None
    made = METHODS[method](optax.sgd(5e-5))
    result = run(made, problem=steep_problem(), steps=2, mesh=2, cluster=cluster)
    assert result.params.dtype == jnp.float16
    np.testing.assert_allclose(np.asarray(result.params, float), -4.0, rtol=5e-3)
    if method == "ring":
        assert result.history["bits"][1] == 2 * 2 * (N - 1) * D // N * 32


@pytest.mark.parametrize("mesh", [1, 8])
def test_means_of_half_precision_are_rounded_once(mesh):
    """In bfloat16, 256 + 1 is 256: sums of ones across devices would stop there."""
    ones = jnp.full((8, 3), 1.0078125, jnp.bfloat16).at[0].set(256.0)
    spec = jax.sharding.PartitionSpec(dsgd.workers.AXIS)
    over = {"mesh": dsgd.workers.mesh(mesh), "in_specs": spec, "check_vma": False}
    mean = jax.shard_map(dsgd.workers.mean, out_specs=jax.sharding.PartitionSpec(), **over)
    exact = np.asarray(ones, np.float32).mean(axis=0).astype(jnp.bfloat16)
    np.testing.assert_array_equal(jax.jit(mean)(ones), exact)


# Users' functions


def asking(**query: Any) -> dsgd.Algorithm:
    """SGD with another query, which depends on the round."""

    def ask(state, round):
        given = {name: value(round) if callable(value) else value for name, value in query.items()}
        return dsgd.Query(state.server.params, **given)

    return algorithms.sgd(SGD)._replace(query=ask)


def staleness(wrong: int) -> dsgd.Algorithm:
    def draw(key, t, parts, moved):
        return jnp.full(parts, jnp.where(t == 4, wrong, 0), jnp.int32)

    return algorithms.asynchronous_sgd(SMALL, delays.Delays(2, draw, "mine"))


def choice(wrong: int, update: Any) -> dsgd.Algorithm:
    def rule(errors, sizes, budget):
        return jnp.full(errors.shape[0], wrong, jnp.int32)

    some = kimad.top_k([0.2, 0.5])
    return algorithms.kimad_sgd(SGD, some, round_time=10.0, rule=rule, update=update)


def later(round):
    return jnp.where(round.step == 2, 4, 0)[None]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (asking(workers=np.zeros(0, int)), r"sgd: query .* workers = int64\[0\]"),
        (asking(workers=np.array([9])), "sgd: by round 8, query asks worker 9; .* 0 to 3"),
        (asking(workers=jnp.array([0, -1])), "sgd: by round 8, query asks worker -1"),
        (asking(workers=later), "sgd: by round 8, query asks worker 4"),
        (staleness(7), "delays.mine returned a staleness of 7; .* 0 to 2"),
        (staleness(-1), "delays.mine returned a staleness of -1"),
        (choice(7, kimad.gradient), "choice 7 for .* the server"),
        (choice(-1, kimad.local_steps(SGD, 2)), "choice -1 for .* the server"),
    ],
)
def test_invalid_results_of_users_functions_are_found_between_records(method, words):
    cluster = CLUSTER if "choice" in words else None
    with pytest.raises(ValueError, match=words):
        run(method, steps=8, record_every=8, cluster=cluster)


@pytest.mark.parametrize(("code", "bits"), [(1, 0), (4, 2)])
def test_codes_that_do_not_fit_into_their_bits_are_refused(code, bits):
    with pytest.raises(ValueError, match=f"codecs.pack: .* {code} for bits = {bits}"):
        codecs.pack(jnp.full(3, code, jnp.uint8), bits)


# Huge numbers


def test_any_number_of_servers_compiles_once():
    """There is one loop over the parts of 2,000 servers: an expression of that length would take
    minutes to compile.
    """
    fast = clusters.constant(1e9)
    cluster = clusters.Cluster(clusters.constant(0.1), up=fast, down=fast)
    few, many = (
        run(algorithms.asynchronous_sgd(SMALL, servers=servers), steps=8, cluster=cluster)
        for servers in (8, 2000)
    )
    np.testing.assert_array_equal(few.history["worker"], many.history["worker"])
    np.testing.assert_allclose(few.params, many.params, rtol=1e-5)


def test_micro_batches_are_counted_over_all_terms_of_the_sum():
    tau, M = np.linspace(0.0, 70.0, 300), 60
    terms = [ndtr((tau - m) / (np.sqrt(m) * 0.3)) for m in range(1, M + 1)]
    found = dropcompute.expected_effect(1.0, 0.3, M, 1, tau).drop_rate
    np.testing.assert_allclose(found, 1 - sum(terms) / M, rtol=1e-12, atol=1e-14)


def test_the_threshold_of_many_micro_batches_is_found_in_seconds():
    std, M = 0.1, 10**5
    tau = dropcompute.expected_threshold(1.0, std, M)
    near = np.array([tau - 5.0, tau, tau + 5.0])
    share = 1 - dropcompute.expected_effect(1.0, std, M, 1, near).drop_rate
    assert np.argmax(share / near) == 1
    assert M / 2 < tau < M


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (partial(algorithms.local_sgd, SGD), "period"),
        (partial(algorithms.scaffold, SGD), "period"),
        (partial(kimad.local_steps, SGD), "period"),
        (partial(algorithms.asynchronous_sgd, SGD), "servers"),
        (partial(algorithms.asynchronous_sgd, SGD), "bound"),
        (partial(algorithms.backup_workers_sgd, SGD), "backups"),
        (partial(dropcompute.expected_threshold, 1.0, 0.1), "micro_batches"),
        (partial(work.local_batches, [1, 2]), "batch_size"),
    ],
)
def test_numbers_beyond_int32_are_refused_by_name(function, argument):
    """Larger numbers are covered by the random bad calls."""
    with pytest.raises(ValueError, match=f"{argument} = |micro-batches of 2147483648"):
        function(**{argument: 2**31})


def test_a_period_of_millions_of_rounds_costs_nothing():
    method = algorithms.local_sgd(SGD, 10**6)
    assert [exchange.period for exchange in dsgd.exchanges(method, QUADRATIC)] == [10**6]
    with pytest.warns(UserWarning, match="nothing is sent; pass steps >= 1000000"):
        assert run(method, steps=2).history["bits"][-1] == 0


# Small types


ROUND_BUDGET = [np.array([number], np.uint8) for number in (100, 1, 2)]
LOCAL_NORMS = [np.array(numbers, np.uint8) for numbers in ([[100, 10, 120]], [10], [100, 120, 3])]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (
            partial(work.local_batches, batch_size=100, micro_batches=2),
            [np.array([100, 127, 90, 3], np.int8)],
        ),
        (kimad.budget, ROUND_BUDGET),
        (kimad.budget, [np.array([60000.0], np.float16), np.array(100.0, np.float16)]),
        (cannikin.gradient_noise_scale, LOCAL_NORMS),
    ],
    ids=["counts", "1 s less 2 s", "bits", "noise scale"],
)
def test_small_types_do_not_overflow(function, arguments):
    wide = [each.astype(float if each.dtype.kind == "f" else int) for each in arguments]
    small, plain = (jax.tree.leaves(function(*given)) for given in (arguments, wide))
    for one, other in zip(small, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_work_in_small_numpy_types_is_truncated_correctly():
    def params(kind):
        ask = dsgd.LocalWork(np.array([[100], [127]]).astype(kind), np.ones((2, 1), np.float32))
        method = algorithms.with_local_work(algorithms.minibatch_sgd(SGD), ask)
        problem = problems.robust_regression(2, 3, samples=400, batch_size=200)
        return run(method, problem=problem, steps=1).params

    np.testing.assert_array_equal(params(np.int8), params(np.int32))
