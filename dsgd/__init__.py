"""Distributed first-order methods in JAX: simulated and real runs, communicated bits, seconds, and
convergence bounds from the same code.
"""

from dsgd import (
    clusters,
    communication,
    compressors,
    extend,
    loggers,
    network,
    problems,
    signatures,
    spelling,
    wire,
    work,
    workers,
)
from dsgd.base import (
    Algorithm,
    AllRows,
    Common,
    Compressor,
    Constants,
    Encoded,
    Evaluation,
    Gradients,
    LocalWork,
    Loss,
    Now,
    Parameters,
    Pattern,
    Problem,
    Query,
    Regularizer,
    Round,
    Sampler,
    State,
    Timings,
)
from dsgd.communication import Communicator
from dsgd.contract.check import check
from dsgd.engine import cache
from dsgd.engine.cohorts import Clients
from dsgd.frames import frame, report, table
from dsgd.graphs.topology import Topology
from dsgd.machines.agreement import PeerFailed
from dsgd.machines.heartbeat import PeerLost
from dsgd.machines.local_processes import run_local_processes
from dsgd.machines.runtime import join
from dsgd.machines.tasks import parallel_map
from dsgd.parameter_files import load_safetensors, load_shapes, save_safetensors
from dsgd.planning import Candidate, Forecast, Pilot, Plan, forecast, plan
from dsgd.runs import history
from dsgd.runs.driver import Exchange, compile_round, exchanges, run
from dsgd.runs.feed import Batches
from dsgd.runs.history import Diverged
from dsgd.runs.interrupts import Interrupted
from dsgd.runs.replays import replay
from dsgd.runs.results import Result
from dsgd.runs.saved import load_result
from dsgd.runs.starts import all_rows
from dsgd.runs.sweeps import Sweep, sweep
from dsgd.runs.tuning import Tuned, tune

__version__ = "0.3.0"

__all__ = [
    "Algorithm",
    "AllRows",
    "Batches",
    "Candidate",
    "Clients",
    "Common",
    "Communicator",
    "Compressor",
    "Constants",
    "Diverged",
    "Encoded",
    "Evaluation",
    "Exchange",
    "Forecast",
    "Gradients",
    "Interrupted",
    "LocalWork",
    "Loss",
    "Now",
    "Parameters",
    "Pattern",
    "PeerFailed",
    "PeerLost",
    "Pilot",
    "Plan",
    "Problem",
    "Query",
    "Regularizer",
    "Result",
    "Round",
    "Sampler",
    "State",
    "Sweep",
    "Timings",
    "Topology",
    "Tuned",
    "all_rows",
    "cache",
    "check",
    "clusters",
    "communication",
    "compile_round",
    "compressors",
    "exchanges",
    "extend",
    "forecast",
    "frame",
    "history",
    "join",
    "load_result",
    "load_safetensors",
    "load_shapes",
    "loggers",
    "network",
    "parallel_map",
    "plan",
    "problems",
    "replay",
    "report",
    "run",
    "run_local_processes",
    "save_safetensors",
    "sweep",
    "table",
    "tune",
    "wire",
    "work",
    "workers",
]

signatures.simplify(__name__)
spelling.add_suggestions(__name__)
