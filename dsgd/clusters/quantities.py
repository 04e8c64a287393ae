"""Quantities: seconds, or bits per second, that vary between workers, over time and at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from dsgd import checks
from dsgd.clusters import integrals
from dsgd.clusters.quantity import (
    Quantity,
    binomial_bound,
    digest,
    largest_overlap,
    require_number,
    require_numbers,
    require_probability,
)


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
    values = require_numbers("constant", value, least=0)
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
        f"constant({digest(values)})",
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
def bernoulli(
    probability: float | Sequence[float] | ArrayLike | Quantity, value: float
) -> Quantity:
    """A quantity that equals `value` with the given probability, and 0 otherwise.

    Draws are independent between workers, rounds and micro-batches. As participation this is
    Poisson sampling.

    Args:
        probability: probability of `value`, in [0, 1]: one number, `[N]`, one for each worker, or a
            quantity whose value, at most 1, is the probability at the time: a daily pattern is
            `bernoulli(sinusoid(0.6, math.pi / 86_400, 0.2, phase=...), 1.0)`.
        value: at least 0.

    Raises:
        ValueError: if a probability is outside [0, 1], or the value is negative, infinite or NaN.
    """
    require_number("bernoulli: value", value, least=0)
    if isinstance(probability, Quantity):
        probability.refuse_selection("bernoulli: probability")

        def sample(key, clock, worker):
            of_coin, of_probability = jax.random.split(key)
            p = probability.sample(of_probability, clock, worker)
            coin = jax.random.uniform(jax.random.fold_in(of_coin, worker), dtype=jnp.float32)
            return jnp.where(coin < p, jnp.float32(value), 0)

        return Quantity(
            sample,
            f"bernoulli({probability.name}, {value:.9g})",
            positive=False,
            workers=probability.workers,
            min_workers=probability.min_workers,
            time_invariant=probability.time_invariant,
            most=probability.most,
        )
    p = require_numbers("bernoulli", probability, least=0).astype(np.float64)
    if p.ndim > 1 or p.size == 0 or (p > 1).any():
        raise ValueError(
            f"bernoulli: probability = {checks.show(probability)}; expected a number from 0 to 1, "
            "or one for each worker"
        )
    by_worker = p.astype(np.float32)
    inclusion = p if value > 0 else np.zeros_like(p)
    certain, rest = int((inclusion == 1).sum()), inclusion[inclusion < 1]

    def draw(key, clock, worker):
        chance = jnp.asarray(by_worker)[worker] if p.ndim else float(p)
        coin = jax.random.bernoulli(jax.random.fold_in(key, worker), chance)
        return jnp.where(coin, jnp.float32(value), 0)

    def most(N: int) -> int:
        # Of all independent coins with this mean, equal ones have the heaviest tails (Hoeffding).
        return (
            certain + binomial_bound(rest.size, rest.mean() if rest.size else 0.0)
            if p.ndim
            else binomial_bound(N, float(inclusion))
        )

    return Quantity(
        draw,
        f"bernoulli({digest(p) if p.ndim else f'{float(p):.9g}'}, {value:.9g})",
        positive=False,
        workers=p.size if p.ndim else None,
        time_invariant=True,
        most=most,
        inclusion=tuple(inclusion.tolist()) if p.ndim else float(inclusion),
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
        sample, f"measured({digest(table)})", bool((table > 0).all()), workers, time_invariant=True
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

    name, positive = f"trace({digest(table)}, {interval:.9g})", bool((table > 0).all())
    return Quantity(
        sample, name, positive, workers, time_invariant=table.shape[1] == 1, integral=integral
    )


@checks.arguments
def sinusoid(
    eta: float,
    theta: float,
    delta: float,
    noise: float = 0.0,
    phase: float | Sequence[float] | ArrayLike = 0.0,
) -> Quantity:
    r"""A quantity that oscillates over time with multiplicative noise,
    $(\eta \sin^2(\theta (t + \phi)) + \delta)\, e^{\nu z}$ with $z \sim \mathcal N(0, 1)$.

    Args:
        eta: $\eta$, the difference between the maximum and the minimum, at least 0.
        theta: $\theta$, radians per second, at least 0.
        delta: $\delta$, the minimum, above 0.
        noise: $\nu$, at least 0; each worker draws its own z in every round.
        phase: $\phi$, seconds, at least 0: one number, or one for each worker.

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
    quantity = Quantity(
        sample, name, positive=True, time_invariant=eta == 0 or theta == 0, integral=integral
    )
    return _shifted("sinusoid", quantity, phase)


@checks.arguments
def square_wave(
    high: float,
    low: float,
    period: float,
    duty: float = 0.5,
    phase: float | Sequence[float] | ArrayLike = 0.0,
) -> Quantity:
    """A quantity that is `high` in the first part of each period, then `low`.

    Args:
        high, low: the two levels, at least 0.
        period: seconds, above 0.
        duty: share of a period in which the quantity is high, in [0, 1].
        phase: seconds of the first period that have passed at time 0, at least 0: one number, or
            one for each worker, for example for clients in several time zones.

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
    quantity = Quantity(
        sample,
        name,
        min(high, low) > 0,
        time_invariant=high == low or duty in (0, 1),
        integral=integral,
    )
    wave = _shifted("square_wave", quantity, phase)
    if wave.workers is None or (high > 0) == (low > 0):
        return wave
    # A thousandth of a period is for the rounding of the clock. The order of the levels, and the
    # direction of time, have no effect.
    share = min((duty if high > 0 else 1 - duty) + 1e-3, 1)
    return replace(wave, most=largest_overlap(np.asarray(phase, float), share * period, period))


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
    quantity.refuse_selection("bounded: quantity")
    name, positive = f"min({quantity.name}, {most:.9g})", quantity.positive and most > 0
    return replace(
        quantity,
        sample=lambda *args: jnp.minimum(quantity.sample(*args), most),
        name=name,
        positive=positive,
        integral=None,
        inclusion=quantity.inclusion if most > 0 else 0.0,
        spells=quantity.spells if most > 0 else None,
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
    quantity.refuse_selection("slow: quantity")

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
    by_period = quantity.by_period
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
        by_period=by_period
        and (lambda key, period, clock, worker: by_period(key, period, clock, worker // size)),
        spells=None if quantity.spells is None else np.repeat(quantity.spells, size, axis=0),
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


def _shifted(what: str, quantity: Quantity, phase: Any) -> Quantity:
    """Returns the quantity ahead in time by a phase in seconds, or by one for each worker."""
    phases = require_numbers(f"{what}: phase", phase, least=0)
    if phases.ndim > 1 or phases.size == 0:
        raise ValueError(
            f"{what}: phase of shape {phases.shape}; expected one number, or one for each worker"
        )
    if not phases.any():
        return replace(quantity, workers=phases.size if phases.ndim else None)
    seconds = phases.astype(np.float32)

    def later(clock, worker):
        return clock + (jnp.asarray(seconds)[worker] if seconds.ndim else seconds)

    return replace(
        quantity,
        sample=lambda key, clock, worker: quantity.sample(key, later(clock, worker), worker),
        integral=lambda key, clock, duration, worker: quantity.integrate(
            key, later(clock, worker), duration, worker
        ),
        name=f"{quantity.name} with phase {digest(phases) if phases.ndim else f'{phases:.9g}'}",
        workers=phases.size if phases.ndim else None,
    )


def _row(table: np.ndarray, worker: Any) -> Any:
    return worker if table.shape[0] > 1 else 0


def _table(what: str, values: Any) -> tuple[np.ndarray, int | None]:
    """Returns the values as `[1 or N, samples]`, and the N that they are for, if any."""
    table = require_numbers(what, values, least=0)
    if table.ndim not in (1, 2) or table.size == 0:
        raise ValueError(
            f"{what}: values of shape {table.shape}; expected [samples], or [N, samples] with a "
            "row for each worker"
        )
    return np.atleast_2d(table).astype(np.float32), table.shape[0] if table.ndim == 2 else None
