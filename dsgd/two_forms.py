"""Functions that XLA is slow at on CPUs, in two forms: as one writes them, and another for CPUs where there are many elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax


def of_each_run(plain: Callable[[jax.Array], Any], on_cpus: Callable[[jax.Array], Any], many: int) -> Callable[[jax.Array], Any]:
    """A function of `[runs, ...]` in two forms, of which the first has a transpose, too. Mapped over, it knows how many elements there are.

    Args:
        many: elements of all runs, from which on the second is taken on CPUs.
    """

    @jax.custom_jvp
    @jax.custom_batching.custom_vmap
    def either(x: jax.Array) -> Any:
        return plain(x) if x.size < many else lax.platform_dependent(x, cpu=on_cpus, default=plain)

    @either.def_vmap
    def _(runs: int, mapped: list[bool], x: jax.Array) -> tuple[Any, Any]:
        """Mapped once more: only more runs."""
        del mapped  # it is: there is no other argument
        together = either(x.reshape(-1, *x.shape[2:]))
        return jax.tree.map(lambda part: part.reshape(*x.shape[:2], *part.shape[1:]), together), jax.tree.map(lambda _: True, together)

    @either.defjvp
    def _(x, changes):
        return either(*x), jax.jvp(plain, x, changes)[1]

    return either
