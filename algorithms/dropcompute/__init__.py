"""DropCompute: synchronous training that drops the stragglers' last micro-batches. The method is `algorithms.drop_compute`; here is what
it is planned with, and the same on the real clock: `train`, one worker a process."""

from algorithms.dropcompute.chosen import Chosen, chosen_after
from algorithms.dropcompute.loopback import loopback
from algorithms.dropcompute.processes import Trained, train
from algorithms.dropcompute.stopwatch import Accumulated, accumulate

__all__ = ["Accumulated", "Chosen", "Trained", "accumulate", "chosen_after", "loopback", "train"]
