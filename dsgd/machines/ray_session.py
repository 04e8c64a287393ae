"""Connection to Ray: imports it when needed, and starts it if it does not run yet."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dsgd import checks

_STORE = 200_000_000  # bytes for messages of one machine, which take some megabytes


def require_ray() -> Any:
    """Returns the module `ray`.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        import ray  # noqa: PLC0415 (an optional dependency of a third of a gigabyte)
    except ImportError as error:
        raise ValueError(
            "on_ray: Ray is not installed; expected the optional dependency: pip install "
            "'dsgd[ray]'"
        ) from error
    return ray


@contextmanager
@checks.arguments
def session(processes: int, address: str = "local") -> Iterator[Any]:
    """Provides Ray with room for the given number of processes within the block. If Ray was
    initialized before, it stays so afterwards.

    Args:
        processes: number of actors that run at the same time.
        address: "local": processes on this machine, which listen at its loopback address and end
            with the block; otherwise the address of a Ray cluster, "10.0.0.1:6379" or "auto".

    Raises:
        ValueError: if Ray is not installed, or the cluster cannot be reached or has too few CPUs.
    """
    checks.positive_int("session: processes", processes)
    with _unchanged_process():
        # Ray reads this variable when it is imported. Local processes then listen at 127.0.0.1, as
        # they do by default on macOS and Windows, instead of at all addresses.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        ray = require_ray()
    if ray.is_initialized():
        _require_room(ray, processes)
        yield ray
        return
    with _unchanged_process():
        local = (
            {"num_cpus": processes, "object_store_memory": _STORE, "include_dashboard": False}
            if address == "local"
            else {}
        )
        try:
            with warnings.catch_warnings():
                # A fork does not copy JAX's threads, but Ray's processes replace their program
                # immediately.
                warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
                ray.init(
                    address,
                    log_to_driver=False,
                    logging_level="ERROR",
                    configure_logging=False,
                    **local,
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"on_ray: Ray cannot be reached at address = {address!r} ({error}); expected "
                "'local', 'auto' or the address of a running cluster"
            ) from error
        try:
            _require_room(ray, processes)
            yield ray
        finally:
            ray.shutdown()


def _require_room(ray: Any, processes: int) -> None:
    room = int(ray.cluster_resources().get("CPU", 0))
    if room < processes:
        raise ValueError(
            f"on_ray: {processes} processes, but Ray has {room} CPUs; expected one CPU for each "
            f"process; on one machine, set the number with ray.init(num_cpus={processes})"
        )


@contextmanager
def _unchanged_process() -> Iterator[None]:
    """Restores the driver's environment, its SIGTERM handler and its error display, which Ray
    changes, at the end of the block.
    """
    before, hook, main = (
        dict(os.environ),
        sys.excepthook,
        threading.current_thread() is threading.main_thread(),
    )
    handler = signal.getsignal(signal.SIGTERM)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        sys.excepthook = hook
        if main:
            signal.signal(signal.SIGTERM, handler)
