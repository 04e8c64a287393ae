"""Packages that are installed only with an extra."""

from __future__ import annotations

import importlib
from typing import Any


def load(where: str, module: str, extra: str) -> Any:
    """Imports a module of an optional package.

    Args:
        where: what needs it, for the error.
        module: name of the module.
        extra: the extra that includes the package.

    Raises:
        ImportError: if the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{where} needs {package}, which is not installed; pip install 'dsgd[{extra}]'"
        ) from error
