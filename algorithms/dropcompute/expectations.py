r"""DropCompute's expected gain if the times of micro-batches are normally distributed: closed forms
where they exist, otherwise quadrature.

Micro-batches take independent times with mean $\mu$ and standard deviation $\sigma$, the same for
all workers, and m of them together take $T^{(m)} \sim \mathcal N(m \mu, m \sigma^2)$. This is exact
if each time is normal, and approximate for large m otherwise. Times are positive, so $\mu$ must be
several $\sigma$ above 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from algorithms.dropcompute.speedups import Effect, Thresholds
from algorithms.dropcompute.stopping import Stop, require_seconds, require_stop
from dsgd import checks

_MOST = 10**5  # largest number of micro-batches in the search for a threshold
_APART = 1 / 8  # distance of grid points in the search, in standard deviations
_REACH = 10.0  # standard deviations beyond which a probability is 0 or 1 in float64
_AT_ONCE = 1 << 20  # numbers in memory at the same time
_FAR = 12.0  # standard deviations, beyond which the probability is below 1e-32
_FURTHEST = 40.0  # standard deviations; float64 has no larger quantiles of the normal distribution
_ACCURACY = 1e-12  # of an integral in standard deviations
_MOST_NODES = 2 * 10**8  # nodes of all micro-batches, which take some seconds
_LEAST = 100  # number of micro-batches whose cost equals the fixed cost
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)

Workers = Annotated[ArrayLike, "an integer, at least 1, or an array of them"]


@checks.arguments
def expected_effect(
    mean: float,
    std: float,
    micro_batches: int,
    workers: Workers,
    thresholds: Thresholds,
    communication: float = 0.0,
    stop: Stop = "preempt",
) -> Effect:
    r"""Returns the expected effect of thresholds, with the expectations of the terms of equation 6.

    $$ \frac{\mathbb E \tilde M(\tau)}{M} \cdot \frac{\mathbb E T + T^c}{\mathbb E R(\tau) + T^c},
    \qquad \mathbb E \tilde M(\tau) = \sum_{m=1}^M \Phi\Big(\frac{\tau - m \mu}{\sqrt{m}
    \sigma}\Big) \quad (5) $$

    Without a threshold the slowest worker computes for

    $$ \mathbb E T = M \mu + \sqrt M \sigma\, e_N, \qquad e_N = \int_0^\infty 1 - \Phi(z)^N dz -
    \int_{-\infty}^0 \Phi(z)^N dz $$

    seconds, by quadrature. With stop="preempt" it computes for $R(\tau) = \min(\tau, T)$:

    $$ \mathbb E \min(\tau, T) = \tau - \int_{-\infty}^\tau P(T \le x)\, dx $$

    With stop="between", worker n stops at $S_n > \tau$ unless it has finished before; this adds the
    time above tau:

    $$ \int_\tau^\infty 1 - P(S_n \le x)^N dx, \qquad P(S_n > x) = \sum_{m=1}^M P(T_n^{(m-1)} \le
    \tau,\ T_n^{(m)} > x) $$

    and a worker computes one micro-batch more than of M - 1 with "preempt", because all
    micro-batches that start at tau or before are counted.

    Args:
        mean: mu, seconds of a micro-batch, above 0.
        std: sigma, seconds, above 0.
        micro_batches: M.
        workers: N, an integer or an array.
        thresholds: tau, seconds, a number or an array that broadcasts with N; at
            least $M \mu / 2$ (assumption C.3), below which the model is not accurate. Infinity
            drops nothing.
        communication: T^c, seconds, at least 0.
        stop: "preempt" or "between", see `stopping.stop_workers`.

    Returns:
        The effect, with the broadcast shape of N and tau. The speedup is 0 if a step takes no time.

    Raises:
        ValueError: if mean or std is not finite and positive, M or N is less than 1, thresholds are
            negative or NaN, communication is negative or not finite, `stop` is unknown, or the
            shapes do not broadcast.

    Source: Giladi et al., "DropCompute", sections 4.2 and 4.3 and appendix C.2. Departure: the
    paper's equations 4 and 11 approximate E T and E R; see `theory_checks`.
    """
    where = "dropcompute.expected_effect"
    require_seconds(where, "communication", communication)
    model = _model(where, mean, std, micro_batches, stop)
    tau, N = _broadcast(where, thresholds, workers)
    computed = _micro_batches(model, np.asarray(thresholds, float)) / micro_batches
    share = np.broadcast_to(computed, tau.shape)
    whole = _step_time(model._replace(stop="preempt"), np.full(N.shape, np.inf), N)
    step = _step_time(model, tau, N)
    seconds = step + communication
    gain = np.where(seconds > 0, (whole + communication) / np.where(seconds > 0, seconds, 1), 0)
    return Effect(*(each[()] for each in (tau, share * gain, 1 - share, step, whole)))


@checks.arguments
def expected_threshold(
    mean: float, std: float, micro_batches: int, communication: float = 0.0
) -> float:
    r"""Returns the best preemptive threshold under the assumption that some worker always reaches
    it; it does not depend on the number of workers.

    $$ \tau^* = \operatorname{argmax}_{\tau \ge M \mu / 2} \frac{1}{\tau + T^c}
       \sum_{m=1}^M \Phi\Big(\frac{\tau - m \mu}{\sqrt m \sigma}\Big) $$

    There may be a local maximum for each micro-batch, so the search covers the times at which each
    of them ends. Below $M \mu / 2$ (assumption C.3) the model is not accurate.

    Args:
        mean, std, micro_batches: see `expected_effect`.
        communication: T^c, seconds, at least 0.

    Returns:
        tau, seconds.

    Raises:
        ValueError: see `expected_effect`; also if there are more than 10^5 micro-batches, or
            communication is negative or not finite.

    Source: Giladi et al., "DropCompute", the last equation of appendix C.2.
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 (training is spared its import)

    where = "dropcompute.expected_threshold"
    model = _model(where, mean, std, micro_batches, "preempt")
    require_seconds(where, "communication", communication)
    if micro_batches > _MOST:
        raise ValueError(
            f"{where}: micro_batches = {micro_batches}; expected at most {_MOST:,}, because each "
            "has its own maximum"
        )

    def rate(tau: Any) -> Any:
        return _micro_batches(model, np.asarray(tau)) / (tau + communication)

    grid = _grid_of_ends(model)
    best = int(np.argmax(rate(grid)))
    around = np.array([grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]])
    # Searches relative to the best grid point, because the accuracy of the search is relative to
    # the size of the result.
    moved = minimize_scalar(
        lambda by: -rate(grid[best] + by),
        bounds=around - grid[best],
        method="bounded",
        options={"xatol": 1e-9 * std},
    ).x
    return float(max(grid[best], grid[best] + moved, key=rate))


def _grid_of_ends(model: _Model) -> np.ndarray:
    """Returns a sorted grid of seconds from M mu / 2 on, a fraction of a standard deviation apart,
    which covers the times at which micro-batches may end.

    Micro-batches whose end times do not overlap have separate points around each end; where they
    overlap, all share the same points.
    """
    m = np.arange(1, model.micro_batches + 1)
    mean, std, least = model.mean, np.sqrt(m) * model.std, model.micro_batches * model.mean / 2
    alone = (17 * std < mean) & (m * mean + 9 * std >= least)
    near = m[alone] * mean + std[alone] * np.linspace(-8, 9, 69)[:, None]
    together = m[17 * std >= mean]
    common = np.zeros(0)
    if together.size:
        first = max(least, together[0] * mean - 8 * std[together[0] - 1])
        # The standard deviation of m micro-batches is sqrt(m) std, so the points are equidistant in
        # the square root of time.
        ends = np.sqrt(first), np.sqrt(m[-1] * mean + 9 * std[-1])
        steps = int((ends[1] - ends[0]) * 2 * np.sqrt(mean) / model.std / _APART) + 2
        common = np.linspace(*ends, steps) ** 2
    return np.unique(np.maximum(np.concatenate([near.ravel(), common]), least))


class _Model(NamedTuple):
    """Distribution of the micro-batches.

    Args:
        mean, std: mean and standard deviation, seconds.
        micro_batches: M.
        stop: "preempt" or "between".
    """

    mean: float
    std: float
    micro_batches: int
    stop: Stop

    @property
    def whole(self) -> tuple[float, float]:
        """Mean and standard deviation of the time of all M micro-batches of a worker."""
        return self.micro_batches * self.mean, np.sqrt(self.micro_batches) * self.std


def _step_time(model: _Model, tau: np.ndarray, N: np.ndarray) -> Any:
    mean, std = model.whole
    return mean + std * _mean_capped((tau - mean) / std, N) + _time_above(model, tau, N)


def _time_above(model: _Model, tau: np.ndarray, N: np.ndarray) -> Any:
    """Returns the seconds for which the last worker continues after tau."""
    return _overshoot(tau, *model[:3], N) if model.stop == "between" else 0.0


def _micro_batches(model: _Model, tau: np.ndarray) -> Any:
    from scipy.special import ndtr  # noqa: PLC0415 (training is spared its import)

    most = model.micro_batches - (model.stop == "between")
    times, reach = np.ravel(tau), _REACH * model.std / model.mean
    # `before` counts the micro-batches that have ended with certainty; those up to `last` are
    # within _REACH standard deviations of tau.
    middle = np.minimum(times / model.mean, most + reach**2 + reach * np.sqrt(most) + 1)
    width = np.ceil(reach**2 / 2 + reach * np.sqrt(reach**2 / 4 + middle)) + 1
    before = np.clip(np.floor(middle - width), 0, most)
    last = np.clip(np.ceil(middle + width), 0, most)
    counted = before.copy()
    longest = int((last - before).max(initial=0))
    rows = max(1, _AT_ONCE // max(1, longest))
    for first in range(0, times.size, rows):
        some = slice(first, first + rows)
        m = before[some, None] + np.arange(1, int((last - before)[some].max(initial=0)) + 1)
        ready = ndtr((times[some, None] - m * model.mean) / (np.sqrt(m) * model.std))
        counted[some] += np.where(m <= last[some, None], ready, 0).sum(axis=1)
    return counted.reshape(np.shape(tau)) + (model.stop == "between")


def _model(where: str, mean: float, std: float, micro_batches: int, stop: Stop) -> _Model:
    require_stop(where, stop)
    for what, seconds in (("mean", mean), ("std", std)):
        require_seconds(where, what, seconds, positive=True)
    if mean > 1e6 * std:
        raise ValueError(
            f"{where}: mean = {mean}, std = {std}; expected a std of at least 1e-6 of the mean"
        )
    if std > 1e6 * mean:
        raise ValueError(
            f"{where}: mean = {mean}, std = {std}; expected a std of at most 1e6 times the mean"
        )
    return _Model(
        float(mean), float(std), checks.positive_int(f"{where}: micro_batches", micro_batches), stop
    )


def _broadcast(where: str, thresholds: Any, workers: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns thresholds and workers as arrays of the same shape."""
    require_seconds(where, "thresholds", thresholds, finite=False)
    N = np.asarray(workers)
    if not np.issubdtype(N.dtype, np.integer) or not (N >= 1).all():
        raise ValueError(
            f"{where}: workers = {checks.show(workers)}; expected an integer >= 1, or an array of "
            "them"
        )
    tau = np.asarray(thresholds, float)
    try:
        tau, N = np.broadcast_arrays(tau, N)
    except ValueError:
        raise ValueError(
            f"{where}: thresholds {list(tau.shape)} for workers {list(N.shape)}; expected shapes "
            "that broadcast"
        ) from None
    return tau, N


# --- The seconds of the slowest worker, by adaptive quadrature.


def _mean_capped(cap: Any, N: np.ndarray) -> Any:
    r"""Returns $\mathbb E \min(z, \max_n Z_n)$ of N independent standard normal Z,
    $z - \int_{-\infty}^z \Phi(x)^N dx$.

    Args:
        cap: z, any shape; infinity: the mean of the largest of N.
        N: number of variables, with the same shape.
    """
    from scipy.special import log_ndtr  # noqa: PLC0415 (training is spared its import)

    top = np.clip(cap, -_FAR, _FURTHEST)
    below = _integral(lambda share: np.exp(N * log_ndtr(share * (top + _FAR) - _FAR)), top + _FAR)
    return top - below + np.minimum(cap + _FAR, 0)


def _overshoot(tau: np.ndarray, mean: float, std: float, micro_batches: int, N: np.ndarray) -> Any:
    r"""Returns the seconds that a stop between micro-batches adds to $\mathbb E \min(\tau, T)$,
    $\int_\tau^\infty 1 - P(S \le x)^N dx$.

    A worker stops after $x > \tau$ if one of its M micro-batches starts at a time u of at most tau
    and ends after x:

    $$ P(S > x) = \bar\Phi\Big(\frac{x - \mu}{\sigma}\Big) + \int_{-\infty}^\tau \sum_{m=1}^{M-1}
    p_m(u)\,
       \bar\Phi\Big(\frac{x - u - \mu}{\sigma}\Big) du $$

    with $p_m$ the density of $T^{(m)}$. Both factors vary on the scale of $\sigma$ or more, so the
    integral uses Gauss's rule on intervals of this length.

    Args:
        tau: seconds, any shape; infinity: nothing is added.
        mean, std: of a micro-batch, seconds.
        micro_batches: M.
        N: number of workers, with the shape of tau.

    Raises:
        ValueError: if the computation would take minutes, because the standard deviation is too
            small or there are too many micro-batches and thresholds.
    """
    from scipy.special import ndtr  # noqa: PLC0415 (training is spared its import)

    longest = mean + _FAR * std
    pieces = int(np.ceil(longest / std))
    if pieces * _NODES.size * max(1, tau.size) * max(_LEAST, micro_batches) > _MOST_NODES:
        raise ValueError(
            f"dropcompute: std = {std:g} s with mean = {mean:g} s, {micro_batches} micro-batches "
            f'and {tau.size} thresholds takes minutes with stop="between"; expected a larger std, '
            'fewer micro-batches or thresholds, or stop="preempt"'
        )
    width = longest / pieces
    # tau - u; micro-batches that start earlier do not end after tau
    before = ((np.arange(pieces)[:, None] + (_NODES + 1) / 2) * width).ravel()
    started = np.zeros((*tau.shape, before.size))
    for m in range(1, micro_batches):
        scale = np.sqrt(m) * std
        with np.errstate(over="ignore"):  # the exponent of distant nodes overflows, and exp gives 0
            started += np.exp(-(((tau[..., None] - before - m * mean) / scale) ** 2) / 2) / (
                scale * np.sqrt(2 * np.pi)
            )
    started *= np.tile(_WEIGHTS / 2 * width, pieces)

    def chance_beyond(share: float) -> Any:
        x = share * longest
        beyond = ndtr((mean - tau - x) / std) + started @ ndtr((mean - before - x) / std)
        with np.errstate(divide="ignore"):  # log(0) if a worker is beyond x with certainty
            return -np.expm1(N * np.log1p(-np.minimum(beyond, 1)))

    return _integral(chance_beyond, np.full(tau.shape, longest / std)) * std


def _integral(function: Callable[[float], Any], length: Any) -> Any:
    """Returns the integral of a function from 0 to `length`, for an array of lengths at once. The
    function takes the position as a share of the length.
    """
    from scipy.integrate import quad_vec  # noqa: PLC0415 (a sixth of a second that training is spared)

    if not np.size(length):
        return length
    return quad_vec(
        lambda share: length * function(share), 0, 1, epsabs=_ACCURACY, epsrel=0, norm="max"
    )[0]
