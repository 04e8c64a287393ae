"""Calls that are sent to other processes as bytes, and return bytes.

An error of the function is part of what a call returns. An exception of the process that makes the
call therefore means that the call was lost.
"""

from __future__ import annotations

import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import jax

from dsgd import checks
from dsgd.machines.pickling import dumps

# number of threads of XLA, on which sums of large arrays depend to rounding
_THREADS = ("PJRT_NPROC", "NPROC")
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
)
_shown: dict[Any, Any] = {}  # warnings that were issued


class RemoteTraceback(Exception):
    """The cause of an error that another process raised.

    Args:
        text: the traceback in the other process.
        module: name of the module that raised the error.
    """

    def __init__(self, text: str, module: str = "") -> None:
        super().__init__(text)
        self.module = module

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def cores() -> list[int]:
    """Returns the cores of this machine that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pack(where: str, function: Callable[[Any], Any], item: Any) -> bytes:
    """Returns the call `function(item)`, with the settings of JAX on which its result depends.

    Raises:
        ValueError: if the function or the item cannot be pickled.
    """
    config: Any = jax.config
    settings = {name: getattr(config, name) for name in _SETTINGS}
    given = next(filter(None, map(os.environ.get, _THREADS)), None)
    threads = given or str(len(cores()))
    try:
        call = dumps((function, item))
    except Exception as error:  # an object's own pickling may raise anything
        raise ValueError(
            f"{where}: {checks.show(function)} with {checks.show(item)} cannot be pickled "
            f"({error}); expected a function and items that can be sent to other processes"
        ) from error
    return dumps((threads, settings, call))


def perform(sent: bytes) -> bytes:
    """Makes a call that `pack` returned; `unpack` reads its result."""
    threads, settings, call = pickle.loads(sent)
    os.environ.setdefault(_THREADS[-1], threads)
    config: Any = jax.config
    for name, value in settings.items():
        if getattr(config, name) != value:
            config.update(name, value)
    result, failure = b"", None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function, item = pickle.loads(call)
            result = dumps(function(item))
        except Exception as error:
            failure = _describe(error)
    notes = [(each.message, each.category, each.filename, each.lineno) for each in caught]
    return dumps((result, failure, notes))


def _describe(error: Exception) -> tuple[Exception, str, str]:
    """Returns an error that can be pickled, its traceback, and the module that raised it."""
    text = "".join(traceback.format_exception(error))
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    try:
        pickle.loads(dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return error, text, frame.f_globals.get("__name__", "")


def unpack(returned: bytes) -> Any:
    """Returns the result of a call, after its warnings have been issued in this process.

    Raises:
        Exception: the error of the function, with a `RemoteTraceback` as its cause.
    """
    result, failure, notes = pickle.loads(returned)
    for note in notes:
        warnings.warn_explicit(*note, registry=_shown)
    if failure:
        error, text, module = failure
        raise error from RemoteTraceback(text, module)
    return pickle.loads(result)
