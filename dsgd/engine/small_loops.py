"""Loops of small rounds as one function each, on CPUs.

XLA's runtime for CPUs starts a function for each operation of a loop and one for its condition, some 50 ns each: most of a round of 16
models of 100 elements. Loops whose turn moves less than 1 kB it compiles to one function instead, which also compiles faster than many. In
programs that are compiled here the limit is `BYTES`, unless XLA_FLAGS say another; other programs of the process are as they were.

JAX passes options for one program, but none of those that XLA keeps in a map. So this one is joined to what JAX makes of the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from jax._src import compiler  # private: there is no public way

BYTES = 1_000_000  # of a turn, as XLA estimates it; where there are more, several threads are worth more

_OPTION = b"xla_cpu_small_while_loop_byte_threshold"
_here = threading.local()


@contextmanager
def in_one_function(platform: str) -> Iterator[None]:
    """What this thread compiles here for devices of that platform has its small loops so."""
    _here.compiles = platform == "cpu"
    try:
        yield
    finally:
        _here.compiles = False


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _field(number: int, content: bytes) -> bytes:
    """Of a protocol buffer, as it is written."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


# CompileOptions.executable_build_options.debug_options.xla_backend_extra_options: of a map a key and its value.
_LIMIT = _field(3, _field(3, _field(500, _field(1, _OPTION) + _field(2, str(BYTES).encode()))))


def _with_limit(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def options(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        if not getattr(_here, "compiles", False) or _OPTION in (written := made.SerializeAsString()):
            return made
        return type(made).ParseFromString(written + _LIMIT)  # two messages, one after the other, are one with the fields of both

    return options


compiler.get_compile_options = _with_limit(compiler.get_compile_options)
