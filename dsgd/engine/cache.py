"""Compiled programs on disk: JAX's persistent compilation cache, in a folder that depends on the
machine's processor.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
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


def enable(folder: str | Path | None = None) -> Path | None:
    """Turns on the persistent compilation cache for this process: programs that JAX compiles are
    stored on disk, and a later process that needs them starts in seconds.

    It applies to everything that this process compiles, including programs of other libraries. Call
    it in scripts and notebooks; the experiments do so when they start. A program is identified by
    what it computes, the versions of JAX, the flags and the devices. Each type of processor has its
    own folder, since programs are compiled for the processor's instructions. If the user has
    configured a cache directory of JAX, it remains in use.

    Args:
        folder: folder of the cache; None: that of the environment variable `DSGD_CACHE`, or, if it
            is not set, the user's cache directory; "off": no cache.

    Returns:
        The folder in use, which has at most 512 MB; None if the cache is off. The cache is off,
        with a warning, if the folder of the environment variable or the user's cache directory
        cannot be written to, or if the user has no home directory.

    Raises:
        ValueError: if the argument `folder` cannot be written to.
    """
    chosen = folder or os.environ.get(VARIABLE)
    if str(chosen) == _OFF:
        return None
    config: Any = jax.config
    configured = config.jax_compilation_cache_dir
    if configured:
        return Path(configured)
    try:
        place = _writable(
            _absolute(chosen) / f"jaxlib-{importlib.metadata.version('jaxlib')}-{_processor()}"
        )
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


def _writable(place: Path) -> Path:
    """Creates the folder if it does not exist, and returns it.

    Raises:
        OSError: if nothing can be written to it, for example because the disk is full.
    """
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=place) as probe:
        probe.write(bytes(_PROBE))
    return place


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
