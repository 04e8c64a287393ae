"""All experiments, one line each: `python -m experiments`."""

from __future__ import annotations

import textwrap

from experiments.shared import catalogue

WIDTH = 80


def main() -> None:
    names = catalogue.names()
    column = max(map(len, names)) + 2
    print("python -m experiments.<name> (--help):\n")
    for name in names:
        print(f"{name:<{column}}{textwrap.shorten(catalogue.line(name), WIDTH - column, placeholder=' ...')}")


if __name__ == "__main__":
    main()
