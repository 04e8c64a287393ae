"""Distributed first-order methods in JAX: simulated and real runs, communicated bits, seconds, and
convergence bounds from the same code.
"""

from dsgd import clusters, communication, compressors, network, problems, work, workers
from dsgd.base import (
    Algorithm,
    Compressor,
    Constants,
    Encoded,
    Evaluation,
    Gradients,
    Loss,
    Measured,
    Now,
    Parameters,
    Pattern,
    Problem,
    Query,
    Result,
    Round,
    Sampler,
    State,
    Work,
)
from dsgd.communication import Communicator
from dsgd.contract.check import check
from dsgd.engine import cache
from dsgd.frames import frame
from dsgd.graphs.topology import Topology
from dsgd.machines.agreement import Elsewhere
from dsgd.machines.local_processes import loopback
from dsgd.machines.runtime import join
from dsgd.machines.watch import Lost
from dsgd.runs.driver import Exchange, compile_round, exchanges, run
from dsgd.runs.feed import Batches
from dsgd.runs.history import Diverged, evaluated
from dsgd.runs.interrupts import Interrupted
from dsgd.runs.sweeps import Sweep, mean_and_error, sweep, tail_mean
from dsgd.wire import codecs, counts

__version__ = "0.2.0"

__all__ = [
    "Algorithm",
    "Batches",
    "Communicator",
    "Compressor",
    "Constants",
    "Diverged",
    "Elsewhere",
    "Encoded",
    "Evaluation",
    "Exchange",
    "Gradients",
    "Interrupted",
    "Loss",
    "Lost",
    "Measured",
    "Now",
    "Parameters",
    "Pattern",
    "Problem",
    "Query",
    "Result",
    "Round",
    "Sampler",
    "State",
    "Sweep",
    "Topology",
    "Work",
    "cache",
    "check",
    "clusters",
    "codecs",
    "communication",
    "compile_round",
    "compressors",
    "counts",
    "evaluated",
    "exchanges",
    "frame",
    "join",
    "loopback",
    "mean_and_error",
    "network",
    "problems",
    "run",
    "sweep",
    "tail_mean",
    "work",
    "workers",
]
