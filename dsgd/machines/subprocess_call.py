"""Calls a function in a subprocess that simulates a given number of devices on the CPU.

The number of devices of a process is fixed when JAX is initialised. The function and its arguments
may be defined in a notebook or be closures, because cloudpickle serialises them by value.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from dsgd.machines import pickling

_SECONDS = 600.0
_SCRIPT = f"import sys; from {__name__} import _main; _main(*sys.argv[1:])"


class SubprocessError(RuntimeError):
    """The subprocess could not receive its input, or returned no result.

    The message has the reason, and a note the whole error output of the subprocess.
    """


def call(devices: int, function: Callable, *args: Any) -> Any:
    """Returns the result of `function(*args)` in a subprocess with the given number of devices.

    Args:
        devices: number of devices of the subprocess.
        function: a function that can be pickled.
        args: arguments that can be pickled; JAX keys are sent as their data.

    Raises:
        SubprocessError: if the subprocess could not receive its input, or returned no result.
    """
    import cloudpickle  # noqa: PLC0415 (imported only if there are too few devices)

    with tempfile.TemporaryDirectory() as folder:
        sent, returned = Path(folder, "arguments"), Path(folder, "result")
        try:
            sent.write_bytes(pickling.dumps((function, [_wrap_keys(arg) for arg in args])))
        except Exception as error:  # an object's own pickling may raise anything
            raise SubprocessError(
                f"the method or the problem cannot be sent to another process ({error})"
            ) from error
        command = [sys.executable, "-c", _SCRIPT, str(sent), str(returned)]
        try:
            done = subprocess.run(
                command,
                env=environment(devices),
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SubprocessError(
                f"a process with {devices} devices did not finish within {_SECONDS:g} s"
            ) from error
        if done.returncode or not returned.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            ended = SubprocessError(
                f"a process with {devices} devices exited with status {done.returncode}: {last}"
            )
            ended.add_note(done.stderr)  # if XLA aborts, the last line is only part of its stack
            raise ended
        return cloudpickle.loads(returned.read_bytes())


def environment(devices: int) -> dict[str, str]:
    """Returns the environment variables of a subprocess that simulates `devices` devices on the CPU
    and finds the same modules as this process.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join(filter(None, sys.path))
    x64 = str(int(jax.config.read("jax_enable_x64")))
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "PYTHONPATH": path,
        "JAX_ENABLE_X64": x64,
    }


class _Key:
    """The data of a JAX key, which itself cannot be pickled."""

    def __init__(self, key: jax.Array) -> None:
        self.data, self.kind = (
            jax.device_get(jax.random.key_data(key)),
            str(jax.random.key_impl(key)),
        )

    def key(self) -> jax.Array:
        return jax.random.wrap_key_data(self.data, impl=self.kind)


def _wrap_keys(arg: Any) -> Any:
    return (
        _Key(arg)
        if isinstance(arg, jax.Array) and jnp.issubdtype(arg.dtype, jax.dtypes.prng_key)
        else arg
    )


def _main(sent: str, returned: str) -> None:
    import cloudpickle  # noqa: PLC0415

    function, args = cloudpickle.loads(Path(sent).read_bytes())
    Path(returned).write_bytes(
        pickling.dumps(function(*(arg.key() if isinstance(arg, _Key) else arg for arg in args)))
    )
