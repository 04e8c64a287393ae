"""Seconds of a method's own computations: its optimizer, and the encoding and decoding of its
messages.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp

from dsgd import checks, modes
from dsgd.base import Algorithm, Problem, PyTree
from dsgd.planning.forecasts import as_shapes, count_elements, state_memory
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
    elements: int = 1 << 20,
    repeats: int = 3,
) -> float:
    """Measures the seconds that a worker's device needs for a round of a method besides the
    gradient and the messages: the optimizer, compression and decompression.

    Rounds of all N workers with gradients that cost nothing are timed on this process's devices.
    Of their seconds, those of a worker are the share of the bytes that it reads and writes: its
    own rows and gradient, and what all workers have in common, which the simulation computes once.
    The measured model has one leaf of each shape that fits, and the seconds are scaled with the
    number of elements.

        cluster = replace(cluster, compute=cluster.compute + clusters.constant(seconds))

    Args:
        algorithm: the method.
        shapes: as in `dsgd.forecast`.
        workers: N.
        elements: number of elements of the measured model at most.
        repeats: number of measurements; the shortest counts.

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
    problem = dry_runs.of_workers(measured, N)
    own, common, gradient, _ = state_memory(algorithm, problem)
    share = (own + gradient + common) / (N * (own + gradient) + common)
    seconds = share * _round_seconds(algorithm, problem, count)
    return seconds * count_elements(model) / count_elements(measured)


@checks.arguments
@modes.outermost
def copy_seconds(elements: int = 1 << 25, repeats: int = 5) -> float:
    """Measures how fast this process's device copies a vector. With it, results of `update_seconds`
    are converted to a device of another memory bandwidth.

    Args:
        elements: number of float32 in the vector.
        repeats: number of measurements; the shortest counts.

    Returns:
        Seconds per element, in which 4 bytes are read and 4 are written.

    Raises:
        ValueError: if an argument is less than 1.
    """
    d = checks.positive_int("copy_seconds: elements", elements, most=None)
    count = checks.positive_int("copy_seconds: repeats", repeats)
    copy, vector = jax.jit(lambda x: x + 1), jnp.zeros(d, jnp.float32)

    def call() -> None:
        copy(vector).block_until_ready()

    call()  # compiles
    return min(_seconds(call) for _ in range(count)) / d


def _some_leaves(shapes: PyTree, most: int) -> list[jax.ShapeDtypeStruct]:
    """Returns one leaf of each shape, the smallest first, of together at most this number of
    elements; at least one.
    """
    leaves = {(leaf.shape, leaf.dtype): leaf for leaf in jax.tree.leaves(shapes)}.values()
    first, *others = sorted(leaves, key=lambda leaf: leaf.size)
    chosen, left = [first], most - first.size
    for leaf in others:
        if leaf.size <= left:
            chosen.append(leaf)
            left -= leaf.size
    return chosen


def _round_seconds(algorithm: Algorithm, problem: Problem, repeats: int) -> float:
    """Returns the seconds of a round of all workers."""

    def seconds(steps: int) -> float:
        options = {"steps": steps, "key": jax.random.key(0), "record_every": _MOST_ROUNDS}
        return _seconds(partial(run, algorithm, problem, **options))

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


def _seconds(call: Callable[[], Any]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began
