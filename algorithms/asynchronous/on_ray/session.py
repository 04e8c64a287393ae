"""Ray: imported where it is used, started where nobody has, and the environment of what runs
on it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dsgd import checks, xla
from dsgd.contract import elsewhere

# One thread for each actor's programs: N of them share the machine's cores.
_ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_STORE = 200_000_000  # bytes for messages of one machine, which take some megabytes


def need_ray() -> Any:
    """The module.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import ray  # noqa: PLC0415 (a third of a gigabyte, which only who uses it has)
    except ImportError as error:
        raise ValueError(
            "on_ray: Ray is not installed; need it: pip install 'dsgd[ray]'"
        ) from error
    return ray


@contextmanager
@checks.arguments
def session(processes: int, address: str = "local") -> Iterator[Any]:
    """Ray with room for so many processes, for the block; what was initialised before stays so
    after it.

    Args:
        processes: actors that run at a time.
        address: "local": processes of this machine, which end with the block; else that of a
            cluster, "10.0.0.1:6379" or "auto".

    Raises:
        ValueError: Ray is not installed, a cluster that cannot be reached, or that has too few
            CPUs.
    """
    checks.positive_int("session: processes", processes)
    ray = need_ray()
    if ray.is_initialized():
        _need_room(ray, processes)
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
                # JAX has threads, which a fork does not copy; Ray's processes are other programs at
                # once.
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
                f"on_ray: Ray cannot be reached at address = {address!r} ({error})"
            ) from error
        try:
            _need_room(ray, processes)
            yield ray
        finally:
            ray.shutdown()


def actor(ray: Any, made: type, *args: Any, restarts: int = 0, retries: int = 0) -> Any:
    """An actor of this class, on some machine, with JAX on one thread of its CPU.

    Args:
        ray: the module.
        made: the class.
        args: of its constructor. Large ones are references, `ray.put(...)`, that the caller keeps:
            Ray restarts the actor from them.
        restarts: how often Ray restarts it when its process has died.
        retries: how often Ray repeats a call if the process died during it; -1: as long as Ray
            restarts the process.
    """
    inherited = {
        name: value
        for name, value in elsewhere.environment(1).items()
        if name in ("JAX_PLATFORMS", "JAX_ENABLE_X64", "PYTHONPATH")
    }
    options = {
        "num_cpus": 1,
        "max_restarts": restarts,
        "max_task_retries": retries,
        "scheduling_strategy": "SPREAD",
    }
    environment = {"env_vars": {**inherited, **_ONE_THREAD, "XLA_FLAGS": xla.ONE_THREAD}}
    return ray.remote(made).options(**options, runtime_env=environment).remote(*args)


def reconstructed() -> bool:
    """Whether this process takes the place of one that has died."""
    return need_ray().get_runtime_context().was_current_actor_reconstructed


def ended(ray: Any, actors: Sequence[Any]) -> None:
    """Ends these actors, also those that do not answer."""
    for each in actors:
        ray.kill(each)


def _need_room(ray: Any, processes: int) -> None:
    room = int(ray.cluster_resources().get("CPU", 0))
    if room < processes:
        raise ValueError(
            f"on_ray: {processes} processes where Ray has {room} CPUs: need as many; on one "
            "machine the number is yours,"
            f" ray.init(num_cpus={processes})"
        )


@contextmanager
def _unchanged_process() -> Iterator[None]:
    """Ray changes its driver's environment, what it does at SIGTERM, and how it shows errors:
    undone at the end.
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
