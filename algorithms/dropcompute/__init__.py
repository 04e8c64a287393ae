"""DropCompute: synchronous training that drops the stragglers' last micro-batches. The method is
`algorithms.drop_compute`; here is what it is planned with, and `train`: the same on the real clock,
one worker a process."""

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
from algorithms.dropcompute.thresholds import chosen_after

__all__ = [
    "Accumulated",
    "Estimate",
    "Simulated",
    "Trained",
    "accumulate",
    "chosen_after",
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
