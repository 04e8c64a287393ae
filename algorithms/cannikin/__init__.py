"""Cannikin: the best local batch sizes on unequal machines."""

from algorithms.cannikin.model import ClusterModel, OptPerf

__all__ = ["ClusterModel", "OptPerf"]
