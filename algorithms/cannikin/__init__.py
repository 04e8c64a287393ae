"""Cannikin: the best local batch sizes on unequal machines."""

from algorithms.cannikin.learning import Learner, learner
from algorithms.cannikin.model import ClusterModel, OptPerf
from algorithms.cannikin.noise_scale import NoiseScale, gradient_noise_scale, smoothed
from algorithms.cannikin.paper import published_optperf

__all__ = ["ClusterModel", "Learner", "NoiseScale", "OptPerf", "gradient_noise_scale", "learner", "published_optperf", "smoothed"]
