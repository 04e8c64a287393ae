"""Selections: quantities that are 1 for the workers that participate, and 0 for the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dsgd import array_likes, checks
from dsgd.clusters import successive
from dsgd.clusters.quantity import (
    Quantity,
    binomial_bound,
    digest,
    largest_overlap,
    require_numbers,
)

# A chain's mean numbers of periods; longer ones do not fit the resolution of float32 draws.
_LONGEST_SPELL = 10_000
_RAREST = 1e-5  # share of bad rounds
_AT_ONCE = 16  # intervals that are drawn at once
_PERMUTED = 1 << 12  # workers up to which a set is drawn by a permutation


@checks.arguments
def sampled(
    k: int,
    of: int,
    weights: Sequence[float] | ArrayLike | None = None,
    among: Quantity | None = None,
) -> Quantity:
    r"""A quantity that is 1 for k of N workers, drawn without replacement, and 0 for the others:
    client sampling.

    Without weights all sets of k workers are equally likely. With weights the workers are drawn one
    after the other, each with probability $w_n / \sum_j w_j$ over the workers that are left
    (successive sampling): those with the k smallest of the exponential draws $E_n / w_n$. The
    inclusion probabilities are then not proportional to the weights, but lie nearer to one another;
    those of `systematic` are proportional. They are computed to 1e-6.

    A worker participates in a round or not, so there is no drawing with replacement, in which a
    worker may count twice.

    Args:
        k: number of sampled workers, from 1 to N.
        of: N.
        weights: `[N]`, above 0, for example the clients' numbers of samples; None: equal weights.
        among: only workers for which this quantity is positive are drawn, for example the clients
            that are available at the time of day; all of them if there are fewer than k. Inclusion
            probabilities are then unknown. None: all workers.

    Raises:
        ValueError: if `k` or `of` is out of range, a weight is not positive, or the number of
            weights is not N.

    Source: Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006.
    """
    k, of = checks.positive_int("sampled: k", k), checks.positive_int("sampled: of", of)
    if k > of:
        raise ValueError(f"sampled: k = {k} of {of} workers; expected k of at most {of}")
    name = f"sampled({k}, of={of}"
    if weights is None and among is None:

        def permute(key, clock, worker):
            return (jax.random.permutation(key, of)[worker] < k).astype(jnp.float32)

        # A permutation of many workers takes longer than the selection of k of them.
        draw = permute if of <= _PERMUTED else partial(_race, k, np.ones(of))
        return _selection(draw, f"{name})", of, k, k / of)
    rates = np.ones(of) if weights is None else _weights("sampled", weights)
    if len(rates) != of:
        raise ValueError(f"sampled: {len(rates)} weights of {of} workers; expected one for each")
    name += "" if weights is None else f", weights={digest(rates)}"
    if among is None:
        draw = partial(_race, k, rates)
        return _selection(draw, f"{name})", of, k, tuple(successive.inclusion(rates, k).tolist()))
    if among.workers not in (None, of) or among.min_workers > of:
        raise ValueError(
            f"sampled: among = {among.name}, which is for {among.workers or among.min_workers} "
            f"workers; expected a quantity of {of} workers"
        )

    def available(key, period, clock, worker):
        drawn, available = jax.random.split(jax.random.fold_in(key, period))
        if among.by_period is not None:
            some = partial(among.by_period, key, period, clock)
        else:
            some = partial(among.sample, available, clock)
        return _race(k, rates, drawn, clock, worker, jax.vmap(some)(jnp.arange(of)) > 0)

    return _by_period(
        available, f"{name}, among={among.name})", of, k, None, time_invariant=among.time_invariant
    )


@checks.arguments
def systematic(k: int, weights: Sequence[float] | ArrayLike) -> Quantity:
    r"""A quantity that is 1 for exactly k of N workers, of which worker n is drawn with probability
    $\pi_n = \min(1, c\,w_n)$, and 0 for the others.

    c is such that $\sum_n \pi_n = k$: the probabilities are $k\,w_n / \sum_j w_j$ if none of these
    is above 1. The workers are put in random order, worker n on an interval of length $\pi_n$, and
    those on whose intervals the points $u, u + 1, \ldots, u + k - 1$ lie are drawn, with u uniform
    in [0, 1).

    Means with weights $1 / \pi_n$ (`inclusion="selection"` of `algorithms.fed_avg`) are unbiased.
    It takes the place of drawing k clients with replacement by their numbers of samples.

    Args:
        k: number of sampled workers, from 1 to N.
        weights: `[N]`, above 0, for example the clients' numbers of samples.

    Raises:
        ValueError: if `k` is not from 1 to N, or a weight is not positive.

    Source: Madow, "On the theory of systematic sampling, II", 1949.
    """
    sizes = _weights("systematic", weights)
    N = len(sizes)
    if checks.positive_int("systematic: k", k) > N:
        raise ValueError(f"systematic: k = {k} of {N} workers; expected k of at most {N}")
    pi = _proportional(sizes, k)
    # Lengths as multiples of 2^-32: sums of uint32 are then exact modulo 1, and k points are on the
    # intervals whatever the order.
    certain = pi >= 1 - 2.0**-33
    lengths = np.where(certain, 0, np.maximum(1, np.rint(pi * 2.0**32))).astype(np.int64)
    excess = int(lengths.sum()) - (k - int(certain.sum())) * 2**32
    lengths[np.argmin(np.abs(lengths - 2**31))] -= excess
    inclusion = np.where(certain, 1, lengths / 2.0**32)

    def sample(key, clock, worker):
        of_order, of_point = jax.random.split(key)
        order = jax.random.permutation(of_order, N)
        ordered = jnp.asarray(lengths.astype(np.uint32))[order]
        starts = jnp.cumsum(ordered, dtype=jnp.uint32) - ordered
        drawn = jax.random.bits(of_point, dtype=jnp.uint32) - starts < ordered
        by_worker = jnp.zeros(N, bool).at[order].set(drawn) | jnp.asarray(certain)
        return by_worker[worker].astype(jnp.float32)

    name = f"systematic({k}, weights={digest(sizes)})"
    return _selection(sample, name, N, k, tuple(inclusion.tolist()))


@checks.arguments
def round_robin(k: int, of: int) -> Quantity:
    """A quantity that is 1 for k of N workers, which take turns, and 0 for the others: workers 0 to
    k - 1 in the first participation period, the next k in the second, and after worker N - 1 worker
    0 again.

    These are always workers that participated least often before. It is for `Cluster.present`.

    Args:
        k: number of participating workers, from 1 to N.
        of: N.

    Raises:
        ValueError: if `k` or `of` is out of range.
    """
    k, of = checks.positive_int("round_robin: k", k), checks.positive_int("round_robin: of", of)
    if k > of:
        raise ValueError(f"round_robin: k = {k} of {of} workers; expected k of at most {of}")
    firsts = (np.arange(of // np.gcd(k, of)) * k % of).astype(np.int32)  # then they repeat

    def sample(key, period, clock, worker):
        first = jnp.asarray(firsts)[period % len(firsts)]
        return ((worker - first) % of < k).astype(jnp.float32)

    return _by_period(sample, f"round_robin({k}, of={of})", of, k, None)


@checks.arguments
def cyclic(on: int, off: int, offset: int | Sequence[int] | ArrayLike = 0) -> Quantity:
    """A quantity that is alternately 1 for a number of participation periods and 0 for another.

    Groups of workers that take turns: `cyclic(1, 2, offset=[0, 0, 1, 1, 2, 2])`. It is for
    `Cluster.present`.

    Args:
        on: number of consecutive participation periods in which the quantity is 1, at least 1.
        off: number of those in which it is 0, at least 0.
        offset: the first period that begins a time of `on` periods: an integer, or one for each
            worker, at least 0.

    Raises:
        ValueError: if an argument is out of range.
    """
    checks.positive_int("cyclic: on", on, 2**30)
    checks.natural("cyclic: off", off, 2**30 - 1)
    offsets = require_numbers("cyclic: offset", offset, least=0)
    if offsets.ndim > 1 or offsets.size == 0 or (offsets != np.floor(offsets)).any():
        raise ValueError(
            f"cyclic: offset = {checks.show(offset)}; expected an integer, or one for each worker"
        )
    starts = (offsets % (on + off)).astype(np.int32)
    workers = starts.size if starts.ndim else None

    def sample(key, period, clock, worker):
        start = jnp.asarray(starts)[worker] if starts.ndim else starts
        return ((period % (on + off) - start) % (on + off) < on).astype(jnp.float32)

    most = None
    if workers is not None:
        most = largest_overlap(starts.astype(np.int64), on, on + off)
    shown = str(starts) if workers is None else digest(starts)
    return _by_period(sample, f"cyclic({on}, {off}, offset={shown})", workers, most, None)


@checks.arguments
def markov(on: float, off: float) -> Quantity:
    r"""A quantity that is 1 or 0 in each participation period as the state of a Markov chain, which
    each worker has for itself: devices that stay available, or absent, for a while.

    The chain goes from 1 to 0 with probability $a = 1 / \text{on}$ and from 0 to 1 with probability
    $b = 1 / \text{off}$, and begins in its stationary distribution: a worker participates with
    probability $b / (a + b)$ in each period. Bernoulli draws are the chain with $a + b = 1$. It is
    for `Cluster.present`.

    No state is carried: a period's state is found from the last period in which the chain forgot
    its state, with about 20 draws for each worker, whatever the lengths.

    Args:
        on: mean number of consecutive periods in which the quantity is 1, from 1 to 10,000.
        off: mean number of those in which it is 0, from 1 to 10,000.

    Raises:
        ValueError: if a number is out of range, or both are so near to 1 that the chain alternates.
    """
    for what, mean in (("on", on), ("off", off)):
        checks.number(f"markov: {what}", mean, f"[1, {_LONGEST_SPELL}]")
    a, b = 1 / on, 1 / off
    if 1 - abs(1 - a - b) < 1 / _LONGEST_SPELL:
        raise ValueError(
            f"markov: on = {on:.9g}, off = {off:.9g}, a chain that alternates; expected a sum of "
            "at least 2.001; pass cyclic(1, 1) for workers that alternate"
        )
    stationary = b / (a + b)
    return _by_period(
        _chain(a, b),
        f"markov({on:.9g}, {off:.9g})",
        None,
        lambda N: binomial_bound(N, stationary),
        stationary,
    )


@checks.arguments
def bursts(rate: float, mean: float, bad: float = 1.0, good: float = 0.0) -> Quantity:
    r"""A quantity that is 0 for messages that are lost in bursts, and 1 for those that arrive: the
    channel of Gilbert and Elliott. It is for `Cluster.delivered`.

    Each link, or each worker's contribution to a sum, is in a good or a bad state in each round, as
    a Markov chain that begins in its stationary distribution. A message is lost with probability
    $h_b$ in the bad state and $h_g$ in the good one. With the share of bad rounds
    $\pi = (r - h_g) / (h_b - h_g)$, the chain leaves the bad state with probability
    $p_{bg} = 1 / \ell$ and the good one with probability
    $p_{gb} = \frac{\pi}{\ell (1 - \pi)}$. States that are k rounds apart have the correlation
    $(1 - p_{gb} - p_{bg})^k$. Losses are independent if $\ell = 1 / (1 - \pi)$.

    Args:
        rate: r, the share of messages that are lost, from `good` to below `bad`; $\pi$ is 0, or at
            least 0.00001.
        mean: $\ell$, the mean number of consecutive bad rounds, from 1 to 10,000, and at least
            $\pi / (1 - \pi)$.
        bad: $h_b$, in (0, 1].
        good: $h_g$, in [0, 1).

    Raises:
        ValueError: if a number is out of range.

    Source: Gilbert, "Capacity of a burst-noise channel", 1960; Elliott, "Estimates of error rates
    for codes on burst-noise channels", 1963.
    """
    checks.number("bursts: rate", rate, "[0, 1)")
    checks.number("bursts: mean", mean, f"[1, {_LONGEST_SPELL}]")
    checks.number("bursts: bad", bad, "(0, 1]")
    checks.number("bursts: good", good, "[0, 1)")
    if not good <= rate < bad:
        raise ValueError(
            f"bursts: rate = {rate:.9g} with loss rates of {good:.9g} in the good state and "
            f"{bad:.9g} in the bad one; expected good <= rate < bad"
        )
    share = (rate - good) / (bad - good)
    if 0 < share < _RAREST:
        raise ValueError(
            f"bursts: rate = {rate:.9g}, for which {share:.3g} of the rounds are bad; expected "
            f"none, or a share of at least {_RAREST:.9g}, since draws are float32"
        )
    a, b = share / (mean * (1 - share)), 1 / mean
    if a > 1 or 1 - abs(1 - a - b) < 1 / _LONGEST_SPELL:
        raise ValueError(
            f"bursts: rate = {rate:.9g}, mean = {mean:.9g}, a chain with fewer than one good round "
            "between two bursts, or one that alternates; expected mean >= "
            f"{max(1.001, share / (1 - share)):.9g}"
        )
    is_good = _chain(a, b)

    def sample(key, period, clock, worker):
        of_chain, of_coin = jax.random.split(key)
        lost = jnp.where(is_good(of_chain, period, clock, worker) > 0, good, bad)
        of_coin = jax.random.fold_in(jax.random.fold_in(of_coin, worker), period)
        return (jax.random.uniform(of_coin, dtype=jnp.float32) >= lost).astype(jnp.float32)

    name = f"bursts({rate:.9g}, {mean:.9g}, {bad:.9g}, {good:.9g})"
    return _by_period(sample, name, None, None, 1 - rate)


@checks.arguments
def poisson_intervals(mean: float) -> Quantity:
    r"""A quantity that is 1 in single participation periods, and 0 in a Poisson distributed number
    of periods after each of them, which each worker draws for itself.

    A worker participates with probability $1 / (1 + \lambda)$ in each period, also in the first, as
    if the run continued an earlier one. It is for `Cluster.present`.

    No state is carried: the intervals until the present period are drawn again, about $t / (1 +
    \lambda)$ numbers for each worker in period t. `markov(1, off)` has geometrically distributed
    intervals, with a constant number of draws.

    Args:
        mean: $\lambda$, the mean number of consecutive periods in which the quantity is 0, above 0
            and at most 10,000.

    Raises:
        ValueError: if it is out of range.
    """
    checks.number("poisson_intervals: mean", mean, f"(0, {_LONGEST_SPELL}]")
    counts = np.arange(int(mean + 12 * np.sqrt(mean)) + 30)
    logs = counts * np.log(mean) - mean - np.append(0, np.cumsum(np.log(counts[1:])))
    below = np.cumsum(np.exp(logs))  # P(X <= k)
    inclusion = 1 / (1 + mean)
    # The first period in which a worker participates is r with probability P(X >= r) / (1 + mean).
    start = np.cumsum(np.append(1, 1 - below)) * inclusion

    def sample(key, period, clock, worker):
        of_first, of_intervals = jax.random.split(jax.random.fold_in(key, worker))

        def draw(key, table, shape=()):
            uniform = jax.random.uniform(key, shape, jnp.float32)
            return jnp.searchsorted(jnp.asarray(table, jnp.float32), uniform, side="right")

        def later(carry):
            at, number, _ = carry
            key = jax.random.fold_in(of_intervals, number)
            times = at + jnp.cumsum(1 + draw(key, below, (_AT_ONCE,)), dtype=jnp.int32)
            return times[-1], number + 1, jnp.any(times == period)

        first = draw(of_first, start).astype(jnp.int32)
        carry = first, jnp.int32(0), first == period
        return lax.while_loop(lambda carry: carry[0] < period, later, carry)[-1].astype(jnp.float32)

    return _by_period(
        sample,
        f"poisson_intervals({mean:.9g})",
        None,
        lambda N: binomial_bound(N, inclusion),
        inclusion,
    )


@checks.arguments
def lifetimes(
    begins: Sequence[float | Sequence[float]] | ArrayLike,
    ends: Sequence[float | Sequence[float]] | ArrayLike,
) -> Quantity:
    r"""A quantity that is 1 while a worker is part of the cluster, and 0 otherwise: workers that
    join, that stop for good, and that leave and return.

    Worker n is there in the spells $[b_{nk}, e_{nk})$ of the clock. In a method with rounds it
    participates in those that begin in one of its spells. It is for `Cluster.present`.

        # worker 0 stops at 60 s, worker 1 joins at 20 s, worker 2 is away from 30 s to 40 s
        clusters.lifetimes([0, 20, [0, 40]], [60, math.inf, [30, math.inf]])

    Args:
        begins: $b_{nk}$, seconds, at least 0: for each of N workers one number, or one for each of
            its spells, in ascending order; [] for a worker that is never there.
        ends: $e_{nk} > b_{nk}$, in the same form; inf for a worker that stays.

    Raises:
        ValueError: if the numbers are not pairs of a begin and an end above it, a number is
            negative or NaN, two spells of a worker overlap or are not in order, or no worker has a
            spell.
    """
    spells = _spells(begins, ends)
    N = len(spells)
    starts, stops = (np.sort(spells[..., end], axis=None) for end in (0, 1))
    # The most are there when some spell begins: spells that began, without those that ended.
    moments = starts[np.isfinite(starts)]
    counts = [np.searchsorted(times, moments, side="right") for times in (starts, stops)]

    def sample(key, clock, worker):
        of_worker = jnp.asarray(spells)[worker]
        there = (of_worker[:, 0] <= clock) & (clock < of_worker[:, 1])
        return jnp.any(there).astype(jnp.float32)

    def integral(key, clock, seconds, worker):
        passed = jnp.clip(jnp.asarray(spells)[worker] - clock, 0, seconds)
        return jnp.sum(passed[:, 1] - passed[:, 0])

    return Quantity(
        sample,
        f"lifetimes({digest(spells)})",
        positive=False,
        workers=N,
        integral=integral,
        most=int(np.max(counts[0] - counts[1])),
        spells=spells,
    )


def _spells(begins: Any, ends: Any) -> np.ndarray:
    """Returns the begin and end of each spell, float32 `[N, k, 2]`."""
    given = {"begins": begins, "ends": ends}
    rows: dict[str, list[np.ndarray]] = {}
    for what, values in given.items():
        if np.ndim(values) == 0 if not isinstance(values, Sequence) else isinstance(values, str):
            raise ValueError(
                f"lifetimes: {what} = {checks.show(values)}; expected one number, or several, for "
                "each worker"
            )
        rows[what] = [
            np.atleast_1d(array_likes.numbers(f"lifetimes: {what} of worker {n}", each)).astype(
                np.float32
            )
            for n, each in enumerate(values)
        ]
    shapes = {what: [each.shape for each in lists] for what, lists in rows.items()}
    if shapes["begins"] != shapes["ends"] or any(len(shape) > 1 for shape in shapes["begins"]):
        raise ValueError(
            f"lifetimes: begins = {checks.show(begins)}, ends = {checks.show(ends)}; expected an "
            "end for each begin, one or a list of them for each worker"
        )
    N, k = len(rows["begins"]), max((len(each) for each in rows["begins"]), default=0)
    if k == 0:
        raise ValueError("lifetimes: no worker has a spell; expected at least one begin and end")
    spells = np.full((N, k, 2), np.inf, np.float32)
    for n, (first, last) in enumerate(zip(rows["begins"], rows["ends"], strict=True)):
        if not (np.isfinite(first).all() and (first >= 0).all() and (last > first).all()):
            raise ValueError(
                f"lifetimes: worker {n} begins at {first} and ends at {last}; expected finite "
                "seconds >= 0, and an end after each begin, in float32"
            )
        if (first[1:] < last[:-1]).any():
            raise ValueError(
                f"lifetimes: worker {n} begins at {first} and ends at {last}; expected disjoint "
                "spells in ascending order"
            )
        spells[n, : len(first), 0], spells[n, : len(last), 1] = first, last
    return spells


def _chain(a: float, b: float) -> Any:
    """Returns the state of a stationary Markov chain with states 1 and 0, which it leaves with
    probability a and b, as a function of the key, the period, the clock and a worker's number.
    """
    # In a period the chain forgets its state with probability `forgets`, and is then 1 with
    # probability `fresh`; else it keeps its state (a + b < 1) or changes it (a + b > 1).
    forgets, changes = 1 - abs(1 - a - b), a + b > 1
    fresh, window = min(1 - a, b) / forgets, int(np.ceil(2 / forgets))

    def sample(key, period, clock, worker):
        key = jax.random.fold_in(key, worker)

        def draw(part, number):
            """Draws how long until the chain forgets again, and the state that it then has."""
            key_of_draw = jax.random.fold_in(jax.random.fold_in(key, part), number)
            wait, state = jax.random.uniform(key_of_draw, (2,), jnp.float32)
            periods = jnp.log1p(-wait) / np.float32(np.log1p(-forgets) if forgets < 1 else -np.inf)
            periods = jnp.minimum(jnp.floor(periods), np.float32(2 * window)).astype(jnp.int32)
            return 1 + periods, state < np.float32(fresh)

        def unknown(carry):
            return ~carry[-1]

        def advance(carry):
            # `at`: the last period of the window, at most `last`, in which the chain forgot.
            part, last, at, number, state, _ = carry
            wait, drawn = draw(part, number)
            before, known = at + wait <= last, at >= 0
            back = ~before & ~known
            return (
                jnp.where(back, part - 1, part),
                jnp.where(back, window - 1, last),
                jnp.where(before, at + wait, at),
                jnp.where(before, number + 1, 0),
                jnp.where(before, drawn, state),
                ~before & known,
            )

        # Windows before period 0 have negative numbers: the chain has always been running.
        unset = (jnp.int32(-1), jnp.int32(0), jnp.bool(False), jnp.bool(False))
        first = (period // window, period % window, *unset)
        part, _, at, _, state, _ = lax.while_loop(unknown, advance, first)
        if changes:
            state ^= (period - part * window - at) % 2 == 1
        return state.astype(jnp.float32)

    return sample


def _race(
    k: int, rates: np.ndarray, key: jax.Array, clock: Any, worker: Any, available: Any = True
) -> jax.Array:
    """Returns 1 if the worker's exponential draw, with its rate, is one of the k smallest."""
    # In float32 only numbers near 0 are fine enough to tell many workers apart.
    uniform = (jax.random.bits(key, rates.shape, jnp.uint32).astype(jnp.float32) + 0.5) * 2.0**-32
    times = -jnp.log1p(-uniform) / jnp.asarray(rates / rates.mean(), jnp.float32)
    places = lax.top_k(jnp.where(available, -times, -jnp.inf), k)[1]
    drawn = jnp.zeros(rates.shape, bool).at[places].set(True) & available
    return drawn[worker].astype(jnp.float32)


def _proportional(sizes: np.ndarray, k: int) -> np.ndarray:
    """Returns min(1, c sizes) with sum k."""
    certain = np.zeros(len(sizes), bool)
    while True:
        left = k - certain.sum()
        pi = np.where(certain, 1, left * sizes / max(sizes[~certain].sum(), np.finfo(float).tiny))
        if not (above := ~certain & (pi >= 1)).any():
            return pi
        certain |= above


def _weights(what: str, weights: Any) -> np.ndarray:
    """Returns positive weights `[N]`, in float64."""
    values = require_numbers(f"{what}: weights", weights, least=0).astype(np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(
            f"{what}: weights of shape {values.shape}; expected [N], one for each worker"
        )
    if (values == 0).any():
        raise ValueError(
            f"{what}: the weight of worker {int(np.argmin(values))} is 0; expected weights > 0"
        )
    return values


def _selection(
    sample: Any, name: str, workers: int, most: int, inclusion: tuple[float, ...] | float
) -> Quantity:
    return Quantity(
        sample,
        name,
        most == workers,
        workers,
        time_invariant=True,
        most=most,
        inclusion=inclusion,
    )


def _by_period(
    by_period: Any,
    name: str,
    workers: int | None,
    most: Any,
    inclusion: float | None,
    *,
    time_invariant: bool = True,
) -> Quantity:
    return Quantity(
        lambda key, clock, worker: by_period(key, jnp.int32(0), clock, worker),
        name,
        positive=False,
        workers=workers,
        time_invariant=time_invariant,
        most=most,
        inclusion=inclusion,
        by_period=by_period,
    )
