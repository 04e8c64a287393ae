"""Methods with numbers near the limits of half precision, with users' functions that return what
they must not, and with huge arguments.
"""

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
from algorithms import cannikin, delays, dropcompute, kimad
from dsgd import clusters, codecs, compressors, problems, work, workers

N, D = 4, 8
KEY = jax.random.key(0)
CLUSTER = clusters.Cluster(
    clusters.constant(0.1), up=clusters.constant(1e4), down=clusters.constant(1e4)
)


def steep_problem(dtype: Any) -> dsgd.Problem:
    """Workers' gradients are 40000, 30000, 40000 and 50000 everywhere: their mean is in the range
    of float16, no sum of two is.
    """
    slopes = jnp.repeat(jnp.asarray([40000.0, 30000, 40000, 50000], dtype)[:, None], D, axis=1)
    return dsgd.Problem(
        init=lambda key: jnp.zeros(D, dtype),
        loss=dsgd.Loss(
            lambda params, batch: 0.0 * jnp.sum(params.astype(jnp.float32)),
            lambda params, batch: batch,
        ),
        data=slopes,
        sample=lambda key, data: data,
        name="steep",
    )


METHODS = {
    "mean": algorithms.minibatch_sgd,
    "ring": lambda optimizer: algorithms.compressed_sgd(
        optimizer, compressors.identity, via="ring"
    ),
    "quantized ring": lambda optimizer: algorithms.compressed_sgd(
        optimizer, compressors.random_quantization(8), via="ring"
    ),
    "servers": lambda optimizer: algorithms.compressed_sgd(optimizer, compressors.identity),
    "gossip": lambda optimizer: algorithms.decentralized_sgd(optimizer, topologies.ring(N)),
    "push": lambda optimizer: algorithms.stochastic_gradient_push(
        optimizer, topologies.exponential(N)
    ),
    "controlled": lambda optimizer: algorithms.scaffold(optimizer, 2),
    "backup": lambda optimizer: algorithms.backup_workers_sgd(optimizer, 0),
    "weighted": lambda optimizer: algorithms.kimad_sgd(
        optimizer, [compressors.identity], round_time=1e3, weights=[0.25] * 4
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_sums_of_half_precision_over_workers_do_not_overflow(method):
    """Of two workers on each of two devices; a ring sends its partial sums in float32."""
    cluster = CLUSTER if method in ("backup", "weighted") else None
    made = METHODS[method](optax.sgd(5e-5))
    result = dsgd.run(made, steep_problem(jnp.float16), steps=2, key=KEY, mesh=2, cluster=cluster)
    assert result.params.dtype == jnp.float16
    np.testing.assert_allclose(np.asarray(result.params, float), -4.0, rtol=5e-3)
    if method == "ring":
        assert result.history["bits"][1] == 2 * 2 * (N - 1) * D // N * 32


def test_means_of_half_precision_are_rounded_once():
    """In bfloat16, 256 + 1 is 256: sums of ones across devices would stop there."""
    ones = jnp.full((8, 3), 1.0078125, jnp.bfloat16).at[0].set(256.0)
    for mesh in (1, 8):
        spec = jax.sharding.PartitionSpec(workers.AXIS)
        mean = jax.shard_map(
            workers.mean,
            mesh=workers.mesh(mesh),
            in_specs=spec,
            out_specs=jax.sharding.PartitionSpec(),
            check_vma=False,
        )
        exact = np.asarray(ones, np.float32).mean(axis=0).astype(jnp.bfloat16)
        np.testing.assert_array_equal(jax.jit(mean)(ones), exact)


def quadratic() -> dsgd.Problem:
    return problems.random_quadratic(N, D, heterogeneity=1.0, noise=0.3, seed=0)


def asking(**query: Any) -> dsgd.Algorithm:
    """SGD with another query; functions are of the round."""

    def asked(state, round):
        given: dict[str, Any] = {
            name: value(round) if callable(value) else value for name, value in query.items()
        }
        return dsgd.Query(**({"params": state.server.params} | given))

    return algorithms.sgd(optax.sgd(0.1))._replace(query=asked)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            {"exact": lambda round: round.step == 0},
            r"sgd: query returns exact = a traced bool\[\]; expected True or False",
        ),
        ({"exact": 1}, "sgd: query returns exact = 1; expected True or False"),
        ({"params": jnp.zeros((N + 1, D))}, r"sgd: query returns params as float32\[5,.*\]"),
        (
            {"workers": np.zeros(0, int)},
            r"sgd: query returns workers = int64\[0\]; expected None, or int32 \[k\], k >= 1",
        ),
        (
            {"workers": np.array([9])},
            "sgd: by round 1, query asks worker 9; expected ids from 0 to 3 of the 4 workers",
        ),
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
    np.testing.assert_array_equal(
        given.params,
        dsgd.run(asking(exact=True, workers=chosen), quadratic(), steps=1, key=KEY, mesh=1).params,
    )


def test_a_worker_that_is_not_there_is_found_between_records():
    method = asking(workers=lambda round: jnp.where(round.step == 2, 4, 0)[None])
    with pytest.raises(ValueError, match="sgd: by round 8, query asks worker 4"):
        dsgd.run(method, quadratic(), steps=8, key=KEY, mesh=1, record_every=8)
    assert not any(
        "outside" in name
        for name in dsgd.run(method, quadratic(), steps=2, key=KEY, mesh=1).history
    )


@pytest.mark.parametrize("wrong", [7, -1])
def test_a_staleness_outside_the_bound_is_refused(wrong):
    rule = delays.Delays(
        2,
        lambda key, t, parts, moved: jnp.full(parts, jnp.where(t == 4, wrong, 0), jnp.int32),
        "mine",
    )
    method = algorithms.asynchronous_sgd(optax.sgd(0.01), rule)
    with pytest.raises(
        ValueError,
        match=(
            f"delays.mine returned a staleness of {wrong}; expected 0 to 2, and at most t in update t"
        ),
    ):
        dsgd.run(method, quadratic(), steps=8, key=KEY, mesh=1, record_every=8)


@pytest.mark.parametrize(
    ("wrong", "update"), [(7, kimad.gradient), (-1, kimad.local_steps(optax.sgd(0.1), 2))]
)
def test_a_choice_that_is_none_of_the_compressors_is_refused(wrong, update):
    def rule(errors, sizes, budget):
        return jnp.full(errors.shape[0], wrong, jnp.int32)

    method = algorithms.kimad_sgd(
        optax.sgd(0.1), kimad.top_k([0.2, 0.5]), round_time=10.0, rule=rule, update=update
    )
    with pytest.raises(
        ValueError,
        match=rf"the rule returned the choice {wrong} for messages \w+ the server; expected an index into top_k",
    ):
        dsgd.run(method, quadratic(), steps=2, key=KEY, mesh=1, cluster=CLUSTER)


@pytest.mark.parametrize(
    ("codes", "bits", "words"),
    [
        (
            jnp.ones(3, jnp.uint8),
            0,
            "codecs.pack: codes has the entry 1 for bits = 0; expected codes below 2\\^0",
        ),
        (
            jnp.ones(3, jnp.uint8),
            9,
            r"codecs.pack: codes = uint8\[3\] for bits = 9; expected uint32",
        ),
        (jnp.ones(3, jnp.uint32), 33, "codecs.pack: bits = 33; expected an integer from 0 to 32"),
        (jnp.full(3, 4, jnp.uint8), 2, "codecs.pack: codes has the entry 4 for bits = 2"),
    ],
)
def test_codes_that_do_not_fit_into_their_bits_are_refused(codes, bits, words):
    with pytest.raises(ValueError, match=words):
        codecs.pack(codes, bits)


def test_as_many_servers_as_anybody_asks_for_are_compiled_once():
    """One loop over the parts of 2,000 servers: an expression of that length takes minutes to
    compile.
    """
    few, many = (
        algorithms.asynchronous_sgd(optax.sgd(0.01), servers=servers) for servers in (8, 2000)
    )
    cluster = clusters.Cluster(
        clusters.constant(0.1), up=clusters.constant(1e9), down=clusters.constant(1e9)
    )
    runs = [
        dsgd.run(method, quadratic(), steps=8, key=KEY, mesh=1, cluster=cluster)
        for method in (few, many)
    ]
    np.testing.assert_array_equal(runs[0].history["worker"], runs[1].history["worker"])
    np.testing.assert_allclose(runs[0].params, runs[1].params, rtol=1e-5)


def test_the_threshold_of_many_micro_batches_is_found_in_seconds():
    """Where times overlap, the sum over m is nearly an integral: with c = tau - M mu, the best c is
    where the rate's derivative is 0.
    """
    M, std = 10**5, 0.1
    tau = dropcompute.expected_threshold(1.0, std, M)
    counted = dropcompute.expected_micro_batches(
        np.array([tau - 5.0, tau, tau + 5.0]), 1.0, std, M
    ) / np.array([tau - 5.0, tau, tau + 5.0])
    assert counted[1] > counted[0]
    assert counted[1] > counted[2]
    assert M / 2 < tau < M


def test_thresholds_are_those_of_all_terms_of_the_sum():
    from scipy.special import ndtr

    tau, M = np.linspace(0.0, 70.0, 300), 60
    terms = [ndtr((tau - m) / (np.sqrt(m) * 0.3)) for m in range(1, M + 1)]
    np.testing.assert_allclose(
        dropcompute.expected_micro_batches(tau, 1.0, 0.3, M), sum(terms), rtol=1e-12, atol=1e-12
    )
    best = dropcompute.expected_threshold(1.0, 0.3, M, 2.0)
    assert (
        dropcompute.expected_micro_batches(best, 1.0, 0.3, M) / (best + 2.0)
        >= (sum(terms) / (tau + 2.0))[tau >= M / 2].max()
    )


HUGE = {
    "period": (lambda n: algorithms.local_sgd(optax.sgd(0.1), n), "local_sgd: period = "),
    "controls": (lambda n: algorithms.scaffold(optax.sgd(0.1), n), "scaffold: period = "),
    "local steps": (lambda n: kimad.local_steps(optax.sgd(0.1), n), "local_steps: period = "),
    "servers": (
        lambda n: algorithms.asynchronous_sgd(optax.sgd(0.1), servers=n),
        "asynchronous_sgd: servers = ",
    ),
    "bound": (
        lambda n: algorithms.asynchronous_sgd(optax.sgd(0.1), bound=n),
        "asynchronous_sgd: bound = ",
    ),
    "delays": (delays.constant, "constant: bound = "),
    "backups": (
        lambda n: algorithms.backup_workers_sgd(optax.sgd(0.1), n),
        "backup_workers_sgd: backups = ",
    ),
    "micro-batches": (
        lambda n: dropcompute.expected_threshold(1.0, 0.1, n),
        "expected_threshold: micro_batches = ",
    ),
    "batch": (
        lambda n: work.local_batches([1, 2], batch_size=n),
        "local_batches: (1 micro-batches of|batch_size = )",
    ),
}


@pytest.mark.parametrize("number", [2**31, 10**400], ids=["2^31", "10^400"])
@pytest.mark.parametrize("what", HUGE)
def test_huge_numbers_are_refused_by_name(what, number):
    call, words = HUGE[what]
    with pytest.raises(ValueError, match=words) as refused:
        call(number)
    assert len(str(refused.value)) < 200


def test_a_period_of_millions_of_rounds_costs_nothing():
    method = algorithms.local_sgd(optax.sgd(0.1), 10**6)
    assert [exchange.period for exchange in dsgd.exchanges(method, quadratic())] == [10**6]
    with pytest.warns(UserWarning, match="nothing is sent; pass steps >= 1000000"):
        assert dsgd.run(method, quadratic(), steps=2, key=KEY, mesh=1).history["bits"][-1] == 0


def test_counts_of_small_numpy_types_do_not_overflow():
    small = work.local_batches(
        np.array([100, 127, 90, 3], np.int8), batch_size=100, micro_batches=2
    )
    plain = work.local_batches([100, 127, 90, 3], batch_size=100, micro_batches=2)
    np.testing.assert_array_equal(small.samples, plain.samples)
    np.testing.assert_array_equal(small.weights, plain.weights)
    assert small.samples.dtype == np.int32


def test_work_of_small_numpy_types_is_cut_as_all_other_is():
    problem = problems.robust_regression(2, 3, samples=400, batch_size=200)
    samples = np.array([[100], [127]])

    def params(kind):
        asked = dsgd.Work(samples.astype(kind), np.ones((2, 1), np.float32))
        return dsgd.run(
            algorithms.unequal_work(algorithms.minibatch_sgd(optax.sgd(0.1)), asked),
            problem,
            steps=1,
            key=KEY,
            mesh=1,
        ).params

    for one, other in zip(
        jax.tree.leaves(params(np.int8)), jax.tree.leaves(params(np.int32)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_budgets_of_small_types_do_not_overflow():
    """1 s less 2 s of computation is no time, in uint8, too; and 60,000 bits a second for 100 s are
    more than float16 goes to.
    """
    assert (
        kimad.budget(
            np.array([100], np.uint8), np.array([1], np.uint8), np.array([2], np.uint8)
        ).up[0]
        == 0
    )
    np.testing.assert_allclose(
        kimad.budget(np.array([60000.0], np.float16), 100.0).up, 3e6, rtol=1e-3
    )


def test_noise_scales_of_small_types_do_not_overflow():
    local, whole, batches = [[100, 10, 120]], [10], [100, 120, 3]
    small = cannikin.gradient_noise_scale(
        np.array(local, np.uint8), np.array(whole, np.uint8), np.array(batches, np.uint8)
    )
    plain = cannikin.gradient_noise_scale(
        np.array(local, float), np.array(whole, float), np.array(batches)
    )
    np.testing.assert_allclose([small.noise, small.sqnorm], [plain.noise, plain.sqnorm], rtol=1e-5)
