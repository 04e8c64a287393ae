"""The reference contains every public name, and docstrings become valid reStructuredText."""

from __future__ import annotations

import importlib.util
import re
import types
from pathlib import Path

import pytest

import algorithms
import dsgd
import theory_checks
import topologies

ROOT = Path(__file__).parents[1]
PACKAGES = (dsgd, algorithms, topologies, theory_checks)
ROOMS = {package.__name__ for package in PACKAGES}


def _listed(module, name):
    """Returns the public names of a module, including those of its submodules."""
    found = getattr(module, "__all__", None) or [
        each
        for each, value in vars(module).items()
        if not each.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and callable(value)
    ]
    for each in found:
        value = getattr(module, each)
        if isinstance(value, types.ModuleType):
            if value.__name__.split(".")[0] in ROOMS:
                yield from _listed(value, f"{name}.{each}")
        else:
            yield f"{name}.{each}"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_in_the_reference(package):
    pages = "".join(
        path.read_text() for path in sorted((ROOT / "docs/reference/api").glob("*.rst"))
    )
    documented = re.findall(
        r"^\.\. auto(?:function|class|exception|data):: (\S+)$", pages, re.MULTILINE
    )
    assert len(documented) == len(set(documented))
    missing = sorted(
        name
        for name in _listed(package, package.__name__)
        if name not in documented and not _is_of_a_family(name)
    )
    assert missing == []


def _is_of_a_family(name):
    """Returns whether a family of theory_checks shows the name, which users call; its trials and
    instances belong to the tables.
    """
    room, *path = name.split(".")
    return (
        room == "theory_checks"
        and len(path) == 2
        and path[0] != "bounds"
        and path[1] not in ("hypotheses", "step_size", "rate", "check")
    )


def _module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/extensions/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("markdown", "rst"),
    [
        ("Bits of $|x|_1$, as `[n, 4]`.", "Bits of :math:`|x|_1`, as ``[n, 4]``."),
        ("`compression`^2 and $n$-th", "``compression``\\ ^2 and :math:`n`-th"),
        ("E|g_n - f_n'|^2 and f*, x_.", "E\\|g_n - f_n'\\|^2 and f\\*, x\\_."),
        ("over $a +\n    b$ lines", "over :math:`a + b` lines"),
        (
            "Args:\n    workers: N.\n    *others: all.",
            "Args:\n    workers: N\\.\n    *others: all.",
        ),
        (
            "Text.\n\n    code(a, *b)\n\nMore *of* it.",
            "Text.\n\n::\n\n    code(a, *b)\n\nMore \\*of\\* it.",
        ),
        ("Returns:\n    A pair: x and y.\n", ":returns: A pair: x and y.\n\n\n"),
    ],
)
def test_docstrings_become_restructured_text(markdown, rst):
    assert _module("rst").from_markdown(markdown) == rst


def test_displayed_formulas_keep_their_numbers():
    lines = (
        _module("rst").from_markdown("One.\n\n$$ x = y,\n   z \\tag{5.2} $$\n\nTwo.").split("\n")
    )
    assert [line for line in lines if line] == [
        "One.",
        ".. math::",
        "    :nowrap:",
        "    \\[ x = y, z \\tag{5.2} \\]",
        "Two.",
    ]
