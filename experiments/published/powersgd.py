r"""PowerSGD: Vogels et al., "PowerSGD: practical low-rank gradient compression for distributed
optimization", 2019.

The claims are sentences of the abstract and of the authors' README; the paper's tables were not
available. The paper trains ResNet-18 on CIFAR-10. Here power iteration is measured on a matrix
$64 \times 32$ with singular values $1 / k$, and training with a multilayer perceptron on digits,
8 workers, batches of 16 and 300 steps; each method has the step size with the smallest loss.
"""

from __future__ import annotations

import jax
import numpy as np
import optax

import algorithms
from dsgd import compressors, problems
from experiments.published.outcomes import Claim, Outcome, Panel, Source
from experiments.published.searches import best_histories

RANKS, STEPS = (1, 2, 4), 300
RATES = (0.1, 0.2, 0.4, 0.8)
README: Source = "authors' code"


def power_iterations(rank: int, seed: int, rounds: int = 20) -> np.ndarray:
    """Returns |D - D'| / |D - best D' of this rank| with a warm start, `[rounds]`."""
    rng = np.random.default_rng(seed)
    U, _ = np.linalg.qr(rng.normal(size=(64, 32)))
    V, _ = np.linalg.qr(rng.normal(size=(32, 32)))
    values = 1 / np.arange(1, 33)
    D = ((U * values) @ V.T).ravel()
    low_rank, message, found = compressors.low_rank(rank, columns=32), None, []
    for key in jax.random.split(jax.random.key(seed), rounds):
        message = low_rank.compress(key, D, message)
        decoded = low_rank.decompress(message, D.size)
        found.append(np.linalg.norm(D - decoded) / np.linalg.norm(values[rank:]))
    return np.array(found)


@jax.enable_x64(True)
def powersgd_power_iteration(quick: bool) -> Outcome:
    """Section 3: the error of power iteration with a warm start, against that of the best rank."""
    seeds, rounds = range(5 if quick else 20), np.arange(1, 21)
    found = {rank: np.array([power_iterations(rank, seed) for seed in seeds]) for rank in RANKS}
    rows = [
        Claim(
            f"rank {rank}: error / best error after 20 rounds",
            "converges to the best approximation",
            ratios[:, -1],
            README,
            at_most=1.001,
        )
        for rank, ratios in found.items()
    ]
    rows += [
        Claim(
            f"rank {rank}: error / best error of one round",
            "a warm start improves it",
            ratios[:, 0],
            README,
            at_least=1.01,
        )
        for rank, ratios in found.items()
    ]
    lines = {f"rank {rank}": (rounds, ratios - 1) for rank, ratios in found.items()}
    panel = Panel("rounds", "error / best error - 1", lines)
    return Outcome(rows, [panel], "A constant matrix, whose gradients have no noise.")


def powersgd_ranks(quick: bool) -> Outcome:
    """Table 3's question: the rank that trains as well as SGD, and what it sends."""
    problem = problems.neural_network("mlp", "digits", 8, "iid", batch_size=16)
    builds = {"SGD": lambda learning_rate: algorithms.minibatch_sgd(optax.sgd(learning_rate))}
    for rank in RANKS:
        builds[f"PowerSGD, rank {rank}"] = lambda learning_rate, rank=rank: algorithms.powersgd(
            optax.sgd(learning_rate), rank
        )
    lines, bits = {}, {}
    for name, history in best_histories(builds, problem, STEPS, RATES, quick).items():
        bits[name] = history["bits_up"].mean(axis=0)
        lines[name] = (bits[name] / 1e6, 100 * history["test_accuracy"])
    last = {name: accuracy[:, -5:].mean(axis=1) for name, (_, accuracy) in lines.items()}
    rows = [
        Claim(
            f"rank {rank}: accuracy minus that of SGD, % points",
            "on par with SGD",
            np.mean(last[f"PowerSGD, rank {rank}"] - last["SGD"]),
            "paper's text",
            at_least=-1.0,
        )
        for rank in RANKS
    ]
    rows += [
        Claim(
            f"rank {rank}: bits of SGD / bits",
            "fewer, in proportion to the rank",
            bits["SGD"][-1] / bits[f"PowerSGD, rank {rank}"][-1],
            "paper's text",
            at_least=2.0,
        )
        for rank in RANKS
    ]
    x = "megabits sent per worker"
    panel = Panel(x, "test accuracy, %", lines, log="x")
    return Outcome(rows, [panel], "Another network and data, so that no accuracy is compared.")
