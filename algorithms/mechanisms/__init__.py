"""Mechanisms that several methods share."""

from typing import Any

import lazy_loader

_load: Any = lazy_loader.attach(__name__, ["delays", "memories", "three_points"])[0]


def __getattr__(name: str) -> Any:
    return _load(name)
