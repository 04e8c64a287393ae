"""Calls with traced, swapped, foreign and too large arguments, and mistakes of users' functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters, compressors, problems
from dsgd.graphs import sizes

KEY: Any = jax.random.key(3)
A, B = np.full((2, 3), 0.5), np.arange(6.0).reshape(2, 3)
QUADRATIC: Any = problems.quadratic(A, B)
METHOD: Any = algorithms.gradient_descent(optax.sgd(0.3))
CLUSTER: Any = clusters.Cluster(clusters.constant(2.0))


def run(problem: dsgd.Problem = QUADRATIC, **options: Any) -> dsgd.Result:
    return dsgd.run(METHOD, problem, steps=2, key=KEY, mesh=1, **options)


@pytest.fixture(scope="module")
def tape() -> dsgd.Result:
    return run(taped=True)


TRACED: dict[str, tuple[Callable, Any]] = {
    "ring: n is traced .* needs an integer, not": (topologies.ring, 5),
    "top_k: fraction is traced": (compressors.top_k, 0.5),
    "torus: columns is traced": (lambda n: topologies.torus(3, n), 4),
    "mean_and_error: values is traced": (dsgd.history.mean_and_error, np.ones(3)),
    "minibatch_sgd: optimizer is traced": (algorithms.minibatch_sgd, np.ones((2, 3))),
    "quadratic: A is traced": (lambda each: problems.quadratic(each, B), A),
    "random_quadratic: noise is traced": (lambda s: problems.random_quadratic(2, 3, noise=s), 0.5),
    r"constant: value\[1\] is traced": (lambda s: clusters.constant([1.0, s]), 0.5),
}


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap])
@pytest.mark.parametrize("message", TRACED)
def test_a_call_that_needs_values_names_the_traced_argument(message, transform):
    function, value = TRACED[message]
    if transform is jax.grad:
        value = jnp.asarray(value, float)
    if transform is jax.vmap:
        value = jnp.stack([jnp.asarray(value)] * 2)
    with pytest.raises(ValueError, match=rf"^{message}.* call .* outside"):
        transform(lambda given: (function(given), jnp.sum(given))[1])(value)


def test_calls_that_need_no_values_are_transformed():
    x = jnp.array([0.5, -2.0, 3.0])
    top = compressors.top_k(2 / 3)
    np.testing.assert_array_equal(jax.jit(partial(compressors.apply, top))(KEY, x), [0, -2, 3])
    slope = jax.grad(lambda x: compressors.apply(compressors.identity, KEY, x) @ x)(x)
    np.testing.assert_array_equal(slope, 2 * x)
    swept = dsgd.sweep(
        lambda gamma: algorithms.gradient_descent(optax.sgd(gamma)),
        QUADRATIC,
        steps=2,
        key=KEY,
        mesh=1,
        gamma=np.array([0.1, 0.3], ">f4"),
    )
    np.testing.assert_allclose(swept.history["loss"][1, 0], run().history["loss"], rtol=1e-6)


SIGN: Any = compressors.sign
NONE: Any = []
SWAPPED: dict[str, Callable[[Any], Any]] = {
    "algorithm and problem": lambda _: dsgd.run(QUADRATIC, METHOD, steps=1, key=KEY),
    "factory and problem": lambda _: dsgd.sweep(
        QUADRATIC, cast("Any", lambda gamma: METHOD), steps=1, key=KEY, gamma=[0.1]
    ),
    "algorithm and problem ": lambda _: dsgd.check(QUADRATIC, METHOD),
    "algorithm and problem  ": lambda _: dsgd.exchanges(QUADRATIC, METHOD),
    "algorithm and problem   ": lambda _: dsgd.compile_round(QUADRATIC, METHOD),
    "result and cluster": lambda tape: dsgd.replay(CLUSTER, tape),
    "candidates and problem": lambda _: dsgd.plan(QUADRATIC, NONE, CLUSTER, target=1.0, key=KEY),
    "compressor and key": lambda _: compressors.apply(KEY, SIGN, np.ones(3)),
}


@pytest.mark.parametrize("what", SWAPPED)
def test_swapped_arguments_are_named(what, tape):
    with pytest.raises(ValueError, match=f"{what.strip()} are swapped$"):
        SWAPPED[what](tape)


def test_a_wrong_argument_is_not_called_swapped():
    for arguments in ((QUADRATIC, QUADRATIC), (None, QUADRATIC), (METHOD, METHOD)):
        with pytest.raises(ValueError, match="expected") as raised:
            dsgd.run(*arguments, steps=1, key=KEY)  # type: ignore[arg-type]
        assert "swapped" not in str(raised.value)
    with pytest.raises(ValueError, match=r"period = 2\.5; expected an integer$"):
        algorithms.fed_adam(optax.sgd(0.3), cast("Any", 2.5), 3)


def make_strided(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 2, axis=-1)[..., ::2]


@pytest.mark.parametrize(
    "change",
    [
        lambda array: array.astype(">f4"),
        lambda array: array.astype(">f8"),
        lambda array: array.astype(np.longdouble),
        lambda array: array.view(np.matrix),
        np.ma.masked_array,
        make_strided,
    ],
    ids=["big-endian", "big-endian doubles", "long doubles", "matrix", "unmasked", "strided"],
)
def test_arrays_of_any_type_give_the_same_run(change):
    expected = run().history["loss"]
    other = problems.quadratic(change(A), change(B))
    np.testing.assert_allclose(run(other).history["loss"], expected, rtol=1e-6)
    inputs, targets = np.arange(10.0).reshape(5, 2), np.arange(5) - 2.0
    rows = [
        problems.finite_sum(
            problems.Model(lambda key: jnp.zeros(2), lambda w, x: x @ w),
            optax.squared_error,
            (each(inputs), targets),
            1,
            batch_size=None,
        ).data
        for each in (np.asarray, change)
    ]
    jax.tree.map(np.testing.assert_array_equal, *rows)


def test_data_of_custom_problems_in_types_without_a_counterpart_are_refused():
    for kind in (">f4", np.longdouble):
        data = jax.tree.map(lambda leaf, kind=kind: np.asarray(leaf).astype(kind), QUADRATIC.data)
        with pytest.raises(ValueError, match=r"data.* pass numpy\.asarray\(.*, numpy\.float"):
            run(QUADRATIC._replace(data=data))


LARGE: dict[str, tuple[Callable, int]] = {  # with the number of weights
    "ring": (lambda: topologies.ring(10**9), 3 * 10**9),
    "complete": (lambda: topologies.complete(10**6), 10**12),
    "star": (lambda: topologies.star(10**9), 3 * 10**9),
    "chain": (lambda: topologies.chain(10**9), 3 * 10**9),
    "torus": (lambda: topologies.torus(2 * 10**4, 10**5), 10**10),
    "hypercube": (lambda: topologies.hypercube(30), 31 * 2**30),
    "exponential": (lambda: topologies.exponential(2**30), 31 * 2**30),
    "erdos_renyi": (lambda: topologies.erdos_renyi(10**6, 0.5), 500_000_500_000),
    "random_regular": (lambda: topologies.random_regular(10**9, 4), 5 * 10**9),
    "random_directed": (lambda: topologies.random_directed(10**9, 4), 5 * 10**9),
    "one_peer_exponential": (lambda: topologies.one_peer_exponential(2**30), 60 * 2**30),
    "random_matchings": (lambda: topologies.random_matchings(10**9, 7), 14 * 10**9),
    "random_pushes": (lambda: topologies.random_pushes(10**9, 7), 14 * 10**9),
    "equi_static": (lambda: topologies.equi_static(10**9, 3), 4 * 10**9),
    "equi_dynamic": (lambda: topologies.equi_dynamic(10**9, 7), 14 * 10**9),
    "one_peer_hypercube": (lambda: topologies.one_peer_hypercube(40), 80 * 2**40),
    "base_graph": (lambda: topologies.base_graph(4**15, 3), 4 * 4**15 * 32),
    "matcha": (lambda: topologies.matcha(topologies.ring(10**5), 0.5), 34 * 10**10),
    "ring(100000): W": (lambda: topologies.ring(10**5).W, 10**10),
}


@pytest.mark.parametrize("name", LARGE)
def test_graphs_larger_than_memory_are_refused_before_they_are_built(name, monkeypatch):
    monkeypatch.setattr(sizes, "machine_memory", lambda: 16e9)
    build, weights = LARGE[name]
    with pytest.raises(ValueError, match=f"{weights:,} weights need about .* GB") as raised:
        build()
    assert str(raised.value).startswith(name)


def test_graphs_that_fit_are_built(monkeypatch):
    """128 bytes are estimated for each weight."""
    monkeypatch.setattr(sizes, "machine_memory", lambda: 2_100 * 128)
    assert topologies.ring(700).matrices[0].nnz == 2_100
    with pytest.raises(ValueError, match="2,103 weights need"):
        topologies.ring(701)


def fails(*arguments: Any, **options: Any) -> Any:
    raise KeyError("mine")


def notes(error: BaseException) -> str:
    return " ".join([str(error), *getattr(error, "__notes__", [])])


def test_mistakes_of_users_functions_are_named(tape):
    evaluation = dsgd.Evaluation(QUADRATIC.evaluation.function, statistics=fails)
    calls = {
        "sweep: factory with gamma = 0.3 raised KeyError: 'mine'": lambda: dsgd.sweep(
            lambda gamma: METHOD if gamma < 0.2 else fails(),
            QUADRATIC,
            steps=1,
            key=KEY,
            gamma=[0.1, 0.3],
        ),
        "replay: cluster with a = 2.0 raised KeyError: 'mine'": lambda: dsgd.replay(
            tape, lambda a: fails(), a=[2.0]
        ),
        "statistics of mine raised KeyError": lambda: run(
            QUADRATIC._replace(name="mine", evaluate=evaluation)
        ),
    }
    for message, call in calls.items():
        with pytest.raises(KeyError) as raised:
            call()
        assert message in notes(raised.value)
    with pytest.raises(ValueError, match=r"ring\(4, fails\): weights: KeyError: 'mine'"):
        topologies.ring(4, fails)
    with pytest.raises(ValueError, match="mine: sample returns None; expected a batch"):
        dsgd.run(
            algorithms.minibatch_sgd(optax.sgd(0.3)),
            QUADRATIC._replace(name="mine", sample=lambda key, data: None),
            steps=1,
            key=KEY,
        )
