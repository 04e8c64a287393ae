"""The worker axis: its mesh, ids and keys, every collective, gossip, and `traffic`, what a compiled program really sends."""

from dsgd.wire.traffic import traffic
from dsgd.workers.axis import (
    AXIS,
    all_to_all,
    devices,
    find,
    gather,
    ids,
    keys,
    mean,
    mean_over_devices,
    mean_sqdist,
    mesh,
    own,
    select,
    shift,
    stack,
    sum,
)
from dsgd.workers.mixing import fetch, mix, of_round, pull, sum_of_others

__all__ = [
    "AXIS",
    "all_to_all",
    "devices",
    "fetch",
    "find",
    "gather",
    "ids",
    "keys",
    "mean",
    "mean_over_devices",
    "mean_sqdist",
    "mesh",
    "mix",
    "of_round",
    "own",
    "pull",
    "select",
    "shift",
    "stack",
    "sum",
    "sum_of_others",
    "traffic",
]
