"""All experiments: their names, what each says of itself, and a budget with which it takes seconds to two minutes."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
from pathlib import Path

FOLDER = Path(__file__).parents[1]
ALL = "all"  # which runs the others
_SHARED = {"__main__", "cannikin", "dropcompute", "kimad", "shared", "survey"}  # no commands

# What each is called with by `python -m experiments.all --quick`: a sketch of its figures and tables, in all a quarter of an hour
# on two cores.
QUICK = {
    "asynchrony": (
        "--methods synchronous asynchronous bounded --workers 4 --slow 1 --bound 8 --rounds 40 --seeds 1 --learning-rates 0.3 1"
        " --compute 2e-4"
    ),
    "availability": "--shares 1 0.7 --workers 4 --steps 60 --seeds 1 --learning-rates 1 3",
    "benchmark": "rounds --methods mb-sgd dsgd --workers 16 64 --dimensions 100 10000 --seconds 0.05 --repeats 3",
    "calibrate": "--sizes 1024 16384 262144 --widths 16 1024 --repeats 5 --longest 0.5",
    "cannikin_optperf": "--worker-counts 3 16 100 --seeds 2",
    "cannikin_processes": "--shares 0.4 0.6 0.8 --total 480 --rounds 5 --passes 2 --width 500",
    "cannikin_training": "--problem mlp --epochs 30 --seeds 2 --choices 4",
    "compare": "--methods mb-sgd local-sgd ec-sgd dsgd --steps 200 --seeds 2 --learning-rates 1 3",
    "complexity_table": "--epsilons 0.3 0.1",
    "compression": (
        "--models logistic --partitions by-label --compressors identity sign --workers 4 --steps 100 --seeds 1 --learning-rates 1 3"
        " --sizes 65536"
    ),
    "convergence_rates": "--steps 32 64 128 256 --longest-run 64 --run-workers 4 8 --staleness 0 3 15 31 --fixed-steps 128 --seeds 8",
    "dropcompute_processes": "--batch-size 64 --steps 30 --rounds 8 --width 512",
    "dropcompute_speedup": "--worker-counts 8 32 64 --run-workers 16 --iterations 20 --seeds 2",
    "dropcompute_training": (
        "--workers 16 --steps 60 --seeds 2 --communications 0 --drop-rates 0 0.1 0.2 --corrected-workers 32 --corrected-rates 0 0.2"
        " --local-workers 16 --local-steps 64 --periods 1 4 16"
    ),
    "heterogeneity": "--workers 8 --alphas 0.1 100 --steps 100 --exact-steps 500 --seeds 1 --learning-rates 0.3 1",
    "kimad_deep": "--worker-counts 2 4 --communication-times 2 1 --epochs 6 --seeds 2",
    "kimad_quadratic": "--problems 4 --learning-rates 0.3 1 --round-times 1.5 2 3 --warm-ups 1",
    "kimad_variability": "--ratios 1 10 --periods 5 50 --problems 4 --learning-rates 0.3 1 --round-times 1.5 2 3",
    "real_asynchrony": "--workers 3 --methods synchronous asynchronous --seconds 3",
    "stragglers": "--workers 4 --rounds 20 --seeds 1 --learning-rates 0.4 1.6 --micro-batches 4 --server 2 --backups 1 --bound 8",
    "switch_timelines": "",
    "topology": "--workers 8 --steps 100 --seeds 1 --learning-rates 1 3",
}


def names() -> list[str]:
    """Of all that `python -m experiments.<name>` runs, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules([str(FOLDER)]) if module.name not in _SHARED)


def line(name: str) -> str:
    """What it does, in one line: the docstring of its arguments; of a package its own."""
    tree = _tree(name)
    arguments = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Args"]
    return _first(ast.get_docstring(arguments[0] if arguments else tree), f"{name}: no docstring")


def paragraphs(name: str) -> list[str]:
    """What it says of itself, without how it is called."""
    text = ast.get_docstring(_tree(name)) or ""
    return [" ".join(part.split()) for part in text.split("\n\n") if not part.lstrip().startswith("python -m")]


def _first(docstring: str | None, otherwise: str) -> str:
    return docstring.splitlines()[0] if docstring else otherwise


def _tree(name: str) -> ast.Module:
    """Its source, which is not run."""
    spec = importlib.util.find_spec(f"experiments.{name}")
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text())
