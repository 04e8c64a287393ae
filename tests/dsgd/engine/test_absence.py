"""What a round makes of workers that do not participate: their rows, their samples, their losses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import algorithms
from dsgd import Query, Round, State, Work, workers
from dsgd.engine import absence

N = 4
SOME = np.array([True, False, False, True])
METHOD = algorithms.minibatch_sgd(optax.sgd(0.1))._replace(away=lambda before, after, round: 100 * before + after)


def a_round(present: np.ndarray | None) -> Round:
    return Round(jnp.int32(0), N, jax.random.key(0), present=None if present is None else jnp.asarray(present))


def on_devices(function: Any, *rows: Any, D: int, out: Any = None) -> Any:
    return jax.jit(jax.shard_map(function, mesh=workers.mesh(D), in_specs=P(workers.AXIS), out_specs=out or P(), check_vma=False))(*rows)


@pytest.mark.parametrize("present", [SOME, ~SOME, np.ones(N, bool), np.zeros(N, bool), None])
@pytest.mark.parametrize("D", [1, 2])
def test_absent_workers_get_the_rows_of_away_and_without_workers_the_server_stays(present, D):
    before, after = np.arange(1.0, N + 1), 10 * np.arange(1.0, N + 1)

    def block(before, after):
        one, other = State(jnp.int32(3), {"x": jnp.float32(1)}, before), State(jnp.int32(4), {"x": jnp.float32(2)}, after)
        found = absence.state(METHOD, one, other, a_round(present))
        return found.step, found.server["x"], found.workers

    step, server, rows = on_devices(block, before, after, D=D, out=(P(), P(), P(workers.AXIS)))
    there = np.ones(N, bool) if present is None else present
    assert step == 4
    assert server == (2 if there.any() else 1)
    np.testing.assert_array_equal(rows, np.where(there, after, 100 * before + after))


def test_absent_workers_compute_no_samples_and_weights_stay():
    work = Work(jnp.arange(8).reshape(N, 2), jnp.ones((N, 2)))
    asked = absence.query(Query((), work=work), a_round(SOME)).work
    assert asked is not None
    np.testing.assert_array_equal(asked.samples, [[0, 1], [0, 0], [0, 0], [6, 7]])
    np.testing.assert_array_equal(asked.weights, 1)
    for query, present in ((Query((), work=work), None), (Query(()), SOME)):
        assert absence.query(query, a_round(present)) is query


@pytest.mark.parametrize(
    ("present", "mean"), [(SOME, 2.5), (np.arange(N) == 1, 2.0), (np.ones(N, bool), 2.5), (np.zeros(N, bool), np.nan), (None, 2.5)]
)
@pytest.mark.parametrize("D", [1, 2])
def test_mean_losses_are_over_the_workers_that_participate(present, mean, D):
    """The losses of the others may be NaN."""
    losses = np.arange(1.0, N + 1) if present is None else np.where(present, np.arange(1.0, N + 1), np.nan)
    there = None if present is None else jnp.asarray(present)
    found = on_devices(lambda rows: absence.mean(rows, there), jnp.asarray(losses), D=D)
    np.testing.assert_allclose(found, mean)
