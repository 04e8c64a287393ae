"""Selection between two forms of an operation: plain JAX, and one that XLA compiles to faster code
on CPUs.

The environment variable `DSGD_XLA_WORKAROUNDS` is read once, when `dsgd` is imported. If it is
"off", the plain forms are used everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

VARIABLE = "DSGD_XLA_WORKAROUNDS"


def _is_enabled(value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError(f"{VARIABLE} = {value!r}; expected 'on' or 'off': unset it for 'on'")
    return value == "on"


ENABLED = _is_enabled(os.environ.get(VARIABLE, "on"))


def choose(plain: Callable[..., Any], on_cpus: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of the form for CPUs if the program is lowered for CPUs, else that of the
    plain form.

    Args:
        plain, on_cpus: functions of the arguments that return arrays of the same shapes and types.
        args: pytrees of arrays.
    """
    return lax.platform_dependent(*args, cpu=on_cpus, default=plain) if ENABLED else plain(*args)


def choose_by_size(
    plain: Callable[[jax.Array], Any], on_cpus: Callable[[jax.Array], Any], many: int
) -> Callable[[jax.Array], Any]:
    """Returns a function of arrays `[runs, ...]` that selects between two forms. Its derivatives
    are those of the plain form. Under `vmap`, the elements of all runs count.

    Args:
        plain, on_cpus: the forms.
        many: total number of elements from which on the second form is used on CPUs.
    """

    @jax.custom_jvp
    @jax.custom_batching.custom_vmap
    def either(x: jax.Array) -> Any:
        return plain(x) if x.size < many else choose(plain, on_cpus, x)

    @either.def_vmap
    def _(runs: int, mapped: list[bool], x: jax.Array) -> tuple[Any, Any]:
        """Merges the mapped axis with that of the runs."""
        del mapped  # the only argument is always mapped
        together = either(x.reshape(-1, *x.shape[2:]))
        return jax.tree.map(
            lambda part: part.reshape(*x.shape[:2], *part.shape[1:]), together
        ), jax.tree.map(lambda _: True, together)

    @either.defjvp
    def _(x, changes):
        return either(*x), jax.jvp(plain, x, changes)[1]

    return either
