"""How large a total batch is worth its time: AdaptDL's goodput, with OptPerf as its throughput."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from algorithms.cannikin.model import OptPerf
from dsgd import checks

Totals = Annotated[ArrayLike, "numbers of samples"]


@checks.arguments
def efficiency(total_batch: Totals, noise_scale: float, initial_batch: int) -> Any:
    r"""What a sample of a larger batch brings, of what one of the initial batch does.

    $$ \frac{\varphi + B_0}{\varphi + B} $$

    Args:
        total_batch: B, any shape.
        noise_scale: phi, the gradient noise scale in samples, at least 0; infinite: 1.
        initial_batch: B_0.

    Raises:
        ValueError: B or B_0 < 1, phi negative or NaN.

    Source: Qiao et al., "Pollux: co-adaptive cluster scheduling for goodput-optimized deep
    learning", 2021, equation 7.
    """
    B0, B = (
        checks.positive_int("cannikin.efficiency: initial_batch", initial_batch),
        np.asarray(total_batch, float),
    )
    if not (np.isfinite(B) & (B >= 1)).all():
        raise ValueError(
            f"cannikin.efficiency: total_batch = {checks.shown(total_batch)}: need finite "
            "numbers, at least 1"
        )
    if not noise_scale >= 0:
        raise ValueError(
            f"cannikin.efficiency: noise_scale = {noise_scale}: need a number, at least 0"
        )
    return (
        np.ones_like(B)[()]
        if np.isinf(noise_scale)
        else ((noise_scale + B0) / (noise_scale + B))[()]
    )


@checks.arguments
def goodput(seconds: ArrayLike, total_batch: Totals, noise_scale: float, initial_batch: int) -> Any:
    r"""Samples a second, each for what it brings:
    $\frac{B}{T(B)} \cdot \frac{\varphi + B_0}{\varphi + B}$.

    Args:
        seconds: T, of each total batch, above 0.
        total_batch, noise_scale, initial_batch: as of `efficiency`.

    Raises:
        ValueError: as of `efficiency`; seconds that are not above 0, or not of these total batches.
    """
    T, B = np.asarray(seconds, float), np.asarray(total_batch, float)
    if T.shape != B.shape or not (T > 0).all():
        raise ValueError(
            f"cannikin.goodput: seconds = {checks.shown(seconds)}: need numbers above 0, "
            f"{list(B.shape)} as total_batch"
        )
    return B / T * efficiency(total_batch, noise_scale, initial_batch)


@runtime_checkable
class Model(Protocol):
    """A cluster that says how long it takes for a total batch, `cannikin.ClusterModel`, say."""

    @property
    def nodes(self) -> int:
        """n."""
        ...

    def optperf(self, total_batch: Any) -> OptPerf:
        """Seconds and batches, of one total batch or of several."""
        ...

    def computes_longer(self, batches: Any) -> np.ndarray:
        """Each node's bottleneck."""
        ...


class Candidates(NamedTuple):
    """Total batches to choose from, with what is known of their times.

    Args:
        totals: B, `[K]`.
        seconds: OptPerf of each; None before there is a model.
        patterns: which nodes compute longer than they communicate, at the batches of each, bool
            `[K, n]`.
    """

    totals: np.ndarray
    seconds: np.ndarray | None = None
    patterns: np.ndarray | None = None

    def chosen(
        self, model: Model, noise_scale: float, initial_batch: int
    ) -> tuple[int, Candidates]:
        """The total batch of the largest goodput, by the times that are known; then its own is
        known anew. Where its bottlenecks have changed, so are all others', and it is chosen once
        more.

        Args:
            model: of the cluster, as it is thought to be now.
            noise_scale, initial_batch: as of `efficiency`.

        Source: Nie et al., "Cannikin", section 4.5.
        """
        if self.seconds is None or self.patterns is None or self.patterns.shape[-1] != model.nodes:
            return self._known(model)._best(noise_scale, initial_batch)
        best, _ = self._best(noise_scale, initial_batch)
        at = int(np.flatnonzero(self.totals == best)[0])
        seconds, batches = model.optperf(best)
        if (model.computes_longer(batches) != self.patterns[at]).any():
            return self._known(model)._best(noise_scale, initial_batch)
        refreshed = self.seconds.copy()
        refreshed[at] = seconds
        return best, self._replace(seconds=refreshed)

    def _known(self, model: Model) -> Candidates:
        seconds, batches = model.optperf(self.totals)
        return Candidates(self.totals, seconds, model.computes_longer(batches))

    def _best(self, noise_scale: float, initial_batch: int) -> tuple[int, Candidates]:
        assert self.seconds is not None
        return int(
            self.totals[np.argmax(goodput(self.seconds, self.totals, noise_scale, initial_batch))]
        ), self
