"""What a worker has of something at a time: a function of a key, the clock and its number; sums and
multiples of such functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import causes, checks
from dsgd.clusters import integrals


@checks.arguments
@dataclass(frozen=True)
class Quantity:
    """What a worker has of something at a time.

    Args:
        sample: (key, clock in seconds, worker) -> a float scalar, at least 0. All workers have the
            same key: what is each one's own is drawn with `fold_in(key, worker)`.
        name: for tables and checkpoints; it tells all parameters.
        positive: whether it is never 0, as bandwidths must be.
        workers: how many workers it is for, None for any number.
        named: how many workers there must be at least, since it names one of them.
        steady: whether it does not change with the clock: then a message has one bandwidth.
        integral: (key, clock, seconds, worker) -> the integral of `sample` over the clock, from
            `clock` on for so many seconds, of one that changes; None: it is a Gauss-Legendre sum of
            64 samples.
    """

    sample: Annotated[Callable[[jax.Array, jax.Array, Any], jax.Array], "(key, clock, worker)"]
    name: str
    positive: bool
    workers: int | None = None
    named: int = 0
    steady: bool = False
    integral: (
        Annotated[
            Callable[[jax.Array, jax.Array, jax.Array, Any], jax.Array],
            "(key, clock, seconds, worker)",
        ]
        | None
    ) = None

    def need_scalars(self) -> None:
        """Raises a ValueError unless its functions return float scalars."""
        key, time = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((), jnp.float32)
        worker = jax.ShapeDtypeStruct((), jnp.int32)
        _need_scalar(f"quantity {self.name!r}: sample", self.sample, key, time, worker)
        if self.integral is not None:
            _need_scalar(
                f"quantity {self.name!r}: integral", self.integral, key, time, time, worker
            )

    def amount(
        self, key: jax.Array, clock: jax.Array, seconds: jax.Array, worker: Any
    ) -> jax.Array:
        """What a worker gets of it in so many seconds from a time on: bits, of bits per second."""
        if self.steady:
            return seconds * self.sample(key, clock, worker)
        if self.integral is not None:
            return self.integral(key, clock, seconds, worker)
        return integrals.quadrature(lambda clock: self.sample(key, clock, worker), clock, seconds)

    def seconds(
        self, key: jax.Array, clock: jax.Array, amount: jax.Array, worker: Any
    ) -> jax.Array:
        """How long it takes from a time on until a worker has got so much of it: of bits per
        second, seconds of a message.
        """
        if self.steady:
            return amount / jnp.asarray(self.sample(key, clock, worker), jnp.float32)
        return integrals.needed(lambda seconds: self.amount(key, clock, seconds, worker), amount)

    def mean(self, key: jax.Array, clock: jax.Array, seconds: jax.Array, worker: Any) -> jax.Array:
        """What a worker has of it on average in so many seconds from a time on; where these are 0,
        at that time.
        """
        now = self.sample(key, clock, worker)
        if self.steady:
            return now
        return jnp.where(
            seconds == 0,
            now,
            self.amount(key, clock, seconds, worker) / jnp.where(seconds == 0, 1, seconds),
        )

    @checks.arguments
    def __add__(self, other: Quantity) -> Quantity:
        """The sum of the two, drawn independently."""

        def sample(key, clock, worker):
            first, second = jax.random.split(key)
            return self.sample(first, clock, worker) + other.sample(second, clock, worker)

        def integral(key, clock, seconds, worker):
            first, second = jax.random.split(key)
            return self.amount(first, clock, seconds, worker) + other.amount(
                second, clock, seconds, worker
            )

        positive, named, steady = (
            self.positive or other.positive,
            max(self.named, other.named),
            self.steady and other.steady,
        )
        return Quantity(
            sample,
            f"{self.name} + {other.name}",
            positive,
            same_workers(self, other),
            named,
            steady,
            integral,
        )

    @checks.arguments
    def __mul__(self, factor: float) -> Quantity:
        """So many times it."""
        need_number("a factor of a quantity", factor, least=0)
        name, positive = f"{factor:.9g} ({self.name})", self.positive and factor > 0
        return replace(
            self,
            sample=lambda *args: factor * self.sample(*args),
            name=name,
            positive=positive,
            integral=lambda *args: factor * self.amount(*args),
        )

    __rmul__ = __mul__


def _need_scalar(where: str, function: Callable, *arguments: Any) -> None:
    """Raises a ValueError unless the function returns one real number."""

    def called(*arguments: Any) -> Any:
        with causes.explained(where):
            value = function(*arguments)
        if (
            not isinstance(value, jax.Array | np.ndarray | np.generic | float | int)
            or np.shape(value)
            or not checks.is_numeric(value)
        ):
            raise ValueError(
                f"{where} = {checks.shown(function)} returned {checks.typed(value)}: need a float "
                "scalar"
            )
        return value

    jax.eval_shape(called, *arguments)


def need_number(what: str, value: Any, *, least: float, more: bool = False) -> None:
    """Raises a ValueError where the value is no finite number of at least, or more than,
    `least`.
    """
    if not math.isfinite(value) or value < least or (more and value == least):
        raise ValueError(
            f"{what} = {value!r}: need a finite number"
            + (f" {'>' if more else '>='} {least:.9g}" if least > -math.inf else "")
        )


def need_probability(what: str, value: Any) -> None:
    """Raises a ValueError unless it is a number from 0 to 1; `what` names it."""
    need_number(what, value, least=0)
    if value > 1:
        raise ValueError(f"{what} = {value!r}: need a number from 0 to 1")


def same_workers(*quantities: Quantity) -> int | None:
    """The number of workers that they are for."""
    numbers = {
        quantity.workers: quantity.name for quantity in quantities if quantity.workers is not None
    }
    if len(numbers) > 1:
        each = ", ".join(f"{name} for {workers}" for workers, name in numbers.items())
        raise ValueError(
            f"quantities for different numbers of workers: {each}; need the same number"
        )
    return next(iter(numbers), None)
