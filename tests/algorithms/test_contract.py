"""The contract of every registered method; registering a method adds it to these tests."""

from __future__ import annotations

import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import loops
import multiprocess_cases
import numpy as np
import optax
import pytest
from budgets import smoke_cases
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
from dsgd import clusters, problems, work
from dsgd.engine import programs
from theory_checks.recursions.compressed import packed

N, D, STEPS, SEEDS = 8, 19, 12, 2
NAMES = [*algorithms.ALGORITHMS, "kimad"]
# Messages in models. Of Kimad: 6 values, their indices, and the choice of the compressor; of
# 3PCv2: 2 values, 5 values, their indices, and the model, which is received. Of FedNova and
# FedDyn: a model with two numbers, and with one; of MimeLite: a model and a gradient. Of FedPAQ and
# FedCOMGATE: codes of 4 bits with a range; of Fed-EF: two values with their indices; these three
# receive a model.
SHARES = {
    "kimad": (6 * 32 + 32 + 8) / (32 * D),
    # messages to one server that replies uncompressed: codes of 4 bits and two ends; a tenth of the
    # elements and their indices
    **dict.fromkeys(("diana", "ef_bv"), (packed(4, D) + 64) / (64 * D) + 0.5),
    **dict.fromkeys(
        ("ef21_sgdm", "econtrol"),
        (-(-D // 10) * 32 + packed((D - 1).bit_length(), -(-D // 10))) / (64 * D) + 0.5,
    ),
    "dist_ef_sgd": (packed(1, D) + 32) / (32 * D),
    "fed_nova": (D + 2) / D,
    "fed_dyn": (D + 1) / D,
    "mime_lite": 2.0,
    "three_point": (2 * 32 + 16 + 5 * 32 + 32 + 32 * D) / (2 * 32 * D),
    **dict.fromkeys(("majority_vote", "distributed_lion"), 8 * -(-D // 8) / (32 * D)),
    # of an all-gather of N numbers, and a message up and one down
    "tern_grad": (2 * (N - 1) * 32 + 8 * -(-D // 5) + packed((2 * N).bit_length(), D))
    / (2 * 32 * D * N),
    **dict.fromkeys(("fed_paq", "fed_comgate"), ((80 + 64) / (32 * D) + 1) / 2),
    "fed_ef": ((64 + 16) / (32 * D) + 1) / 2,
}
# of methods with steps of a constant size
STEP = dict.fromkeys(("majority_vote", "distributed_lion"), 0.02)
SIZES = {"zero_one_adam": 3}  # of the messages of a round, if the method chooses; else 2
# differences of two gradients of a draw, which have no noise on quadratics
CANCELS = {"mime", "gt_svrg", "gt_sarah", "lt_admm_vr"}
# exact gradients, but coins and compressors that draw
DRAWS = {"marina"}
# workers send messages only if their gradients have changed
LAZY = {"lag", "clag"}
OFFSETS = {"mime": (1, 0)}  # rounds of a period in which exchanges take place, if not in the last
# other collectives stand for their messages
SIMULATED = {
    *(
        "sgd",
        "parameter_server_sgd",
        "asynchronous_sgd",
        "decentralized_sgd_complete",
        "asynchronous_gossip_sgd",
        "kimad",
    ),
    # clients of one server
    *("diana", "ef_bv", "ef21_sgdm", "econtrol", "dist_ef_sgd"),
    *("marina", "vr_marina", "three_point", "lag", "clag"),
    *("majority_vote", "distributed_lion", "tern_grad"),
    *("easgd", "eamsgd", "mime", "mime_lite", *(name for name in NAMES if name.startswith("fed_"))),
}
CONTRACT = {
    "parameters",
    "returns",
    "again",
    "compiled once",
    "seeds",
    "64 bits",
    "random keys",
    "4 devices",
    "8 devices",
    "bits",
}

# operations that exist only on some platforms, or call the host
ELSEWHERE = re.compile(r"stablehlo\.(?:custom_call @\w+|send|recv|infeed|outfeed)")
ONE_OF_EACH_EXCHANGE = {*filter(None, multiprocess_cases.METHODS.values()), "kimad"}
CLUSTER = clusters.Cluster(clusters.exponential(1e-3), up=clusters.constant(1e8))


@pytest.fixture(scope="module", params=smoke_cases(NAMES, ONE_OF_EACH_EXCHANGE))
def name(request) -> str:
    """The tests of a method run one after the other, while its programs are kept. Without --long,
    one method of each exchange is tested.
    """
    return request.param


@cache
def problem() -> dsgd.Problem:
    return problems.random_quadratic(N, D, heterogeneity=1.0, noise=0.5, seed=3)


def made(name: str, optimizer: optax.GradientTransformation) -> dsgd.Algorithm:
    """Returns the method. Kimad is not registered, because the time of its rounds is an argument
    that depends on a cluster. Without a cluster it sends the most accurate messages of the set.
    """
    if name == "kimad":
        return algorithms.kimad_sgd(optimizer, algorithms.kimad.top_k((0.1, 0.3)), 1.0)
    return algorithms.make(name, optimizer, N)


@cache
def method(name: str) -> dsgd.Algorithm:
    return made(name, optax.sgd(0.1))


def some(state: dsgd.State, round: dsgd.Round) -> dsgd.LocalWork:
    """Returns a round in which some batches have weight. (With more micro-batches a method would
    see their sum, and with a draw its outcome: these would only take longer to compile.)
    """
    return work.micro_batches((jnp.arange(N)[:, None] + round.step) % 3 > 0)


@cache
def unequal(name: str) -> dsgd.Algorithm:
    """Returns the method with Adam, whose state has a count and whose steps are sensitive to
    additional gradients, and with workers that compute different amounts, which most methods do not
    handle themselves. (All other tests use one batch each.)
    """
    adam = made(name, optax.adam(STEP.get(name, 0.05)))
    return algorithms.with_local_work(adam, some)


@cache
def result(algorithm: dsgd.Algorithm) -> dsgd.Result:
    """Returns leaves `[seeds, ...]`, on one device; for an `unequal` method, from the program that
    the contract has compiled.
    """
    return dsgd.run(algorithm, problem(), steps=STEPS, key=jax.random.key(1), seeds=SEEDS, mesh=1)


def test_it_satisfies_the_contract(name, monkeypatch):
    lowered, content = [], programs._content
    monkeypatch.setattr(
        programs, "_content", lambda each, mesh: lowered.append(each) or content(each, mesh)
    )
    findings = dsgd.check(unequal(name), problem(), key=jax.random.key(1))
    findings.require()
    looked_at = {finding.what for finding in findings.findings if finding.holds}
    assert looked_at == (CONTRACT - {"bits"} if name in SIMULATED else CONTRACT)
    compiled = programs.compiled()
    result(unequal(name))
    assert programs.compiled() == compiled, "for another number of steps"
    texts = [each.as_text() for each in lowered[:2]]  # programs of start and advance
    assert "stablehlo.while" in texts[1]
    assert not ELSEWHERE.findall("".join(texts))


def test_it_makes_progress_and_counts_its_rounds(name):
    history = result(unequal(name)).history
    assert (history["loss"][:, -1] < history["loss"][:, 0]).all()
    # the first round's own numbers
    records = [values[:, 1:] for key, values in history.items() if key != "step"]
    assert all(np.isfinite(values).all() for values in records)
    np.testing.assert_array_equal(result(unequal(name)).state.step, STEPS)
    np.testing.assert_array_equal(history["step"], np.arange(STEPS + 1))


def test_two_seeds_draw_differently_unless_the_method_asks_for_exact_gradients(name):
    algorithm, asked = method(name), []

    def ask(state):
        query = algorithm.query(state, dsgd.Round(state.step, N, jax.random.key(0)))
        asked.extend([query] if isinstance(query, dsgd.Query) else query)
        return jnp.zeros(())

    params = problem().init(jax.random.key(0))
    state = jax.eval_shape(lambda: algorithm.init(params, N))
    specs = dsgd.State(P(), P("workers"), P(), P())
    jax.eval_shape(
        jax.shard_map(
            ask, mesh=dsgd.workers.mesh(1), in_specs=(specs,), out_specs=P(), check_vma=False
        ),
        state,
    )
    loss = result(unequal(name)).history["loss"]
    if name in CANCELS:
        np.testing.assert_allclose(loss[0], loss[1], rtol=1e-5)
    else:
        exact = all(query.exact for query in asked) and name not in DRAWS
        assert (loss[0, -1] == loss[1, -1]) == exact


def test_bits_grow_by_the_same_amount_every_period_and_fit_the_pattern(name):
    """The recorded bits are those that are sent between devices (`dsgd.check`); if collectives are
    simulated, they are those of the pattern.
    """
    # messages that are chosen differ if a worker computes nothing
    chosen = method(name) if name in SHARES else unequal(name)
    exchanges = dsgd.exchanges(chosen, problem())
    assert any(exchange.simulated for exchange in exchanges) == (name in SIMULATED - {"sgd"})
    sent = np.diff(result(chosen).history["bits"], axis=-1)
    if any(exchange.period == 0 for exchange in exchanges):  # in rounds that the method chooses
        assert {exchange.period for exchange in exchanges} == {0}
        sizes = np.unique(sent)
        assert len(sizes) == SIZES.get(name, 2)
        # one of two exchanges, or of one; `one-bit-adam` always has one of the two
        assert (sizes[0] > 0) == (len(exchanges) > 1 and name != "zero_one_adam")
        return
    if name in LAZY:  # the model always
        assert 32 * D <= sent.min() < sent.max() <= 2 * 32 * D
        return
    period = max([1, *(exchange.period * exchange.turns for exchange in exchanges)])
    periods = sent[..., : STEPS // period * period].reshape(SEEDS, -1, period)
    np.testing.assert_array_equal(periods, np.broadcast_to(periods[0, 0], periods.shape))
    offsets = OFFSETS.get(name, (0,) * len(exchanges))
    taking_place = [
        [
            exchange
            for exchange, offset in zip(exchanges, offsets, strict=True)
            if (t + 1 - offset) % exchange.period == 0
        ]
        for t in range(period)
    ]
    np.testing.assert_array_equal(
        periods[0, 0] == 0,
        [not any(each.pattern.volume(N) for each in those) for those in taking_place],
    )
    if name in SIMULATED:
        vectors = sum(exchange.pattern.volume(N) / exchange.period for exchange in exchanges)
        # up and down, on average
        assert sent.mean() / 2 / 32 / D == pytest.approx(SHARES.get(name, 1) * vectors, rel=1e-6)


@pytest.mark.parametrize("name", smoke_cases(NAMES, ONE_OF_EACH_EXCHANGE))
def test_its_loop_lowers_for_gpus_and_tpus(name):
    """The whole loop of a sweep lowers on a machine with neither platform: it has no CPU-only
    operations and no host callbacks. One method of each exchange lowers on several devices with the
    clock, all others on one device.
    """
    devices = 8 if name in ONE_OF_EACH_EXCHANGE else 1
    cluster = CLUSTER if devices > 1 else None
    traced = loops.swept(
        lambda learning_rate: made(name, optax.sgd(learning_rate)),
        problem(),
        devices,
        cluster,
        learning_rate=(0.1, 0.2),
    )
    lowered = traced.lower(lowering_platforms=("cuda", "tpu"))
    text = lowered.as_text()
    assert f"mhlo.num_partitions = {devices} " in text
    assert "stablehlo.while" in text
    assert not ELSEWHERE.findall(text)


def broken(how) -> dsgd.Algorithm:
    """Returns mini-batch SGD that applies this to its gradients."""
    plain = algorithms.minibatch_sgd(optax.sgd(0.1))
    return plain._replace(
        update=lambda state, gradients, round: plain.update(state, how(gradients), round)
    )


def test_cpu_only_operations_do_not_lower_for_other_platforms():
    """A callback, an operation that only CPUs have, and a call of a library by its name are found
    by the tests of all methods.
    """
    same = partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    called = broken(
        lambda gradients: jax.pure_callback(lambda gradients: gradients, same(gradients), gradients)
    )
    library = broken(
        lambda gradients: jax.ffi.ffi_call("lapack_sgetrf_ffi", same(gradients))(gradients)
    )
    on_cpus = broken(
        lambda gradients: gradients + jax.scipy.linalg.schur(gradients[0, 0] * jnp.eye(2))[0][0, 0]
    )
    for method in (called, on_cpus):
        traced = loops.traced(method, problem(), 8)
        assert ELSEWHERE.search(traced.lower().as_text())
        with pytest.raises(NotImplementedError):
            traced.lower(lowering_platforms=("cuda", "tpu"))
    text = loops.traced(library, problem(), 8).lower(lowering_platforms=("cuda", "tpu")).as_text()
    assert ELSEWHERE.findall(text) == ["stablehlo.custom_call @lapack_sgetrf_ffi"]


def test_an_unknown_method_is_refused_with_the_known_names():
    with pytest.raises(
        ValueError, match=r"unknown method 'foo'; expected one of .*decentralized_sgd, .*, sgd"
    ):
        algorithms.make("foo", optax.sgd(0.1), 4)
