"""The public names, and the cost of importing them."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import algorithms
import dsgd
import topologies


@pytest.mark.parametrize(
    "package", [dsgd, algorithms, topologies], ids=lambda package: package.__name__
)
def test_all_names_exist_and_have_docstrings(package):
    for name in package.__all__:
        member = getattr(package, name)
        assert member.__doc__, name


def test_values_show_their_names():
    method = algorithms.nids(0.1, topologies.ring(4))
    for value, shown in (
        (method, "Algorithm(nids(ring(4)))"),
        (dsgd.network.star, "OneServer(star)"),
        (dsgd.compressors.top_k(0.1), "Compressor(top_k(0.1))"),
        (dsgd.problems.l1(0.5), "Regularizer(l1(0.5))"),
        (dsgd.clusters.constant(1.5), "Quantity(constant(1.5))"),
        (dsgd.problems.random_quadratic(2, 3), "Problem(quadratic(2 workers, d = 3))"),
    ):
        assert repr(value) == shown
    assert "= OneServer(star)" in str(inspect.signature(algorithms.ef21_sgdm))


def test_the_protocol_has_few_fields():
    """Users who write a method, a problem or a compressor must learn these types."""
    fields = {
        kind: len(kind._fields)
        for kind in (
            dsgd.Algorithm,
            dsgd.Problem,
            dsgd.Compressor,
            dsgd.Round,
            dsgd.Pattern,
            dsgd.Query,
        )
    }
    assert fields[dsgd.Algorithm] <= 7
    assert sum(fields.values()) <= 40, fields


def test_imports_are_few():
    """Data sets, figures, graphs and methods are imported only when they are used."""
    slow = ["sklearn", "matplotlib", "networkx", "orbax", "tyro", "IPython", "flax"]
    slow += ["scipy.optimize", "scipy.linalg", "algorithms.registry", "algorithms.kimad"]
    code = (
        "import jax, optax, sys; before = set(sys.modules); "
        "import algorithms, dsgd, topologies; algorithms.local_sgd; "
        f"print(set({slow}) & (set(sys.modules) - before))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "set()"
    )


def test_citation_and_changelog_have_this_version():
    root = Path(dsgd.__file__).parents[1]
    cited = re.search(
        r"^version: (.*)\ndate-released: (.*)$", (root / "CITATION.cff").read_text(), re.MULTILINE
    )
    latest = re.search(r"^## (.*) \((.*)\)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert cited
    assert latest
    assert cited.groups() == latest.groups()
    assert cited.group(1) == dsgd.__version__


def test_packages_import_only_from_those_above():
    """Each package imports only from those above it: dsgd, topologies, algorithms, theory_checks,
    experiments.
    """
    root = Path(dsgd.__file__).parents[1]
    rooms = ["dsgd", "topologies", "algorithms", "theory_checks", "experiments"]
    for at, room in enumerate(rooms):
        for path in (root / room).rglob("*.py"):
            tree = ast.parse(path.read_text())
            names = {
                alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.Import)
                for alias in node.names
            }
            names |= {
                node.module
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module
            }
            below = {name for name in names if name.split(".")[0] in rooms[at + 1 :]}
            assert not below, f"{path} imports {below}"


def test_methods_import_only_public_names_of_dsgd():
    """Methods and mechanisms need `dsgd`, its public modules and `dsgd.extend`."""
    root = Path(algorithms.__file__).parent
    folders = ("synchronous", "local_updates", "compressed", "decentralized", "mechanisms")
    files = [path for folder in folders for path in (root / folder).glob("*.py")]
    for path in [*files, *(root / "asynchronous").glob("*.py"), root / "methods.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dsgd":
                module = dsgd
                for name in node.module.split(".")[1:]:
                    assert name in module.__all__, f"{path} imports {node.module}"
                    module = getattr(module, name)
                names = {alias.name for alias in node.names} - {
                    "checks",
                    "causes",
                    "signatures",
                    "xla",
                }
                assert names <= set(module.__all__), f"{path} imports {names}"
