"""The contract of every registered method; registering a method adds it to these tests."""

from __future__ import annotations

import re
from functools import cache, partial
from types import ModuleType

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
from algorithms import registry
from dsgd import clusters, problems, work
from dsgd.engine import programs
from tests.methods.files import FILES

N, D, SEEDS = 8, 19, 2
NAMES = [*algorithms.ALGORITHMS, "kimad"]
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


def make(name: str, optimizer: optax.GradientTransformation) -> dsgd.Algorithm:
    """Returns the method. Kimad is not registered, because the time of its rounds is an argument
    that depends on a cluster. Without a cluster it sends the most accurate messages of the set.
    """
    if name == "kimad":
        return algorithms.kimad_sgd(optimizer, algorithms.kimad.top_k((0.1, 0.3)), 1.0)
    return algorithms.make(name, optimizer, N)


def file(name: str) -> ModuleType:
    """Returns the file of tests of a method."""
    return FILES["kimad_sgd" if name == "kimad" else registry.find(name).name]


@cache
def method(name: str) -> dsgd.Algorithm:
    return make(name, optax.sgd(0.1))


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
    adam = make(name, optax.adam(getattr(file(name), "LEARNING_RATE", 0.05)))
    return algorithms.with_local_work(adam, some)


def rounds(name: str) -> int:
    """Returns the number of rounds of `result`."""
    return getattr(file(name), "CONTRACT_ROUNDS", 12)


@cache
def result(name: str) -> dsgd.Result:
    """Returns leaves `[seeds, ...]` of the `unequal` method, on one device, from the program that
    the contract has compiled.
    """
    given = {"steps": rounds(name), "key": jax.random.key(1), "seeds": SEEDS, "mesh": 1}
    return dsgd.run(unequal(name), problem(), **given)


def test_it_satisfies_the_contract(name, monkeypatch):
    lowered, content = [], programs._content
    monkeypatch.setattr(
        programs, "_content", lambda each, mesh: lowered.append(each) or content(each, mesh)
    )
    findings = dsgd.check(unequal(name), problem(), key=jax.random.key(1))
    findings.require()
    looked_at = {finding.what for finding in findings.findings if finding.holds}
    exchanges = dsgd.exchanges(method(name), problem())
    # other collectives stand for the messages, or there are none
    uncounted = not exchanges or any(each.simulated for each in exchanges)
    assert looked_at == (CONTRACT - {"bits"} if uncounted else CONTRACT)
    compiled = programs.count_compiled()
    result(name)
    assert programs.count_compiled() == compiled, "for another number of steps"
    texts = [each.as_text() for each in lowered[:2]]  # programs of start and advance
    assert "stablehlo.while" in texts[1]
    assert not ELSEWHERE.findall("".join(texts))


def test_it_makes_progress_and_counts_its_rounds(name):
    history = result(name).history
    assert (history["loss"][:, -1] < history["loss"][:, 0]).all()
    # the first round's own numbers
    records = [values[:, 1:] for key, values in history.items() if key != "step"]
    assert all(np.isfinite(values).all() for values in records)
    np.testing.assert_array_equal(result(name).state.step, rounds(name))
    np.testing.assert_array_equal(history["step"], np.arange(rounds(name) + 1))


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
    loss = result(name).history["loss"]
    if all(query.exact for query in asked) and not getattr(file(name), "DRAWS", False):
        np.testing.assert_array_equal(loss[0], loss[1])
    elif getattr(file(name), "CANCELS", False):
        np.testing.assert_allclose(loss[0], loss[1], rtol=1e-5)
    else:
        assert loss[0, -1] != loss[1, -1]


@pytest.mark.parametrize("name", smoke_cases(NAMES, ONE_OF_EACH_EXCHANGE))
def test_its_loop_lowers_for_gpus_and_tpus(name):
    """The whole loop of a sweep lowers on a machine with neither platform: it has no CPU-only
    operations and no host callbacks. One method of each exchange lowers on several devices with the
    clock, all others on one device.
    """
    devices = 8 if name in ONE_OF_EACH_EXCHANGE else 1
    cluster = CLUSTER if devices > 1 else None
    traced = loops.swept(
        lambda learning_rate: make(name, optax.sgd(learning_rate)),
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
