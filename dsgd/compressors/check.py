"""`check`: validates what a compressor states of itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks
from dsgd.base import Compressor, Key
from dsgd.compressors.members import count_bits, decode, encode, stated
from dsgd.findings import Finding, Findings

DRAWS = 2_000  # messages of each vector
STANDARD_ERRORS = 5.0  # of a mean, beyond which it is not what is stated
ROUNDING = 1e-5  # of |x|^2, that float32 may add to an error
DIRECTIONS = 8


class Seen(NamedTuple):
    """What was measured on one vector, over draws: |Q(x) - x|^2 / |x|^2 `[draws]`, and errors along
    directions `[draws, directions]`, over
    |x|."""

    errors: np.ndarray
    along: np.ndarray


@partial(checks.arguments, members=False)
def check(compressor: Compressor, d: int, *, key: Key | None = None) -> Findings:
    r"""Validates what a compressor states, on hard vectors of d elements and over many messages.

    Checked are: the wire (a message is arrays, which hold as many bits as `bits` returns, or at
    least as many if that is no int); that the receivers decode a vector, the same as the sender if
    `compress` returns that, too; that equal keys give equal messages; $E\,Q(x) = x$, along x and
    other directions; $E|Q(x) - x|^2 \le \omega |x|^2$ and $\le (1 - \delta) |x|^2$.

    Args:
        compressor: any.
        d: number of elements.
        key: of the draws; None: `jax.random.key(0)`.

    Returns:
        What was found, with what was measured: it prints as a table, `.holds` says whether all of
            it does, `.require()` raises where it
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
    return Findings(title, (*wire, _unbiased(compressor, seen), *_constants(compressor, d, seen)))


def vectors(d: int) -> dict[str, np.ndarray]:
    """On which compressors are at their worst, or their simplest."""
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], d)
    return {
        "normal": rng.standard_normal(d),
        "heavy tails": rng.standard_t(2, d),
        # where the variance of ternary is largest
        "one large": np.where(np.arange(d) == d // 2, 1.0, signs / (1 + np.sqrt(d))),
        "one alone": (np.arange(d) == d // 2).astype(float),
        "equal": np.ones(d),
        "signs": signs,
        # between two powers of two, where rounding to them is at its worst
        "four thirds": signs * 4 / 3,
        "powers": signs * 0.5 ** (np.arange(d) % 24),
    }


def _wire(compressor: Compressor, d: int, key: jax.Array) -> list[Finding]:
    """Of one message of each vector: what its arrays hold, and whether it is made again, and
    decoded, as it should be.
    """
    counted: list[int | jax.Array] = []

    def travel(x):
        message, decoded = encode(compressor, key, x)
        counted.append(count_bits(compressor, message))
        return message, decoded, decode(compressor, message, d), jnp.asarray(counted[-1])

    stacked = jnp.asarray(np.stack([*vectors(d).values()]), jnp.float32)
    # Each is traced on its own: draws that are not the key's would differ.
    first, again = (jax.tree.map(np.asarray, jax.jit(jax.vmap(travel))(stacked)) for _ in range(2))
    message, ours, theirs, bits = first
    leaves, fixed = jax.tree.leaves(message), isinstance(counted[0], int)
    held = sum(8 * leaf[0].nbytes for leaf in leaves)
    arrays = ", ".join(f"{leaf.dtype}{list(leaf.shape[1:])}" for leaf in leaves)
    fits = not fixed or int(counted[0]) == held
    # Messages of random size are no longer than their arrays; 32 bits that count their bits travel
    # in them, too.
    within = Finding(
        "bits", bool(bits.max() <= held), f"{bits.min()} to {bits.max()} told, in room for {held}"
    )
    same = all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(leaves, jax.tree.leaves(again[0]), strict=True)
    )
    equal = np.array_equal(ours, theirs, equal_nan=True)
    far = (
        ""
        if equal
        else f"compress decodes something else than decompress, by up to {np.abs(ours - theirs).max():.3g}"
    )
    return [
        Finding(
            "wire",
            fits,
            f"{arrays}: {held} bits" + ("" if fits else f", of which it tells {counted[0]}"),
        ),
        *([] if fixed else [within]),
        Finding(
            "again",
            same,
            "equal keys give equal messages" if same else "equal keys give different messages",
        ),
        Finding("decoded", equal, far or "sender and receivers decode the same"),
    ]


def _measure(compressor: Compressor, d: int, key: jax.Array) -> dict[str, Seen]:
    """On every vector, over draws; one program."""
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (DIRECTIONS, d)) / np.sqrt(d)

    def of_vector(key, x):
        towards = jnp.concatenate([x[None] / jnp.linalg.norm(x), jnp.asarray(signs, jnp.float32)])

        def draw(key):
            off = (
                compressor.decompress(encode(compressor, key, x).message, d).astype(jnp.float32) - x
            )
            return jnp.sum(off**2) / jnp.sum(x**2), towards @ off / jnp.linalg.norm(x)

        return jax.vmap(draw)(jax.random.split(key, DRAWS))

    named = vectors(d)
    stacked = jnp.asarray(np.stack([*named.values()]), jnp.float32)
    measured = jax.jit(lambda keys, x: jax.lax.map(lambda each: of_vector(*each), (keys, x)))(
        jax.random.split(key, len(named)), stacked
    )
    return {
        name: Seen(*(np.asarray(part[i], float) for part in measured))
        for i, name in enumerate(named)
    }


def _unbiased(compressor: Compressor, seen: dict[str, Seen]) -> Finding:
    """Along directions: single elements that are seldom sent have no normal mean."""

    def distance(one: Seen) -> float:
        """The largest mean error, beyond its standard errors."""
        # what a few rare draws may add
        seldom = 2 * STANDARD_ERRORS * np.abs(one.along).max(axis=0) / DRAWS
        error = STANDARD_ERRORS * one.along.std(axis=0) / np.sqrt(DRAWS) + seldom + ROUNDING
        return float(np.max(np.abs(one.along.mean(axis=0)) - error))

    name, worst = max(
        ((name, distance(one)) for name, one in seen.items()), key=lambda pair: pair[1]
    )
    off = float(np.abs(seen[name].along.mean(axis=0)).max())
    measured = f"|E Q(x) - x| is {off:.3g} |x| along a direction ({name})"
    if not compressor.unbiased:
        return Finding("unbiased", None, f"not stated; {measured}")
    return Finding(
        "unbiased", worst <= 0, "E Q(x) = x within its standard errors" if worst <= 0 else measured
    )


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
            what,
            least(one) <= bound(stated) + ROUNDING,
            f"{stated:.4g} stated; {measured}, at most {bound(stated):.4g} allowed",
        )

    return [
        finding("omega", stated(compressor.omega, d), lambda omega: omega),
        finding("delta", stated(compressor.delta, d), lambda delta: 1 - delta),
    ]
