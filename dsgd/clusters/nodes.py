"""Machines with several workers, which share the machine's network card."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jax.core import Tracer

from dsgd import checks
from dsgd.base import Real
from dsgd.clusters.quantity import require_number


@checks.arguments
@dataclass(frozen=True)
class Nodes:
    """Machines with several workers each, for example the GPUs of a computer that are connected by
    NVLink or PCIe. Consecutive workers share a machine: the first `size` workers are on the first
    one. A message within a machine passes the ports of its two workers; a message to another
    machine passes the network cards of the two machines (`dsgd.network`).

    Args:
        size: number of workers on each machine, at least 1; 1: as without `Nodes`.
        bandwidth: bits per second of a worker's port within the machine, in each direction; traced
            in a function for `dsgd.replay`.
        latency: seconds per message within the machine, at least 0; traced as the bandwidth.

    Raises:
        ValueError: if `size` is less than 1, or a number is negative, infinite or NaN, or the
            bandwidth is 0.
    """

    size: int
    bandwidth: Real
    latency: Real = 0.0

    def __post_init__(self) -> None:
        checks.positive_int("Nodes: size", self.size)
        for what in ("bandwidth", "latency"):
            if not isinstance(number := getattr(self, what), Tracer):
                require_number(f"Nodes: {what}", number, least=0, more=what == "bandwidth")

    def scale(self, bandwidth: Real, latency: Real) -> Nodes:
        """Returns the same machines with multiples of the bandwidth and the latency."""
        return replace(self, bandwidth=bandwidth * self.bandwidth, latency=latency * self.latency)

    @property
    def name(self) -> str:
        """A description that contains all parameters."""
        numbers = (
            "traced" if isinstance(number, Tracer) else f"{number:.9g}"
            for number in (self.bandwidth, self.latency)
        )
        return f"nodes({self.size}; {'; '.join(numbers)})"
