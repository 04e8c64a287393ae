"""Seconds of a method's own computations: its optimizer, and the encoding and decoding of its
messages.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp

from dsgd import checks, modes
from dsgd.base import Algorithm, PyTree
from dsgd.planning.forecasts import as_shapes
from dsgd.runs import dry_runs
from dsgd.runs.driver import run

_ROUNDS, _MOST_ROUNDS = 16, 1 << 12
_LONG = 0.3  # seconds of a measured run at least, if it is not of that many rounds


@checks.arguments
@modes.outermost
def update_seconds(
    algorithm: Algorithm,
    shapes: PyTree,
    *,
    workers: int,
    elements: int = 1 << 22,
    repeats: int = 3,
) -> float:
    r"""Measures the seconds that a worker's device needs for a round of a method besides the
    gradient and the messages: the optimizer, compression and decompression.

    The rounds of N and of 2N workers with gradients that cost nothing are timed on this process's
    devices. If they take $N a + b$ and $2 N a + b$ seconds, of which b is computed once for all
    workers, a worker needs $a + b$. A larger model than `elements` is measured on some of its
    leaves, of all shapes that fit, and the seconds are scaled with the number of elements.

        cluster = replace(cluster, compute=cluster.compute + clusters.constant(seconds))

    Args:
        algorithm: the method.
        shapes: as in `dsgd.forecast`.
        workers: N.
        elements: number of elements of the measured model at most.
        repeats: number of measurements, of which the shortest counts.

    Returns:
        Seconds per round on average.

    Raises:
        ValueError: if the method refuses the model, or as `dsgd.forecast`.
    """
    N = checks.positive_int("update_seconds: workers", workers)
    most = checks.positive_int("update_seconds: elements", elements, most=None)
    count = checks.positive_int("update_seconds: repeats", repeats)
    model = as_shapes("update_seconds: shapes", shapes)
    measured = _some_leaves(model, most)
    one, two = (_round_seconds(algorithm, measured, n, count) for n in (N, 2 * N))
    own = max(0.0, two - one) / N
    once = max(0.0, one - N * own)
    return (own + once) * _elements(model) / _elements(measured)


def copy_seconds(elements: int = 1 << 25, repeats: int = 5) -> float:
    """Measures the seconds in which this process's device copies a float32, by which seconds of
    `update_seconds` are converted to those of a device of another memory bandwidth.

    Args:
        elements: of the copied vector.
        repeats: number of measurements, of which the shortest counts.
    """
    copy, vector = jax.jit(lambda x: x + 1), jnp.zeros(elements, jnp.float32)
    copy(vector).block_until_ready()
    return _shortest(lambda: copy(vector).block_until_ready(), repeats) / elements


def _some_leaves(shapes: PyTree, most: int) -> list[jax.ShapeDtypeStruct]:
    """Returns leaves with at most this number of elements: first one of each shape, the smallest
    first, then others; at least one.
    """
    by_shape = dict[tuple[Any, ...], list[jax.ShapeDtypeStruct]]()
    for leaf in jax.tree.leaves(shapes):
        by_shape.setdefault((leaf.shape, leaf.dtype), []).append(leaf)
    groups = sorted(by_shape.values(), key=lambda group: group[0].size)
    ranked = [group[i] for i in range(max(map(len, groups))) for group in groups if i < len(group)]
    chosen, left = [ranked[0]], most - ranked[0].size
    for leaf in ranked[1:]:
        if leaf.size <= left:
            chosen.append(leaf)
            left -= leaf.size
    return chosen


def _elements(shapes: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def _round_seconds(algorithm: Algorithm, shapes: PyTree, N: int, repeats: int) -> float:
    """Returns the seconds of a round of N workers, whose gradients cost nothing."""
    problem = dry_runs.of_workers(shapes, N)
    key = jax.random.key(0)

    def seconds(steps: int) -> float:
        began = perf_counter()
        run(algorithm, problem, steps=steps, key=key, record_every=_MOST_ROUNDS)
        return perf_counter() - began

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a run of one round may send nothing
        seconds(1)  # compiles the program, which does not depend on the number of rounds
        start, rounds = seconds(1), _ROUNDS
        while seconds(rounds) < start + _LONG and rounds < _MOST_ROUNDS:
            rounds *= 4
        # The shortest times are those that other programs disturb least.
        start = min(seconds(1) for _ in range(repeats))
        longer = min(seconds(rounds) for _ in range(repeats))
    return max(0.0, longer - start) / (rounds - 1)


def _shortest(call: Callable[[], Any], repeats: int) -> float:
    """Returns the seconds of the shortest of several calls."""

    def seconds() -> float:
        began = perf_counter()
        call()
        return perf_counter() - began

    return min(seconds() for _ in range(repeats))
