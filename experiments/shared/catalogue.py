"""All experiments: the paper of each, small budgets for runs of seconds to two minutes, and the
runs that docs/ shows.

    python -m experiments.shared.catalogue

writes the table in experiments/README.md.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from dsgd import records
from experiments.shared import gallery, tables

README = Path(__file__).parents[1] / "README.md"
DOCS = Path("docs")
SURVEY, KIMAD, DROPCOMPUTE, CANNIKIN, OTHERS, BEYOND, NO_PAPER = (
    "The survey",
    "Kimad",
    "DropCompute",
    "Cannikin",
    "Other papers",
    "Beyond the papers",
    "All papers",
)
TABLE = (
    "<!-- commands -->"  # start of the table in README; the table extends to the end of the file
)


class Command(NamedTuple):
    """One command `python -m experiments.<name>`.

    Args:
        paper: the paper, a page of docs/papers; or a heading of commands without one.
        where: section, figure or table of the paper.
        quick: flags of a run with a small budget, for `python -m experiments.all --quick`; all
            commands together take about half an hour on two cores.
    """

    paper: str
    where: str
    quick: str


COMMANDS = {
    "compare": Command(
        SURVEY,
        "chapters 1 to 5",
        "--methods minibatch_sgd local_sgd error_compensated_sgd decentralized_sgd --steps 200"
        " --seeds 2 --learning-rates 1 3",
    ),
    "complexity_table": Command(SURVEY, "Tables 1.1, 1.2", "--epsilons 0.3 0.1"),
    "convergence_rates": Command(
        SURVEY,
        "the theorems of chapters 1 to 5",
        "--steps 32 64 128 256 --longest-run 64 --run-workers 4 8 --staleness 0 3 15 31 "
        "--fixed-steps 128 --seeds 8",
    ),
    "switch_timelines": Command(SURVEY, "Figures 1.3 to 1.7, 3.2 to 3.5, 4.1, 4.2, 5.2, 5.3", ""),
    "calibrate": Command(
        SURVEY,
        "section 1.3",
        "--sizes 1024 65536 --widths 16 --repeats 3 --longest 0.3",
    ),
    "compression": Command(
        SURVEY,
        "sections 3.1 to 3.3",
        "--models logistic --partitions by-label --compressors sign"
        " --workers 4 --steps 100 --seeds 1 --learning-rates 1 3 --sizes 65536"
        " --frontier identity sign --megabits 0.2",
    ),
    "asynchrony": Command(
        SURVEY,
        "chapter 4",
        "--methods synchronous asynchronous bounded --workers 4 --slow 1 --bound 8"
        " --rounds 40 --seeds 1 --learning-rates 0.3 1 --compute 2e-4",
    ),
    "real_asynchrony": Command(
        SURVEY, "chapter 4", "--workers 3 --methods synchronous asynchronous --seconds 3"
    ),
    "topology": Command(
        SURVEY, "chapter 5", "--workers 8 --steps 100 --seeds 1 --learning-rates 1 3"
    ),
    "heterogeneity": Command(
        SURVEY,
        "chapter 5",
        "--workers 8 --alphas 0.1 100 --steps 100 --exact-steps 500 --seeds 1 --learning-rates "
        "0.3 1 --families gossip",
    ),
    "availability": Command(
        SURVEY,
        "chapters 1 and 5, beyond the book",
        "--shares 1 0.7 --workers 4 --steps 60 --seeds 1 --learning-rates 1 3",
    ),
    "kimad_quadratic": Command(
        KIMAD,
        "Figures 3 to 6",
        "--problems 4 --learning-rates 0.3 1 --round-times 1.5 2 3 --warm-ups 1",
    ),
    "kimad_deep": Command(
        KIMAD,
        "Figures 7 to 9, Tables 1 and 2",
        "--worker-counts 2 4 --communication-times 2 1 --epochs 6 --seeds 2",
    ),
    "kimad_variability": Command(
        KIMAD,
        "Figure 1, section 4.2, beyond the paper",
        "--ratios 10 --periods 5 50 --problems 4 --learning-rates 0.3 1 --round-times 1.5 2 3",
    ),
    "dropcompute_speedup": Command(
        DROPCOMPUTE,
        "Figures 1, 3, 4, 13, 14",
        "--worker-counts 8 32 64 --run-workers 16 --iterations 20 --seeds 2",
    ),
    "dropcompute_training": Command(
        DROPCOMPUTE,
        "Figures 5, 10 to 12, Table 1",
        "--workers 16 --steps 60 --seeds 2 --communications 0 --drop-rates 0 0.1"
        " --corrected-workers 32 --corrected-rates 0 0.2 --local-workers 16 --local-steps 64 "
        "--periods 1 16",
    ),
    "dropcompute_processes": Command(
        DROPCOMPUTE, "Figure 2", "--batch-size 64 --steps 30 --rounds 8 --width 512"
    ),
    "stragglers": Command(
        DROPCOMPUTE,
        "section 1, beyond the paper",
        "--workers 4 --rounds 20 --seeds 1 --learning-rates 0.4 1.6 --micro-batches 4 --server 2 "
        "--backups 1 --bound 8",
    ),
    "cannikin_optperf": Command(
        CANNIKIN, "Figures 9, 10, Table 5, sections 5.3 and 6", "--worker-counts 3 16 100 --seeds 2"
    ),
    "cannikin_training": Command(
        CANNIKIN, "Figures 5, 7, 8", "--problem mlp --epochs 30 --seeds 2 --choices 4"
    ),
    "cannikin_processes": Command(
        CANNIKIN, "section 4", "--shares 0.4 0.6 0.8 --total 480 --rounds 5 --passes 2 --width 500"
    ),
    "slow_links": Command(
        BEYOND,
        "-",
        "--text grammar --batch-size 1 --steps 40 --period 10 --seeds 1 --learning-rates 3e-3 "
        "--outer-rates 0.7 --sign-rates 1e-3 --powersgd-rates 0.03",
    ),
    "directed": Command(
        BEYOND,
        "-",
        "--workers 8 --degree 2 --steps 100 --seeds 1 --learning-rates 0.05 0.2",
    ),
    "federated": Command(
        BEYOND,
        "-",
        "--clients 20 --sampled 5 --batch-size 40 --rounds 10 --seeds 1 --learning-rates 0.3 1",
    ),
    "map": Command(
        BEYOND,
        "-",
        "--methods ec_sgd diloco --partitions by-label --workers 8 --points 9 --steps 100"
        " --seeds 2 --learning-rates 1 3",
    ),
    "plan": Command(
        BEYOND,
        "-",
        "--methods ec_sgd diloco --workers 8 --steps 100 --seeds 2 --learning-rates 1 3",
    ),
    "pilot": Command(
        BEYOND,
        "-",
        "--text grammar --widths 8 16 --steps 20 --seeds 1 --periods 5 10 --methods minibatch_sgd "
        "diloco --learning-rates 3e-3 1e-2",
    ),
    "time_complexity": Command(
        BEYOND,
        "-",
        "--workers 8 --gradients 1500 --learning-rates 0.1 0.5 --spreads 0 1.5 --slows 0.25 "
        "--delays 0 --swings 0 --problems equal --methods minibatch_sgd rennala_sgd ringmaster_sgd "
        "--seeds 2",
    ),
    "worst_case": Command(BEYOND, "-", "--workers 4 --steps 4 --rates 0.05 0.3 1.0 --rounds 1 2 4"),
    "published": Command(OTHERS, "their figures and tables", "relaysgd-8 --quick"),
    "benchmark": Command(
        NO_PAPER,
        "-",
        "rounds --methods minibatch_sgd decentralized_sgd --workers 16 64 --dimensions 100 10000 "
        "--seconds 0.05 "
        "--repeats 3",
    ),
}


METHODS = (
    "gradient_descent sgd minibatch_sgd asynchronous_sgd compressed_sgd error_compensated_sgd ef21 "
    "local_sgd decentralized_sgd exact_diffusion gradient_tracking stochastic_gradient_push "
    "choco_sgd"
)
SIZES = "1024 4096 16384 65536 262144 1048576"
DOCUMENTED = {  # run -> flags after `python -m experiments.`
    "all": "all --quick",
    "asynchrony": "asynchrony",
    "availability": "availability",
    "benchmark_clients": "benchmark clients",
    "benchmark_compression": "benchmark compression --dimensions 1048576",
    "benchmark_events": "benchmark events",
    "benchmark_mixing": "benchmark mixing",
    "benchmark_peers": "benchmark peers --repeats 2 --seconds 0.3",
    "benchmark_rounds": "benchmark rounds --seconds 0.3",
    "benchmark_start": "benchmark start",
    "calibrate": f"calibrate --shape 30mbit --sizes {SIZES} --widths 16 64 256 1024 4096 "
    "--repeats 15 --longest 2",
    "calibrate_kimad": "calibrate --shape 30mbit:10mbit",
    "calibrate_loopback": "calibrate --widths 16 128 1024 8192",
    "cannikin_optperf": "cannikin_optperf",
    "cannikin_processes": "cannikin_processes",
    "cannikin_training": "cannikin_training",
    "compare": "compare",
    "compare_families": f"compare --methods {METHODS}",
    "complexity_table": "complexity_table",
    "compression": "compression",
    "convergence_rates": "convergence_rates",
    "directed": "directed",
    "dropcompute_processes": "dropcompute_processes",
    "dropcompute_speedup": "dropcompute_speedup",
    "dropcompute_text": "dropcompute_training --problem text",
    "dropcompute_training": "dropcompute_training",
    "federated": "federated",
    "heterogeneity": "heterogeneity",
    "kimad_deep": "kimad_deep",
    "kimad_quadratic": "kimad_quadratic",
    "kimad_variability": "kimad_variability",
    "map": "map",
    "map_participation": "map --delays 0 --participations 1 0.25",
    "plan": "plan --bandwidth 1e7 --latency 1e-3 --compute 1e-3 --size 1e6",
    "plan_forecast": "plan --forecast --model-shapes docs/how_to/gpt2_small.json"
    " --pilot docs/how_to/pilot.csv --target 3.2 --bandwidth 1e10 --latency 5e-5"
    " --node-size 4 --node-bandwidth 4e11 --compute 6e-3 --batch-size 8 --tokens 1024"
    " --bucket 25 --backward 0.6 --memory-bandwidth 1.5e12",
    "plan_coverage": "plan --coverage",
    "plan_verify": "plan --verify",
    "plan_verify_file": "plan --verify --processes 3 --rates 5e6 20e6 --latencies 0.01 --width 128 "
    "--rounds 20 --steps 60 --learning-rates 0.3 --methods minibatch_sgd local_sgd "
    "error_compensated_sgd ef21 choco_sgd --longest 1 --sizes 1024 8192 32768",
    **{one.run: f"published {one.name}" for one in gallery.reproductions().values()},
    "real_asynchrony": "real_asynchrony",
    "slow_links": "slow_links",
    "stragglers": "stragglers",
    "switch_timelines": "switch_timelines",
    "time_complexity": "time_complexity",
    "topology": "topology",
    "worst_case": "worst_case",
}


def place(run: str, folder: Path) -> None:
    """Copies the figures and tables of a run that pages show to docs/, and writes the tables into
    the pages.

    Args:
        run: a key of `DOCUMENTED`.
        folder: folder of its results. Its `figure.png` is shown as `<run>.png`, and any other
            `<file>` as `<run>_<file>`.
    """
    pages = {path: path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    for path in (*folder.glob("*.png"), *tables.find_written(folder)):
        name = run if path.name == "figure.png" else f"{run}_{path.stem}"
        shown = re.search(rf"[(/ ]{re.escape(name)}(\.png\)| -->)", "".join(pages.values()))
        if shown or run.startswith(gallery.PREFIX):
            shutil.copyfile(
                path,
                DOCS / ("tables" if path.suffix == ".csv" else "figures") / f"{name}{path.suffix}",
            )
    if run.startswith(gallery.PREFIX):
        pages[DOCS / gallery.PAGE] = gallery.page(DOCS)
    for path, text in pages.items():
        _rewrite(path, tables.include(text, DOCS / "tables"))


def papers() -> dict[str, list[str]]:
    """Returns the commands of each paper."""
    found: dict[str, list[str]] = {}
    for name, command in COMMANDS.items():
        found.setdefault(command.paper, []).append(name)
    return found


def readme() -> str:
    """Returns the text of experiments/README.md: unchanged down to the table, which is made from
    `COMMANDS`.
    """
    above, *_ = README.read_text(encoding="utf-8").partition(TABLE)
    rows = (
        f"| `{name}` | {_link(command.paper)} | {command.where} | {line(name)} |"
        for name, command in COMMANDS.items()
    )
    return "\n".join(
        [
            f"{above}{TABLE}",
            "| command | paper | in the paper | what it does |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _link(paper: str) -> str:
    page = "published" if paper == OTHERS else paper.removeprefix("The ").lower()
    page = f"../docs/papers/{page}.md"
    return f"[{paper}]({page})" if paper not in (BEYOND, NO_PAPER) else paper


def line(name: str) -> str:
    """Returns what a command does, in one line: the docstring of its arguments, or of a package."""
    tree = _tree(name)
    arguments = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Args"
    ]
    return (ast.get_docstring(arguments[0] if arguments else tree) or "").partition("\n")[0]


def paragraphs(name: str) -> list[str]:
    """The docstring of a command's module, without the lines that call it."""
    text = ast.get_docstring(_tree(name)) or ""
    return [
        " ".join(part.split())
        for part in text.split("\n\n")
        if not part.lstrip().startswith("python -m")
    ]


def _tree(name: str) -> ast.Module:
    """Returns the syntax tree of a command, without running it."""
    spec = importlib.util.find_spec(f"experiments.{name}")
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text())


def _rewrite(path: Path, text: str) -> None:
    if text != path.read_text(encoding="utf-8"):
        with records.replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _rewrite(README, readme())
    _rewrite(DOCS / gallery.PAGE, tables.include(gallery.page(DOCS), DOCS / "tables"))
