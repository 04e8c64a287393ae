"""Quantities: seconds, or bits per second, that vary between workers, over time and at random."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from dsgd import array_likes, checks
from dsgd.clusters import integrals
from dsgd.clusters.quantity import Quantity, binomial_bound, require_number, require_probability


@checks.arguments
def constant(value: float | Sequence[float] | ArrayLike) -> Quantity:
    """A quantity that does not change.

    Args:
        value: one number for all workers, or `[N]`, one for each; at least 0. In a function for
            `dsgd.replay` it may be a traced number, which is assumed to be positive.

    Raises:
        ValueError: if a number is negative, infinite or NaN, or there is none.
    """
    if isinstance(value, Tracer):
        return Quantity(
            lambda key, clock, worker: value.astype(jnp.float32),
            "constant(traced)",
            positive=True,
            time_invariant=True,
        )
    values = _numbers("constant", value, least=0)
    positive = bool((values.astype(np.float32) > 0).all())
    if values.size == 0:
        raise ValueError(
            "constant: value has no numbers; expected one number, or one for each worker"
        )
    if values.ndim == 0:
        return Quantity(
            lambda key, clock, worker: jnp.float32(values),
            f"constant({values:.9g})",
            positive,
            time_invariant=True,
            inclusion=float(positive),
        )
    if values.ndim != 1:
        raise ValueError(
            f"constant: value of shape {values.shape}; expected one number, or one for each worker"
        )
    numbers = values.astype(np.float32)
    return Quantity(
        lambda key, clock, worker: jnp.asarray(numbers)[worker],
        f"constant({_digest(values)})",
        positive,
        numbers.size,
        time_invariant=True,
        most=int((numbers > 0).sum()),
        inclusion=tuple((numbers > 0).astype(float).tolist()),
    )


@checks.arguments
def normal(mean: float, std: float) -> Quantity:
    r"""A normally distributed quantity, cut off at 0: $\max(0, \mathcal N(\mu, \sigma^2))$.

    Draws are independent between workers, rounds and micro-batches.

    Args:
        mean, std: mean $\mu$ and standard deviation $\sigma$ before the cut-off, at least 0.

    Raises:
        ValueError: if an argument is negative, infinite or NaN.
    """
    require_number("normal: mean", mean, least=0)
    require_number("normal: std", std, least=0)
    return _draw_by_worker(
        lambda key: jnp.maximum(0, mean + std * jax.random.normal(key)),
        f"normal({mean:.9g}, {std:.9g})",
    )


@checks.arguments
def lognormal(mu: float, sigma: float) -> Quantity:
    r"""A lognormally distributed quantity, $e^{\mathcal N(\mu, \sigma^2)}$, with mean
    $e^{\mu + \sigma^2/2}$.

    Draws are independent between workers, rounds and micro-batches.

    Args:
        mu, sigma: mean and standard deviation of the logarithm.

    Raises:
        ValueError: if an argument is infinite or NaN, or `sigma` is negative.
    """
    require_number("lognormal: mu", mu, least=-math.inf)
    require_number("lognormal: sigma", sigma, least=0)
    return _draw_by_worker(
        lambda key: jnp.exp(mu + sigma * jax.random.normal(key)),
        f"lognormal({mu:.9g}, {sigma:.9g})",
        positive=True,
    )


@checks.arguments
def bernoulli(probability: float, value: float) -> Quantity:
    """A quantity that equals `value` with the given probability, and 0 otherwise.

    Draws are independent between workers, rounds and micro-batches.

    Args:
        probability: probability of `value`, in [0, 1].
        value: at least 0.

    Raises:
        ValueError: if the probability is outside [0, 1], or the value is negative, infinite or NaN.
    """
    require_probability("bernoulli", probability)
    require_number("bernoulli: value", value, least=0)
    inclusion = float(probability) if value > 0 else 0.0
    return replace(
        _draw_by_worker(
            lambda key: jnp.where(
                jax.random.bernoulli(key, float(probability)), jnp.float32(value), 0
            ),
            f"bernoulli({probability:.9g}, {value:.9g})",
        ),
        most=lambda N: binomial_bound(N, inclusion),
        inclusion=inclusion,
    )


@checks.arguments
def exponential(mean: float) -> Quantity:
    """An exponentially distributed quantity.

    Draws are independent between workers, rounds and micro-batches.

    Args:
        mean: the mean, at least 0.

    Raises:
        ValueError: if the mean is negative, infinite or NaN.
    """
    require_number("exponential: mean", mean, least=0)
    return _draw_by_worker(
        lambda key: mean * jax.random.exponential(key), f"exponential({mean:.9g})"
    )


@checks.arguments
def gamma(shape: float, scale: float) -> Quantity:
    """A gamma-distributed quantity, with mean `shape * scale`.

    Draws are independent between workers, rounds and micro-batches.

    Args:
        shape: shape parameter, above 0.
        scale: scale parameter, at least 0.

    Raises:
        ValueError: if `shape` is not positive, `scale` is negative, or one is infinite or NaN.
    """
    require_number("gamma: shape", shape, least=0, more=True)
    require_number("gamma: scale", scale, least=0)
    return _draw_by_worker(
        lambda key: scale * jax.random.gamma(key, shape), f"gamma({shape:.9g}, {scale:.9g})"
    )


@checks.arguments
def measured(values: Sequence[Any] | np.ndarray) -> Quantity:
    """A quantity that is drawn uniformly from measured values.

    Draws are independent between workers, rounds and micro-batches.

    Args:
        values: `[samples]`, for all workers, or `[N, samples]`, with a row for each worker; at
            least 0.

    Raises:
        ValueError: if there are no values, or a value is negative, infinite or NaN.
    """
    table, workers = _table("measured", values)

    def sample(key, clock, worker):
        return jnp.asarray(table)[
            _row(table, worker),
            jax.random.randint(jax.random.fold_in(key, worker), (), 0, table.shape[1]),
        ]

    return Quantity(
        sample, f"measured({_digest(table)})", bool((table > 0).all()), workers, time_invariant=True
    )


@checks.arguments
def trace(values: Sequence[Any] | np.ndarray, interval: float) -> Quantity:
    """A quantity that follows a recording over time, and repeats it when it ends.

    Args:
        values: `[samples]`, for all workers, or `[N, samples]`, with a row for each worker; at
            least 0.
        interval: seconds from one sample to the next, above 0.

    Raises:
        ValueError: if there are no values, a value is negative, infinite or NaN, or `interval` is
            not positive.
    """
    table, workers = _table("trace", values)
    require_number("trace: interval", interval, least=0, more=True)
    sums = integrals.cumulative_sums(table)

    def sample(key, clock, worker):
        return jnp.asarray(table)[
            _row(table, worker), jnp.floor(clock / interval).astype(jnp.int32) % table.shape[1]
        ]

    def integral(key, clock, seconds, worker):
        return integrals.integrate_trace(table, sums, interval, _row(table, worker), clock, seconds)

    name, positive = f"trace({_digest(table)}, {interval:.9g})", bool((table > 0).all())
    return Quantity(
        sample, name, positive, workers, time_invariant=table.shape[1] == 1, integral=integral
    )


@checks.arguments
def sinusoid(eta: float, theta: float, delta: float, noise: float = 0.0) -> Quantity:
    r"""A quantity that oscillates over time with multiplicative noise,
    $(\eta \sin^2(\theta t) + \delta)\, e^{\nu z}$ with $z \sim \mathcal N(0, 1)$.

    Args:
        eta: $\eta$, the difference between the maximum and the minimum, at least 0.
        theta: $\theta$, radians per second, at least 0.
        delta: $\delta$, the minimum, above 0.
        noise: $\nu$, at least 0; each worker draws its own z in every round.

    Raises:
        ValueError: if `delta` is not positive, another argument is negative, or one is infinite or
            NaN.

    Source: Xin et al., "Kimad", section 4.2. The paper does not state its noise; this one keeps
    bandwidths positive.
    """
    for what, value in (("eta", eta), ("theta", theta), ("noise", noise)):
        require_number(f"sinusoid: {what}", value, least=0)
    require_number("sinusoid: delta", delta, least=0, more=True)

    def noisy(key, worker, level):
        return (
            level * jnp.exp(noise * jax.random.normal(jax.random.fold_in(key, worker)))
            if noise
            else level
        )

    def sample(key, clock, worker):
        return noisy(key, worker, eta * jnp.sin(theta * clock) ** 2 + delta)

    def integral(key, clock, seconds, worker):
        return noisy(key, worker, integrals.integrate_sinusoid(eta, theta, delta, clock, seconds))

    name = f"sinusoid({eta:.9g}, {theta:.9g}, {delta:.9g}, {noise:.9g})"
    return Quantity(
        sample, name, positive=True, time_invariant=eta == 0 or theta == 0, integral=integral
    )


@checks.arguments
def square_wave(high: float, low: float, period: float, duty: float = 0.5) -> Quantity:
    """A quantity that is `high` in the first part of each period, then `low`.

    Args:
        high, low: the two levels, at least 0.
        period: seconds, above 0.
        duty: share of a period in which the quantity is high, in [0, 1].

    Raises:
        ValueError: if a level is negative, infinite or NaN, `period` is not positive, or `duty` is
            outside [0, 1].
    """
    require_number("square_wave: high", high, least=0)
    require_number("square_wave: low", low, least=0)
    require_number("square_wave: period", period, least=0, more=True)
    require_probability("square_wave: duty", duty)

    def sample(key, clock, worker):
        return jnp.where(
            jnp.mod(clock, period) < duty * period, jnp.float32(high), jnp.float32(low)
        )

    def integral(key, clock, seconds, worker):
        return integrals.integrate_square_wave(high, low, period, duty, clock, seconds)

    name = f"square_wave({high:.9g}, {low:.9g}, {period:.9g}, {duty:.9g})"
    return Quantity(
        sample,
        name,
        min(high, low) > 0,
        time_invariant=high == low or duty in (0, 1),
        integral=integral,
    )


@checks.arguments
def bounded(quantity: Quantity, most: float) -> Quantity:
    r"""A quantity with an upper bound, $\min(X, \beta)$.

    Args:
        quantity: X.
        most: $\beta$, at least 0.

    Raises:
        ValueError: if `quantity` is not a quantity, or `most` is negative, infinite or NaN.
    """
    require_number("bounded: most", most, least=0)
    name, positive = f"min({quantity.name}, {most:.9g})", quantity.positive and most > 0
    return replace(
        quantity,
        sample=lambda *args: jnp.minimum(quantity.sample(*args), most),
        name=name,
        positive=positive,
        integral=None,
        inclusion=quantity.inclusion if most > 0 else 0.0,
    )


@checks.arguments
def slow(quantity: Quantity, workers: Sequence[int], factor: float) -> Quantity:
    """A quantity that is multiplied by `factor` for some workers, in all rounds. With seconds and a
    factor above 1, these workers are slower.

    Args:
        quantity: the quantity of all workers.
        workers: numbers of the workers.
        factor: above 0.

    Raises:
        ValueError: if `quantity` is not a quantity, a worker is not an integer from 0 on, or
            `factor` is not positive.
    """
    chosen = sorted({checks.natural("slow: worker", worker) for worker in workers})
    require_number("slow: factor", factor, least=0, more=True)

    def times(worker):
        return jnp.where(jnp.isin(worker, jnp.asarray(chosen, jnp.int32)), factor, 1.0)

    def sample(key, clock, worker):
        return times(worker) * quantity.sample(key, clock, worker)

    def integral(key, clock, seconds, worker):
        return times(worker) * quantity.integrate(key, clock, seconds, worker)

    name, named = (
        f"slow({quantity.name}, {chosen}, {factor:.9g})",
        max([quantity.min_workers, *(worker + 1 for worker in chosen)]),
    )
    return replace(quantity, sample=sample, name=name, min_workers=named, integral=integral)


@checks.arguments
def per_server(quantity: Quantity, size: int) -> Quantity:
    """A quantity that workers on the same server share, so that a straggler is a whole server.

    Args:
        quantity: the quantity of each server, as a function of the server's number.
        size: workers per server, at least 1; workers 0 to `size - 1` are on the first server.

    Raises:
        ValueError: if `quantity` is not a quantity, or `size` is less than 1.
    """
    checks.positive_int("per_server: size", size)
    return replace(
        quantity,
        sample=lambda key, clock, worker: quantity.sample(key, clock, worker // size),
        name=f"per_server({quantity.name}, {size})",
        workers=None if quantity.workers is None else size * quantity.workers,
        min_workers=size * (quantity.min_workers - 1) + 1 if quantity.min_workers else 0,
        integral=lambda key, clock, seconds, worker: quantity.integrate(
            key, clock, seconds, worker // size
        ),
        most=lambda N: size * quantity.most_of(-(-N // size)),
        inclusion=tuple(np.repeat(quantity.inclusion, size).tolist())
        if isinstance(quantity.inclusion, tuple)
        else quantity.inclusion,
    )


@checks.arguments
def sampled(k: int, of: int) -> Quantity:
    """A quantity that is 1 for exactly k of N workers, drawn uniformly without replacement in every
    round, and 0 for the others: client sampling.

    Args:
        k: number of sampled workers, from 1 to N.
        of: N.

    Raises:
        ValueError: if `k` or `of` is out of range.
    """
    k, of = checks.positive_int("sampled: k", k), checks.positive_int("sampled: of", of)
    if k > of:
        raise ValueError(f"sampled: k = {k} of {of} workers; expected k of at most {of}")

    def sample(key, clock, worker):
        return (jax.random.permutation(key, of)[worker] < k).astype(jnp.float32)

    return Quantity(
        sample, f"sampled({k}, of={of})", k == of, of, time_invariant=True, most=k, inclusion=k / of
    )


def _draw_by_worker(
    draw: Callable[[jax.Array], jax.Array], name: str, *, positive: bool = False
) -> Quantity:
    """A quantity with an independent draw for each worker from one distribution."""
    return Quantity(
        lambda key, clock, worker: draw(jax.random.fold_in(key, worker)),
        name,
        positive,
        time_invariant=True,
    )


def _row(table: np.ndarray, worker: Any) -> Any:
    return worker if table.shape[0] > 1 else 0


def _table(what: str, values: Any) -> tuple[np.ndarray, int | None]:
    """Returns the values as `[1 or N, samples]`, and the N that they are for, if any."""
    table = _numbers(what, values, least=0)
    if table.ndim not in (1, 2) or table.size == 0:
        raise ValueError(
            f"{what}: values of shape {table.shape}; expected [samples], or [N, samples] with a "
            "row for each worker"
        )
    return np.atleast_2d(table).astype(np.float32), table.shape[0] if table.ndim == 2 else None


def _numbers(what: str, values: Any, *, least: float) -> np.ndarray:
    array = np.array(array_likes.numbers(what, values))
    if array.dtype == bool:
        raise ValueError(f"{what}: given {checks.show(values)}; expected numbers")
    with np.errstate(over="ignore"):
        # Draws are float32, so that the numbers must be finite and not round to 0 in float32.
        drawn = array.astype(np.float32)
        wrong = ~(np.isfinite(drawn) & ((drawn != 0) == (array != 0)) & (array >= least))
    if wrong.any():
        raise ValueError(
            f"{what}: given {array[wrong].ravel()[0]}; expected finite numbers >= {least:.9g} "
            "that float32 can represent"
        )
    return array


def _digest(values: np.ndarray) -> str:
    shape = "x".join(map(str, values.shape))
    digest = hashlib.sha256(np.ascontiguousarray(values, np.float64).tobytes()).hexdigest()
    return f"{shape} numbers {digest[:8]}"
