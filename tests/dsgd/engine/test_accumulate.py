"""Sums in pieces: each row once, with the gradients of the whole, in the memory of a piece."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import dsgd
from dsgd.engine import accumulate, oracle


@pytest.mark.parametrize(
    ("M", "chunk_size"),
    [(10, 3), (10, 4), (9, 2), (7, 6), (7, 1), (1, 1), (10, 10), (10, 99), (10, None)],
)
def test_every_row_counts_once(M, chunk_size):
    rows = {"number": jnp.arange(1, M + 1), "square": jnp.arange(1, M + 1) ** 2}
    lengths = []

    def sums(scale, piece, counted):
        lengths.append(len(counted))
        return {name: scale * jnp.sum(jnp.where(counted, leaf, 0)) for name, leaf in piece.items()}

    found = accumulate.total(sums, 3, rows, chunk_size)
    numbers = np.arange(1, M + 1)
    assert {name: int(value) for name, value in found.items()} == {
        "number": 3 * numbers.sum(),
        "square": 3 * (numbers**2).sum(),
    }
    assert max(lengths) <= (chunk_size or M)


def test_pieces_are_as_long_as_the_budget_allows(monkeypatch):
    """According to the memory of a row; the memory of parameters is shared by all rows."""
    d, M = 1000, 64

    def needs(params, rows, counted):
        return jnp.sum(jnp.exp(rows)) + jnp.sum(jnp.exp(params))

    shapes = (
        jax.ShapeDtypeStruct((100_000,), jnp.float32),
        jax.ShapeDtypeStruct((M, d), jnp.float32),
    )
    a_row = 4 * d
    for rows in (1, 5, 30):
        # a copy of the row, and its exponentials
        monkeypatch.setattr(accumulate, "BUDGET", (2 * a_row) * rows)
        assert accumulate.chunk_size(needs, *shapes) == rows
    monkeypatch.setattr(accumulate, "BUDGET", a_row * M)  # if all rows fit, none is copied
    assert accumulate.chunk_size(needs, *shapes) == M
    monkeypatch.setattr(accumulate, "BUDGET", 1)
    assert accumulate.chunk_size(needs, *shapes) == 1


def wide(workers: int, dimension: int = 400) -> dsgd.Problem:
    """Returns a custom problem, whose loss has 64 intermediate numbers of a worker for each
    parameter.
    """

    def loss(x, mine):
        return jnp.mean(jnp.cos(jnp.sin(x[None, :] * mine[:, None]) * mine[:, None]))

    data = jnp.linspace(-1, 1, workers * 64).reshape(workers, 64)
    return dsgd.Problem(
        init=lambda key: jnp.ones(dimension), loss=loss, data=data, sample=lambda key, mine: mine
    )


def evaluation(problem: dsgd.Problem, mesh):
    def evaluate(params, data, shared):
        return oracle.evaluate(problem, params, data, shared)

    specs = (P(), P("workers"), P())
    sharded = jax.jit(
        jax.shard_map(evaluate, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    )
    return sharded.lower(
        problem.init(jax.random.key(0)), problem.data, problem.evaluation.replicated
    ).compile()


@pytest.mark.parametrize("devices", [1, 8])
def test_a_custom_problem_is_evaluated_by_groups_of_workers(devices, monkeypatch):
    """Equal results, in less memory."""
    problem, mesh = wide(48), dsgd.workers.mesh(devices)
    params = jnp.linspace(-1, 1, 400)
    whole = evaluation(problem, mesh)
    monkeypatch.setattr(accumulate, "BUDGET", 10 * 64 * 400 * 4)
    grouped = evaluation(problem, mesh)
    (scalars, slope), (few, steep) = (
        program(params, problem.data, ()) for program in (whole, grouped)
    )
    np.testing.assert_allclose(few["loss"], scalars["loss"], rtol=1e-6)
    np.testing.assert_allclose(steep, slope, rtol=1e-4, atol=1e-8)
    if devices == 1:
        assert (
            grouped.memory_analysis().temp_size_in_bytes
            < whole.memory_analysis().temp_size_in_bytes / 5
        )
