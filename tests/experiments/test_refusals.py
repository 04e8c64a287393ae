"""Invalid arguments of experiments: one line, status 2, and nothing is written or started."""

from __future__ import annotations

import importlib

import pytest

from experiments.shared import commands

REFUSED = {
    "all": [
        (
            {"quick": True, "docs": True},
            "--quick and --docs: docs/ shows only full runs; pass one",
        ),
        ({"only": ("nothing",)}, "--only nothing: expected some of compare, "),
    ],
    "asynchrony": [
        ({"methods": ("SGD",)}, "--methods SGD: expected some of synchronous"),
        ({"slow": 16}, "--slow 16 of 16 workers"),
        ({"backups": 16}, "backups = 16 with 16 workers; expected at most 15"),
        ({"bound": 3}, "bound = 3 with 16 workers"),
    ],
    "availability": [
        ({"shares": (1.0, share)}, "--shares (1.0, ") for share in (0.0, -0.5, 1.5, float("nan"))
    ],
    "benchmark.compression": [({"dimensions": (4,)}, "expected dimensions of at least 16")],
    "benchmark.peers": [
        (
            {"methods": ("extra",)},
            "--methods extra: expected some of decentralized_sgd, minibatch_sgd",
        ),
        (
            {"versions": ("jax", "scan")},
            "--versions jax: expected some of dsgd, scan, numpy, torch",
        ),
        ({"workers": (2, 16)}, "--workers 2: expected at least 3"),
        ({"workers": (1024,), "dimensions": (100_000,)}, "all sizes have more than 16,000,000"),
        (
            {"versions": ("numpy",)},
            "--versions numpy: minibatch_sgd needs some of dsgd, scan, fedjax",
        ),
    ],
    "benchmark.rounds": [
        ({"repeats": 0}, "--repeats 0: expected whole numbers, at least 1"),
        (
            {"workers": (4, 4), "dimensions": (5,)},
            "2 workers for 1 dimensions: expected one dimension",
        ),
        (
            {"methods": ("gradient_descent",)},
            "--methods gradient_descent: expected some of minibatch_sgd, decentralized_sgd",
        ),
    ],
    "calibrate": [
        ({"shape_latency": 0.01}, "--shape-latency 0.01 without --shape: expected emulated links"),
        ({"processes": 1}, "--processes 1: expected whole numbers, at least 2"),
        ({"sizes": (1024,)}, "--sizes 1024: expected at least 2 whole numbers, increasing"),
        ({"sizes": (1024, 512)}, "--sizes 1024 512: expected at least 2 whole numbers, increasing"),
        (
            {"sizes": (1, 2)},
            "all round to the same size for all-reduce, whose vectors are multiples of 8 bytes",
        ),
        (
            {"sizes": (8, 16)},
            "all round to the same size for all-gather, whose vectors are multiples of 16 bytes",
        ),
        ({"widths": (8, 8)}, "--widths 8 8: expected at least 1 whole number, increasing"),
        ({"ratios": (0.1, 2.0)}, "--ratios (0.1, 2.0): expected shares above 0, at most 1"),
        *(
            ({"shape": text}, f"--shape {text}: ")
            for text in ("30", "mbit", "30mbit:", "-3mbit", "0mbit", "3e1mbit", "fast")
        ),
    ],
    "cannikin_optperf": [
        ({"ratios": (0.5, 2.0)}, "--ratios (0.5, 2.0): expected finite numbers, at least 1"),
        ({"iterations": 2}, "--iterations 2: expected at least 3"),
    ],
    "cannikin_processes": [
        ({"competitors": (1,)}, "--competitors (1,): expected at least two numbers"),
        ({"competitors": (0, -1)}, "--competitors (0, -1): expected finite numbers, at least 0"),
        ({"shares": (0.5, 1.0)}, "--shares (0.5, 1.0): expected shares above 0, below 1"),
        ({"nice": 20}, "--nice 20: expected 0 to 19"),
        ({"total": 63}, "--total 63: expected at least 64"),
    ],
    "compare": [
        (
            {"methods": ("sgd", "adagrad")},
            "make: unknown method 'adagrad'; expected one of asynchronous_sgd,",
        ),
        ({"data": "iris"}, "logistic_regression: data = 'iris'; expected one of digits"),
        ({"partition": "random"}, "logistic_regression: partition = 'random'; expected one of iid"),
        (
            {"model": "language-model", "data": "digits"},
            "text = 'digits', and there is no such file",
        ),
        ({"target": float("nan")}, "--target nan: expected finite numbers above 0"),
        ({"learning_rates": (0.1, float("inf"))}, "--learning-rates (0.1, inf): expected finite"),
    ],
    "complexity_table": [
        ({"epsilons": epsilons}, "expected at least 2 decreasing positive numbers")
        for epsilons in ((0.1,), (0.1, 0.2), (0.1, 0.0))
    ],
    "compression": [
        ({"compressors": ("sgn",)}, "--compressors sgn: expected some of identity,"),
        ({"partitions": ("random",)}, "logistic_regression: partition = 'random'"),
    ],
    "convergence_rates": [
        ({"steps": (4, 8)}, "expected at least 4 increasing numbers, at least 1"),
        ({"workers": (2, 1)}, "expected at least 2 increasing numbers"),
        ({"staleness": (-1, 0, 1, 2)}, "expected at least 4 increasing numbers, at least 0"),
        (
            {"fixed_steps": 100},
            "fixed-steps = 100 with a staleness of 255: expected more than twice",
        ),
    ],
    "dropcompute_processes": [
        ({"slow": 2}, "--slow 2 of 2 processes: expected one from 0 to 1, or None"),
        ({"rounds": 149}, "--rounds 149 of 150 steps: expected at least two more steps"),
    ],
    "dropcompute_speedup": [],
    "dropcompute_training": [
        ({"drop_rates": (0.1,)}, "--drop-rates (0.1,): must contain 0"),
        (
            {"drop_rates": (0.0, 0.2)},
            "must contain 0.1, the rate at which compensations are compared",
        ),
        ({"corrected_rates": (0.5,)}, "--corrected-rates (0.5,): must contain 0"),
        ({"periods": (1, 7)}, "--periods (1, 7)"),
        ({"server": 1}, "--server 1"),
        ({"local_drop_rate": 1.0}, "--local-drop-rate 1.0: expected shares of at least 0, below 1"),
        ({"steps": 5}, "--steps 5"),
    ],
    "federated": [({"sampled": 101}, "sampled: k = 101 of 100 workers; expected k of at most 100")],
    "kimad_deep": [
        ({"shown": 0.3}, "--shown 0.3: expected one of --communication-times (2.0, 1.0,")
    ],
    "kimad_quadratic": [
        ({"small": (3.0, 1.0)}, "--small 3 1: expected 0 < least <= most"),
        ({"high": (0.0, 1.0)}, "--high 0 1: expected 0 < least <= most"),
    ],
    "kimad_variability": [
        ({"round_times": (2.0, 1.0)}, "--round-times 1 with --compute 1: expected longer rounds"),
    ],
    "real_asynchrony": [
        ({"slow": 4}, "--slow 4 of 4 workers"),
        (
            {"bound": 2},
            "--bound 2 of 4 workers: expected at least 3, since all read the first model",
        ),
        ({"methods": ("async",)}, "--methods async: expected some of synchronous, asynchronous"),
    ],
    "stragglers": [
        ({"server": 17}, "of 16 workers with --server 17"),
        ({"straggling": 0.5}, "--straggling 0.5 of 16 workers with --server 4"),
    ],
    "switch_timelines": [
        ({"latency": 0.0, "transfer": 0.0}, "--latency 0 --transfer 0: expected one above 0"),
    ],
    "worst_case": [
        ({"rates": (0.5,)}, "expected at least 2 increasing numbers"),
        ({"workers": 2}, "--workers 2: expected whole numbers, at least 3"),
        ({"strong_convexity": 1.0}, "--strong-convexity 1.0: expected numbers above 0, below 1"),
    ],
    "topology": [
        ({"workers": ()}, "--workers: expected at least one value"),
    ],
}


@pytest.mark.parametrize(
    ("name", "flags", "words"),
    [
        pytest.param(name, *row, id=f"{name}-{i}")
        for name, rows in REFUSED.items()
        for i, row in enumerate(rows)
    ],
)
def test_invalid_flags_print_one_line_and_exit_with_status_2(name, flags, words, tmp_path, capsys):
    module = importlib.import_module(f"experiments.{name}")
    with pytest.raises(SystemExit) as end:
        commands.launch(module.main, module.Args(out=tmp_path / "out", **flags))
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith("Error: ")
    assert words in line
    assert not (tmp_path / "out").exists()
