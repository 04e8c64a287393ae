"""Whether this process was forked from one in which JAX had started. It lacks JAX's threads, and whatever it computes never ends."""

from __future__ import annotations

import os

import jax

_SETTING = "jax_num_cpu_devices"  # which JAX lets nobody change after its start
_lacks_threads = False


def need_threads() -> None:
    """Raises a RuntimeError in a process that JAX cannot compute in."""
    if _lacks_threads:
        raise RuntimeError(
            "this process was forked after JAX had started, whose threads it lacks, and its computations would never end;"
            " start it by multiprocessing.get_context('spawn'), or fork before anything is computed"
        )


def _started() -> bool:
    """Whether JAX has."""
    before = getattr(jax.config, _SETTING)
    try:
        jax.config.update(_SETTING, before + 2)  # one that is valid, too
    except RuntimeError:
        return True
    jax.config.update(_SETTING, before)
    return False


def _forked() -> None:
    """In the child."""
    global _lacks_threads  # noqa: PLW0603 (of the whole process)
    _lacks_threads = _lacks_threads or _started()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
