"""What docs/ shows, and the commands that make it: `python -m experiments.all --docs`. Tables are copied by hand, from the page of that."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

DOCS = Path("docs")
METHODS = "gd sgd mb-sgd asgd csgd ec-sgd ef21 local-sgd dsgd exact-diffusion gradient-tracking sgp choco-sgd"
SIZES = "1024 4096 16384 65536 262144 1048576"


class Shown(NamedTuple):
    """A run of which docs/ shows figures or tables.

    Args:
        command: what follows `python -m experiments.`.
        figures: by the file of the run, their names in docs/; without ".png".
    """

    command: str
    figures: Mapping[str, str] = MappingProxyType({})


ALONE = ("asynchrony", "availability", "cannikin_processes", "cannikin_training", "compare", "complexity_table", "compression")
ALONE += ("convergence_rates", "dropcompute_processes", "heterogeneity", "kimad_deep", "kimad_quadratic", "kimad_variability")
ALONE += ("real_asynchrony", "stragglers", "switch_timelines")  # one figure, and nothing on the command line
BENCHMARKS = ("compression", "mixing", "start")  # which are tables

RUNS: dict[str, Shown] = {
    **{name: Shown(name, {"figure": name}) for name in ALONE},
    **{f"benchmark_{name}": Shown(f"benchmark {name}") for name in BENCHMARKS},
    "benchmark_peers": Shown("benchmark peers --repeats 2 --seconds 0.3", {"peers": "peers"}),
    "benchmark_rounds": Shown("benchmark rounds --seconds 0.3"),
    "calibrate": Shown(
        f"calibrate --shape 30mbit --sizes {SIZES} --widths 16 64 256 1024 4096 --repeats 15 --longest 2", {"figure": "calibrate"}
    ),
    "calibrate_kimad": Shown("calibrate --shape 30mbit:10mbit", {"kimad": "calibrate_kimad"}),
    "cannikin_optperf": Shown("cannikin_optperf", {name: f"cannikin_{name}" for name in ("epochs", "batch_time", "studies")}),
    "compare_families": Shown(f"compare --methods {METHODS}"),
    "dropcompute_speedup": Shown(
        "dropcompute_speedup",
        {name: f"dropcompute_{name}" for name in ("scale", "threshold", "drop_rate", "noise", "variance", "growth")},
    ),
    "dropcompute_text": Shown("dropcompute_training --problem text", {"training": "dropcompute_text"}),
    "dropcompute_training": Shown(
        "dropcompute_training", {name: f"dropcompute_{name}" for name in ("training", "corrections", "local_sgd")}
    ),
    "topology": Shown("topology", {"figure-16": "topology"}),
}


def place(name: str, folder: Path) -> None:
    """The figures of a run, from the folder of its results to docs/."""
    for file, shown in RUNS[name].figures.items():
        shutil.copyfile(folder / f"{file}.png", DOCS / f"{shown}.png")
