"""`check`: verifies numerically what a compressor states about itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks
from dsgd.base import Compressor, Key
from dsgd.compressors.members import constant_at, count_bits, decode, encode
from dsgd.findings import Finding, Findings

DRAWS = 2_000  # number of messages of each vector
STANDARD_ERRORS = 5.0  # largest deviation of a mean from the stated value
ROUNDING = 1e-5  # relative to |x|^2: the error that float32 may add
DIRECTIONS = 8


class Seen(NamedTuple):
    """Errors measured on one vector.

    Args:
        errors: |Q(x) - x|^2 / |x|^2, `[draws]`.
        along: components of the error along directions, divided by |x|, `[draws, directions]`.
    """

    errors: np.ndarray
    along: np.ndarray


@partial(checks.arguments, members=False)
def check(compressor: Compressor, d: int, *, key: Key | None = None) -> Findings:
    r"""Verifies numerically what a compressor states, on difficult vectors of d elements and over
    many messages.

    It checks the wire format (a message consists of arrays, whose total bits equal what `bits`
    returns, or are at least that if `bits` does not return an int); that the receivers decode a
    vector, which equals the sender's if `compress` returns one; that zeros, huge and denormal
    numbers are decoded as finite numbers, and zeros as zeros; that equal keys give equal messages;
    that $E\,Q(x) = x$, along x and other directions; and that $E|Q(x) - x|^2 \le \omega
    |x|^2$ and $\le (1 - \delta) |x|^2$.

    Args:
        compressor: any.
        d: number of elements.
        key: key of the draws; None: `jax.random.key(0)`.

    Returns:
        The findings with the measured values. They print as a table; `.holds` is whether all checks
        passed; `.require()` raises a ValueError unless they did. Expectations are compared within
        five standard errors.

    Raises:
        ValueError: if `compressor` is not a compressor, or d < 1.
    """
    d = checks.positive_int("compressors.check: d", d)
    key = checks.typed_key(0 if key is None else key)
    title = f"{compressor.name} of {d} elements"
    try:
        wire = _wire(compressor, d, key)
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return Findings(title, (Finding("wire", False, f"{kind}{error}"),))
    seen = _measure(compressor, d, key)
    return Findings(title, (*wire, _find_bias(compressor, seen), *_constants(compressor, d, seen)))


def vectors(d: int) -> dict[str, np.ndarray]:
    """Returns test vectors of d elements by name: vectors on which compressors have large errors,
    and simple ones.
    """
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], d)
    return {
        "normal": rng.standard_normal(d),
        "heavy tails": rng.standard_t(2, d),
        # maximises the variance of ternary
        "one large": np.where(np.arange(d) == d // 2, 1.0, signs / (1 + np.sqrt(d))),
        "one alone": (np.arange(d) == d // 2).astype(float),
        "equal": np.ones(d),
        "signs": signs,
        # maximises the variance of rounding to powers of two
        "four thirds": signs * 4 / 3,
        "powers": signs * 0.5 ** (np.arange(d) % 24),
    }


def extremes(d: int) -> dict[str, np.ndarray]:
    """Returns vectors at the limits of float32 by name."""
    normal = vectors(d)["normal"]
    return {"zeros": np.zeros(d), "huge": 1e30 * normal, "denormal": 1e-40 * normal}


def _wire(compressor: Compressor, d: int, key: jax.Array) -> list[Finding]:
    """Checks one message of each vector: the bits of its arrays, whether equal keys reproduce it,
    whether sender and receivers decode the same vector, and whether it is finite.
    """
    counted: list[int | jax.Array] = []

    def travel(x):
        message, decoded = encode(compressor, key, x)
        counted.append(count_bits(compressor, message))
        return message, decoded, decode(compressor, message, d), jnp.asarray(counted[-1])

    named = vectors(d) | extremes(d)
    stacked = jnp.asarray(np.stack([*named.values()]), jnp.float32)
    # The function is traced twice, so that random draws that do not come from the key would differ.
    first, again = (jax.tree.map(np.asarray, jax.jit(jax.vmap(travel))(stacked)) for _ in range(2))
    message, sender, receivers, bits = first
    leaves, fixed = jax.tree.leaves(message), isinstance(counted[0], int)
    capacity = sum(8 * leaf[0].nbytes for leaf in leaves)
    arrays = ", ".join(f"{leaf.dtype}{list(leaf.shape[1:])}" for leaf in leaves)
    fits = not fixed or int(counted[0]) == capacity
    # A message of random size may use only a part of its arrays. Its bits include 32 bits for their
    # number.
    within = Finding(
        "bits",
        bool(bits.max() <= capacity),
        f"bits returns {bits.min()} to {bits.max()}; the arrays have {capacity}",
    )
    repeats = all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(leaves, jax.tree.leaves(again[0]), strict=True)
    )
    equal = np.array_equal(sender, receivers, equal_nan=True)
    mismatch = (
        ""
        if equal
        else "compress and decompress return different vectors, by up to "
        f"{np.abs(sender - receivers).max():.3g}"
    )
    wrong = [name for name, one in zip(named, receivers, strict=True) if not np.isfinite(one).all()]
    wrong += ["zeros"] if np.any(receivers[list(named).index("zeros")]) else []
    return [
        Finding(
            "wire",
            fits,
            f"{arrays}: {capacity} bits" + ("" if fits else f", but bits returns {counted[0]}"),
        ),
        *([] if fixed else [within]),
        Finding(
            "again",
            repeats,
            "equal keys give equal messages" if repeats else "equal keys give different messages",
        ),
        Finding("decoded", equal, mismatch or "sender and receivers decode the same"),
        Finding(
            "finite",
            not wrong,
            f"not finite, or not zero for zeros: {', '.join(wrong)}"
            if wrong
            else "zeros, 1e30 and 1e-40 are decoded as finite numbers",
        ),
    ]


def _measure(compressor: Compressor, d: int, key: jax.Array) -> dict[str, Seen]:
    """Measures the errors on every vector over the draws, in a single program."""
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (DIRECTIONS, d)) / np.sqrt(d)

    def measure(key, x):
        towards = jnp.concatenate([x[None] / jnp.linalg.norm(x), jnp.asarray(signs, jnp.float32)])

        def draw(key):
            difference = (
                compressor.decompress(encode(compressor, key, x).message, d).astype(jnp.float32) - x
            )
            return jnp.sum(difference**2) / jnp.sum(x**2), towards @ difference / jnp.linalg.norm(x)

        return jax.vmap(draw)(jax.random.split(key, DRAWS))

    named = vectors(d)
    stacked = jnp.asarray(np.stack([*named.values()]), jnp.float32)
    measured = jax.jit(lambda keys, x: jax.lax.map(lambda each: measure(*each), (keys, x)))(
        jax.random.split(key, len(named)), stacked
    )
    return {
        name: Seen(*(np.asarray(part[i], float) for part in measured))
        for i, name in enumerate(named)
    }


def _find_bias(compressor: Compressor, seen: dict[str, Seen]) -> Finding:
    """Checks that the mean error vanishes along directions. Single elements are not checked: if
    they are rarely sent, their mean is far from normal.
    """

    def distance(one: Seen) -> float:
        """Returns the largest difference, over the directions, between the mean error and its
        statistical error.
        """
        # the contribution of a few rare draws
        seldom = 2 * STANDARD_ERRORS * np.abs(one.along).max(axis=0) / DRAWS
        error = STANDARD_ERRORS * one.along.std(axis=0) / np.sqrt(DRAWS) + seldom + ROUNDING
        return float(np.max(np.abs(one.along.mean(axis=0)) - error))

    name, worst = max(
        ((name, distance(one)) for name, one in seen.items()), key=lambda pair: pair[1]
    )
    largest = float(np.abs(seen[name].along.mean(axis=0)).max())
    measured = f"|E Q(x) - x| is {largest:.3g} |x| along a direction ({name})"
    if not compressor.unbiased:
        return Finding("unbiased", None, f"not stated; {measured}")
    return Finding(
        "unbiased", worst <= 0, "E Q(x) = x within its standard errors" if worst <= 0 else measured
    )


def _constants(compressor: Compressor, d: int, seen: dict[str, Seen]) -> list[Finding]:
    """Compares the largest ratio of error, reduced by its standard errors, with omega and 1 -
    delta.
    """

    def least(one: Seen) -> float:
        return float(one.errors.mean() - STANDARD_ERRORS * one.errors.std() / np.sqrt(DRAWS))

    def finding(what: str, stated: float | None, bound: Callable[[float], float]) -> Finding:
        name, one = max(seen.items(), key=lambda item: least(item[1]))
        measured = f"E|Q(x) - x|^2 is {one.errors.mean():.4g} |x|^2 ({name})"
        if stated is None:
            return Finding(what, None, f"not stated; {measured}")
        return Finding(
            what,
            least(one) <= bound(stated) + ROUNDING,
            f"{stated:.4g} stated; {measured}, at most {bound(stated):.4g} allowed",
        )

    return [
        finding("omega", constant_at(compressor.omega, d), lambda omega: omega),
        finding("delta", constant_at(compressor.delta, d), lambda delta: 1 - delta),
    ]
