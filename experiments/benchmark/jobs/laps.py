"""Where a job's time goes."""

from __future__ import annotations

import json
import time

_TRACE = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration")
_COMPILE = ("/jax/core/compile/backend_compile_duration",)


class Laps:
    """Seconds by name, each since the last one, without those in which JAX traced (and lowered) and compiled: they have their own names."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._spans: list[tuple[float, float, bool]] = []  # of JAX: begin, end, whether it compiled; some lie within others

    def watch_jax(self) -> None:
        """From here on."""
        from jax import monitoring

        monitoring.register_event_duration_secs_listener(self._heard)

    def lap(self, name: str) -> None:
        """Ends one."""
        began, self._at = self._at, time.perf_counter()
        self._seconds[name] = self._at - began - _covered([span for span in self._spans if span[0] >= began])

    def finish(self, loss: float) -> None:
        """Prints them, and the last loss, as one line of JSON."""
        compiling = _covered([span for span in self._spans if span[2]])
        print(json.dumps({**self._seconds, "trace": _covered(self._spans) - compiling, "compile": compiling, "loss": loss}))

    def _heard(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event in _TRACE + _COMPILE:
            now = time.perf_counter()
            self._spans.append((now - duration_secs, now, event in _COMPILE))


def _covered(spans: list[tuple[float, float, bool]]) -> float:
    """Length of the union."""
    total, until = 0.0, 0.0
    for begin, end, _ in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
