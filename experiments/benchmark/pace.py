"""How fast a version's rounds are. It imports nothing, so that versions in other Pythons have it, too."""

from __future__ import annotations

import time
from collections.abc import Callable


def calibrate(version: Callable[[int], object], seconds: float) -> int:
    """Rounds that last about that long."""
    rounds = 1
    while True:
        version(rounds)
        once = min(clock(version, rounds) for _ in range(2))  # one may be held up by the machine
        if once >= seconds / 4:
            return max(1, round(rounds * seconds / once))
        rounds *= 4


def clock(version: Callable[[int], object], rounds: int) -> float:
    """Seconds of so many rounds."""
    began = time.perf_counter()
    version(rounds)
    return time.perf_counter() - began
