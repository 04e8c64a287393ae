"""Cannikin: optimal local batch sizes on heterogeneous clusters."""

from algorithms.cannikin.candidates import efficiency, goodput
from algorithms.cannikin.epochs import Epoch, Training
from algorithms.cannikin.learning import Learner, learner
from algorithms.cannikin.model import ClusterModel, OptPerf
from algorithms.cannikin.noise_scale import NoiseScale, gradient_noise_scale, smooth
from algorithms.cannikin.paper import published_optperf
from algorithms.cannikin.policies import Observation, System, adaptdl, cannikin, equal_split, lb_bsp
from algorithms.cannikin.processes import train_processes
from algorithms.cannikin.scalings import adascale, constant, scalable, square_root
from algorithms.cannikin.training import train
from dsgd import signatures, spelling

__all__ = [
    "ClusterModel",
    "Epoch",
    "Learner",
    "NoiseScale",
    "Observation",
    "OptPerf",
    "System",
    "Training",
    "adaptdl",
    "adascale",
    "cannikin",
    "constant",
    "efficiency",
    "equal_split",
    "goodput",
    "gradient_noise_scale",
    "lb_bsp",
    "learner",
    "published_optperf",
    "scalable",
    "smooth",
    "square_root",
    "train",
    "train_processes",
]

signatures.simplify(__name__)
spelling.add_suggestions(__name__)
