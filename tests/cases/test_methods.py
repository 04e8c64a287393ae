"""Methods with numbers near the limits of half precision, with users' functions that return what they must not, and with huge arguments."""

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
from algorithms import delays, kimad
from dsgd import clusters, codecs, compressors, problems, workers

N, D = 4, 8
KEY = jax.random.key(0)
CLUSTER = clusters.Cluster(clusters.constant(0.1), up=clusters.constant(1e4), down=clusters.constant(1e4))


def steep_problem(dtype: Any) -> dsgd.Problem:
    """Workers' gradients are 20000, 15000, 20000 and 25000 everywhere: their mean is in the range of float16, their sum is not."""
    slopes = jnp.repeat(jnp.asarray([20000.0, 15000, 20000, 25000], dtype)[:, None], D, axis=1)
    return dsgd.Problem(
        init=lambda key: jnp.zeros(D, dtype),
        loss=lambda params, batch: 0.0 * jnp.sum(params.astype(jnp.float32)),
        gradient=lambda params, batch: batch,
        data=slopes,
        sample=lambda key, data: data,
        name="steep",
    )


METHODS = {
    "mean": algorithms.minibatch_sgd,
    "ring": lambda optimizer: algorithms.compressed_sgd(optimizer, compressors.identity, via="ring"),
    "quantized ring": lambda optimizer: algorithms.compressed_sgd(optimizer, compressors.random_quantization(8), via="ring"),
    "servers": lambda optimizer: algorithms.compressed_sgd(optimizer, compressors.identity),
    "gossip": lambda optimizer: algorithms.decentralized_sgd(optimizer, topologies.ring(N)),
    "push": lambda optimizer: algorithms.stochastic_gradient_push(optimizer, topologies.exponential(N)),
    "controlled": lambda optimizer: algorithms.scaffold(optimizer, 2),
    "backup": lambda optimizer: algorithms.backup_workers_sgd(optimizer, 0),
    "weighted": lambda optimizer: algorithms.kimad_sgd(optimizer, [compressors.identity], round_time=1e3, weights=[0.5, 0.5, 0.5, 0.5]),
}


@pytest.mark.parametrize("mesh", [1, N])
@pytest.mark.parametrize("method", METHODS)
def test_sums_of_half_precision_over_workers_do_not_overflow(method, mesh):
    scale = 2.0 if method == "weighted" else 1.0  # what its weights add up to
    cluster = CLUSTER if method in ("backup", "weighted") else None
    made = METHODS[method](optax.sgd(1e-4 / scale))
    params = dsgd.run(made, steep_problem(jnp.float16), steps=2, key=KEY, mesh=mesh, cluster=cluster).params
    assert params.dtype == jnp.float16
    np.testing.assert_allclose(np.asarray(params, float), -4.0, rtol=5e-3)


def test_a_ring_of_half_precision_sends_its_partial_sums_in_float32():
    method = algorithms.compressed_sgd(optax.sgd(1e-4), compressors.identity, via="ring")
    findings = {finding.what: finding for finding in dsgd.check(method, steep_problem(jnp.float16)).findings}
    assert findings["bits"].found == f"{2 * (N - 1) * D // N * 32} bits told a worker, {2 * (N - 1) * D // N * 32} cross"


def test_means_of_half_precision_are_rounded_once():
    """In bfloat16, 256 + 1 is 256: sums of ones across devices would stop there."""
    ones = jnp.full((8, 3), 1.0078125, jnp.bfloat16).at[0].set(256.0)
    for mesh in (1, 8):
        spec = jax.sharding.PartitionSpec(workers.AXIS)
        mean = jax.shard_map(workers.mean, mesh=workers.mesh(mesh), in_specs=spec, out_specs=jax.sharding.PartitionSpec(), check_vma=False)
        exact = np.asarray(ones, np.float32).mean(axis=0).astype(jnp.bfloat16)
        np.testing.assert_array_equal(jax.jit(mean)(ones), exact)


def quadratic() -> dsgd.Problem:
    return problems.random_quadratic(N, D, heterogeneity=1.0, noise=0.3, seed=0)


def asking(**query: Any) -> dsgd.Algorithm:
    """SGD with another query; functions are of the round."""

    def asked(state, round):
        return dsgd.Query(state.server.params, **{name: value(round) if callable(value) else value for name, value in query.items()})

    return algorithms.sgd(optax.sgd(0.1))._replace(query=asked)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"exact": lambda round: round.step == 0}, r"sgd: query gives exact = a traced bool\[\]; need True or False"),
        ({"exact": 1}, "sgd: query gives exact = 1; need True or False"),
        ({"axis": lambda round: round.step}, r"sgd: query gives axis = a traced int32\[\]; need None"),
        ({"axis": False}, "sgd: query gives axis = False; need None"),
        ({"workers": [1]}, "sgd: query gives workers as a list; need None, or int32"),
        ({"workers": np.zeros(0, int)}, r"sgd: query gives workers as int64\[0\]; need None, or int32 \[k\], k >= 1"),
        ({"workers": np.array([9])}, "sgd: by round 1, query asks worker 9; expected ids from 0 to 3 of the 4 workers"),
        ({"workers": jnp.array([0, -1])}, "sgd: by round 1, query asks worker -1; expected"),
    ],
)
def test_a_query_that_cannot_be_asked_is_refused(query, words):
    with pytest.raises(ValueError, match=words):
        dsgd.run(asking(**query), quadratic(), steps=4, key=KEY, mesh=1)


@pytest.mark.parametrize("exact", [np.bool_(True), jnp.array(True)])
def test_numpy_s_and_jax_s_flags_are_flags(exact):
    chosen = jnp.array([2])
    given = dsgd.run(asking(exact=exact, workers=chosen), quadratic(), steps=1, key=KEY, mesh=1)
    np.testing.assert_array_equal(given.params, dsgd.run(asking(exact=True, workers=chosen), quadratic(), steps=1, key=KEY, mesh=1).params)


def test_a_worker_that_is_not_there_is_found_between_records():
    method = asking(workers=lambda round: jnp.where(round.step == 2, 4, 0)[None])
    with pytest.raises(ValueError, match="sgd: by round 8, query asks worker 4"):
        dsgd.run(method, quadratic(), steps=8, key=KEY, mesh=1, record_every=8)
    assert not any("outside" in name for name in dsgd.run(method, quadratic(), steps=2, key=KEY, mesh=1).history)


@pytest.mark.parametrize("wrong", [7, -1])
def test_a_staleness_outside_the_bound_is_refused(wrong):
    rule = delays.Delays(2, lambda key, t, parts, moved: jnp.full(parts, jnp.where(t == 4, wrong, 0), jnp.int32), "mine")
    method = algorithms.asynchronous_sgd(optax.sgd(0.01), rule)
    with pytest.raises(ValueError, match=f"delays.mine gives a staleness of {wrong}; expected 0 to 2, and at most t in update t"):
        dsgd.run(method, quadratic(), steps=8, key=KEY, mesh=1, record_every=8)


@pytest.mark.parametrize(("wrong", "update"), [(7, kimad.gradient), (-1, kimad.local_steps(optax.sgd(0.1), 2))])
def test_a_choice_that_is_none_of_the_compressors_is_refused(wrong, update):
    def rule(errors, sizes, budget):
        return jnp.full(errors.shape[0], wrong, jnp.int32)

    method = algorithms.kimad_sgd(optax.sgd(0.1), kimad.top_k([0.2, 0.5]), round_time=10.0, rule=rule, update=update)
    with pytest.raises(ValueError, match=rf"the rule gives the choice {wrong} for messages \w+ the server; expected 0 to 1 of top_k"):
        dsgd.run(method, quadratic(), steps=2, key=KEY, mesh=1, cluster=CLUSTER)


@pytest.mark.parametrize(
    ("codes", "bits", "words"),
    [
        (jnp.ones(3, jnp.uint8), 0, "codecs.pack: a code of 1 in 0 bits; expected codes below 2\\^0"),
        (jnp.ones(3, jnp.uint8), 9, "codecs.pack: bits = 9; expected an integer from 0 to 8"),
        (jnp.ones(3, jnp.uint32), 33, "codecs.pack: bits = 33; expected an integer from 0 to 32"),
        (jnp.full(3, 4, jnp.uint8), 2, "codecs.pack: a code of 4 in 2 bits"),
        (jnp.ones(3, jnp.uint8), -1, "codecs.pack: bits = -1"),
        (jnp.ones(3, jnp.uint8), True, "codecs.pack: bits = True"),
    ],
)
def test_codes_that_do_not_fit_into_their_bits_are_refused(codes, bits, words):
    with pytest.raises(ValueError, match=words):
        codecs.pack(codes, bits)
