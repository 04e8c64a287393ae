"""Ways to spoil a method, for the tests of what would be found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import algorithms
from dsgd import compressors
from dsgd.base import Algorithm, Compressor

Method = Callable[..., Algorithm]
Edit = Callable[[Any, Any], Any]  # (before, after) -> after


def edited(method: Method, edit: Edit) -> Method:
    """Whose state is edited after each round."""

    def build(*arguments, **options):
        inner = method(*arguments, **options)

        def update(state, gradients, round):
            return edit(state, inner.update(state, gradients, round))

        return inner._replace(update=update)

    return build


def in_workers(method: Method, **edits: Edit) -> Method:
    """Edits of parts of the workers' state, by their names."""
    return edited(method, lambda before, after: after._replace(workers=_parts(before.workers, after.workers, edits)))


def in_server(method: Method, **edits: Edit) -> Method:
    """Edits of parts of the server's state, by their names."""
    return edited(method, lambda before, after: after._replace(server=_parts(before.server, after.server, edits)))


def _parts(before: Any, after: Any, edits: dict[str, Edit]) -> Any:
    return after._replace(**{name: edit(getattr(before, name), getattr(after, name)) for name, edit in edits.items()})


def stays(before, after):
    return before


def forgotten(before, after):
    return jax.tree.map(jnp.zeros_like, after)


def scaled(method: Method, factor: float | Callable[[int], float]) -> Method:
    """Whose gradients are so many times as large as they should be; a factor may depend on N."""

    def build(*arguments, **options):
        inner = method(*arguments, **options)

        def update(state, gradients, round):
            by = factor(round.workers) if callable(factor) else factor
            return inner.update(state, jax.tree.map(lambda leaf: leaf * by, gradients), round)

        return inner._replace(update=update)

    return build


def ruled(**other) -> Method:
    """DropCompute by another rule."""
    return lambda *arguments, **rule: algorithms.drop_compute(*arguments, **{**rule, **other})


def of_one_key(compressor: Compressor) -> Compressor:
    """All of whose messages draw the same."""
    return compressor._replace(compress=lambda key, x: compressor.compress(jax.random.key(0), x))


def decoding(compressor: Compressor, change: Callable[[jax.Array], jax.Array]) -> Compressor:
    """Another decoder: sender and receivers change what they decode."""
    return compressor._replace(
        compress=lambda key, x: compressors.encode(compressor, key, x).message,
        decompress=lambda message, d: change(compressor.decompress(message, d)),
    )
