"""A function called in another process, which simulates as many devices on the CPU as it needs.

How many devices a process has is settled when JAX starts. What is called may hold functions of a
notebook, or closures: cloudpickle sends them as they are.
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

_SECONDS = 600.0
_SCRIPT = "import sys; from dsgd.contract.elsewhere import _main; _main(*sys.argv[1:])"


class Unreachable(RuntimeError):
    """The other process could not be given what it needs, or did not come back; it says why, and a
    note has all that the process said.
    """


def call(devices: int, function: Callable, *args: Any) -> Any:
    """What `function(*args)` gives in a process with so many devices.

    Args:
        devices: how many the process has.
        function: of a module.
        args: anything that can be sent. Keys are sent as their data.

    Raises:
        Unreachable: see there.
    """
    import cloudpickle  # noqa: PLC0415 (only who checks on too few devices needs it)

    with tempfile.TemporaryDirectory() as folder:
        there, back = Path(folder, "arguments"), Path(folder, "result")
        try:
            there.write_bytes(cloudpickle.dumps((function, [_without_keys(arg) for arg in args])))
        except Exception as error:  # anything may be what cannot be pickled
            raise Unreachable(
                f"the method or the problem cannot be sent to another process ({error})"
            ) from error
        command = [sys.executable, "-c", _SCRIPT, str(there), str(back)]
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
            raise Unreachable(
                f"a process with {devices} devices took more than {_SECONDS:g} s"
            ) from error
        if done.returncode or not back.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            ended = Unreachable(
                f"a process with {devices} devices ended with status {done.returncode}: {last}"
            )
            ended.add_note(done.stderr)  # where XLA ends a process, the last line is of its stack
            raise ended
        return cloudpickle.loads(back.read_bytes())


def environment(devices: int) -> dict[str, str]:
    """Of a process that has so many devices, simulated on the CPU, and finds the modules that this
    one does.
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
    """The data of a key, which itself cannot be pickled."""

    def __init__(self, key: jax.Array) -> None:
        self.data, self.kind = (
            jax.device_get(jax.random.key_data(key)),
            str(jax.random.key_impl(key)),
        )

    def key(self) -> jax.Array:
        return jax.random.wrap_key_data(self.data, impl=self.kind)


def _without_keys(arg: Any) -> Any:
    return (
        _Key(arg)
        if isinstance(arg, jax.Array) and jnp.issubdtype(arg.dtype, jax.dtypes.prng_key)
        else arg
    )


def _main(there: str, back: str) -> None:
    import cloudpickle  # noqa: PLC0415

    function, args = cloudpickle.loads(Path(there).read_bytes())
    Path(back).write_bytes(
        cloudpickle.dumps(function(*(arg.key() if isinstance(arg, _Key) else arg for arg in args)))
    )
