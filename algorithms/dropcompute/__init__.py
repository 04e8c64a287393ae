"""DropCompute: synchronous training that drops the last micro-batches of slow workers.

The method is `algorithms.drop_compute`. This package contains the tools to plan its threshold, and
`train_processes`, which runs it in real time with one worker per process.
"""

from algorithms.dropcompute.expectations import expected_effect, expected_threshold
from algorithms.dropcompute.processes import Accumulated, Trained, accumulate, train_processes
from algorithms.dropcompute.simulation import Estimate, latencies, simulated_effect
from algorithms.dropcompute.speedups import (
    Effect,
    extra_steps,
    larger_batch,
    measured_effect,
    threshold,
)
from algorithms.dropcompute.thresholds import auto_threshold
from dsgd import signatures, spelling

__all__ = [
    "Accumulated",
    "Effect",
    "Estimate",
    "Trained",
    "accumulate",
    "auto_threshold",
    "expected_effect",
    "expected_threshold",
    "extra_steps",
    "larger_batch",
    "latencies",
    "measured_effect",
    "simulated_effect",
    "threshold",
    "train_processes",
]

signatures.simplify(__name__)
spelling.add_suggestions(__name__)
