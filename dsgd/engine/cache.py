"""Compiled programs on disk, where later processes find them: JAX's persistent compilation cache,
in a folder of this machine's own.
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

VARIABLE = "DSGD_CACHE"  # in the environment: a folder, or "off"
_OFF = "off"
_PROBE = 1 << 16  # bytes, as small programs have
_BYTES = 1 << 29  # at most in the folder; what was not used for longest goes first


def enable(folder: str | Path | None = None) -> Path | None:
    """From now on, this process keeps the programs that JAX compiles, and takes them from there: a
    second one starts in seconds.

    It is for all that this process compiles, also by other libraries: for scripts and notebooks,
    whose own process it is. Experiments call it when they start. Programs are told apart by what
    they compute and by the versions of JAX, flags and devices; other processors have other folders,
    since a program is compiled for the instructions of one. A cache that the user gave JAX itself
    stays in use.

    Args:
        folder: None: the environment variable `DSGD_CACHE`, or if there is none the user's cache
            directory; "off": nothing is kept.

    Returns:
        The folder in use, which has at most 512 MB; None if the cache is off. It is off, with a
        warning, if the folder of the environment variable or the user's cache directory cannot be
        written to, or if the user has no home directory.

    Raises:
        ValueError: if the argument `folder` cannot be written to.
    """
    chosen = folder or os.environ.get(VARIABLE)
    if str(chosen) == _OFF:
        return None
    config: Any = jax.config
    own = config.jax_compilation_cache_dir
    if own:
        return Path(own)
    try:
        place = _writable(
            _absolute(chosen) / f"jaxlib-{importlib.metadata.version('jaxlib')}-{_processor()}"
        )
    except (OSError, RuntimeError, ValueError) as error:
        if folder:
            raise ValueError(
                f"cache {chosen}: it cannot be written to ({error}); need a folder of yours, or "
                f"{_OFF!r}"
            ) from None
        given = f"{VARIABLE} = {chosen}" if chosen else "the user's cache directory"
        remedy = f"set {VARIABLE} to a folder that can be written to, or to {_OFF!r}"
        warnings.warn(
            f"cache: compiled programs are not kept, since {given} cannot be written to "
            f"({error}); {remedy}",
            stacklevel=2,
        )
        return None
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_compilation_cache_max_size", _BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return place


def _absolute(chosen: str | Path | None) -> Path:
    """The chosen folder, or the user's cache directory.

    Raises:
        OSError, RuntimeError, ValueError: if the user has no home directory, or the path is none.
    """
    if chosen:
        return records.expanded("cache", chosen).absolute()
    place = platformdirs.user_cache_path("dsgd")
    if not place.is_absolute():  # "~/.cache" if no home directory is known
        raise OSError(f"{place} is not an absolute path: there is no home directory")
    return place


def _writable(place: Path) -> Path:
    """The folder, which is made if it is not there.

    Raises:
        OSError: if nothing can be written to it, also because the disk is full.
    """
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=place) as probe:
        probe.write(bytes(_PROBE))
    return place


def _processor() -> str:
    """A name for the instructions that this machine's processor has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    known = sorted(
        {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    )
    text = "\n".join([platform.machine(), platform.processor(), *known])
    return f"{platform.machine()}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
