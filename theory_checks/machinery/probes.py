"""Whether a method is what `moments` assumes: one affine map in every round, and messages that can
be distinguished.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from theory_checks.machinery.rounds import Build, Instance, Rounds, on_one_device

_TIMES = (0, 1, 2, 3, 7, 64)  # at which a round is probed
_TURNS = (1.0, 2.5)  # two directions, as waves
_SHARES = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (2.0, 0.0))  # how much of each
_ASKED = 4096  # draws of the worker who is asked
_ROUNDING = 1e-9
_KEYS = 32  # that are tried for one with which no two messages share a row


WRONG = {
    "bends": "a round is not affine in the state and in the noise of the gradients",
    "by_key": "a round draws random numbers of its own, besides who is asked and what messages add",
    "by_time": "rounds differ from one another",
    "counters": "something other than floating-point numbers and the round's number changes",
}
"""What a round may be other than `moments` assumes."""


def need_as_assumed(name: str, found: dict[str, jax.Array]) -> None:
    """Raises a ValueError that says what a round is that it must not be."""
    wrong = [WRONG[kind] for kind, there in found.items() if there]
    if wrong:
        raise ValueError(
            f"exact moments on {name}: {'; '.join(wrong)}: need a method whose rounds are one "
            "affine map"
        )


def wrong(
    rounds: Rounds, first: jax.Array, silence: jax.Array, varying: bool
) -> dict[str, jax.Array]:
    """Which of `WRONG` a round is, probed: along two directions and their sum, at three sizes, at
    several t and with several keys.
    """
    N, d = rounds.shape
    keys = jnp.stack([rounds.key, *jax.random.split(rounds.key, 2)])
    times = jnp.asarray(_TIMES, jnp.int32)
    sizes = jnp.array([1e-3, 1.0, 1e3]) * (1 + jnp.max(jnp.abs(first)))

    def at(t, key, size, shares):
        there = rounds._replace(key=key)
        s, z = (
            size
            * sum(
                share * wave(turn + jnp.arange(length))
                for share, turn in zip(shares, _TURNS, strict=True)
            )
            for wave, length in ((jnp.sin, first.size), (jnp.cos, d))
        )
        z = jnp.broadcast_to(z, (N, d))  # of all workers alike: it may be any of them who is asked
        seen = there.seen(t, s)
        return jnp.concatenate(
            [there.after(t, s, z, silence), *(seen[name].ravel() for name in sorted(seen))]
        )

    points = jnp.meshgrid(
        jnp.arange(len(_SHARES)),
        jnp.arange(len(sizes)),
        times,
        jnp.arange(len(keys)),
        indexing="ij",
    )
    shares = jnp.asarray(_SHARES)
    found = jax.vmap(lambda i, j, t, k: at(t, keys[k], sizes[j], shares[i]))(
        *(axis.ravel() for axis in points)
    )
    # each [sizes, times, keys, values]
    none, one, other, both, two = found.reshape(*points[0].shape, -1)
    room = _ROUNDING * (
        1 + jnp.max(jnp.abs(jnp.stack([both, two])), axis=(0, 2, 3, 4))[:, None, None, None]
    )
    away = {
        # Both, for what is homogeneous need not be additive.
        "bends": jnp.maximum(jnp.abs(two - 2 * one + none), jnp.abs(both - one - other + none)),
        "by_key": one - one[:, :, :1],
        "by_time": jnp.where(varying, 0.0, one - one[:, :1]),
    }
    # What is not a number is not small.
    return {kind: ~jnp.all(jnp.abs(size) <= room) for kind, size in away.items()} | {
        "counters": ~rounds.keeps_counters(silence)
    }


@partial(jax.jit, static_argnames=("build", "gradient"))
def _shares(of, key, *, build, gradient):
    """How often each worker is asked by a method that asks one at a time, over many keys, `[N]`."""

    def asked(of, key):
        rounds = Rounds(build, gradient, of, key, None)
        keys = jax.random.split(key, _ASKED)
        chosen = jax.vmap(lambda key: rounds._replace(key=key).asks(rounds.first()))(keys)
        return jnp.mean(chosen[:, None] == jnp.arange(rounds.shape[0])[None], axis=0)

    return on_one_device(asked)(of, key)


def need_uniform(name: str, build: Build, of: Instance, gradient: Callable | None) -> None:
    """Raises a ValueError where a worker is asked more often than chance explains."""
    shares, N = (
        np.asarray(_shares(of, jax.random.key(0), build=build, gradient=gradient)),
        of.b.shape[0],
    )
    if not np.abs(shares - 1 / N).max() <= 5 * np.sqrt((1 - 1 / N) / N / _ASKED) + 1e-12:
        worst = int(np.abs(shares - 1 / N).argmax())
        raise ValueError(
            f"exact moments on {name}: worker {worst} of {N} is asked in {shares[worst]:.1%} of "
            "rounds: need all equally often"
        )


@partial(jax.jit, static_argnames=("build", "gradient", "rows"))
def _rows_hit(of, key, *, build, gradient, rows):
    """How many rows of the table the messages of a round take."""

    def count(of, key):
        rounds = Rounds(build, gradient, of, key, None)
        zero, z = rounds.first() * 0, jnp.zeros(rounds.shape)
        weights = jnp.cos(1.0 + jnp.arange(zero.size))
        C = jax.grad(lambda table: weights @ rounds.after(jnp.int32(0), zero, z, table))(
            rounds.silence(rows)
        )
        return jnp.sum(jnp.any(C != 0, axis=1))

    return on_one_device(count)(of, key)


def rows_for(messages: int) -> int:
    """Of the table of noise: so many that most keys give each message a row of its own; 1 where
    nothing is compressed.
    """
    return 1 << max(13, (messages**2).bit_length()) if messages else 1


def key_without_collisions(
    build: Build, of: Instance, gradient: Callable | None, messages: int
) -> jax.Array:
    """A key with which every message of a round takes a row of its own."""
    # a message without noise would take none
    of = of._replace(compression=jnp.ones_like(of.compression))
    found = []
    for seed in range(_KEYS):
        key = jax.random.key(seed)
        hit = int(_rows_hit(of, key, build=build, gradient=gradient, rows=rows_for(messages)))
        if hit == messages:
            found.append(key)
            if len(found) == 2:  # one may be a collision of more messages
                return key
        if hit > messages:
            raise ValueError(f"a round compresses at least {hit} messages, not {messages}")
    raise ValueError(
        f"no key of {_KEYS} with which {messages} messages take as many rows: are there fewer "
        "messages in a round?"
    )
