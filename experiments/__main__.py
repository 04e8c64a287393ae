"""Lists all experiments by paper, one line each: `python -m experiments`."""

from __future__ import annotations

import textwrap

from experiments.shared import catalogue

WIDTH = 80


def main() -> None:
    column = max(map(len, catalogue.COMMANDS)) + 4
    print(
        "python -m experiments.<name> (--help); python -m experiments.all --quick runs\neach with "
        "a small budget."
    )
    for paper, names in catalogue.papers().items():
        print(f"\n{paper}:")
        for name in names:
            line = textwrap.shorten(catalogue.line(name), WIDTH - column, placeholder=" ...")
            print(f"  {name:<{column - 2}}{line}")


if __name__ == "__main__":
    main()
