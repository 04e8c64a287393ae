"""Kimad: compression that adapts to the bandwidth. The method is `algorithms.kimad_sgd`; this
package contains its parts.
"""

from algorithms.kimad.allocation import allocate, uniform
from algorithms.kimad.budgets import Budget, budget
from algorithms.kimad.choices import CompressorSet, from_compressors, top_k, whole_model
from algorithms.kimad.monitors import Monitor, exponential_average, harmonic_mean, last, oracle
from algorithms.kimad.updates import Update, gradient, local_steps
from dsgd import signatures, spelling

__all__ = [
    "Budget",
    "CompressorSet",
    "Monitor",
    "Update",
    "allocate",
    "budget",
    "exponential_average",
    "from_compressors",
    "gradient",
    "harmonic_mean",
    "last",
    "local_steps",
    "oracle",
    "top_k",
    "uniform",
    "whole_model",
]

signatures.simplify(__name__)
spelling.add_suggestions(__name__)
