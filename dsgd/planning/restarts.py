"""Checkpoints and restarts: how much longer a training takes on machines that fail."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from dsgd import checks
from dsgd.clusters.quantity import require_number


@checks.arguments
@dataclass(frozen=True)
class Restarts:
    r"""Failures of machines at exponentially distributed times. After each of them all workers
    begin again from the last checkpoint.

    With M seconds between failures, a restart of R seconds, and a checkpoint of C seconds after
    every $\tau$ seconds of training, $\tau$ seconds of training take on average

    $$ M e^{R/M} \left(e^{(\tau + C)/M} - 1\right). $$

    Args:
        between_failures: M, mean seconds between two failures of any machine, above 0.
        checkpoint: C, seconds in which the training waits for a checkpoint.
        restart: R, seconds from a failure to the first round after it.
        interval: $\tau$; None: $\sqrt{2 C M}$ (Young), nearly the best one, with C at least 1 s.

    Raises:
        ValueError: if a number is not finite, `between_failures` or `interval` is not above 0, or
            another one is negative.

    Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    2006, section 2; Young, "A first order approximation to the optimum checkpoint interval", 1974.
    """

    between_failures: float
    checkpoint: float = 0.0
    restart: float = 0.0
    interval: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None:
                positive = name in ("between_failures", "interval")
                require_number(f"Restarts: {name}", value, least=0, more=positive)

    @property
    def slowdown(self) -> float:
        """Seconds that a second of training takes on average, at least 1; inf if it never ends."""
        M, C = self.between_failures, self.checkpoint
        tau = self.interval or math.sqrt(2 * max(C, 1.0) * M)
        try:
            return M * math.exp(self.restart / M) * math.expm1((tau + C) / M) / tau
        except OverflowError:
            return math.inf
