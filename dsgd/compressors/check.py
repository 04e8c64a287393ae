"""`check`: any compressor held to what it states of itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks
from dsgd.base import Compressor, Key
from dsgd.compressors.sizes import array_bits
from dsgd.findings import Finding, Findings

DRAWS = 2_000  # messages of each vector
STANDARD_ERRORS = 5.0  # of a mean, beyond which it is not what is stated
ROUNDING = 1e-5  # of |x|^2, that float32 may add to an error
DIRECTIONS = 8


class Seen(NamedTuple):
    """What was measured on one vector, over draws: bits `[draws]`, |Q(x) - x|^2 / |x|^2 `[draws]`, and errors along directions
    `[draws, directions]`, over |x|."""

    bits: np.ndarray
    errors: np.ndarray
    along: np.ndarray


@partial(checks.arguments, members=False)
def check(compressor: Compressor, d: int, *, key: Key | None = None) -> Findings:
    r"""Holds a compressor to what it states, on hard vectors of d elements and over many messages.

    Looked at are: the wire (a message is arrays, which hold the bits that it tells, where those are an int, and else at least as many);
    what comes back; that equal keys give equal messages; the mean of its bits; $E\,Q(x) = x$, along x and other directions;
    $E|Q(x) - x|^2 \le \omega |x|^2$ and $\le (1 - \delta) |x|^2$.

    Args:
        compressor: any.
        d: number of elements.
        key: of the draws; None: `jax.random.key(0)`.

    Returns:
        What was found, with what was measured: it prints as a table, `.holds` says whether all of it does, `.require()` raises where it
        does not. Expectations are held with five standard errors.

    Raises:
        ValueError: no compressor, or d < 1.
    """
    d = checks.positive_int("compressors.check: d", d)
    key = checks.default_key() if key is None else key
    title = f"{compressor.name} of {d} elements"
    try:
        wire = _wire(compressor, d, key)
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return Findings(title, (Finding("wire", False, f"{kind}{error}"),))
    seen = _measure(compressor, d, key)
    return Findings(title, (*wire, _mean_bits(compressor, d, seen), _unbiased(compressor, seen), *_constants(compressor, d, seen)))


def need_message(compressor: Compressor, message: Any) -> Any:
    """What `compress` gave, if it is a tree of arrays.

    Raises:
        ValueError: it is not.
    """
    leaves = jax.tree.leaves(message)
    if not leaves or not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):
        raise ValueError(f"{compressor.name}: compress gives {checks.typed(message)}; need a message, a pytree of arrays")
    return message


def need_vector(compressor: Compressor, x: Any, d: int) -> jax.Array:
    """What `decompress` gave, if it is d floating-point elements.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(x, jax.Array) or x.shape != (d,) or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"{compressor.name}: decompress gives {checks.typed(x)}; need the vector, floating-point [{d}]")
    return x


def need_bits(compressor: Compressor, bits: Any) -> int | jax.Array:
    """What `bits` gave, if it counts.

    Raises:
        ValueError: it does not.
    """
    traced = isinstance(bits, jax.Array) and bits.shape == () and bits.dtype == jnp.uint32
    if not traced and (not isinstance(bits, int) or isinstance(bits, bool) or bits < 0):
        raise ValueError(f"{compressor.name}: bits gives {checks.typed(bits)}; need an int, or a uint32 scalar where messages differ")
    return bits


def vectors(d: int) -> dict[str, np.ndarray]:
    """On which compressors are at their worst, or their simplest."""
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], d)
    return {
        "normal": rng.standard_normal(d),
        "heavy tails": rng.standard_t(2, d),
        "one large": np.where(np.arange(d) == d // 2, 1.0, signs / (1 + np.sqrt(d))),  # where the variance of ternary is largest
        "one alone": (np.arange(d) == d // 2).astype(float),
        "equal": np.ones(d),
        "signs": signs,
        "four thirds": signs * 4 / 3,  # between two powers of two, where rounding to them is at its worst
        "powers": signs * 0.5 ** (np.arange(d) % 24),
    }


def _wire(compressor: Compressor, d: int, key: jax.Array) -> list[Finding]:
    told: list[Any] = []

    def travel(key, x):
        message = compressor.compress(key, x)
        told.append(need_bits(compressor, compressor.bits(message)))
        need_vector(compressor, compressor.decompress(message, d), d)
        return message

    message = jax.eval_shape(travel, key, jax.ShapeDtypeStruct((d,), jnp.float32))
    leaves = jax.tree.leaves(message)
    if not leaves:
        raise ValueError(f"{compressor.name}: compress gives a message without arrays; need what travels")
    held, bits = array_bits(message), told[0]
    arrays = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
    fits = not isinstance(bits, int) or bits == held
    found = [Finding("wire", fits, f"{arrays}: {held} bits" + ("" if fits else f", of which it tells {bits}"))]
    x = jnp.asarray(vectors(d)["normal"], jnp.float32)
    # Each is traced anew: draws that are not the key's would differ.
    first, again = (jax.tree.leaves(jax.jit(partial(compressor.compress))(key, x)) for _ in range(2))
    same = all(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True) for a, b in zip(first, again, strict=True))
    more = [Finding("bits", *_within(compressor, d, key, held))] if not isinstance(bits, int) else []
    return [*found, *more, Finding("again", same, "equal keys give equal messages" if same else "equal keys give different messages")]


def _within(compressor: Compressor, d: int, key: jax.Array, held: int) -> tuple[bool, str]:
    """Whether messages of random size are no longer than their arrays; 32 bits that say how long they are travel in them, too."""
    stacked = jnp.asarray(np.stack([*vectors(d).values()]), jnp.float32)
    bits = np.asarray(jax.jit(jax.vmap(lambda x: compressor.bits(compressor.compress(key, x))))(stacked))
    return bool(bits.max() <= held), f"{bits.min()} to {bits.max()} told, in room for {held}"


def _measure(compressor: Compressor, d: int, key: jax.Array) -> dict[str, Seen]:
    """On every vector, over draws; one program."""
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (DIRECTIONS, d)) / np.sqrt(d)

    def of_vector(key, x):
        towards = jnp.concatenate([x[None] / jnp.linalg.norm(x), jnp.asarray(signs, jnp.float32)])

        def draw(key):
            message = compressor.compress(key, x)
            off = compressor.decompress(message, d).astype(jnp.float32) - x
            return jnp.asarray(compressor.bits(message), jnp.uint32), jnp.sum(off**2) / jnp.sum(x**2), towards @ off / jnp.linalg.norm(x)

        return jax.vmap(draw)(jax.random.split(key, DRAWS))

    named = vectors(d)
    stacked = jnp.asarray(np.stack([*named.values()]), jnp.float32)
    measured = jax.jit(lambda keys, x: jax.lax.map(lambda each: of_vector(*each), (keys, x)))(jax.random.split(key, len(named)), stacked)
    return {name: Seen(*(np.asarray(part[i], float) for part in measured)) for i, name in enumerate(named)}


def _mean_bits(compressor: Compressor, d: int, seen: dict[str, Seen]) -> Finding:
    stated, bits = compressor.mean_bits(d), np.concatenate([one.bits for one in seen.values()])
    if np.isnan(stated):
        return Finding("mean bits", None, f"none stated; {bits.mean():.6g} measured")
    error = STANDARD_ERRORS * bits.std() / np.sqrt(bits.size) + ROUNDING * stated
    return Finding("mean bits", bool(abs(bits.mean() - stated) <= error), f"{stated:.6g} stated, {bits.mean():.6g} measured")


def _unbiased(compressor: Compressor, seen: dict[str, Seen]) -> Finding:
    """Along directions: single elements that are seldom sent have no normal mean."""

    def distance(one: Seen) -> float:
        """The largest mean error, beyond its standard errors."""
        seldom = 2 * STANDARD_ERRORS * np.abs(one.along).max(axis=0) / DRAWS  # what a few rare draws may add
        error = STANDARD_ERRORS * one.along.std(axis=0) / np.sqrt(DRAWS) + seldom + ROUNDING
        return float(np.max(np.abs(one.along.mean(axis=0)) - error))

    name, worst = max(((name, distance(one)) for name, one in seen.items()), key=lambda pair: pair[1])
    off = float(np.abs(seen[name].along.mean(axis=0)).max())
    measured = f"|E Q(x) - x| is {off:.3g} |x| along a direction ({name})"
    if not compressor.unbiased:
        return Finding("unbiased", None, f"not stated; {measured}")
    return Finding("unbiased", worst <= 0, "E Q(x) = x within its standard errors" if worst <= 0 else measured)


def _constants(compressor: Compressor, d: int, seen: dict[str, Seen]) -> list[Finding]:
    """The worst ratio of error, beyond its standard errors, beside omega and 1 - delta."""

    def least(one: Seen) -> float:
        return float(one.errors.mean() - STANDARD_ERRORS * one.errors.std() / np.sqrt(DRAWS))

    def finding(what: str, stated: float | None, bound: Callable[[float], float]) -> Finding:
        name, one = max(seen.items(), key=lambda item: least(item[1]))
        measured = f"E|Q(x) - x|^2 is {one.errors.mean():.4g} |x|^2 ({name})"
        if stated is None:
            return Finding(what, None, f"not stated; {measured}")
        return Finding(
            what, least(one) <= bound(stated) + ROUNDING, f"{stated:.4g} stated; {measured}, at most {bound(stated):.4g} allowed"
        )

    return [
        finding("omega", compressor.omega(d), lambda omega: omega),
        finding("delta", compressor.delta(d), lambda delta: 1 - delta),
    ]
