"""Asynchronous methods, in which no worker waits for another, with their arrival times and given
delays.
"""

from typing import Any

import lazy_loader

_load: Any = lazy_loader.attach(__name__, ["on_ray"])[0]


def __getattr__(name: str) -> Any:
    return _load(name)
