"""Benchmarks: `python -m experiments.benchmark rounds`, which is the default, `start`,
`compression`, `mixing`, `events`, `peers`, `clients`, `tokens` and `workarounds`.
"""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments import benchmark
from experiments.benchmark import (
    clients,
    compression,
    events,
    mixing,
    peers,
    rounds,
    start,
    tokens,
    workarounds,
)
from experiments.shared import commands

Choice = (
    Annotated[rounds.Args, tyro.conf.subcommand("rounds")]
    | Annotated[start.Args, tyro.conf.subcommand("start")]
    | Annotated[compression.Args, tyro.conf.subcommand("compression")]
    | Annotated[mixing.Args, tyro.conf.subcommand("mixing")]
    | Annotated[events.Args, tyro.conf.subcommand("events")]
    | Annotated[peers.Args, tyro.conf.subcommand("peers")]
    | Annotated[clients.Args, tyro.conf.subcommand("clients")]
    | Annotated[tokens.Args, tyro.conf.subcommand("tokens")]
    | Annotated[workarounds.Args, tyro.conf.subcommand("workarounds")]
)
MODULES = (rounds, start, compression, mixing, events, peers, clients, tokens, workarounds)
MAIN = {module.Args: module.main for module in MODULES}

if __name__ == "__main__":
    args = tyro.cli(
        Choice,
        prog="python -m experiments.benchmark",
        description=benchmark.__doc__,
        default=rounds.Args(),
    )
    commands.launch(MAIN[type(args)], args)
