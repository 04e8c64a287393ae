"""Seconds, or bits per second, that differ by worker, time and chance."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import array_likes, checks
from dsgd.clusters import integrals
from dsgd.clusters.quantity import Quantity, need_number, need_probability


@checks.arguments
def constant(value: float | Sequence[float] | np.ndarray) -> Quantity:
    """Always the same.

    Args:
        value: of all workers, or a list with one for each.

    Raises:
        ValueError: negative, infinite or NaN.
    """
    values = _numbers("constant", value, least=0)
    positive = bool((values.astype(np.float32) > 0).all())
    if values.size == 0:
        raise ValueError("constant of no numbers: need one, or one for each worker")
    if values.ndim == 0:
        return Quantity(
            lambda key, clock, worker: jnp.float32(values),
            f"constant({values:.9g})",
            positive,
            steady=True,
        )
    if values.ndim != 1:
        raise ValueError(
            f"constant of shape {values.shape}: need one number, or one for each worker"
        )
    each = values.astype(np.float32)
    return Quantity(
        lambda key, clock, worker: jnp.asarray(each)[worker],
        f"constant({_digest(values)})",
        positive,
        each.size,
        steady=True,
    )


@checks.arguments
def normal(mean: float, std: float) -> Quantity:
    r"""$\max(0, \mathcal N(\mu, \sigma^2))$: nobody takes less than no time.

    Args:
        mean, std: of the normal distribution.

    Raises:
        ValueError: negative, infinite or NaN.
    """
    need_number("normal: mean", mean, least=0)
    need_number("normal: std", std, least=0)
    return _drawn(
        lambda key: jnp.maximum(0, mean + std * jax.random.normal(key)),
        f"normal({mean:.9g}, {std:.9g})",
    )


@checks.arguments
def lognormal(mu: float, sigma: float) -> Quantity:
    r"""$e^{\mathcal N(\mu, \sigma^2)}$, with the mean $e^{\mu + \sigma^2/2}$.

    Args:
        mu, sigma: of the logarithm.

    Raises:
        ValueError: infinite or NaN, or a negative sigma.
    """
    need_number("lognormal: mu", mu, least=-math.inf)
    need_number("lognormal: sigma", sigma, least=0)
    return _drawn(
        lambda key: jnp.exp(mu + sigma * jax.random.normal(key)),
        f"lognormal({mu:.9g}, {sigma:.9g})",
        positive=True,
    )


@checks.arguments
def bernoulli(probability: float, value: float) -> Quantity:
    """The value with this probability, else 0.

    Raises:
        ValueError: a probability outside [0, 1]; a value that is negative, infinite or NaN.
    """
    need_probability("bernoulli", probability)
    need_number("bernoulli: value", value, least=0)
    return _drawn(
        lambda key: jnp.where(jax.random.bernoulli(key, float(probability)), jnp.float32(value), 0),
        f"bernoulli({probability:.9g}, {value:.9g})",
    )


@checks.arguments
def exponential(mean: float) -> Quantity:
    """Exponentially distributed.

    Raises:
        ValueError: a mean that is negative, infinite or NaN.
    """
    need_number("exponential: mean", mean, least=0)
    return _drawn(lambda key: mean * jax.random.exponential(key), f"exponential({mean:.9g})")


@checks.arguments
def gamma(shape: float, scale: float) -> Quantity:
    """Gamma distributed, with the mean shape times scale.

    Raises:
        ValueError: a shape <= 0, a negative scale, infinite or NaN.
    """
    need_number("gamma: shape", shape, least=0, more=True)
    need_number("gamma: scale", scale, least=0)
    return _drawn(
        lambda key: scale * jax.random.gamma(key, shape), f"gamma({shape:.9g}, {scale:.9g})"
    )


@checks.arguments
def measured(values: Sequence[Any] | np.ndarray) -> Quantity:
    """One of these measurements, drawn anew each time.

    Args:
        values: `[samples]`, of all workers; or `[N, samples]`, each worker's own.

    Raises:
        ValueError: none; negative, infinite or NaN.
    """
    table, workers = _table("measured", values)

    def sample(key, clock, worker):
        return jnp.asarray(table)[
            _row(table, worker),
            jax.random.randint(jax.random.fold_in(key, worker), (), 0, table.shape[1]),
        ]

    return Quantity(
        sample, f"measured({_digest(table)})", bool((table > 0).all()), workers, steady=True
    )


@checks.arguments
def trace(values: Sequence[Any] | np.ndarray, interval: float) -> Quantity:
    """A recording, by the clock; it begins again when it is over.

    Args:
        values: `[samples]`, of all workers; or `[N, samples]`, each worker's own.
        interval: seconds from one sample to the next.

    Raises:
        ValueError: no values; negative, infinite or NaN ones; an interval <= 0.
    """
    table, workers = _table("trace", values)
    need_number("trace: interval", interval, least=0, more=True)
    sums = integrals.sums_of(table)

    def sample(key, clock, worker):
        return jnp.asarray(table)[
            _row(table, worker), jnp.floor(clock / interval).astype(jnp.int32) % table.shape[1]
        ]

    def integral(key, clock, seconds, worker):
        return integrals.of_trace(table, sums, interval, _row(table, worker), clock, seconds)

    name, positive = f"trace({_digest(table)}, {interval:.9g})", bool((table > 0).all())
    return Quantity(sample, name, positive, workers, steady=table.shape[1] == 1, integral=integral)


@checks.arguments
def sinusoid(eta: float, theta: float, delta: float, noise: float = 0.0) -> Quantity:
    r"""$(\eta \sin^2(\theta t) + \delta)\, e^{\nu z}$ at the time t, with z from
    $\mathcal N(0, 1)$.

    Args:
        eta: between the least and the most.
        theta: radians per second.
        delta: the least.
        noise: nu; each worker draws its own, anew in every round.

    Raises:
        ValueError: delta <= 0; others negative; infinite or NaN.

    Source: Xin et al., "Kimad", section 4.2, whose noise is not stated; this one keeps bandwidths
    positive.
    """
    for what, value in (("eta", eta), ("theta", theta), ("noise", noise)):
        need_number(f"sinusoid: {what}", value, least=0)
    need_number("sinusoid: delta", delta, least=0, more=True)

    def noisy(key, worker, level):
        return (
            level * jnp.exp(noise * jax.random.normal(jax.random.fold_in(key, worker)))
            if noise
            else level
        )

    def sample(key, clock, worker):
        return noisy(key, worker, eta * jnp.sin(theta * clock) ** 2 + delta)

    def integral(key, clock, seconds, worker):
        return noisy(key, worker, integrals.of_sinusoid(eta, theta, delta, clock, seconds))

    name = f"sinusoid({eta:.9g}, {theta:.9g}, {delta:.9g}, {noise:.9g})"
    return Quantity(sample, name, positive=True, steady=eta == 0 or theta == 0, integral=integral)


@checks.arguments
def square_wave(high: float, low: float, period: float, duty: float = 0.5) -> Quantity:
    """High for the first part of each period, then low.

    Args:
        high, low: the two levels.
        period: seconds.
        duty: the part of a period that is high, from 0 to 1.

    Raises:
        ValueError: levels that are negative, infinite or NaN; a period <= 0; a duty outside [0, 1].
    """
    need_number("square_wave: high", high, least=0)
    need_number("square_wave: low", low, least=0)
    need_number("square_wave: period", period, least=0, more=True)
    need_probability("square_wave: duty", duty)

    def sample(key, clock, worker):
        return jnp.where(
            jnp.mod(clock, period) < duty * period, jnp.float32(high), jnp.float32(low)
        )

    def integral(key, clock, seconds, worker):
        return integrals.of_square_wave(high, low, period, duty, clock, seconds)

    name = f"square_wave({high:.9g}, {low:.9g}, {period:.9g}, {duty:.9g})"
    return Quantity(
        sample, name, min(high, low) > 0, steady=high == low or duty in (0, 1), integral=integral
    )


@checks.arguments
def bounded(quantity: Quantity, most: float) -> Quantity:
    r"""$\min(X, \beta)$.

    Args:
        quantity: X.
        most: beta.

    Raises:
        ValueError: not a quantity; a bound that is negative, infinite or NaN.
    """
    need_number("bounded: most", most, least=0)
    name, positive = f"min({quantity.name}, {most:.9g})", quantity.positive and most > 0
    return replace(
        quantity,
        sample=lambda *args: jnp.minimum(quantity.sample(*args), most),
        name=name,
        positive=positive,
        integral=None,
    )


@checks.arguments
def slow(quantity: Quantity, workers: Sequence[int], factor: float) -> Quantity:
    """Some workers always have `factor` times as much: with seconds, they are slower; a whole
    server, if they are all on one.

    Args:
        quantity: of all.
        workers: which.
        factor: > 0.

    Raises:
        ValueError: not a quantity, a worker that is no number from 0, a factor <= 0.
    """
    chosen = sorted({checks.natural("slow: worker", worker) for worker in workers})
    need_number("slow: factor", factor, least=0, more=True)

    def times(worker):
        return jnp.where(jnp.isin(worker, jnp.asarray(chosen, jnp.int32)), factor, 1.0)

    def sample(key, clock, worker):
        return times(worker) * quantity.sample(key, clock, worker)

    def integral(key, clock, seconds, worker):
        return times(worker) * quantity.amount(key, clock, seconds, worker)

    name, named = (
        f"slow({quantity.name}, {chosen}, {factor:.9g})",
        max([quantity.named, *(worker + 1 for worker in chosen)]),
    )
    return replace(quantity, sample=sample, name=name, named=named, integral=integral)


@checks.arguments
def per_server(quantity: Quantity, size: int) -> Quantity:
    """Workers come in servers of `size`, and those of one server share each draw: a straggler is
    then a whole server.

    Args:
        quantity: of each server, by its number.
        size: workers of a server; the first are 0 to size - 1.

    Raises:
        ValueError: not a quantity, size < 1.
    """
    checks.positive_int("per_server: size", size)
    return replace(
        quantity,
        sample=lambda key, clock, worker: quantity.sample(key, clock, worker // size),
        name=f"per_server({quantity.name}, {size})",
        workers=None if quantity.workers is None else size * quantity.workers,
        named=size * (quantity.named - 1) + 1 if quantity.named else 0,
        integral=lambda key, clock, seconds, worker: quantity.amount(
            key, clock, seconds, worker // size
        ),
    )


@checks.arguments
def sampled(k: int, of: int) -> Quantity:
    """1 for exactly k of N workers, drawn without replacement and uniformly, else 0: clients that
    are sampled.

    Args:
        k: from 1 to N.
        of: N.

    Raises:
        ValueError: another k or N.
    """
    k, of = checks.positive_int("sampled: k", k), checks.positive_int("sampled: of", of)
    if k > of:
        raise ValueError(f"sampled: k = {k} of {of}: need at most {of}")

    def sample(key, clock, worker):
        return (jax.random.permutation(key, of)[worker] < k).astype(jnp.float32)

    return Quantity(sample, f"sampled({k}, of={of})", positive=k == of, workers=of)


def _drawn(
    draw: Callable[[jax.Array], jax.Array], name: str, *, positive: bool = False
) -> Quantity:
    """Every worker's own draw from one distribution."""
    return Quantity(
        lambda key, clock, worker: draw(jax.random.fold_in(key, worker)),
        name,
        positive,
        steady=True,
    )


def _row(table: np.ndarray, worker: Any) -> Any:
    return worker if table.shape[0] > 1 else 0


def _table(what: str, values: Any) -> tuple[np.ndarray, int | None]:
    """The values as `[1 or N, samples]`, and the N that they are for."""
    table = _numbers(what, values, least=0)
    if table.ndim not in (1, 2) or table.size == 0:
        raise ValueError(
            f"{what} of values of shape {table.shape}: need [samples], or [N, samples] with a row "
            "for each worker"
        )
    return np.atleast_2d(table).astype(np.float32), table.shape[0] if table.ndim == 2 else None


def _numbers(what: str, values: Any, *, least: float) -> np.ndarray:
    array = np.array(array_likes.numbers(what, values))
    if array.dtype == bool:
        raise ValueError(f"{what}: given {checks.shown(values)}; need numbers")
    with np.errstate(over="ignore"):
        drawn = array.astype(np.float32)  # as draws are
        wrong = ~(np.isfinite(drawn) & ((drawn != 0) == (array != 0)) & (array >= least))
    if wrong.any():
        raise ValueError(
            f"{what}: given {array[wrong].ravel()[0]}; need finite numbers >= {least:.9g} that "
            "float32 holds"
        )
    return array


def _digest(values: np.ndarray) -> str:
    shape = "x".join(map(str, values.shape))
    return f"{shape} numbers {hashlib.sha256(np.ascontiguousarray(values, np.float64).tobytes()).hexdigest()[:8]}"
