"""The memory that a graph needs, estimated before it is built."""

from __future__ import annotations

import os
from pathlib import Path

_WEIGHT = 128  # bytes of each nonzero weight while a topology is made and validated, as measured
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container


def require_memory(name: str, weights: float, each: int = _WEIGHT) -> None:
    """Raises ValueError if a topology needs more memory than the machine has.

    Args:
        name: name of the topology, for the message.
        weights: number of its nonzero weights, at most, in all rounds of a period.
        each: bytes that each of them needs.
    """
    needed, memory = each * weights, machine_memory()
    if needed > memory:
        raise ValueError(
            f"{name}: {weights:,.0f} weights need about {needed / 1e9:,.1f} GB; expected at most "
            f"the memory of this machine, {memory / 1e9:,.1f} GB; pass fewer workers, or a graph "
            "with fewer edges"
        )


def machine_memory() -> float:
    """Returns the bytes of memory that the machine or the container has; inf if unknown."""
    known = [float("inf")]
    if hasattr(os, "sysconf"):
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if _LIMIT.exists() and (limit := _LIMIT.read_text().strip()).isdigit():
        known.append(int(limit))
    return min(known)
