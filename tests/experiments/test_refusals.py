"""Invalid arguments of experiments: one line, status 2, and nothing is written or started."""

from __future__ import annotations

import importlib
import shlex

import pytest
import tyro

from experiments.shared import commands

# the command line, and words of the message
REFUSED = {
    "all --quick --docs": "--quick and --docs: docs/ shows only full runs; pass one",
    "all --only nothing": "--only nothing: expected some of compare, ",
    "asynchrony --methods SGD": "--methods SGD: expected some of synchronous",
    "asynchrony --slow 16": "--slow 16 of 16 workers",
    "asynchrony --backups 16": "backups = 16 with 16 workers; expected at most 15",
    "asynchrony --bound 3": "bound = 3 with 16 workers",
    "availability --shares 1.0 0.0": "--shares (1.0, ",
    "availability --shares 1.0 -0.5": "--shares (1.0, ",
    "availability --shares 1.0 1.5": "--shares (1.0, ",
    "availability --shares 1.0 nan": "--shares (1.0, ",
    "compare --on processes --log csv": "--log with --on: runs of other processes are not logged",
    "compare --on processes --jobs 0": "--jobs 0: expected whole numbers, at least 1",
    "benchmark.clients --models mlp": "--models mlp: expected some of cnn, logistic",
    "benchmark.clients --clients 10 99": "logistic draws 100 clients in a round; expected a number",
    "benchmark.compression --dimensions 4": "expected dimensions of at least 16",
    "benchmark.peers --methods extra": "--methods extra: expected some of decentralized_sgd,",
    "benchmark.peers --versions jax scan": "--versions jax: expected some of dsgd, scan, numpy,",
    "benchmark.peers --workers 2 16": "--workers 2: expected at least 3",
    "benchmark.peers --workers 1024 --dimensions 100000": "all sizes have more than 16,000,000",
    "benchmark.peers --versions numpy": "--versions numpy: minibatch_sgd needs some of dsgd,",
    "benchmark.rounds --repeats 0": "--repeats 0: expected whole numbers, at least 1",
    "benchmark.rounds --workers 4 4 --dimensions 5": "2 workers for 1 dimensions: expected one",
    "benchmark.rounds --methods gradient_descent": "--methods gradient_descent: expected some of",
    "calibrate --shape-latency 0.01": "--shape-latency 0.01 without --shape: expected emulated",
    "calibrate --processes 1": "--processes 1: expected whole numbers, at least 2",
    "calibrate --sizes 1024": "--sizes (1024,): expected increasing numbers, 2 or more",
    "calibrate --sizes 1024 512": "--sizes (1024, 512): expected increasing numbers, 2 or more",
    "calibrate --sizes 1 2": "all round to the same size for all-reduce, whose vectors are",
    "calibrate --sizes 8 16": "all round to the same size for all-gather, whose vectors are",
    "calibrate --widths 8 8": "--widths (8, 8): expected increasing numbers, 1 or more",
    "calibrate --ratios 0.1 2.0": "--ratios (0.1, 2.0): expected shares above 0, at most 1",
    "calibrate --shape 30": "--shape 30: ",
    "calibrate --shape mbit": "--shape mbit: ",
    "calibrate --shape 30mbit:": "--shape 30mbit:: ",
    "calibrate --shape -3mbit": "--shape -3mbit: ",
    "calibrate --shape 0mbit": "--shape 0mbit: ",
    "calibrate --shape 3e1mbit": "--shape 3e1mbit: ",
    "calibrate --shape fast": "--shape fast: ",
    "cannikin_optperf --ratios 0.5 2.0": "--ratios (0.5, 2.0): expected finite numbers, at least 1",
    "cannikin_optperf --iterations 2": "--iterations 2: expected at least 3",
    "cannikin_processes --competitors 1": "--competitors (1,): expected at least two numbers",
    "cannikin_processes --competitors 0 -1": "--competitors (0, -1): expected finite numbers, at",
    "cannikin_processes --shares 0.5 1.0": "--shares (0.5, 1.0): expected shares above 0, below 1",
    "cannikin_processes --nice 20": "--nice 20: expected 0 to 19",
    "cannikin_processes --total 63": "--total 63: expected at least 64",
    "compare --methods sgd adagrad": "make: unknown method 'adagrad'; did you mean fed_adagrad?",
    "compare --data iris": "logistic_regression: data = 'iris'; expected one of digits",
    "compare --partition random": "logistic_regression: partition = 'random'; did you mean iid?",
    "compare --model language-model --data digits": "text = 'digits', and there is no such file",
    "compare --target nan": "--target nan: expected finite numbers above 0",
    "compare --learning-rates 0.1 inf": "--learning-rates (0.1, inf): expected finite",
    "complexity_table --epsilons 0.1": "expected at least 2 decreasing positive numbers",
    "complexity_table --epsilons 0.1 0.2": "expected at least 2 decreasing positive numbers",
    "complexity_table --epsilons 0.1 0.0": "expected at least 2 decreasing positive numbers",
    "compression --compressors sgn": "--compressors sgn: expected some of identity,",
    "compression --partitions random": "logistic_regression: partition = 'random'",
    "convergence_rates --steps 4 8": "--steps (4, 8): expected increasing numbers, 4 or more",
    "convergence_rates --workers 2 1": "--workers (2, 1): expected increasing numbers, 2 or more",
    "convergence_rates --staleness -1 0 1 2": "expected finite numbers, at least 0",
    "convergence_rates --fixed-steps 100": "fixed-steps = 100 with a staleness of 255: expected",
    "dropcompute_processes --slow 2": "--slow 2 of 2 processes: expected one from 0 to 1, or None",
    "dropcompute_processes --rounds 149": "--rounds 149 of 150 steps: expected at least two more",
    "dropcompute_training --drop-rates 0.1": "--drop-rates (0.1,): must contain 0",
    "dropcompute_training --drop-rates 0.0 0.2": "must contain 0.1, the rate at which",
    "dropcompute_training --corrected-rates 0.5": "--corrected-rates (0.5,): must contain 0",
    "dropcompute_training --periods 1 7": "--periods (1, 7)",
    "dropcompute_training --server 1": "--server 1",
    "dropcompute_training --local-drop-rate 1.0": "--local-drop-rate 1.0: expected shares of at",
    "dropcompute_training --steps 5": "--steps 5",
    "federated --sampled 101": "sampled: k = 101 of 100 workers; expected k of at most 100",
    "kimad_deep --shown 0.3": "--shown 0.3: expected one of --communication-times (2.0, 1.0,",
    "kimad_quadratic --small 3.0 1.0": "--small 3 1: expected 0 < least <= most",
    "kimad_quadratic --high 0.0 1.0": "--high 0 1: expected 0 < least <= most",
    "kimad_variability --round-times 2.0 1.0": "--round-times 1 with --compute 1: expected longer",
    "real_asynchrony --slow 4": "--slow 4 of 4 workers",
    "real_asynchrony --bound 2": "--bound 2 of 4 workers: expected at least 3, since all read the",
    "real_asynchrony --methods async": "--methods async: expected some of synchronous,",
    "stragglers --server 17": "of 16 workers with --server 17",
    "stragglers --straggling 0.5": "--straggling 0.5 of 16 workers with --server 4",
    "switch_timelines --latency 0.0 --transfer 0.0": "--latency 0 --transfer 0: expected one",
    "worst_case --rates 0.5": "--rates (0.5,): expected increasing numbers, 2 or more",
    "worst_case --workers 2": "--workers 2: expected whole numbers, at least 3",
    "worst_case --strong-convexity 1.0": "--strong-convexity 1.0: expected numbers above 0, below",
    "topology --workers": "--workers: expected at least one value",
}


@pytest.mark.parametrize("line", REFUSED)
def test_invalid_flags_print_one_line_and_exit_with_status_2(line, tmp_path, capsys):
    name, *flags = shlex.split(line)
    module = importlib.import_module(f"experiments.{name}")
    with pytest.raises(SystemExit) as end:
        commands.launch(
            module.main, tyro.cli(module.Args, args=[*flags, "--out", f"{tmp_path}/out"])
        )
    (said,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert said.startswith("Error: ")
    assert REFUSED[line] in said
    assert not (tmp_path / "out").exists()
