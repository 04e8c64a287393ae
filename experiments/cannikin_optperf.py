"""The shortest batch time on heterogeneous machines: figures 9 and 10 of Cannikin, and the results
on OptPerf in its sections 5.3, 5.4 and 6.

    python -m experiments.cannikin_optperf --noise 0.1

Figure 9 is computed from real epochs of a small problem on the simulated cluster's clock; its links
are slower than the paper's by the same factor by which the problem is smaller than ResNet-50.
Everything else needs no training: the systems decide from times of the cluster's model, which are
exact for figure 10 and heterogeneity, and noisy for the prediction errors.
`experiments/cannikin/devices.py` lists the speeds of devices with their sources.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import cannikin, minibatch_sgd
from dsgd import problems, records
from experiments.cannikin import devices, driving, optperf_results
from experiments.cannikin.driving import Noise, Overhead, Settled
from experiments.shared import commands

CLUSTER, WORKLOAD, TOTAL = "A", "ResNet-50", 128  # of figure 9
DIMENSION = 6  # of the problem that is trained
CANDIDATES = 100  # number of total batches for the overhead


@dataclass(frozen=True)
class Args(commands.Common, commands.Tasks):
    """Computes the shortest batch times on heterogeneous machines."""

    epochs: commands.Count = 20
    """Number of epochs of figure 9."""
    iterations: commands.Count = 20
    """Number of batches of each of these epochs, and of those from which OptPerf is predicted."""
    noise: commands.NotNegative = 0.05
    """nu, the noise of the nodes' measurements, t e^(nu z)."""
    first_noises: tuple[commands.NotNegative, ...] = (0.05, 0.2, 0.5, 1.0)
    """nu of the first bucket's time on the P4000, for prediction errors; by default --noise."""
    totals: commands.Several = 8
    """Total batches of figure 10."""
    worker_counts: commands.Counts = (3, 16, 100, 1000, 10_000)
    """Numbers of nodes for which the overhead is measured."""
    ratios: tuple[commands.Factor, ...] = (1.0, 1.5, 2.0, 3.42, 5.0, 10.0)
    """Ratios of the speeds of the fastest and the slowest node."""
    repeats: commands.Count = 5
    """Number of repetitions of the overhead measurement."""
    seeds: commands.Count = 5
    """Number of independent draws of the noise."""
    out: Path = Path("results/cannikin_optperf")
    """Folder for config.json, epochs.csv, batch_time.csv and the figures."""


Found = dict[tuple[str, str], Settled]
Errors = dict[tuple[str, float], dict[str, np.ndarray]]


def main(args: Args) -> None:
    if args.iterations < 3:
        raise ValueError(f"--iterations {args.iterations}: expected at least 3")
    commands.begin(args)
    cases = itertools.product(devices.CLUSTERS, devices.WORKLOADS)
    found = commands.collect(
        args,
        "figure 10",
        {case: case for case in cases},
        lambda case: driving.settle_totals(
            devices.make_model(*case), devices.batches(*case, args.totals)
        ),
        write,
        args.out / "batch_time.csv",
    )
    epochs = figure_9(args)
    errors, gains = prediction(args), heterogeneity(args)
    overheads, shares = overhead(args), overhead_shares(args)
    optperf = devices.make_model(CLUSTER, WORKLOAD).optperf_integer(TOTAL).seconds
    write_epochs(args.out / "epochs.csv", epochs)
    sheets = {
        "epochs": optperf_results.figure_9(epochs, optperf, args.noise),
        "batch_time": optperf_results.figure_10(found),
        "studies": optperf_results.studies(errors, gains, args.noise, WORKLOAD),
        "overhead": optperf_results.overhead(overheads),
    }
    summary = optperf_results.summary(epochs, optperf, found, errors, shares)
    commands.finish(args, sheets, {"summary": summary, "gains": optperf_results.gains(found)})


def figure_9(args: Args) -> dict[str, np.ndarray]:
    """Returns the seconds of a batch in each epoch, by system, `[seeds, epochs]`, starting from
    equal parts.
    """
    rng = np.random.default_rng(args.seed)
    inputs = rng.standard_normal((3 * TOTAL, DIMENSION))
    model = problems.Model(lambda key: jnp.zeros(DIMENSION), lambda params, rows: rows @ params)
    data = (inputs, inputs.sum(axis=1) + rng.standard_normal(len(inputs)))
    problem = problems.finite_sum(model, optax.l2_loss, data, 3, batch_size=TOTAL)
    cluster = devices.make_cluster(CLUSTER, WORKLOAD, parameters=DIMENSION, noise=args.noise)

    def seconds(system: cannikin.System, seed: int) -> list[float]:
        stages = {
            "cluster": cluster,
            "epochs": args.epochs,
            "micro_batches": 1,
            "samples": args.iterations * TOTAL,
        }
        ran = cannikin.train(
            minibatch_sgd(optax.sgd(0.1)), problem, system, key=jax.random.key(seed), **stages
        )
        return [epoch.batch_time for epoch in ran.epochs]

    systems = cannikin.cannikin(TOTAL), cannikin.lb_bsp(TOTAL), cannikin.equal_split(TOTAL)
    return {
        system.name: np.array([seconds(system, seed) for seed in seeds(args)]) for system in systems
    }


def seeds(args: Args) -> range:
    """Returns the seeds of all noise."""
    return range(args.seed, args.seed + args.seeds)


def prediction(args: Args) -> Errors:
    """Returns the largest relative errors of the predicted OptPerf on cluster A, `[seeds]`, by
    workload and noise of one node's first bucket.
    """
    errors: Errors = {}
    for name, workload in devices.WORKLOADS.items():
        model = devices.make_model("A", name)
        for level in args.first_noises:
            noise = Noise(args.noise, np.array([args.noise, args.noise, level]))
            each = [
                driving.prediction_errors(model, workload, noise, seed, args.iterations)
                for seed in seeds(args)
            ]
            errors[name, level] = {
                weighting: np.array([error[weighting] for error in each]) for weighting in each[0]
            }
    return errors


def overhead(args: Args) -> dict[int, Overhead]:
    """Returns the overhead by number of nodes."""
    workload, found = devices.WORKLOADS[WORKLOAD], {}
    for n in args.worker_counts:
        model = driving.many_nodes(n, workload)
        roomy = workload._replace(first_batch=10 * n, last_batch=100 * n)
        totals = devices.batches_of(model, roomy, CANDIDATES)
        found[n] = driving.overhead(model, totals, args.repeats)
    return found


def overhead_shares(args: Args) -> dict[str, float]:
    """Returns the overhead's share of an epoch with the largest total batch on cluster B, if the
    OptPerf of all candidates is computed, by workload.
    """
    shares = {}
    for name, workload in devices.WORKLOADS.items():
        model, totals = devices.make_model("B", name), devices.batches("B", name, CANDIDATES)
        seconds = np.ceil(workload.samples / totals[-1]) * model.optperf(totals[-1]).seconds
        shares[name] = driving.overhead(model, totals, args.repeats).first / seconds
    return shares


def heterogeneity(args: Args) -> dict[float, Settled]:
    """Returns the results by ratio of speeds."""
    totals, workload = devices.batches("B", WORKLOAD, args.totals), devices.WORKLOADS[WORKLOAD]
    return {
        ratio: driving.settle_totals(driving.spread(ratio, workload), totals)
        for ratio in sorted(args.ratios)
    }


def write(path: Path, found: Found) -> None:
    """Writes figure 10: the batch times of all systems."""
    rows = (
        (*case, total, *(f"{times[i]:.6g}" for times in of[1:]))
        for case, of in found.items()
        for i, total in enumerate(of.totals)
    )
    records.write_rows(path, ("cluster", "workload", "total_batch", *Settled._fields[1:]), rows)


def write_epochs(path: Path, epochs: dict[str, np.ndarray]) -> None:
    """Writes the data of figure 9 as CSV."""
    rows = (
        (name, seed, epoch + 1, f"{value:.6g}")
        for name, times in epochs.items()
        for seed, run in enumerate(times)
        for epoch, value in enumerate(run)
    )
    records.write_rows(path, ("system", "seed", "epoch", "seconds"), rows)


if __name__ == "__main__":
    commands.run(main, Args)
