"""The benchmarks: `python -m experiments.benchmark rounds`, which is the default, `compression`, `mixing` and `methods`."""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments.benchmark import compression, methods, mixing, rounds

Choice = (
    Annotated[rounds.Args, tyro.conf.subcommand("rounds")]
    | Annotated[compression.Args, tyro.conf.subcommand("compression")]
    | Annotated[mixing.Args, tyro.conf.subcommand("mixing")]
    | Annotated[methods.Args, tyro.conf.subcommand("methods")]
)
MAIN = {rounds.Args: rounds.main, compression.Args: compression.main, mixing.Args: mixing.main, methods.Args: methods.main}

if __name__ == "__main__":
    args = tyro.cli(Choice, default=rounds.Args())
    MAIN[type(args)](args)
