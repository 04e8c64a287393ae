"""What is true of a method is stated once: names, imports and reference follow from it."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from algorithms import __main__ as listing
from algorithms.facts import Facts
from algorithms.registry import METHODS, full_name
from dsgd import compressors, problems

SGD, N = optax.sgd(0.1), 8


def test_imports_and_reference_are_those_of_the_facts():
    old = [path.name for path, text in listing.texts().items() if path.read_text() != text]
    assert not old, "run python -m algorithms --write"


def test_each_public_function_of_a_family_that_returns_a_method_has_facts():
    assert {name for names in listing.find_methods().values() for name in names} == METHODS.keys()
    for name, facts in METHODS.items():
        assert getattr(algorithms, name) is facts.function
        assert name in algorithms.__all__
        assert (listing.REFERENCE.parent / facts.page.partition("#")[0]).exists()


def test_names_are_those_of_functions():
    assert algorithms.make("fed-avg", SGD, N).name == algorithms.fed_avg(SGD, 4).name
    for name, full in (
        ("ef21", "ef21"),
        ("mb-sgd", "minibatch_sgd"),
        ("mb-sgd-model", "model_averaging_sgd"),
        ("dsgd-complete", "decentralized_sgd_complete"),
        ("3pc", "three_point"),
    ):
        assert full_name(name) == full
    aliases = [alias for facts in METHODS.values() for alias in facts.aliases]
    assert len({*aliases, *algorithms.ALGORITHMS}) == len(aliases) + len(algorithms.ALGORITHMS)


def test_default_instances_have_the_settings_stated():
    assert algorithms.make("fed_dyn", SGD, N).name == algorithms.fed_dyn(SGD, 4, 1.0).name
    assert METHODS["noloco"].instance(SGD, N).name == "noloco(4, random_matchings(8, 3, 0))"
    assert METHODS["noloco"].instance(SGD, N, period=7).name.startswith("noloco(7, ")


ON_GRAPHS = [facts for facts in METHODS.values() if facts.graph is not None]


@pytest.mark.parametrize("facts", ON_GRAPHS, ids=lambda facts: facts.name)
def test_methods_accept_the_graphs_that_their_needs_allow(facts):
    def accepts(topology):
        try:
            return bool(facts.instance(SGD, topology))
        except ValueError as error:
            refusals.append(str(error))
            return False

    refusals = list[str]()
    needs = set(facts.needs)
    assert accepts(topologies.chain(N, topologies.lazy))
    assert accepts(topologies.exponential(N)) == needs.isdisjoint({"symmetric W", "tree"})
    assert accepts(topologies.random_matchings(N)) == needs.isdisjoint({"one W", "tree"})
    assert accepts(topologies.ring(N, topologies.lazy)) == ("tree" not in needs)
    assert accepts(topologies.random_directed(N, 2)) == ("columns of W sum to 1" in needs)
    accelerated = topologies.chebyshev(topologies.ring(N, topologies.lazy), 2)
    assert not (accepts(accelerated) and {"compressor", "push"} & takes(facts))
    with pytest.raises(ValueError, match=rf"{N - 1} nodes .* {N} workers"):
        facts.instance(SGD, N - 1).init(np.zeros(3), N)
    edge = topologies.from_matrix(1.3 * topologies.ring(N).W - 0.3 * np.eye(N))
    if "tree" not in needs:
        assert edge.smallest_eigenvalue < -1 / 3
        assert accepts(edge) == ("eigenvalues of W above -1/3" not in needs)
    assert all(facts.name in each for each in refusals) or facts.name == "opapc"


def takes(facts: Facts) -> set[str]:
    """Returns the names of the arguments of a method."""
    return {*inspect.signature(facts.function).parameters}


COMPRESSING = [each for each in METHODS.values() if {"compressor", "down"} & takes(each)]


@pytest.mark.parametrize("facts", COMPRESSING, ids=lambda facts: facts.name)
def test_methods_accept_the_compressors_that_their_needs_allow(facts):
    if facts.settings is None:
        return
    for need, compressor, words in (
        ("unbiased compressor", compressors.sign, "the compressor sign is biased"),
        ("contractive compressor", compressors.random_k(0.1), "states no contraction"),
    ):
        chosen = dict.fromkeys({"compressor", "up", "down"} & takes(facts), compressor)
        try:
            method = facts.instance(SGD, N, **chosen)
            dsgd.exchanges(method, problems.random_quadratic(N, 80))
            refusal = ""
        except ValueError as error:
            refusal = str(error)
        assert (words in refusal) == (need in facts.needs), refusal


ROOT = Path(__file__).parents[2]
# the two files of a method, which CONTRIBUTING.md shows
NEW, TEST = re.findall(
    r"```python\n(\"\"\".*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
)
MISTAKES = {
    "a sign": {"1 - damping": "damping - 1"},
    "twice the bits": {
        "round.mix(half.params, topology)": "round.mix((half.params, half.params), topology)[0]"
    },
    "a forgotten mask": {
        "local_step(optimizer, x, gradients, round)": "step_local(optimizer, x, gradients)",
        "topology=topology\n": "topology=topology, absent=lambda before, after: after\n",
    },
}
USE = """
import optax, algorithms
from algorithms.candidates import candidate

method = algorithms.make("damped", optax.sgd(0.1), 5)
assert method.name == algorithms.make("damped-gossip", optax.sgd(0.1), 5).name
assert "damped_gossip" in algorithms.__all__ and "damped_gossip" in algorithms.ALGORITHMS
assert "damped_gossip, ring" in map(str, algorithms.CANDIDATES)
print(candidate(algorithms.damped_gossip).expression("opt", 5, {}))
"""


@pytest.fixture(scope="module")
def new_tree(tmp_path_factory, long) -> Path:
    """A copy of the tree with the two files of a new method; the command does the rest."""
    to = tmp_path_factory.mktemp("tree")
    for folder in ("algorithms", "docs/reference", "tests/methods"):
        shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns("generated"))
    for file in (ROOT / "pyproject.toml", *ROOT.glob("tests/*.py")):
        if not file.name.startswith("test_"):
            shutil.copy(file, to / file.relative_to(ROOT))
    shutil.copytree(ROOT / "tests/algorithms", to / "tests/algorithms")
    (to / "algorithms/decentralized/damped_gossip.py").write_text(NEW)
    (to / "tests/methods/damped_gossip.py").write_text(TEST)
    python(to, "-m", "algorithms", "--write")
    return to


def python(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a copy of the tree."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tree, ROOT)))}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=tree, env=environment, check=False, capture_output=True, text=True
    )


def test_a_method_of_two_files_is_registered_documented_and_planned(new_tree):
    for page, words in (
        ("methods.md", "| `algorithms.damped_gossip`, `damped` | models, to neighbours |"),
        ("api/algorithms.rst", "   algorithms.damped_gossip\n"),
    ):
        assert words in (new_tree / "docs/reference" / page).read_text()
    done = python(new_tree, "-c", USE)
    assert done.stdout == "algorithms.damped_gossip(opt, topologies.ring(5), 0.25)\n", done.stderr


def run_pytest(tree: Path, *files: str) -> subprocess.CompletedProcess[str]:
    options = ("-n0", "-q", "-x", "-k", "damped_gossip", "-p", "no:cacheprovider")
    return python(tree, "-m", "pytest", *files, *options)


def test_its_files_are_all_that_its_tests_need(new_tree):
    """Its rounds, also with absent workers, its bits, its starts, and the contract."""
    done = run_pytest(
        new_tree, "tests/methods", "tests/algorithms/test_contract.py", "--exhaustive"
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_it_are_found(new_tree, mistake):
    file = new_tree / "algorithms/decentralized/damped_gossip.py"
    text = NEW
    for right, wrong in MISTAKES[mistake].items():
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    file.write_text(text)
    done = run_pytest(new_tree, "tests/methods")
    file.write_text(NEW)
    assert done.returncode == 1, done.stdout
