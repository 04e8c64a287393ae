"""Distributed first-order methods: simulation, real runs, bits, seconds and bounds from one code."""

from dsgd import cache, clusters, compressors, network, problems, workers
from dsgd.base import (
    Algorithm,
    Compressor,
    Constants,
    Gradients,
    Info,
    Pattern,
    Problem,
    Query,
    Result,
    Round,
    State,
)
from dsgd.driver import compile_round, run
from dsgd.history import Diverged
from dsgd.sweeps import Sweep, sweep, tail_mean
from dsgd.topology import Topology

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Compressor",
    "Constants",
    "Diverged",
    "Gradients",
    "Info",
    "Pattern",
    "Problem",
    "Query",
    "Result",
    "Round",
    "State",
    "Sweep",
    "Topology",
    "cache",
    "clusters",
    "compile_round",
    "compressors",
    "network",
    "problems",
    "run",
    "sweep",
    "tail_mean",
    "workers",
]
