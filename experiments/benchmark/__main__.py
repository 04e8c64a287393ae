"""The benchmarks: `python -m experiments.benchmark rounds`, which is the default, and `compression`."""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments.benchmark import compression, rounds

Choice = Annotated[rounds.Args, tyro.conf.subcommand("rounds")] | Annotated[compression.Args, tyro.conf.subcommand("compression")]

if __name__ == "__main__":
    args = tyro.cli(Choice, default=rounds.Args())
    if isinstance(args, rounds.Args):
        rounds.main(args)
    else:
        compression.main(args)
