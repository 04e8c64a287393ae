"""Every method, compared with what its file in this folder says: recursion, bits, starts."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
from algorithms import facts
from dsgd.base import Query, Round
from dsgd.communication import communicate
from dsgd.wire import counts
from tests.methods import given
from tests.methods.files import CASES, FILES, form
from theory_checks.machinery.rounds import on_one_device

PERIOD = 4  # of the registered instances


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.absent])
def test_rounds_are_those_of_the_paper(name):
    given.compare(CASES[name], given.draws())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.absent])
def test_a_method_continues_with_the_workers_that_participate(name):
    given.compare_absent(CASES[name])


def test_each_method_has_a_file_and_each_file_a_method():
    """Functions that change a method may also have files."""
    assert facts.METHODS.keys() <= FILES.keys() <= {*facts.METHODS, *algorithms.__all__}


def test_methods_that_do_not_need_all_workers_are_compared_with_absent_ones():
    """Except for memories of any kind, and methods that factor matrices: the problem has none, and
    tests/algorithms/test_matrices.py tests their memories.
    """
    compared = {name.partition(",")[0] for name, case in CASES.items() if case.absent}
    continues = {
        name for name, each in facts.METHODS.items() if "all workers" not in each.needs
    } - {"error_feedback", "powersgd", "dion"}
    assert continues <= compared


# --- Bits of a round.


@cache
def one_round(name: str, N: int, d: int) -> Any:
    """Returns the compiled function t -> bits up and down of round t from the first state."""

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
        bits = communicate(method, state, gradients, this, jax.random.key(1))[1].statistics(N).bits
        return bits.up, bits.down

    return jax.jit(on_one_device(bits))


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
        found = [
            np.sort(counts.to_int(np.asarray(each))) for each in one_round(name, N, d)(jnp.int32(t))
        ]
        each = expected if isinstance(expected, list) else [expected]
        ways = [one if isinstance(one, tuple) else (one, one) for one in each]
        possible = [[np.sort(np.broadcast_to(way, N)) for way in both] for both in ways]
        assert any(np.array_equal(found, both) for both in possible), (found, possible)


# --- Starts.


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_methods_accept_different_starts_if_their_files_say_so(name):
    method = algorithms.make(name, optax.sgd(0.1), 8)
    rows = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    if getattr(FILES[facts.find(name).name], "APART", False):
        workers = algorithms.with_starts(method, rows).init(jnp.zeros(3), 8).workers
        models = getattr(workers, "inner", workers).params  # "inner": of variance reduction
        np.testing.assert_array_equal(models, rows)
    else:
        with pytest.raises(ValueError, match="must start from the same model"):
            algorithms.with_starts(method, rows)
