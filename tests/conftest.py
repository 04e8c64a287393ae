"""Eight CPU devices, strict JAX flags, and what many tests share."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import fast_compile
import typecheck  # noqa: F401 (before what it wraps)

os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 "
    f"{fast_compile.FLAGS}"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# processes that tests start leave nothing in the user's cache
os.environ.setdefault("DSGD_CACHE", "off")
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(
    int(fast_compile.HASTE)
)  # and compile as this one

import jax
import pytest
from hypothesis import settings

import dsgd
from dsgd.engine import programs

MAPS = 20_000  # of a process, from where on its programs are forgotten
KEPT = 1 << 30  # bytes of programs on disk, from where on they are compiled anew

fast_compile.trace_quickly()
jax.config.update("jax_numpy_rank_promotion", "raise")
# no lines of code in programs: they are the same wherever they are written
jax.config.update("jax_traceback_in_locations_limit", 0)
# Draws are derandomized: a failure here fails everywhere. The first example compiles, so no
# deadline.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
# --hypothesis-profile=thorough
settings.register_profile("thorough", deadline=None, max_examples=2_000)
settings.load_profile("ci")


def pytest_addoption(parser):
    parser.addoption(
        "--long",
        action="store_true",
        help="whole experiments, too, all code in docs/, Ray, deaths, all spoilt methods",
    )


def pytest_configure(config):
    """What tests compile, a third of their time, is kept in pytest's cache, where there is one;
    `--cache-clear` empties it.
    """
    try:
        folder = config.cache.mkdir("programs")
    except (AttributeError, OSError):  # -p no:cacheprovider; a checkout that cannot be written to
        return
    if (
        not hasattr(config, "workerinput")
        and sum(path.stat().st_size for path in folder.rglob("*")) > KEPT
    ):
        shutil.rmtree(folder)
    dsgd.cache.enable(folder)
    # else JAX looks through all of them at each that it writes
    jax.config.update("jax_compilation_cache_max_size", -1)


def pytest_sessionfinish():
    """Pytest collects garbage five times to find what was not closed. Once is enough: what is then
    there is not looked through again.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    """Without --long, what is marked so is left out, and what needs a fixture that takes `long`."""
    if config.getoption("--long"):
        return
    out = {item for item in items if item.get_closest_marker("long") or "long" in item.fixturenames}
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]


@pytest.fixture(scope="session")
def long() -> None:
    """Who takes it has a long budget."""


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Each compiled program holds maps of memory, of which a process may have 65,530 on Linux: all
    tests' programs together have more.
    """
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > MAPS:
        programs.clear()
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def optimised():
    """Programs are compiled as users' are, for tests of what the compiler makes of them."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", fast_compile.HASTE)


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    """One device: where a test is not about devices."""
    return dsgd.workers.mesh(1)


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture(
    params=[1, pytest.param(2, marks=pytest.mark.long), 8], ids=lambda devices: f"D={devices}"
)
def any_mesh(request) -> jax.sharding.Mesh:
    """One device, two (with --long), eight."""
    return dsgd.workers.mesh(request.param)
