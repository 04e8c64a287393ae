"""The reference contains every public name, its tables are complete, and docstrings become valid
reStructuredText.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import types
from pathlib import Path

import pytest

import algorithms
import dsgd
import theory_checks
import topologies
from dsgd import clusters, compressors
from dsgd.engine import columns

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs/reference"
PACKAGES = (dsgd, algorithms, topologies, theory_checks)
ROOMS = {package.__name__ for package in PACKAGES}
NOT_COMPRESSORS = {"LinearCode", "apply", "check", "encode", "fixed_size", "mean_bits"}


def _methods():
    """Returns the names of functions of `algorithms` that return a method."""
    return {
        name
        for name in algorithms.__all__
        if name != "make"
        and inspect.isfunction(function := getattr(algorithms, name))
        and inspect.signature(function).return_annotation == "Algorithm"
    }


def _columns():
    """Returns the columns of the histories that the tests of methods record."""
    recorded = json.loads((ROOT / "tests/algorithms/reference_histories.json").read_text())
    return {
        name
        for history in recorded.values()
        if "step" in history
        for name in history
        if name != "params"
    }


def _public_names(module, name):
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
                yield from _public_names(value, f"{name}.{each}")
        else:
            yield f"{name}.{each}"


def _documented_names():
    """Returns the names in the tables of objects and directives of single objects, on all pages."""
    names = []
    for page in sorted((REFERENCE / "api").rglob("*.rst")):
        if "generated" not in page.parts:
            text = page.read_text()
            names += re.findall(
                r"^\.\. auto(?:function|class|exception|data):: (\S+)$", text, re.MULTILINE
            )
            for table in re.findall(r"^\.\. autosummary::\n((?:   .*\n|\n)+)", text, re.MULTILINE):
                names += re.findall(r"^   (\w\S+)$", table, re.MULTILINE)
    return names


def _thing(name):
    module, _, member = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), member)
    except ImportError:  # the member of a module that is imported under another name
        return getattr(_thing(module), member)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_in_the_reference(package):
    documented = _documented_names()
    assert sorted(documented) == sorted(set(documented))
    things = [_thing(name) for name in documented]
    missing = sorted(
        name
        for name in _public_names(package, package.__name__)
        if name not in documented
        and not _is_of_a_family(name)
        and not any(_thing(name) is thing for thing in things)
    )
    assert missing == []


def test_no_object_is_documented_under_two_names():
    """Both of two equal numbers or strings are documented."""
    names = {}
    for name in _documented_names():
        thing = _thing(name)
        if not isinstance(thing, str | int | float | tuple):
            names.setdefault(id(thing), []).append(name)
    assert [each for each in names.values() if len(each) > 1] == []


def test_pages_of_objects_have_different_names_on_all_file_systems():
    renamed = re.findall(r'^        "(\S+)",$', (ROOT / "docs/conf.py").read_text(), re.MULTILINE)
    pages = [f"{name}{'-function' * (name in renamed)}".lower() for name in _documented_names()]
    assert sorted(pages) == sorted(set(pages))


def _code_names(page):
    """Returns the code in the tables of a page, and the last parts of dotted names."""
    rows = re.findall(r"^\|.*\|$", (REFERENCE / page).read_text(), re.MULTILINE)
    code = {each for row in rows for each in re.findall(r"`([^`]+)`", row)}
    return code | {each.rpartition(".")[2] for each in code}


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("methods.md", {*algorithms.ALGORITHMS}),
        ("methods.md", {*_methods()}),
        ("topologies.md", {*topologies.__all__} - {"WEIGHTS", "draw"}),
        ("compressors.md", {*compressors.__all__} - NOT_COMPRESSORS),
        ("clusters.md", {*clusters.Cluster.__dataclass_fields__}),
        (
            "clusters.md",
            {*clusters.__all__} - {"Cluster", "Group", "Hardware", "Quantity", "load", "save"},
        ),
        ("history.md", {*columns.RESERVED}),
        ("history.md", _columns()),
    ],
    ids=[
        "registry",
        "methods",
        "topologies",
        "compressors",
        "arguments of clusters",
        "quantities",
        "columns of every history",
        "columns of recorded histories",
    ],
)
def test_tables_have_all_names(page, names):
    assert sorted(names - _code_names(page)) == []


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
