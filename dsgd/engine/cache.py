"""Compiled programs on disk: JAX's persistent compilation cache, in a folder that depends on the
machine's processor.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import platformdirs

from dsgd import records

VARIABLE = "DSGD_CACHE"  # environment variable: a folder, or "off"
_OFF = "off"
_PROBE = 1 << 16  # bytes, the size of a small compiled program
_BYTES = 1 << 29  # maximum size of the folder; the least recently used programs are deleted
_is_off = False  # by an earlier call in this process


def enable(folder: str | Path | None = None) -> Path | None:
    """Turns on the persistent compilation cache for this process: programs that JAX compiles are
    stored on disk, and a later process that needs them starts in seconds.

    The first run of a process calls it; call it before to choose another folder or "off". It
    applies to everything that this process compiles from then on, including programs of other
    libraries. A program is identified by what it computes, the versions of JAX, the flags and the
    devices. Each type of processor has its own folder, since programs are compiled for the
    processor's instructions. If the user has configured a cache directory of JAX, it remains in
    use. A line on stderr reports when the folder in the user's cache directory is created.

    Args:
        folder: folder of the cache; "off": no cache, also in later calls without a folder; None:
            that of the environment variable `DSGD_CACHE`, or, if it is not set, the user's cache
            directory.

    Returns:
        The folder in use, which has at most 512 MB; None if the cache is off. The cache is off,
        with a warning, if the folder of the environment variable or the user's cache directory
        cannot be written to, or if the user has no home directory.

    Raises:
        ValueError: if the argument `folder` cannot be written to.
    """
    global _is_off  # noqa: PLW0603 (JAX has one cache for the process)
    chosen = folder or (_OFF if _is_off else os.environ.get(VARIABLE))
    _is_off = str(chosen) == _OFF
    if _is_off:
        return None
    config: Any = jax.config
    configured = config.jax_compilation_cache_dir
    if configured:
        return Path(configured)
    try:
        place = _absolute(chosen) / f"jaxlib-{importlib.metadata.version('jaxlib')}-{_processor()}"
        is_new = not place.exists()
        _make_writable(place)
    except (OSError, RuntimeError, ValueError) as error:
        if folder:
            raise ValueError(
                f"cache: folder = {chosen} cannot be written to ({error}); expected a writable "
                f"folder, or {_OFF!r}"
            ) from None
        given = f"{VARIABLE} = {chosen}" if chosen else "the user's cache directory"
        remedy = f"set {VARIABLE} to a writable folder, or to {_OFF!r}"
        warnings.warn(
            f"cache: compiled programs are not stored, since {given} cannot be written to "
            f"({error}); {remedy}",
            stacklevel=2,
        )
        return None
    if is_new and not chosen:
        print(
            f"dsgd: compiled programs are stored in {place}, so that later processes start faster; "
            f"{VARIABLE}={_OFF} turns this off",
            file=sys.stderr,
        )
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_compilation_cache_max_size", _BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return place


def _absolute(chosen: str | Path | None) -> Path:
    """Returns the absolute path of the chosen folder, or of the user's cache directory.

    Raises:
        OSError, RuntimeError, ValueError: if the user has no home directory, or the path is not
            valid.
    """
    if chosen:
        return records.user_path("cache", chosen).absolute()
    place = platformdirs.user_cache_path("dsgd")
    if not place.is_absolute():  # "~/.cache" if no home directory is known
        raise OSError(f"{place} is not an absolute path: there is no home directory")
    return place


def _make_writable(place: Path) -> None:
    """Creates the folder if it does not exist.

    Raises:
        OSError: if nothing can be written to it, for example because the disk is full.
    """
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=place) as probe:
        probe.write(bytes(_PROBE))


def _processor() -> str:
    """Returns a name for the instruction set of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    properties = sorted(
        {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    )
    text = "\n".join([platform.machine(), platform.processor(), *properties])
    return f"{platform.machine()}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
