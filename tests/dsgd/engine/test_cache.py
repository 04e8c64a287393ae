"""Compiled programs on disk."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from dsgd import cache

ON_LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="where the user's cache directory is, depends on the system"
)
JOB = """
import jax, optax, algorithms, dsgd
from jax import monitoring
from dsgd import problems
compiled = []

def note(event, **about):
    if event.endswith("cache_misses"):
        compiled.append(event)

monitoring.register_event_listener(note)
problem = problems.random_quadratic(4, 3, noise=0.3, seed=0)
method = algorithms.minibatch_sgd(optax.sgd(0.1))
result = dsgd.run(method, problem, steps=5, key=jax.random.key(0), mesh=1)
print(jax.config.jax_compilation_cache_dir)
print(result.history["loss"].tolist())
print(len(compiled))
"""


def run(home: Path) -> tuple[list[str], str]:
    """Returns the output of the job with another cache directory of the user, and its stderr."""
    environment = os.environ | {"XDG_CACHE_HOME": str(home)}
    del environment["DSGD_CACHE"]
    done = subprocess.run(
        [sys.executable, "-c", JOB],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return done.stdout.splitlines(), done.stderr


@ON_LINUX
def test_a_second_process_compiles_nothing_of_its_run_and_prints_nothing(tmp_path):
    (first, losses, missed), line = run(tmp_path)
    (again, same, missing), nothing = run(tmp_path)
    assert Path(first).parent == tmp_path / "dsgd"
    assert first == again
    assert losses == same
    assert int(missed) > 0
    assert int(missing) == 0
    assert line == (
        f"dsgd: compiled programs are stored in {first}, so that later processes start faster; "
        "DSGD_CACHE=off turns this off\n"
    )
    assert nothing == ""


@pytest.fixture
def home(tmp_path, monkeypatch) -> Iterator[Path]:
    """Sets the user's cache directory on Linux; afterwards JAX's settings are restored. Nothing is
    compiled in between.
    """
    config: Any = jax.config
    names = (
        "jax_compilation_cache_dir",
        "jax_compilation_cache_max_size",
        "jax_persistent_cache_min_compile_time_secs",
    )
    before = {name: getattr(config, name) for name in names}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DSGD_CACHE", raising=False)
    monkeypatch.setattr(cache, "_is_off", False)
    config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "home"
    for name, value in before.items():
        config.update(name, value)


def test_off_stores_nothing(home, monkeypatch):
    assert cache.enable("off") is None
    assert cache.enable() is None
    monkeypatch.setattr(cache, "_is_off", False)
    monkeypatch.setenv("DSGD_CACHE", "off")
    assert cache.enable() is None
    assert not home.exists()


@ON_LINUX
def test_by_default_it_is_in_the_users_cache_directory_in_a_folder_for_this_processor(home):
    folder = cache.enable()
    assert folder is not None
    assert folder.parent == home / "dsgd"
    assert platform.machine() in folder.name
    assert folder.is_dir()


def test_a_cache_that_the_user_configured_in_jax_is_kept(home, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    assert cache.enable(tmp_path / "other") == tmp_path / "own"
    assert not (tmp_path / "other").exists()


def test_a_folder_that_cannot_be_made_is_refused(home, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        ValueError,
        match=r"file/inside cannot be written to .*; expected a writable folder, or 'off'",
    ):
        cache.enable(tmp_path / "file" / "inside")


@pytest.mark.parametrize("given", ["/dev/null/programs", "/proc", "/dev/full", "null\0byte"])
def test_a_folder_of_the_environment_that_cannot_be_used_is_a_warning(home, monkeypatch, given):
    monkeypatch.setattr("os.environ", {**os.environ, "DSGD_CACHE": given})
    with pytest.warns(UserWarning, match="set DSGD_CACHE to a writable folder, or to 'off'"):
        assert cache.enable() is None
