"""Choice of the total batch size by AdaptDL's goodput, with OptPerf as the throughput."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from algorithms.cannikin.model import OptPerf
from dsgd import checks

Totals = Annotated[ArrayLike, "numbers of samples"]


@checks.arguments
def efficiency(total_batch: Totals, noise_scale: float, initial_batch: int) -> Any:
    r"""Returns the statistical efficiency of a total batch: the progress per sample at batch size B
    relative to B_0.

    $$ \frac{\varphi + B_0}{\varphi + B} $$

    Args:
        total_batch: B, any shape.
        noise_scale: phi, the gradient noise scale in samples, at least 0; infinity: the efficiency
            is 1.
        initial_batch: B_0.

    Raises:
        ValueError: if B or B_0 is less than 1, or phi is negative or NaN.

    Source: Qiao et al., "Pollux: co-adaptive cluster scheduling for goodput-optimized deep
    learning", 2021, equation 7.
    """
    B0, B = (
        checks.positive_int("cannikin.efficiency: initial_batch", initial_batch),
        np.asarray(total_batch, float),
    )
    if not (np.isfinite(B) & (B >= 1)).all():
        raise ValueError(
            f"cannikin.efficiency: total_batch = {checks.show(total_batch)}; expected finite "
            "numbers >= 1"
        )
    if not noise_scale >= 0:
        raise ValueError(
            f"cannikin.efficiency: noise_scale = {noise_scale}; expected a number >= 0"
        )
    return (
        np.ones_like(B)[()]
        if np.isinf(noise_scale)
        else ((noise_scale + B0) / (noise_scale + B))[()]
    )


@checks.arguments
def goodput(seconds: ArrayLike, total_batch: Totals, noise_scale: float, initial_batch: int) -> Any:
    r"""Returns the goodput, samples per second weighted by their efficiency:
    $\frac{B}{T(B)} \cdot \frac{\varphi + B_0}{\varphi + B}$.

    Args:
        seconds: T, of each total batch, above 0.
        total_batch, noise_scale, initial_batch: see `efficiency`.

    Raises:
        ValueError: see `efficiency`; also if seconds are not positive or do not have the shape of
            `total_batch`.
    """
    T, B = np.asarray(seconds, float), np.asarray(total_batch, float)
    if T.shape != B.shape or not (T > 0).all():
        raise ValueError(
            f"cannikin.goodput: seconds = {checks.show(seconds)}; expected numbers > 0 with the "
            f"shape {list(B.shape)} of total_batch"
        )
    return B / T * efficiency(total_batch, noise_scale, initial_batch)


@runtime_checkable
class Model(Protocol):
    """A cluster that predicts the time of a total batch, for example `cannikin.ClusterModel`."""

    @property
    def nodes(self) -> int:
        """n, the number of nodes."""
        ...

    def optperf(self, total_batch: Any) -> OptPerf:
        """Returns seconds and local batches for one total batch or several."""
        ...

    def computes_longer(self, batches: Any) -> np.ndarray:
        """Returns whether each node's bottleneck is its computation."""
        ...


class Candidates(NamedTuple):
    """Candidates for the total batch, with the estimates of their times.

    Args:
        totals: B, `[K]`.
        seconds: OptPerf of each candidate; None if there is no model yet.
        patterns: which nodes compute longer than they communicate, at the batches of each
            candidate, bool `[K, n]`.
    """

    totals: np.ndarray
    seconds: np.ndarray | None = None
    patterns: np.ndarray | None = None

    def choose(
        self, model: Model, noise_scale: float, initial_batch: int
    ) -> tuple[int, Candidates]:
        """Returns the total batch with the largest goodput by the stored times, and the candidates
        with its time updated. If its bottlenecks have changed, all times are updated, and the
        choice is repeated.

        Args:
            model: the current model of the cluster.
            noise_scale, initial_batch: see `efficiency`.

        Source: Nie et al., "Cannikin", section 4.5.
        """
        if self.seconds is None or self.patterns is None or self.patterns.shape[-1] != model.nodes:
            return self._update(model)._best(noise_scale, initial_batch)
        best, _ = self._best(noise_scale, initial_batch)
        at = int(np.flatnonzero(self.totals == best)[0])
        seconds, batches = model.optperf(best)
        if (model.computes_longer(batches) != self.patterns[at]).any():
            return self._update(model)._best(noise_scale, initial_batch)
        refreshed = self.seconds.copy()
        refreshed[at] = seconds
        return best, self._replace(seconds=refreshed)

    def _update(self, model: Model) -> Candidates:
        seconds, batches = model.optperf(self.totals)
        return Candidates(self.totals, seconds, model.computes_longer(batches))

    def _best(self, noise_scale: float, initial_batch: int) -> tuple[int, Candidates]:
        assert self.seconds is not None
        return int(
            self.totals[np.argmax(goodput(self.seconds, self.totals, noise_scale, initial_batch))]
        ), self
