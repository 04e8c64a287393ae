"""How programs of tests are compiled. Most run for milliseconds: it is in haste, unless DSGD_TEST_OPTIMISED is in the environment."""

from __future__ import annotations

import os
from importlib.metadata import version

HASTE = "DSGD_TEST_OPTIMISED" not in os.environ
# A program's code is one piece: split for several threads, it costs more in all, and the other processor has tests of its own.
# XLA's older way to write loops compiles in half the time; the versions of JAX 0.11 do not have it.
_OLDER = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1" if HASTE and _OLDER else ""
# Eight devices on two busy cores: XLA ends the process where one of them comes 40 s after the others.
FLAGS += " --xla_cpu_collective_call_terminate_timeout_seconds=300"
