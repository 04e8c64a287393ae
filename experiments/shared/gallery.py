"""The reproductions in `experiments/published`: their list, and the page docs/papers/published.md,
which is made from their committed tables and figures.

Each module there is about one paper. Each of its public functions that is annotated `-> Outcome` is
a reproduction: `relaysgd_2` is `python -m experiments.published relaysgd-2`, and the first line of
its docstring is the title. Nothing is imported until a reproduction runs.
"""

from __future__ import annotations

import ast
import csv
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "published"
PAGE = Path("papers/published.md")  # in docs
PREFIX = "published_"  # of the names of runs
COST = "CPU minutes"
REPRODUCED = "reproduced"
HEAD = """# Published figures

Figures and tables of other papers, each reproduced by one command:

```sh
python -m experiments.published
python -m experiments.published {first} --quick
```

The first command lists them. Each table has a row for each number or claim: the published value,
ours (the median, and the range over seeds), their ratio, where the published value was read, and a
verdict. A number is reproduced if the ranges overlap, or differ by at most the tolerance in its
row; a claim is reproduced if every seed satisfies its bound. No setting was tuned to obtain a
published number.

`python -m experiments.all --docs` runs all of them and writes this page."""


class Reproduction(NamedTuple):
    """One command `python -m experiments.published <name>`.

    Args:
        name: the name of the command.
        function: name of its function.
        module: name of its module, which is about one paper.
        title: what it reproduces.
        about: paragraphs about the paper, the first one names it.
    """

    name: str
    function: str
    module: str
    title: str
    about: tuple[str, ...]

    @property
    def run(self) -> str:
        """The name of its run in docs/."""
        return PREFIX + self.function

    @property
    def table(self) -> str:
        """The name of its table in docs/tables, without suffix."""
        return f"{self.run}_table"

    def load(self) -> Any:
        """Returns the function (quick) -> Outcome."""
        return getattr(
            importlib.import_module(f"experiments.published.{self.module}"), self.function
        )


def reproductions() -> dict[str, Reproduction]:
    """Returns all reproductions by the names of their commands, in alphabetical order of papers."""
    return {found.name: found for path in sorted(FOLDER.glob("*.py")) for found in _in_file(path)}


def _in_file(path: Path) -> Iterator[Reproduction]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    about = tuple(" ".join(part.split()) for part in (ast.get_docstring(tree) or "").split("\n\n"))
    for node in tree.body:
        if (
            isinstance(node, ast.FunctionDef)
            and not node.name.startswith("_")
            and isinstance(node.returns, ast.Name)
            and node.returns.id == "Outcome"
            and [argument.arg for argument in node.args.args] == ["quick"]
        ):
            title = (ast.get_docstring(node) or "").partition("\n\n")[0]
            name = node.name.replace("_", "-")
            yield Reproduction(name, node.name, path.stem, " ".join(title.split()), about)


def cost(one: Reproduction, docs: Path) -> str:
    """Returns the CPU minutes of its committed run; "-" if there is none."""
    path = docs / "tables" / f"{one.table}.csv"
    found = re.findall(rf"([\d.]+) {COST}", path.read_text("utf-8")) if path.exists() else ()
    return found[-1] if found else "-"


def verdicts(one: Reproduction, docs: Path) -> list[str]:
    """Returns the verdicts of its committed rows."""
    with (docs / "tables" / f"{one.table}.csv").open(encoding="utf-8") as file:
        _, *rows = csv.reader(line for line in file if not line.startswith("# "))
    return [row[-1] for row in rows]


def page(docs: Path) -> str:
    """Returns the page as Markdown, whose tables `tables.include` inserts. It has the reproductions
    with a table in `docs`.
    """
    known = [one for one in reproductions().values() if cost(one, docs) != "-"]
    parts = [HEAD.format(first=known[0].name if known else "relaysgd-8")]
    parts += ["| command | what | rows reproduced | CPU minutes |\n|---|---|--:|--:|"]
    for one in known:
        found = verdicts(one, docs)
        count = f"{found.count(REPRODUCED)} of {len(found)}"
        link = f"[`{one.name}`](#{one.name})"
        parts[-1] += f"\n| {link} | {one.title} | {count} | {cost(one, docs)} |"
    for i, one in enumerate(known):
        if i == 0 or known[i - 1].module != one.module:
            parts += [f"## {one.about[0].rstrip('.')}", *one.about[1:]]
        parts += [
            f"### {one.name}",
            f"{one.title} `python -m experiments.published {one.name}`",
            f"![{one.title}](../figures/{one.run}.png)",
            f"<!-- table: {one.table} -->\n<!-- end -->",
        ]
    return "\n\n".join(parts) + "\n"
