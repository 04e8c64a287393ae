"""Whether this process was forked from one in which JAX had started. It lacks JAX's threads, and
whatever it computes never ends.
"""

from __future__ import annotations

import os

import jax

_SETTING = "jax_num_cpu_devices"  # after its start, JAX raises an error where this is changed
_started = False  # whether JAX had, when this process was last forked
_lacks_threads = False


class _Unequal(int):
    """A number that equals none, not even itself: for JAX a change, which changes nothing."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def need_threads() -> None:
    """Raises a RuntimeError in a process that JAX cannot compute in."""
    if _lacks_threads:
        raise RuntimeError(
            "this process was forked after JAX had started, whose threads it lacks, and its "
            "computations would never end;"
            " start it by multiprocessing.get_context('spawn'), or fork before anything is computed"
        )


def _before() -> None:
    """In the parent, which has all threads: to ask JAX takes a lock that one of them may hold."""
    global _started  # noqa: PLW0603 (of the whole process)
    number = getattr(jax.config, _SETTING)
    try:
        jax.config.update(_SETTING, _Unequal(number))
    except RuntimeError:
        _started = True
    else:
        jax.config.update(_SETTING, number)


def _in_child() -> None:
    global _lacks_threads  # noqa: PLW0603 (of the whole process)
    _lacks_threads = _lacks_threads or _started


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before, after_in_child=_in_child)
