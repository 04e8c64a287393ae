"""Consensus errors of gossip, for the papers about graphs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

import dsgd


def errors(graph: dsgd.Topology, rounds: int, starts: Iterable[int] = range(10)) -> np.ndarray:
    r"""Returns $|x_t - \bar x_0|$ after 0 to `rounds` rounds, the mean over normal $x_0$.

    Args:
        graph: the topology; x is a number of each worker.
        rounds: number of rounds.
        starts: seeds of $x_0$.
    """
    x = np.stack([np.random.RandomState(seed).randn(graph.n) for seed in starts], axis=1)
    mean = x.mean(axis=0)
    found = [x]
    for t in range(rounds):
        found.append(graph.matrices[t % graph.period] @ found[-1])
    return np.linalg.norm(np.stack(found) - mean, axis=1).mean(axis=-1)


def rounds_to(found: np.ndarray, target: float) -> float:
    """Returns the round in which the error reaches a target, between two rounds by a line of the
    logarithm; infinite if it does not.
    """
    below = np.flatnonzero(found <= target)
    if not len(below) or below[0] == 0:
        return np.inf if not len(below) else 0.0
    before, after = np.log(found[[below[0] - 1, below[0]]])
    return float(below[0] - (np.log(target) - after) / (before - after))
