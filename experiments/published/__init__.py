"""Reproduces published figures and tables: each module is about one paper, and each of its
functions that returns an `Outcome` is one command.

    python -m experiments.published
    python -m experiments.published relaysgd-2 --quick

Without a name, the command lists all reproductions. With a name, it prints a table with the
published values next to ours, and draws the figure in the axes of the paper.
"""

from __future__ import annotations

import dataclasses
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from experiments.shared import catalogue, commands, gallery


@dataclass(frozen=True)
class Args:
    """Reproduces published figures, each by one command."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")] = ""
    """Name of a reproduction; without it, all are listed."""
    quick: bool = False
    """Take less than a minute: fewer seeds, and cases that are smaller or fewer."""
    cache: commands.Cache = None
    out: Path = Path("results/published")
    """Folder of the results; by default the folder of the name in results/published."""


def main(args: Args) -> None:
    known = gallery.reproductions()
    if not args.name:
        show_list(known)
        return
    commands.require_known("name", [args.name], known)
    if args.out == Args.out:
        args = dataclasses.replace(args, out=args.out / args.name)
    commands.begin(args)
    began = time.process_time()
    one = known[args.name]
    outcome = one.load()(args.quick)
    paper = one.about[0].partition(":")[0]
    title = f"{paper}, {one.title.rstrip('.')}{', with --quick' * args.quick}"
    table = outcome.table(title, (time.process_time() - began) / 60)
    commands.finish(args, {"figure": outcome.figure(title)}, {"table": table})


def show_list(known: dict[str, gallery.Reproduction]) -> None:
    """Prints the reproductions by paper, with the CPU minutes of the runs in docs/."""
    width = max(map(len, known)) + 2
    print("python -m experiments.published <name> (--quick); CPU minutes without --quick")
    for paper in dict.fromkeys(one.about[0] for one in known.values()):
        print("", *textwrap.wrap(paper, 80), sep="\n")
        for one in known.values():
            if one.about[0] == paper:
                cost = gallery.cost(one, catalogue.DOCS)
                line = textwrap.shorten(one.title, 70 - width, placeholder=" ...")
                print(f"  {one.name:<{width}}{cost:>5}  {line}")
