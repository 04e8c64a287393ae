"""DropCompute: synchronous training that drops the last micro-batches of slow workers.

The method is `algorithms.drop_compute`. This package contains the tools to plan its threshold, and
`train_processes`, which runs it in real time with one worker per process.
"""

from algorithms.dropcompute.expectations import (
    expected_micro_batches,
    expected_speedup,
    expected_step_time,
    expected_threshold,
)
from algorithms.dropcompute.processes import Accumulated, Trained, accumulate, train_processes
from algorithms.dropcompute.simulation import Estimate, Simulated, latencies, simulated
from algorithms.dropcompute.speedups import (
    drop_rate,
    effective_speedup,
    extra_steps,
    larger_batch,
    step_time,
    threshold,
)
from algorithms.dropcompute.thresholds import auto_threshold

__all__ = [
    "Accumulated",
    "Estimate",
    "Simulated",
    "Trained",
    "accumulate",
    "auto_threshold",
    "drop_rate",
    "effective_speedup",
    "expected_micro_batches",
    "expected_speedup",
    "expected_step_time",
    "expected_threshold",
    "extra_steps",
    "larger_batch",
    "latencies",
    "simulated",
    "step_time",
    "threshold",
    "train_processes",
]
