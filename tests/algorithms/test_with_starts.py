"""Starts that differ between workers. `tests/methods` says which methods need a common start, and
tests limits from different starts.
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
from dsgd import problems

T, STEP, SMALL = 2_500, optax.sgd(0.1), optax.sgd(0.02)


def test_a_run_starts_from_the_given_models(mesh):
    """With two seeds; a function of the parameters gives the same as the models themselves."""
    problem = problems.random_quadratic(8, 3, noise=0.1)
    rows = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    options: Any = {"steps": 3, "key": jax.random.key(0), "seeds": 2, "mesh": mesh}
    given, computed = (
        dsgd.run(
            algorithms.with_starts(algorithms.make("decentralized_sgd", STEP, 8), models),
            problem,
            **options,
        )
        for models in (rows, lambda params: params[None] + jnp.asarray(rows))
    )
    spread = ((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()
    np.testing.assert_allclose(given.history["consensus"][:, 0], spread, rtol=1e-5)
    np.testing.assert_array_equal(given.params, computed.params)
    rows[:] = 0  # the method has its own copy
    assert not np.array_equal(given.params[0], given.params[1])


def test_models_of_other_shapes_are_refused():
    method = algorithms.with_starts(algorithms.make("decentralized_sgd", STEP, 8), np.zeros((7, 3)))
    with pytest.raises(ValueError, match=r"^with_starts: decentralized_sgd.* expected .*\[8, 3\]"):
        method.init(jnp.zeros(3), 8)
