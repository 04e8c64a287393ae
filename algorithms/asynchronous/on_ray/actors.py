"""The actors of Ray: how they are started, with their environment, and killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsgd import xla
from dsgd.machines import subprocess_call
from dsgd.machines.ray_session import require_ray

# One thread for each actor's programs: N of them share the machine's cores.
_ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def actor(ray: Any, made: type, *args: Any, restarts: int = 0, retries: int = 0) -> Any:
    """Starts an actor of this class on some machine, with JAX on one thread of its CPU.

    Args:
        ray: the module.
        made: the class.
        args: arguments of its constructor. Large ones are references, `ray.put(...)`, that the
            caller keeps, because Ray restarts the actor from them.
        restarts: how often Ray restarts the actor after its process died.
        retries: how often Ray repeats a call if the process died during it; -1: as long as Ray
            restarts the process.
    """
    inherited = {
        name: value
        for name, value in subprocess_call.environment(1).items()
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


def is_replacement() -> bool:
    """Returns whether this process replaces one that died."""
    return require_ray().get_runtime_context().was_current_actor_reconstructed


def kill(ray: Any, actors: Sequence[Any]) -> None:
    """Kills these actors, including those that do not respond."""
    for each in actors:
        ray.kill(each)
