"""On which other networks another method is the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsgd.planning.finals import Final
from dsgd.planning.goals import Goal
from dsgd.planning.networks import BANDWIDTH, LATENCY, Networks
from dsgd.planning.training import Point


class Change(NamedTuple):
    """From a factor of the bandwidth or of the latency on, another method is the best.

    Args:
        axis: "bandwidth" or "latency".
        factor: by which it is multiplied; below 1: for this factor and smaller ones, until the next
            change.
        method, settings: of the better candidate.
        values: its step size and hyperparameters.
        result: its mean seconds to the target there; with a budget, the mean of the metric.
        before: the same of the plan's best method; infinite if it does not reach the target.
    """

    axis: str
    factor: float
    method: str
    settings: str
    values: Point
    result: float
    before: float


def changes(goal: Goal, finals: Sequence[Final], networks: Networks) -> list[Change]:
    """Returns the changes away from the plan's cluster, along smaller and larger bandwidths and
    latencies. A method replaces another one if it is better by more than two standard errors.
    Methods whose rounds depend on the cluster are left out.

    Args:
        goal: what is best.
        finals: the finalists, the best on the plan's cluster first.
        networks: the plan's cluster first.
    """
    replayed = [each for each in finals if not each.contender.on_cluster]
    if not replayed:
        return []
    outcomes = [each.outcome(goal) for each in replayed]
    mean, error = (
        np.stack([getattr(each, name) for each in outcomes]) for name in ("mean", "error")
    )
    all_changes, sign = [], goal.sign if goal.target is None else 1
    for axis, factors in ((BANDWIDTH, networks.bandwidth), (LATENCY, networks.latency)):
        for direction in (-1, 1):
            side = np.flatnonzero(np.sign(np.log(factors)) == direction)
            path = side[np.argsort(direction * factors[side])]
            for network, i in _replacements(mean, error, path):
                candidate, points, *_ = replayed[i].contender
                all_changes.append(
                    Change(
                        axis,
                        float(factors[network]),
                        candidate.name,
                        candidate.settings,
                        points[outcomes[i].point[network]],
                        sign * float(mean[i, network]),
                        sign * float(mean[0, network]),
                    )
                )
    return all_changes


def _replacements(mean: np.ndarray, error: np.ndarray, path: np.ndarray) -> list[tuple[int, int]]:
    """Returns the networks along a path on which another method becomes the best, and the number of
    the method.

    Args:
        mean, error: `[methods, networks]`; method 0 is the best where the path begins.
        path: numbers of networks.
    """
    current, found = 0, []
    for network in path:
        new = int(mean[:, network].argmin())
        if not np.isfinite(mean[new, network]):
            continue
        gap = mean[current, network] - mean[new, network]
        if new != current and gap > 2 * np.hypot(error[current, network], error[new, network]):
            current = new
            found.append((int(network), new))
    return found
