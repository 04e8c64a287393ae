"""Every method, compared with what its file in this folder says: recursion, bits, starts."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import loops
import numpy as np
import optax
import pytest
from budgets import sampled, smoke_cases

import algorithms
import dsgd
from algorithms import registry
from dsgd import clusters, problems
from dsgd.base import Query, Round
from dsgd.communication import communicate
from dsgd.wire import counts
from tests.methods import given
from tests.methods.files import CASES, EQUALS, FILES, form
from theory_checks.machinery.rounds import place_on_one_device

PERIOD = 4  # of the registered instances


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.absent])
def test_rounds_are_those_of_the_paper(name):
    given.compare(CASES[name], given.draws())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.absent])
def test_a_method_continues_with_the_workers_that_participate(name):
    given.compare_absent(CASES[name])


@pytest.mark.parametrize("name", sampled(EQUALS))
def test_two_methods_are_the_same(name):
    given.compare_equal(*EQUALS[name])


def test_each_method_has_a_file_and_each_file_a_method():
    """Functions that change a method may also have files."""
    assert registry.METHODS.keys() <= FILES.keys() <= {*registry.METHODS, *algorithms.__all__}


def test_methods_that_do_not_need_all_workers_are_compared_with_absent_ones():
    """Except for memories of any kind, and methods that factor matrices: the problem has none, and
    tests/algorithms/test_matrices.py tests their memories.
    """
    compared = {name.partition(",")[0] for name, case in CASES.items() if case.absent}
    continues = {
        name for name, each in registry.METHODS.items() if "all workers" not in each.needs
    } - {"error_feedback", "powersgd", "dion"}
    assert continues <= compared


# --- Bits of a round.


@cache
def one_round(name: str, N: int, d: int) -> Any:
    """Returns the compiled function t -> bits up and down and the number of exchanges of round t
    from the first state.
    """

    def bits(t):
        method = algorithms.make(name, optax.sgd(0.1), N)
        state = method.init(jnp.ones(d, jnp.float32), N)
        this = Round(t, N, jax.random.key(0))

        def ones(query):
            asked = N if query.workers is None else query.workers.shape[0]
            gradients = jnp.ones((asked, d), jnp.float32)
            return (jnp.ones(asked), gradients) if query.loss else gradients

        query = method.query(state, this)
        gradients = jax.tree.map(ones, query, is_leaf=lambda node: isinstance(node, Query))
        _, record = communicate(method, state, gradients, this, jax.random.key(1))
        sent = record.statistics(N).bits
        return sent.up, sent.down, record.count_exchanges()

    return jax.jit(place_on_one_device(bits))


@pytest.mark.parametrize(
    ("N", "d"),
    [
        (6, 5),
        pytest.param(2, 5, marks=pytest.mark.exhaustive),
        pytest.param(5, 300, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_bits_of_a_round_are_the_closed_forms(name, N, d):
    """In each round of a period. With fewer elements than workers some parts are only padding."""
    for t in range(PERIOD):
        expected = form(name)(t, N, d)
        if expected is None:
            continue
        *sent, exchanges = one_round(name, N, d)(jnp.int32(t))
        found = [np.sort(counts.to_int(np.asarray(each))) for each in sent]
        assert (exchanges > 0) == any(map(np.any, found))
        each = expected if isinstance(expected, list) else [expected]
        ways = [one if isinstance(one, tuple) else (one, one) for one in each]
        possible = [[np.sort(np.broadcast_to(way, N)) for way in both] for both in ways]
        assert any(np.array_equal(found, both) for both in possible), (found, possible)


# --- Starts.


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_methods_accept_different_starts_if_their_files_say_so(name):
    method = algorithms.make(name, optax.sgd(0.1), 8)
    rows = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    if getattr(FILES[registry.find(name).name], "APART", False):
        workers = algorithms.with_starts(method, rows).init(jnp.zeros(3), 8).workers
        models = getattr(workers, "inner", workers).params  # "inner": of variance reduction
        np.testing.assert_array_equal(models, rows)
    else:
        with pytest.raises(ValueError, match="must start from the same model"):
            algorithms.with_starts(method, rows)


# --- Limits.

# Exact in this run for another reason: W is that of the mean; a vector is not compressed; the
# sketch is large enough for all elements; the period becomes 1.
EXACT_HERE = {
    *("decentralized_sgd_complete", "dion", "powersgd", "sketched_sgd", "fetch_sgd", "adacomm")
}
ONE_OF_EACH = {"ef21", "extra", "fed_dyn", "gradient_tracking", "lead", "local_sgd", "marina"}


@pytest.mark.parametrize(
    "name", smoke_cases(sorted(algorithms.ALGORITHMS.keys() - EXACT_HERE), ONE_OF_EACH)
)
def test_exact_methods_reach_the_optimum_of_different_data_and_others_do_not(name):
    """From different starts, if the method allows them."""
    N, own = 8, registry.find(name)
    random = np.random.default_rng(0)
    slopes, targets, starts = random.uniform(0.4, 1.6, (3, N, 40)) * [[[1]], [[2]], [[1]]]
    cluster = clusters.Cluster(clusters.constant(1.0), up=clusters.constant(1e6), latency=1e-3)
    options = {"cluster": cluster} if own.family == "asynchronous" else {}
    with jax.enable_x64(True):
        rate = getattr(FILES[own.name], "EXACT_RATE", 0.02)
        method = algorithms.make(name, optax.sgd(rate), N)
        if getattr(FILES[own.name], "APART", False):
            method = algorithms.with_starts(method, starts)
        problem = problems.quadratic(slopes, targets, start=starts[0])
        options |= {"steps": 9_000, "key": jax.random.key(0), "record_every": 9_000, "mesh": 1}
        first, last = dsgd.run(method, problem, **options).history["grad_sqnorm"]
    assert last < 1e-12 * first if own.exact else last > 1e-9 * first


# --- Types.


def is_real(parameter: inspect.Parameter) -> bool:
    return "a number" in str(parameter.annotation) or "Real" in str(parameter.annotation)


@pytest.mark.parametrize(
    "name", sampled([name for name in registry.METHODS if name in algorithms.ALGORITHMS])
)
def test_swept_numbers_keep_the_types_of_states_in_half_precision(name):
    """Of the step size, and of all numbers of the method."""
    own, N = registry.METHODS[name], 8
    defaults = {
        each.name: own.settings.get(each.name, each.default)
        for each in inspect.signature(own.function).parameters.values()
        if is_real(each)
    }
    numbers = {name: (value,) for name, value in defaults.items() if isinstance(value, float)}
    half = dsgd.Problem(
        lambda key: jnp.zeros(12, jnp.bfloat16),
        lambda x, center: jnp.sum((x - center) ** 2) / 2,
        jnp.arange(N, dtype=jnp.bfloat16),
        lambda key, center: center,
    )
    loops.swept(
        lambda rate, **numbers: own.instance(optax.sgd(rate), N, **numbers),
        half,
        1,
        rate=(0.1,),
        **numbers,
    )
