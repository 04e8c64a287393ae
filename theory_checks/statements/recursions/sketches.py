"""Methods that send count sketches, compared with their recursions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax
import numpy as np

import algorithms
from dsgd import compressors
from theory_checks.machinery.cases import Case, Inputs, Symbols, on_server
from theory_checks.machinery.trajectories import D, N, Trajectory
from theory_checks.recursions import sketches
from theory_checks.recursions.sketches import Hashes

K, P, MU = 3, 2, 0.5
ROWS, COLUMNS = 3, 8
EXACT = 24  # at least D columns


def _hashes(found: Trajectory, columns: int) -> Hashes:
    """Returns the hash functions that the method drew, read from sketches of single elements."""
    key = jax.random.key(int(found.states.server.seed[-1]))
    encode = jax.vmap(partial(compressors.count_sketch(ROWS, columns).encode, key))
    counters = np.asarray(encode(np.eye(D))).swapaxes(0, 1)  # [rows, d, columns]
    return Hashes(np.abs(counters).argmax(axis=2), counters.sum(axis=2), columns)


def _sketched(inputs: Inputs) -> Iterator[Symbols]:
    hashes = _hashes(inputs.found, COLUMNS)
    return sketches.sketched_sgd(inputs.x, inputs.G, inputs.step, N, K, P, MU, hashes)


def _with_memories(found: Trajectory, papers: Symbols) -> Symbols:
    return {
        **on_server(found, papers),
        "u": found.states.workers.u,
        "v": found.states.workers.v,
    }


def _fetched(columns: int, subtract: bool, inputs: Inputs) -> Iterator[Symbols]:
    hashes = _hashes(inputs.found, columns)
    return sketches.fetch_sgd(inputs.x, inputs.G, inputs.step, N, K, MU, hashes, subtract)


def _with_sketches(found: Trajectory, papers: Symbols) -> Symbols:
    return {
        **on_server(found, papers),
        "S_u": found.states.server.S_u,
        "S_e": found.states.server.S_e,
    }


CASES = (
    Case(
        "SketchedSGD",
        "Ivkin et al. 2019",
        lambda optimizer, of: algorithms.sketched_sgd(optimizer, K / D, COLUMNS, ROWS, P, MU),
        _sketched,
        _with_memories,
        f"{K} of {2 * K} candidates",
    ),
    Case(
        "FetchSGD",
        "CommEfficient",
        lambda optimizer, of: algorithms.fetch_sgd(optimizer, K / D, COLUMNS, ROWS, MU),
        partial(_fetched, COLUMNS, False),
        _with_sketches,
        "counters of the update are set to 0",
    ),
    Case(
        "FetchSGD, subtracted",
        "Rothchild et al. 2020, algorithm 1",
        lambda optimizer, of: algorithms.fetch_sgd(optimizer, K / D, EXACT, ROWS, MU, "subtract"),
        partial(_fetched, EXACT, True),
        _with_sketches,
        "a sketch without collisions",
    ),
)
