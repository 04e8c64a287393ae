"""The speedup of synchronous training if stragglers drop their last micro-batches: figures 1, 3, 4,
13 and 14 of DropCompute.

    python -m experiments.dropcompute_speedup --communication 1

Latencies are drawn as in a run on a cluster; thresholds are chosen from some steps and applied to
the same number of other steps. They are compared with the paper's equations 4, 5 and 11, which use
the mean and the variance of a micro-batch, and with exact sums of the distributions. For one number
of workers, the clock of real runs of the method confirms the planner's predictions.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from algorithms.dropcompute import Effect
from algorithms.dropcompute.stopping import Stop
from dsgd import records
from experiments.dropcompute import exact, noises, simulated
from experiments.dropcompute import speedup_results as results
from experiments.dropcompute.noises import Noise
from experiments.dropcompute.simulated import Sampled, Setting
from experiments.shared import commands, tables
from theory_checks.statements.dropcompute_speedup import equation_11

MICRO_BATCHES = 12  # of B.1 and C.3
FURTHER = (512, 1024, 2048)  # numbers of workers for theory only
MANY = np.round(np.geomspace(1, 1e9, 37)).astype(int)  # contains the powers of ten
# numbers of workers, for exact lines
DRAWN = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1448, 2048)
# workers and micro-batches of figure 4
BY_WORKERS, BY_MICRO_BATCHES = (32, (8, 32, 112, 196)), (112, (4, 8, 16, 32, 64))
SHARES = np.linspace(0, 0.2, 41)  # dropped shares of figure 4
B1 = "B.1"

# C.3: E[T] / E[T_i] as printed; 14a is 13a.
PRINTED: dict[str, tuple[Noise, float]] = {
    "13a": (noises.lognormal(0.05), 1.496),
    "13b": (noises.normal(0.05), 1.302),
    "13c": (noises.bernoulli(), 1.283),
    "13d": (noises.exponential(4.47), 1.386),
    "13e": (noises.gamma(4.5), 1.39),
    "14b": (noises.lognormal(0.1), 1.933),
    "14c": (noises.lognormal(0.15), 2.394),
    "14d": (noises.lognormal(0.2), 2.773),
    "14e": (noises.lognormal(0.25), 3.043),
    "14f": (noises.lognormal(0.3), 3.4),
}


@dataclass(frozen=True)
class Args(commands.Common):
    """Measures the speedup from dropping micro-batches."""

    worker_counts: tuple[commands.Several, ...] = (8, 16, 32, 64, 112, 160, 200)
    """Numbers of simulated workers."""
    run_workers: commands.Several = 64
    """Number of workers of the runs whose clock is compared with the plan."""
    communication: commands.NotNegative = 0.0
    """T^c, seconds of a step besides computation, which the paper does not state."""
    stop: Stop = "preempt"
    """preempt: workers stop at the threshold; between: they read their clock only between
    micro-batches.
    """
    iterations: commands.Count = 50
    """Number of steps from which a threshold is chosen, and of those on which it is evaluated."""
    seeds: commands.Count = 5
    """Number of independent repetitions of each measurement."""
    out: Path = Path("results/dropcompute_speedup")
    """Folder for config.json, scale.csv and the figures."""


Outcomes = dict[str, Sampled]


def main(args: Args) -> None:
    setting = Setting(
        MICRO_BATCHES,
        args.communication,
        args.stop,
        args.iterations,
        range(args.seed, args.seed + args.seeds),
    )
    sums = {
        panel: exact.sums(noise, MICRO_BATCHES, 10_000) for panel, (noise, _) in PRINTED.items()
    }
    one_N = exact.common_workers([(sums[panel], ratio) for panel, (_, ratio) in PRINTED.items()])
    delays = noises.delays()
    todo = {B1: (delays, exact.sums(delays, MICRO_BATCHES, MANY[-1]))} | {
        panel: (PRINTED[panel][0], sums[panel]) for panel in PRINTED
    }
    commands.begin(args)
    outcomes: Outcomes = {}
    with commands.keep(write, args.out / "scale.csv", outcomes):
        for name, (noise, exactly) in tables.bar(
            list(todo.items()), "dropcompute_speedup", args.progress
        ):
            counts = sorted(
                {*args.worker_counts, args.run_workers if name == B1 else one_N.workers}
            )
            draw = noises.drawing(noise.seconds, 2 * args.iterations, counts[-1], MICRO_BATCHES)
            outcomes[name] = Sampled(
                noise, exactly, draw, simulated.choose_and_apply(setting, draw, counts)
            )
    clock, plan, best = run(setting, outcomes[B1], args.run_workers)
    natural, gained = natural_cluster(setting)
    lines, limits = growing(setting, outcomes[B1])
    sheets = {
        "scale": results.figure_1(setting, outcomes[B1], FURTHER[-1], DRAWN),
        "threshold": figure_3(setting, outcomes, max(args.worker_counts)),
        "drop_rate": figure_4(setting, natural),
        **scale_graphs(setting, outcomes, one_N),
        "growth": results.growth(setting, lines, limits, MANY),
    }
    alone = {
        panel: exact.matching_workers(sums[panel], ratio) for panel, (_, ratio) in PRINTED.items()
    }
    shown = {
        "summary": results.summary(setting, outcomes[B1], outcomes["14f"], one_N, gained),
        "runs": results.compare_runs(setting, clock, plan, best, args.run_workers),
        "scaling": results.scaling(setting, outcomes[B1], FURTHER),
        "ratios": results.ratios(
            {panel: (outcomes[panel], PRINTED[panel][1], alone[panel]) for panel in PRINTED}, one_N
        ),
    }
    commands.finish(args, sheets, shown)


def write(path: Path, outcomes: Outcomes) -> None:
    """Writes the numbers of every seed."""
    rows = (
        (name, of.noise.name, N, run, *(f"{each[run]:.6g}" for each in found))
        for name, of in outcomes.items()
        for N, found in of.found.items()
        for run in range(len(found.speedup))
    )
    records.write_rows(path, ("panel", "noise", "workers", "run", *Effect._fields), rows)


def run(setting: Setting, of: Sampled, workers: int) -> tuple[Effect, Effect, Effect]:
    """Returns the speedups at one number of workers: by the clock of runs, as planned from
    independently drawn latencies, and exact.
    """
    tau = float(of.found[workers].threshold.mean())
    plan = simulated.stack_seeds(
        [simulated.apply(setting, of.draw(seed)[:, :workers], tau) for seed in setting.seeds]
    )
    clock = simulated.measure_runs(setting, of.noise.seconds, workers, tau)
    return clock, plan, of.sums.best(workers, setting.communication, setting.stop)


def figure_3(setting: Setting, outcomes: Outcomes, workers: int) -> Figure:
    """Draws figure 3 for normal micro-batches and for those of B.1."""
    lines: dict[str, tuple[Effect, np.ndarray, np.ndarray]] = {}
    for name, of in {
        "(a) normal micro-batches": outcomes["13b"],
        "(b) B.1's delays": outcomes[B1],
    }.items():
        thresholds = np.linspace(0.5, 1.5, 101) * of.sums.mean
        effect = simulated.sweep_thresholds(setting, of.draw, workers, thresholds)
        model = (of.noise.mean, of.noise.std, setting.micro_batches, workers)
        options = (thresholds, setting.communication, setting.stop)
        analytical = equation_11(*model, *options)
        given = equation_11(*model, *options, step_time=float(effect.without.mean()))
        lines[name] = (effect, analytical, given)
    return results.figure_3(setting, lines, outcomes[B1].found[workers], workers)


def natural_cluster(setting: Setting) -> tuple[dict[str, dict[str, np.ndarray]], np.ndarray]:
    """Returns results without added noise: figure 4's lines, by panel, and the speedup of A.2's
    workers at the best threshold, `[seeds]`.
    """
    (M, workers), (N, micro_batches) = BY_WORKERS, BY_MICRO_BATCHES
    most = max(*workers, N, results.CLUSTER), max(M, setting.micro_batches, *micro_batches)
    own, alike = (
        functools.cache(noises.natural(2 * setting.iterations, *most, alike=same))
        for same in (False, True)
    )

    def sweep_micro_batches(draw):
        return {
            f"{m} accumulations": simulated.sweep_drop_rates(setting, draw, N, m, SHARES)
            for m in micro_batches
        }

    lines = {
        f"{M} accumulations": {
            f"{n} workers": simulated.sweep_drop_rates(setting, own, n, M, SHARES) for n in workers
        },
        f"{N} workers": sweep_micro_batches(own),
        f"{N} workers of one mean": sweep_micro_batches(alike),
    }
    few = simulated.choose_and_apply(
        setting, lambda seed: own(seed)[..., : setting.micro_batches], [results.CLUSTER]
    )
    return lines, few[results.CLUSTER].speedup


def figure_4(setting: Setting, lines: dict[str, dict[str, np.ndarray]]) -> Figure:
    """Draws the substitute for the paper's cluster."""
    own, within = 100 * noises.OWN_MEANS, 100 * noises.WITHIN
    what = (
        f"No added noise (figure 4): workers' means differ by {own:g} %, the micro-batches of "
        f"each by {within:g} %"
    )
    return results.figure_4(setting, SHARES, lines, what)


def scale_graphs(setting: Setting, outcomes: Outcomes, one_N: exact.Common) -> dict[str, Figure]:
    """Draws figures 13 and 14."""
    N = one_N.workers

    def add_titles(*names: str) -> dict[str, Sampled]:
        titles = {}
        for letter, name in zip("abcdef", names, strict=False):
            of, printed = outcomes[name], PRINTED[name][1]
            titles[
                f"({letter}) {of.noise.name}: E[T]/E[T$_i$] = {of.sums.ratio(N):.3f}, paper "
                f"{printed:.3f}"
            ] = of
        return titles

    of_noise, of_variance = (
        add_titles("13a", "13b", "13c", "13d", "13e"),
        add_titles("13a", "14b", "14c", "14d", "14e", "14f"),
    )
    return {
        "noise": results.scale_graphs(
            setting,
            of_noise,
            N,
            "Noises of one mean and variance (figure 13)",
            "(f) all, by equations 4, 5, 11",
        ),
        "variance": results.scale_graphs(
            setting, of_variance, N, "Lognormal noises of one mean (figure 14)"
        ),
    }


def growing(setting: Setting, of: Sampled) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Returns the exact speedups of `MANY` workers by latencies, and the bounds that exist."""
    those = {
        "B.1's, unbounded": noises.delays_unbounded(),
        "lognormal (13a)": noises.lognormal(0.05),
        "B.1's": of.noise,
        "exponential (13d)": noises.exponential(4.47),
        "normal (13b)": noises.normal(0.05),
        "Bernoulli (13c)": noises.bernoulli(),
    }
    T_c, lines, limits = setting.communication, {}, {}
    for name, noise in those.items():
        each = of.sums if noise is of.noise else exact.sums(noise, MICRO_BATCHES, MANY[-1])
        lines[name] = np.array([each.best(N, T_c).speedup for N in MANY])
        if np.isfinite(noise.longest):
            limits[name] = each.limit(noise.longest, T_c)
    return lines, limits


if __name__ == "__main__":
    commands.run(main, Args)
