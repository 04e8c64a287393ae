"""Lists the methods with what each sends, or writes what follows from their facts.

    python -m algorithms
    python -m algorithms --write

Run the second command after a change of a method's `@method(...)`, in the folder of the sources. It
writes the imports of algorithms/__init__.pyi and the methods in docs/reference/.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from algorithms.facts import Facts
from algorithms.registry import METHODS
from dsgd import records

HERE = Path(__file__).parent
INIT = HERE / "__init__.pyi"
REFERENCE = HERE.parent / "docs" / "reference"
TABLE, LIST = REFERENCE / "methods.md", REFERENCE / "api" / "algorithms.rst"
EXACT = {"": "", "any data": "data", "any data and samples": "data and samples"}
_LINE = 100


def main() -> None:
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser("python -m algorithms", description=summary)
    parser.add_argument("--write", action="store_true", help="write imports and reference")
    if parser.parse_args().write:
        for path, text in texts().items():
            with records.replacing(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
    else:
        Console().print(tabulate())


def tabulate() -> Table:
    """Returns the table of the methods for a terminal."""
    table = Table(Column("method", no_wrap=True), "sends", "exact for any", title="algorithms")
    for facts in METHODS.values():
        table.add_row(facts.name, facts.sends, EXACT[facts.exact])
    return table


def texts() -> dict[Path, str]:
    """Returns the texts of the files that follow from the methods' facts."""
    result = {INIT: imports(INIT.read_text(encoding="utf-8"), find_methods())}
    for path, body in ((TABLE, markdown), (LIST, summary)):
        pattern = r"(?<=methods: )([\w ]+)( -->\n|\n)(.*?)(?=<!-- end -->|\.\. end\n)"

        def fill(match: re.Match[str], body=body) -> str:
            return f"{match[1]}{match[2]}\n{body(select(match[1].split()))}\n"

        result[path] = re.sub(pattern, fill, path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return result


def find_methods() -> dict[str, list[str]]:
    """Returns the names of the functions below `@method(...)` by module, such as
    "compressed.demo", read from the files.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(HERE.rglob("*.py")):
        names = [
            node.name
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef)
            and any(ast.unparse(each).startswith("method(") for each in node.decorator_list)
        ]
        if names:
            found[".".join(path.relative_to(HERE).with_suffix("").parts)] = names
    return found


def imports(text: str, found: dict[str, list[str]]) -> str:
    """Returns the text of algorithms/__init__.pyi with imports of these methods.

    Args:
        text: the present text.
        found: names by module.
    """
    tree, lines = ast.parse(text), text.splitlines()
    given = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = {node.module or "": {alias.name for alias in node.names} for node in given}
    gone = {name for each in names.values() for name in each}
    for module in [each for each in names if each.count(".") == 1 and not _exists(each)]:
        del names[module]
    for module, methods in found.items():
        names.setdefault(module, set()).update(methods)
    kept = {name for each in names.values() for name in each}
    public = next(node for node in tree.body if _assigns(node, "__all__"))
    assert isinstance(public, ast.Assign)
    methods = {name for each in found.values() for name in each}
    exported = (set(ast.literal_eval(public.value)) - (gone - kept)) | methods
    statements = [_import(module, sorted(each)) for module, each in sorted(names.items())]
    first, last = given[0].lineno - 1, given[-1].end_lineno
    end = [*lines[last : public.lineno - 1], "__all__ = ["]
    return "\n".join(
        [
            *lines[:first],
            *statements,
            *end,
            *(f'    "{name}",' for name in sorted(exported)),
            "]",
            "",
        ]
    )


def _exists(module: str) -> bool:
    path = HERE.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def _assigns(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name


def _import(module: str, names: list[str]) -> str:
    line = f"from .{module} import {', '.join(names)}"
    if len(line) <= _LINE:
        return line
    return "\n".join([f"from .{module} import (", *(f"    {name}," for name in names), ")"])


def select(families: list[str]) -> Iterator[Facts]:
    """Yields the facts of the methods in these folders, in the order of the files."""
    for facts in sorted(METHODS.values(), key=lambda facts: facts.function.__module__):
        if facts.family in families:
            yield facts


def markdown(methods: Iterator[Facts]) -> str:
    """Returns the table of these methods for docs/reference/methods.md."""
    rows = [
        "| method | sends | exact for any | needs | regularizer | paper | more |",
        f"|{'---|' * 7}",
    ]
    for facts in methods:
        needs = ", ".join(facts.needs)
        others = [*facts.aliases, *(f"{facts.name}_{end}" for end in facts.variants)]
        short = "".join(f", `{name}`" for name in others)
        more = f"[{_title(facts.page)}]({_relative(facts.page)})" if facts.page else ""
        rows.append(
            f"| `algorithms.{facts.name}`{short} | {facts.sends} | {EXACT[facts.exact]} "
            f"| {needs} | {'yes' if facts.regularizer else ''} | {facts.paper} | {more} |"
        )
    return "\n".join(rows) + "\n"


def _title(page: str) -> str:
    stem, _, anchor = page.rpartition("/")[2].partition("#")
    return re.sub("[-_]", " ", anchor or stem.removesuffix(".md"))


def _relative(page: str) -> str:
    return page.removeprefix("reference/") if page.startswith("reference/") else f"../{page}"


def summary(methods: Iterator[Facts]) -> str:
    """Returns the list of these methods for docs/reference/api/algorithms.rst."""
    head = [".. autosummary::", "   :toctree: generated", "   :nosignatures:", ""]
    return "\n".join([*head, *(f"   algorithms.{facts.name}" for facts in methods)]) + "\n"


if __name__ == "__main__":
    main()
