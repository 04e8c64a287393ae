"""DropCompute: synchronous training that drops the stragglers' last micro-batches. The method is `algorithms.drop_compute`; here is what
it is planned with."""

from algorithms.dropcompute.speedups import drop_rate, effective_speedup, step_time, threshold

__all__ = ["drop_rate", "effective_speedup", "step_time", "threshold"]
