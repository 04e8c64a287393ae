"""Probes whether a method satisfies the assumptions of `moments`: every round is the same affine
map, and messages can be distinguished.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from theory_checks.machinery.rounds import Build, Instance, Rounds, place_on_one_device

_TIMES = (0, 1, 2, 3, 7, 64)  # rounds t that are probed
_TURNS = (1.0, 2.5)  # phases of the waves that are the two directions
_SHARES = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (2.0, 0.0))  # their coefficients
_ASKED = 4096  # draws of the worker that is queried
_ROUNDING = 1e-9
_KEYS = 32  # keys that are tried to find one for which no two messages share a row


WRONG = {
    "bends": "a round is not affine in the state and in the noise of the gradients",
    "by_key": "a round draws random numbers other than the queried worker and the messages' noise",
    "by_time": "rounds differ from each other",
    "counters": "something other than floating-point numbers and the round's number changes",
}
"""Violations of the assumptions of `moments`, by name."""


def require_as_assumed(name: str, found: dict[str, jax.Array]) -> None:
    """Raises a ValueError that lists the violated assumptions, if there are any."""
    wrong = [WRONG[kind] for kind, violated in found.items() if violated]
    if wrong:
        raise ValueError(
            f"exact moments on {name}: {'; '.join(wrong)}; expected a method whose rounds are the "
            "same affine map"
        )


def wrong(
    rounds: Rounds, first: jax.Array, silence: jax.Array, varying: bool
) -> dict[str, jax.Array]:
    """Returns which of the violations `WRONG` a round shows. The round is evaluated along two
    directions and their sum, at three sizes, at several t and with several keys.
    """
    N, d = rounds.shape
    keys = jnp.stack([rounds.key, *jax.random.split(rounds.key, 2)])
    times = jnp.asarray(_TIMES, jnp.int32)
    sizes = jnp.array([1e-3, 1.0, 1e3]) * (1 + jnp.max(jnp.abs(first)))

    def values_at(t, key, size, shares):
        probed = rounds._replace(key=key)
        s, z = (
            size
            * sum(
                share * wave(turn + jnp.arange(length))
                for share, turn in zip(shares, _TURNS, strict=True)
            )
            for wave, length in ((jnp.sin, first.size), (jnp.cos, d))
        )
        z = jnp.broadcast_to(
            z, (N, d)
        )  # the same for all workers, since any of them may be queried
        seen = probed.quantities_at(t, s)
        return jnp.concatenate(
            [probed.next_state(t, s, z, silence), *(seen[name].ravel() for name in sorted(seen))]
        )

    points = jnp.meshgrid(
        jnp.arange(len(_SHARES)),
        jnp.arange(len(sizes)),
        times,
        jnp.arange(len(keys)),
        indexing="ij",
    )
    shares = jnp.asarray(_SHARES)
    found = jax.vmap(lambda i, j, t, k: values_at(t, keys[k], sizes[j], shares[i]))(
        *(axis.ravel() for axis in points)
    )
    # each [sizes, times, keys, values]
    none, one, other, both, two = found.reshape(*points[0].shape, -1)
    room = _ROUNDING * (
        1 + jnp.max(jnp.abs(jnp.stack([both, two])), axis=(0, 2, 3, 4))[:, None, None, None]
    )
    deviations = {
        # Both tests are needed: a homogeneous function need not be additive.
        "bends": jnp.maximum(jnp.abs(two - 2 * one + none), jnp.abs(both - one - other + none)),
        "by_key": one - one[:, :, :1],
        "by_time": jnp.where(varying, 0.0, one - one[:, :1]),
    }
    # The comparison is written such that NaN counts as large.
    return {kind: ~jnp.all(jnp.abs(size) <= room) for kind, size in deviations.items()} | {
        "counters": ~rounds.keeps_counters(silence)
    }


@partial(jax.jit, static_argnames=("build", "gradient"))
def _shares(of, key, *, build, gradient):
    """Returns how often each worker is queried, over many keys, by a method that queries one worker
    at a time, `[N]`.
    """

    def count(of, key):
        rounds = Rounds(build, gradient, of, key, None)
        keys = jax.random.split(key, _ASKED)
        chosen = jax.vmap(lambda key: rounds._replace(key=key).asks(rounds.first()))(keys)
        return jnp.mean(chosen[:, None] == jnp.arange(rounds.shape[0])[None], axis=0)

    return place_on_one_device(count)(of, key)


def require_uniform(name: str, build: Build, of: Instance, gradient: Callable | None) -> None:
    """Raises a ValueError if a worker is queried more often than chance explains."""
    shares, N = (
        np.asarray(_shares(of, jax.random.key(0), build=build, gradient=gradient)),
        of.b.shape[0],
    )
    if not np.abs(shares - 1 / N).max() <= 5 * np.sqrt((1 - 1 / N) / N / _ASKED) + 1e-12:
        worst = int(np.abs(shares - 1 / N).argmax())
        raise ValueError(
            f"exact moments on {name}: worker {worst} of {N} is queried in {shares[worst]:.1%} of "
            "rounds; expected the same frequency for all workers"
        )


@partial(jax.jit, static_argnames=("build", "gradient", "rows"))
def _rows_hit(of, key, *, build, gradient, rows):
    """Returns how many rows of the noise table the messages of a round use."""

    def count(of, key):
        rounds = Rounds(build, gradient, of, key, None)
        zero, z = rounds.first() * 0, jnp.zeros(rounds.shape)
        weights = jnp.cos(1.0 + jnp.arange(zero.size))
        C = jax.grad(lambda table: weights @ rounds.next_state(jnp.int32(0), zero, z, table))(
            rounds.silence(rows)
        )
        return jnp.sum(jnp.any(C != 0, axis=1))

    return place_on_one_device(count)(of, key)


def rows_for(messages: int) -> int:
    """Returns the number of rows of the noise table: large enough that most keys give each message
    its own row; 1 if nothing is compressed.
    """
    return 1 << max(13, (messages**2).bit_length()) if messages else 1


def key_without_collisions(
    build: Build, of: Instance, gradient: Callable | None, messages: int
) -> jax.Array:
    """Returns a key for which every message of a round uses its own row."""
    # A message without noise would use no row.
    of = of._replace(compression=jnp.ones_like(of.compression))
    found = []
    for seed in range(_KEYS):
        key = jax.random.key(seed)
        hit = int(_rows_hit(of, key, build=build, gradient=gradient, rows=rows_for(messages)))
        if hit == messages:
            found.append(key)
            if len(found) == 2:  # a single key may hide a larger number of messages by a collision
                return key
        if hit > messages:
            raise ValueError(
                f"a round compresses at least {hit} messages; expected messages = {messages}"
            )
    raise ValueError(
        f"none of {_KEYS} keys gives {messages} messages their own rows; expected messages = the "
        "number of messages in a round, which may be smaller"
    )
