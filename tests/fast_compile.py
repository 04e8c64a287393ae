"""How programs of tests are compiled. Most run for milliseconds: it is in haste, unless
DSGD_TEST_OPTIMISED is in the environment.
"""

from __future__ import annotations

import gc
import os
import threading
from importlib.metadata import version

HASTE = "DSGD_TEST_OPTIMISED" not in os.environ
# A program's code is one piece: split for several threads, it costs more in all, and the other
# processor has tests of its own. XLA's older way to write loops compiles in half the time; the
# versions of JAX 0.11 do not have it.
_OLDER = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
_QUICK = (
    "--xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
FLAGS = _QUICK if HASTE and _OLDER else ""
# Eight devices on two busy cores: XLA ends the process where one of them comes 40 s after the
# others.
FLAGS += " --xla_cpu_collective_call_terminate_timeout_seconds=300"

_LOWERED = 500  # programs in one context, which keeps their constants


def trace_quickly() -> None:
    """What is traced lives on, and to look through it 700 objects apart takes a tenth of the
    time.
    """
    gc.set_threshold(100_000, 20, 100)
    if HASTE:
        _lower_in_one_context()


def _lower_in_one_context() -> None:
    """JAX makes a context of MLIR anew for each program, which takes as long as to lower a small
    one: here several hundred share one.
    """
    from jax._src.interpreters import mlir  # which flags JAX sees is to be settled before

    # it is not public: tests pass without
    if (make := getattr(mlir, "make_ir_context", None)) is None:
        return
    mine = threading.local()

    def context():
        mine.lowered = getattr(mine, "lowered", -1) + 1
        if mine.lowered % _LOWERED == 0:
            mine.context = make()
        return mine.context

    mlir.make_ir_context = context
