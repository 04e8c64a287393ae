"""The type `Quantity`: a function of a key, the clock and a worker's number; sums and multiples of
quantities.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dsgd import array_likes, causes, checks
from dsgd.base import Real
from dsgd.clusters import integrals

# A bound on the number of participants may fail with this probability in a round.
_UNLIKELY = 1e-12


@checks.arguments
@dataclass(frozen=True)
class Quantity:
    """A number of seconds or of bits per second that may vary between workers, over time and at
    random.

    Args:
        sample: (key, clock in seconds, worker's number) -> float scalar, at least 0. All workers
            get the same key; use `fold_in(key, worker)` for draws that differ between workers.
        name: name in tables and checkpoints; it must contain all parameters.
        positive: whether the quantity is never 0, as is required of bandwidths.
        workers: number of workers that the quantity is for; None for any number.
        min_workers: least number of workers that the quantity needs, because it names one of them.
        time_invariant: whether the quantity does not depend on the clock.
        integral: (key, clock, seconds, worker's number) -> the integral of `sample` from `clock` to
            `clock + seconds`, for a quantity that depends on the clock; None: Gauss-Legendre
            quadrature with 64 nodes is used.
        most: for `Cluster.present`: the largest number of workers with a positive value at once, or
            a function of N that returns it; a run with it computes so many workers in a round, and
            fails if there are more. None: unknown.
        inclusion: for `Cluster.present` and `Cluster.delivered`: the probability that the value is
            positive, one number or one for each worker, `[N]`; None: unknown.
        by_period: (key of the run, number of the participation period, clock in seconds, worker's
            number) -> float scalar, for selections that depend on earlier periods; it replaces
            `sample`, and only `Cluster.present` and `Cluster.delivered` accept it. None: `sample`
            is used.
        spells: for `Cluster.present`: the seconds at which each spell of each worker begins and
            ends, float32 `[N, k, 2]`, if the quantity is positive in these spells and 0 otherwise;
            ascending and disjoint, and (inf, inf) after a worker's last one. Methods without rounds
            read them. None: the quantity depends on something else.

    Raises:
        ValueError: if `most` is negative, or `inclusion` is not a probability.
    """

    sample: Annotated[Callable[[jax.Array, jax.Array, Any], jax.Array], "(key, clock, worker)"]
    name: str
    positive: bool
    workers: int | None = None
    min_workers: int = 0
    time_invariant: bool = False
    integral: (
        Annotated[
            Callable[[jax.Array, jax.Array, jax.Array, Any], jax.Array],
            "(key, clock, seconds, worker)",
        ]
        | None
    ) = None
    most: int | Annotated[Callable[[int], int], "(N)"] | None = None
    inclusion: tuple[float, ...] | float | None = None
    by_period: (
        Annotated[
            Callable[[jax.Array, jax.Array, jax.Array, Any], jax.Array],
            "(key, period, clock, worker)",
        ]
        | None
    ) = None
    # Arrays have no hash; quantities are compared by their functions and names.
    spells: np.ndarray | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.most, int):
            checks.natural("Quantity: most", self.most)
        given = () if self.inclusion is None else self.inclusion
        probabilities = array_likes.numbers("Quantity: inclusion", given).ravel()
        if not ((probabilities >= 0) & (probabilities <= 1)).all():
            raise ValueError(
                f"Quantity: inclusion = {checks.show(self.inclusion)}; expected probabilities, "
                "numbers from 0 to 1"
            )

    def __repr__(self) -> str:
        return f"Quantity({self.name})"

    def refuse_selection(self, where: str) -> None:
        """Raises ValueError if the quantity is a selection by participation periods, which only
        `Cluster.present` and `Cluster.delivered` accept.
        """
        if self.by_period is not None:
            raise ValueError(
                f"{where} = {self.name}, a selection by participation periods; expected another "
                "quantity; pass it as Cluster(present=...)"
            )

    def most_of(self, N: int) -> int:
        """Returns a bound on the number of N workers with a positive value at once; N, if no other
        is known.
        """
        if self.most is None:
            return N
        return min(N, self.most if isinstance(self.most, int) else self.most(N))

    def require_scalars(self) -> None:
        """Raises ValueError if a function of the quantity does not return a float scalar."""
        key, time = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((), jnp.float32)
        worker = jax.ShapeDtypeStruct((), jnp.int32)
        _require_scalar(f"quantity {self.name!r}: sample", self.sample, key, time, worker)
        if self.integral is not None:
            _require_scalar(
                f"quantity {self.name!r}: integral", self.integral, key, time, time, worker
            )
        if self.by_period is not None:
            _require_scalar(
                f"quantity {self.name!r}: by_period", self.by_period, key, worker, time, worker
            )

    def integrate(
        self, key: jax.Array, clock: jax.Array, seconds: jax.Array, worker: Any
    ) -> jax.Array:
        """Returns the integral over the given seconds from `clock` on: bits, if the quantity is
        bits per second.
        """
        if self.time_invariant:
            return seconds * self.sample(key, clock, worker)
        if self.integral is not None:
            return self.integral(key, clock, seconds, worker)
        return integrals.quadrature(lambda clock: self.sample(key, clock, worker), clock, seconds)

    def seconds(
        self, key: jax.Array, clock: jax.Array, amount: jax.Array, worker: Any
    ) -> jax.Array:
        """Returns the seconds from `clock` on until the integral reaches `amount`: the time of a
        message, if the quantity is bits per second.
        """
        if self.time_invariant:
            return amount / jnp.asarray(self.sample(key, clock, worker), jnp.float32)
        return integrals.seconds_needed(
            lambda seconds: self.integrate(key, clock, seconds, worker), amount
        )

    def mean(self, key: jax.Array, clock: jax.Array, seconds: jax.Array, worker: Any) -> jax.Array:
        """Returns the mean over the given seconds from `clock` on; if they are 0, the value at
        `clock`.
        """
        value = self.sample(key, clock, worker)
        if self.time_invariant:
            return value
        return jnp.where(
            seconds == 0,
            value,
            self.integrate(key, clock, seconds, worker) / jnp.where(seconds == 0, 1, seconds),
        )

    @checks.arguments
    def __add__(self, other: Quantity) -> Quantity:
        """Returns the sum of two quantities, which are drawn independently."""
        self.refuse_selection("Quantity: quantity")
        other.refuse_selection("Quantity: other")

        def sample(key, clock, worker):
            first, second = jax.random.split(key)
            return self.sample(first, clock, worker) + other.sample(second, clock, worker)

        def integral(key, clock, seconds, worker):
            first, second = jax.random.split(key)
            return self.integrate(first, clock, seconds, worker) + other.integrate(
                second, clock, seconds, worker
            )

        positive, min_workers, time_invariant = (
            self.positive or other.positive,
            max(self.min_workers, other.min_workers),
            self.time_invariant and other.time_invariant,
        )
        return Quantity(
            sample,
            f"{self.name} + {other.name}",
            positive,
            same_workers(self, other),
            min_workers,
            time_invariant,
            integral,
        )

    @checks.arguments
    def __mul__(self, factor: Real) -> Quantity:
        """Returns the quantity times a nonnegative number. In a function for `dsgd.replay` it may
        be traced, and is then assumed to be positive.
        """
        self.refuse_selection("Quantity: quantity")
        if isinstance(factor, Tracer):
            name, positive = f"traced ({self.name})", self.positive
        else:
            require_number("Quantity: factor", factor, least=0)
            name, positive = f"{factor:.9g} ({self.name})", self.positive and factor > 0
        return replace(
            self,
            sample=lambda *args: factor * self.sample(*args),
            name=name,
            positive=positive,
            integral=lambda *args: factor * self.integrate(*args),
            inclusion=self.inclusion if isinstance(factor, Tracer) or factor > 0 else 0.0,
            spells=self.spells if isinstance(factor, Tracer) or factor > 0 else None,
        )

    __rmul__ = __mul__


def _require_scalar(where: str, function: Callable, *arguments: Any) -> None:
    """Raises ValueError if the function does not return one real number."""

    def call(*arguments: Any) -> Any:
        with causes.refuse_errors(where):
            value = function(*arguments)
        if (
            not isinstance(value, jax.Array | np.ndarray | np.generic | float | int)
            or np.shape(value)
            or not checks.is_numeric(value)
        ):
            raise ValueError(
                f"{where} = {checks.show(function)} returned {checks.kind(value)}; expected a "
                "float scalar"
            )
        return value

    jax.eval_shape(call, *arguments)


def require_number(what: str, value: Any, *, least: float, more: bool = False) -> None:
    """Raises ValueError if the value is not a finite number that is at least `least` (or, with
    `more`, above it).
    """
    is_valid = checks.is_number(value) and math.isfinite(value)
    if not is_valid or value < least or (more and value == least):
        raise ValueError(
            f"{what} = {checks.show(value)}; expected a finite number"
            + (f" {'>' if more else '>='} {least:.9g}" if least > -math.inf else "")
        )


def require_probability(what: str, value: Any) -> None:
    """Raises ValueError if the value is not a number from 0 to 1; `what` names it."""
    require_number(what, value, least=0)
    if value > 1:
        raise ValueError(f"{what} = {value!r}; expected a number from 0 to 1")


def require_numbers(what: str, values: Any, *, least: float) -> np.ndarray:
    """Returns the values as an array.

    Raises:
        ValueError: if one is not a finite number that is at least `least` and that float32 can
            represent.
    """
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


def digest(values: np.ndarray) -> str:
    """Returns the shape of an array and a digest of its numbers, for names of quantities."""
    shape = "x".join(map(str, values.shape))
    digits = hashlib.sha256(np.ascontiguousarray(values, np.float64).tobytes()).hexdigest()
    return f"{shape} numbers {digits[:8]}"


def binomial_bound(N: int, p: float) -> int:
    r"""Returns the smallest B with $P(X > B) \le 10^{-12}$ for a binomial X of N trials with
    probability p: a bound on how many of N workers participate in all rounds of a run.
    """
    from scipy.special import bdtrc  # noqa: PLC0415 (takes a fifth of a second to import)

    return bisect.bisect_left(range(N), True, key=lambda B: bool(bdtrc(B, N, p) <= _UNLIKELY))


def largest_overlap(starts: np.ndarray, on: float, period: float) -> int:
    """Returns the largest number of workers that are on at once, if each is on for a time `on` at
    the beginning of each of its periods.

    Args:
        starts: when a period of each worker begins, `[N]`.
        on: at most `period`.
        period: above 0.
    """
    # The most are on when some worker has just begun: those that began since `on`.
    ordered = np.sort(starts % period)
    twice = np.concatenate([ordered - period, ordered])
    since = np.searchsorted(twice, ordered - on, side="right")
    return int(np.max(np.searchsorted(twice, ordered, side="right") - since))


def same_workers(*quantities: Quantity) -> int | None:
    """Returns the number of workers that the quantities are for; None for any number.

    Raises:
        ValueError: if they are for different numbers of workers.
    """
    numbers = {
        quantity.workers: quantity.name for quantity in quantities if quantity.workers is not None
    }
    if len(numbers) > 1:
        each = ", ".join(f"{name} for {workers}" for workers, name in numbers.items())
        raise ValueError(
            f"quantities for different numbers of workers: {each}; expected the same number"
        )
    return next(iter(numbers), None)
