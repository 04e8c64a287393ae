"""A cluster, and others that differ from it in bandwidth or latency."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dsgd.clusters import Cluster
from dsgd.planning.forecasts import scale
from dsgd.planning.training import Trained, select

BANDWIDTH, LATENCY = "bandwidth", "latency"
MOST = 100.0  # largest factor


@dataclass(frozen=True, eq=False)
class Networks:
    """A cluster with its bandwidths and latency multiplied by factors; the first are 1.

    Args:
        cluster: the plan's cluster.
        bandwidth, latency: the factors, `[networks]`.
    """

    cluster: Cluster
    bandwidth: np.ndarray
    latency: np.ndarray

    def __len__(self) -> int:
        return len(self.bandwidth)

    def seconds(self, trained: Trained) -> np.ndarray:
        """Returns the seconds until the workers have the model of each record,
        `[networks, points, seeds, records]`. If the method's rounds depend on the cluster, those on
        other networks are infinite.
        """
        if trained.contender.on_cluster:
            clock = trained.take_ends(trained.sweep.history["clock"])
            found = np.full((len(self), *clock.shape), np.inf)
            found[0] = clock
            return found
        build = partial(_scale, self)
        return trained.take_ends(trained.replay(build, network=np.arange(len(self))))


def vary(cluster: Cluster, points: int) -> Networks:
    """Returns the cluster, and networks with up to `MOST` times smaller and larger bandwidth, and
    others with smaller and larger latency.

    Args:
        cluster: the plan's cluster.
        points: number of factors on each side of 1.
    """
    factors = np.geomspace(1, MOST, points + 1)[1:]
    factors = np.concatenate([1 / factors, factors])
    ones = np.ones_like(factors)
    pairs: list[tuple[np.ndarray, np.ndarray]] = [(np.ones(1), np.ones(1))]
    if cluster.up is not None or cluster.down is not None:
        pairs.append((factors, ones))
    if cluster.latency:
        pairs.append((ones, factors))
    bandwidth, latency = (
        np.concatenate(each, dtype=np.float32) for each in zip(*pairs, strict=True)
    )
    return Networks(cluster, bandwidth, latency)


def _scale(networks: Networks, network: Any) -> Cluster:
    """Returns one of the networks; inside machines with several workers nothing changes."""
    cluster = networks.cluster
    factors = select(networks.bandwidth, network), select(networks.latency, network)
    return replace(scale(cluster, *factors), nodes=cluster.nodes)
