"""Compiler settings of tests. Most programs run for milliseconds, so compilation is fast instead of
the programs, unless DSGD_TEST_OPTIMISED is in the environment.
"""

from __future__ import annotations

import gc
import os
import threading
from importlib.metadata import version

FAST = "DSGD_TEST_OPTIMISED" not in os.environ
# A program's code is compiled in one piece: splitting it for several threads costs more in total,
# and the other processor runs other tests. XLA's older loop emitters compile in half the time; JAX
# 0.11 does not have them.
_OLDER = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
_QUICK = (
    "--xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
FLAGS = _QUICK if FAST and _OLDER else ""
# Eight devices on two busy cores: by default XLA aborts the process if a device arrives 40 s after
# the others.
FLAGS += " --xla_cpu_collective_call_terminate_timeout_seconds=300"

_LOWERED = 500  # programs in one context, which keeps their constants


def trace_quickly() -> None:
    """Makes tracing faster: traces are kept, and scanning them every 700 objects would take a tenth
    of the time.
    """
    gc.set_threshold(100_000, 20, 100)
    if FAST:
        _lower_in_one_context()


def _lower_in_one_context() -> None:
    """Shares a context of MLIR among several hundred programs; JAX makes one for each program,
    which takes as long as lowering a small one.
    """
    # imported late, because it fixes the flags that JAX reads
    from jax._src.interpreters import mlir

    # it is not public: tests also pass without it
    if (make := getattr(mlir, "make_ir_context", None)) is None:
        return
    mine = threading.local()

    def context():
        mine.lowered = getattr(mine, "lowered", -1) + 1
        if mine.lowered % _LOWERED == 0:
            mine.context = make()
        return mine.context

    mlir.make_ir_context = context
