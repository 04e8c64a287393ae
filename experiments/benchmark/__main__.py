"""The benchmarks: `python -m experiments.benchmark rounds`, which is the default, `start`, `compression`, `mixing`, `methods`,
`work`, `sparse`, `kimad`, `cannikin`, `dropcompute`, `loop` and `peers`."""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments import benchmark
from experiments.benchmark import cannikin, compression, dropcompute, kimad, loop, methods, mixing, peers, rounds, sparse, start, work
from experiments.shared import commands

Choice = (
    Annotated[rounds.Args, tyro.conf.subcommand("rounds")]
    | Annotated[start.Args, tyro.conf.subcommand("start")]
    | Annotated[compression.Args, tyro.conf.subcommand("compression")]
    | Annotated[mixing.Args, tyro.conf.subcommand("mixing")]
    | Annotated[methods.Args, tyro.conf.subcommand("methods")]
    | Annotated[work.Args, tyro.conf.subcommand("work")]
    | Annotated[sparse.Args, tyro.conf.subcommand("sparse")]
    | Annotated[kimad.Args, tyro.conf.subcommand("kimad")]
    | Annotated[cannikin.Args, tyro.conf.subcommand("cannikin")]
    | Annotated[dropcompute.Args, tyro.conf.subcommand("dropcompute")]
    | Annotated[loop.Args, tyro.conf.subcommand("loop")]
    | Annotated[peers.Args, tyro.conf.subcommand("peers")]
)
MODULES = (rounds, start, compression, mixing, methods, work, sparse, kimad, cannikin, dropcompute, loop, peers)
MAIN = {module.Args: module.main for module in MODULES}

if __name__ == "__main__":
    args = tyro.cli(Choice, prog="python -m experiments.benchmark", description=benchmark.__doc__, default=rounds.Args())
    commands.launch(MAIN[type(args)], args)
