"""Eight CPU devices, strict JAX flags, and common fixtures."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import fast_compile
import typecheck  # noqa: F401 (before the modules that it wraps)

os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 "
    f"{fast_compile.FLAGS}"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# processes that tests start write nothing to the user's cache
os.environ.setdefault("DSGD_CACHE", "off")
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(
    int(fast_compile.FAST)
)  # they compile with the same settings

import jax
import jaxtyping
import pytest
from hypothesis import settings

import dsgd
from dsgd.engine import programs

MAPS = 20_000  # memory maps of a process, above which its programs are evicted
KEPT = 1 << 30  # bytes of programs on disk, above which they are compiled again

fast_compile.trace_quickly()
jax.config.update("jax_numpy_rank_promotion", "raise")
# no line numbers in programs, so that they do not depend on their location
jax.config.update("jax_traceback_in_locations_limit", 0)
# Draws are deterministic, so that a failure here fails everywhere. There is no deadline, because
# the first example compiles.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
# with --hypothesis-profile=thorough
settings.register_profile("thorough", deadline=None, max_examples=2_000)
settings.load_profile("ci")


def pytest_addoption(parser):
    parser.addoption(
        "--long",
        action="store_true",
        help="also run whole experiments, all code in docs/, Ray, killed processes, planted "
        "mistakes, and a sixth of the other methods and histories",
    )
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="as --long, and also run all methods and recorded histories",
    )


def pytest_configure(config):
    """Stores the programs that tests compile, which takes a third of their time, in pytest's cache,
    if available; `--cache-clear` empties it.
    """
    config.option.long |= config.option.exhaustive
    try:
        folder = config.cache.mkdir("programs")
    except (AttributeError, OSError):  # with -p no:cacheprovider, or in a read-only checkout
        return
    if (
        not hasattr(config, "workerinput")
        and sum(path.stat().st_size for path in folder.rglob("*")) > KEPT
    ):
        shutil.rmtree(folder)
    dsgd.cache.enable(folder)
    # otherwise JAX scans all programs whenever it writes one
    jax.config.update("jax_compilation_cache_max_size", -1)


def pytest_sessionfinish():
    """Freezes the garbage collector. Pytest collects garbage five times to find unclosed resources;
    once is enough, and the remaining objects are not scanned again.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    """Deselects tests that are marked exhaustive, or marked long, or have a fixture that uses
    `long`, unless the options ask for them.
    """
    kinds = {kind for kind in ("long", "exhaustive") if not config.getoption(f"--{kind}")}
    out = {
        item
        for item in items
        if kinds & ({mark.name for mark in item.iter_markers()} | set(item.fixturenames))
    }
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]


@pytest.fixture(scope="session")
def long() -> None:
    """Marks fixtures and tests with a long budget."""


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Clears caches if programs hold too many memory maps, of which a process may have 65,530 on
    Linux; all tests' programs together have more.
    """
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > MAPS:
        programs.clear()
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def optimised():
    """Compiles programs as users' are, for tests of the compiler's output."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", fast_compile.FAST)


@pytest.fixture
def as_users_call() -> Iterator[None]:
    """Without the checks of annotations of constructors, which only tests have."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    """A mesh of one device, for tests that do not depend on devices."""
    return dsgd.workers.mesh(1)


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture(
    params=[1, pytest.param(2, marks=pytest.mark.long), 8], ids=lambda devices: f"D={devices}"
)
def any_mesh(request) -> jax.sharding.Mesh:
    """A mesh of one device, two (with --long), or eight."""
    return dsgd.workers.mesh(request.param)
