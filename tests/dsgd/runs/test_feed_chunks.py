"""Streamed batches, chunk by chunk: those that are on the devices, their number, and the number of
an invalid one.
"""

from __future__ import annotations

import jax
import numpy as np

from dsgd import problems, workers
from dsgd.engine.plan import Plan, drop_arrays
from dsgd.runs.feed import Feed

N = 2
PROBLEM = drop_arrays(problems.random_quadratic(N, 2, seed=0))


def feed(batches, rounds: int = 100, record_every: int = 3) -> Feed:
    plan = Plan(lambda points: None, PROBLEM, workers.mesh(1), N, 0, record_every, 1)  # type: ignore[arg-type]
    return Feed(plan, batches, rounds)


def number_batches(first: int = 0, last: int = 10**6):
    """Yields batches; batch t is filled with t."""
    for t in range(first, last):
        yield {"x": np.full((N, 3), t, np.float32), "n": np.full(N, t, np.int32)}


def test_each_batch_is_used_once_and_in_order_unless_it_is_skipped():
    one, seen = feed(number_batches()), []
    for skipped, rounds in ((0, 4), (0, 15), (7, 1), (0, 3), (2, 2)):
        one.skip(skipped)
        taken = jax.tree.map(lambda leaf: np.asarray(leaf)[:rounds], one.take(rounds))  # noqa: B023
        seen += taken["n"][:, 0].tolist()
        np.testing.assert_array_equal(taken["x"][:, :, 2], taken["n"])
    assert seen == [*range(19), *range(26, 30), 32, 33]
