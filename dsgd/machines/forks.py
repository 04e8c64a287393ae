"""Detects whether this process was forked after JAX had been initialised.

Such a process lacks JAX's threads, and its computations would never finish.
"""

from __future__ import annotations

import os

import jax

_SETTING = "jax_num_cpu_devices"  # JAX raises an error if this changes after its initialisation
_started = False  # whether JAX was initialised when this process was last forked
_lacks_threads = False


class _Unequal(int):
    """An int that is not equal to any value, even itself. JAX treats it as a change of the setting,
    without effect.
    """

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def require_threads() -> None:
    """Raises RuntimeError if JAX cannot compute in this process."""
    if _lacks_threads:
        raise RuntimeError(
            "this process was forked after JAX had been initialised, so it lacks JAX's threads and "
            "its computations would never finish; start it with "
            "multiprocessing.get_context('spawn'), or fork before anything is computed"
        )


def _note_threads() -> None:
    """Runs in the parent, which has all threads: the test takes a lock of JAX that a missing thread
    might hold.
    """
    global _started  # noqa: PLW0603 (one value for the whole process)
    number = getattr(jax.config, _SETTING)
    try:
        jax.config.update(_SETTING, _Unequal(number))
    except RuntimeError:
        _started = True
    else:
        jax.config.update(_SETTING, number)


def _note_child() -> None:
    global _lacks_threads  # noqa: PLW0603 (one value for the whole process)
    _lacks_threads = _lacks_threads or _started


if hasattr(os, "register_at_fork"):  # not available on Windows
    os.register_at_fork(before=_note_threads, after_in_child=_note_child)
