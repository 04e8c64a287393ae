"""The files of the methods in this folder, and what they say."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from algorithms import registry

SHARED = {"bits", "compressors", "events", "files", "given", "graphs", "server_events", "steps"}
FILES: dict[str, ModuleType] = {
    path.stem: importlib.import_module(f"tests.methods.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))
    if path.stem not in SHARED and not path.stem.startswith("test_")
}
CASES = {
    f"{name}, {title}" if title else name: case
    for name, file in FILES.items()
    for title, case in getattr(file, "CASES", {}).items()
}

# pairs of functions that return methods with equal models
EQUALS = {
    f"{name}, {title}": pair
    for name, file in FILES.items()
    for title, pair in getattr(file, "EQUALS", {}).items()
}


def form(name: str) -> Callable[[int, int, int], Any]:
    """Returns the closed form of a registered instance."""
    own = registry.find(name)
    file = FILES[own.name]
    return getattr(file, f"bits{name.removeprefix(own.name)}", file.bits)
