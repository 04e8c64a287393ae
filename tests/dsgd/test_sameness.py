"""Users' objects that can be neither compared nor hashed: runs on them work, and identical ones
compile once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import algorithms
import dsgd
from dsgd import clusters, problems, sameness
from dsgd.engine import programs

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


@dataclass
class Weighted:
    """A user's function whose comparison returns an array, and which has no hash."""

    weights: Any
    function: Callable[..., Any]

    def __call__(self, *args):
        return self.function(*args, self.weights)


@dataclass(eq=False)
class Broken:
    """An object whose comparison and hash fail."""

    function: Callable[..., Any]

    def __call__(self, *args):
        return self.function(*args)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Broken):
            raise RuntimeError("not comparable")
        return NotImplemented

    def __hash__(self) -> int:
        raise RuntimeError("not hashable")


def square(outputs, targets, weights):
    return weights[0] * (outputs - targets) ** 2


def make() -> dsgd.Problem:
    """Returns a problem of such objects, as a cell of a notebook builds it each time."""
    scale = np.arange(1, 4, dtype=np.float32)
    model = problems.Model(Broken(lambda key: jnp.zeros(3)), Broken(lambda w, x: x @ w))
    return problems.finite_sum(model, Weighted(scale, square), (X, X[:, 0]), 2, batch_size=2)


def test_runs_on_objects_that_cannot_be_compared_can_be_repeated_and_compile_once(mesh, key):
    method, results, problem = algorithms.minibatch_sgd(optax.sgd(0.1)), [], make()
    cluster = clusters.Cluster(clusters.constant(np.array([1.0, 2.0])))
    for each in (problem, problem, make()):
        options = {"steps": 2, "key": key, "mesh": mesh, "cluster": cluster}
        results.append(dsgd.run(method, each, **options).history["loss"])
        before = programs.count_compiled()
        dsgd.run(method, each, **options)
        assert programs.count_compiled() == before
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_objects_that_cannot_be_compared_are_equal_only_if_identical():
    arrays = np.zeros(2), np.zeros(2)
    broken = Broken(abs), Broken(abs)
    for one, other in (arrays, broken, (Weighted(arrays[0], abs), Weighted(arrays[1], abs))):
        assert sameness.same((one, 1), (one, 1))
        assert not sameness.same((one, 1), (other, 1))
        assert {sameness.Key((one,)): 1}[sameness.Key((one,))] == 1


def test_objects_that_can_be_compared_are_equal_if_their_values_and_types_are():
    assert sameness.same((1, [2, {"a": (3,)}]), (1, [2, {"a": (3,)}]))
    assert sameness.Key(("a", 2)) == sameness.Key(("a", 2))
    assert not sameness.same(1, True)
    assert not sameness.same({"a": 1}, {"b": 1})


def test_keys_of_long_sequences_are_compared_whole_and_hashed_in_part():
    """A run hashes the problem a dozen times, which has numbers for each worker."""

    class Counted(int):
        hashed = 0

        def __hash__(self):
            Counted.hashed += 1
            return int.__hash__(self)

    sizes = list(map(Counted, range(5000)))
    keys = {sameness.Key(tuple(sizes)): "same"}
    assert 10 < Counted.hashed < 200
    assert keys[sameness.Key(tuple(sizes))] == "same"
    for at in (0, 2500, 4999):
        other = [*sizes]
        other[at] = Counted(7000)
        assert sameness.Key(tuple(other)) not in keys
    assert sameness.Key((*sizes, sizes[-1])) not in keys
