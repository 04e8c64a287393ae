"""Pickling of what is sent to other processes."""

from __future__ import annotations

import importlib
import io
import sys
from types import ModuleType
from typing import Any

import jax


def dumps(value: Any) -> bytes:
    """Pickles a value, also functions and classes that cannot be imported, and modules of any
    class. A device of JAX becomes the device with the same number in the process that reads it.
    """
    import cloudpickle  # noqa: PLC0415 (imported only if something is sent)

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, jax.Device):
                return _device, (obj.id,)
            if isinstance(obj, ModuleType) and sys.modules.get(obj.__name__) is obj:
                return importlib.import_module, (obj.__name__,)
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _device(number: int) -> Any:
    return next(each for each in jax.devices() if each.id == number)
