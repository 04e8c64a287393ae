"""DropCompute: synchronous training that drops the stragglers' last micro-batches. The method is `algorithms.drop_compute`; here is what
it is planned with, and `train`: the same on the real clock, one worker a process."""

from algorithms.dropcompute.chosen import Chosen, chosen_after
from algorithms.dropcompute.expectations import expected_micro_batches, expected_speedup, expected_step_time, expected_threshold
from algorithms.dropcompute.family import loopback
from algorithms.dropcompute.processes import Trained, train
from algorithms.dropcompute.speedups import drop_rate, effective_speedup, step_time, threshold
from algorithms.dropcompute.stopwatch import Accumulated, accumulate

__all__ = [
    "Accumulated",
    "Chosen",
    "Trained",
    "accumulate",
    "chosen_after",
    "drop_rate",
    "effective_speedup",
    "expected_micro_batches",
    "expected_speedup",
    "expected_step_time",
    "expected_threshold",
    "loopback",
    "step_time",
    "threshold",
    "train",
]
