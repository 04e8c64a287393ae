"""Cannikin: the best local batch sizes on unequal machines."""

from algorithms.cannikin.learning import Learner, learner
from algorithms.cannikin.model import ClusterModel, OptPerf
from algorithms.cannikin.noise_scale import NoiseScale, gradient_noise_scale, smoothed

__all__ = ["ClusterModel", "Learner", "NoiseScale", "OptPerf", "gradient_noise_scale", "learner", "smoothed"]
