"""Figure 8 of Cannikin as a table, the paper beside ours, and in words why they differ."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from experiments.cannikin.cannikin_race import ACCURACY, ADAPTDL, CANNIKIN, DDP, LB_BSP, Run, Runs, Setting
from experiments.cannikin.devices import WORKLOADS
from experiments.shared import common, intervals

# Section 5.2: what Cannikin saves of their seconds, in %, at most of all five tasks; of AdaptDL's, that is on CIFAR-10, by a ResNet-18.
AT_MOST = {DDP: 85, LB_BSP: 82, ADAPTDL: 52}
LEARNING = 2  # epochs before there is a model


def seconds(runs: list[Run]) -> np.ndarray:
    """To the target, of each seed; NaN of those that have not reached it."""
    return np.array([run.seconds[-1] if run.reached else np.nan for run in runs])


def saved(runs: Runs, system: str) -> np.ndarray:
    """By Cannikin of a system's seconds in %, of the seeds that have reached the target with both."""
    share = 100 * (1 - seconds(runs[CANNIKIN]) / seconds(runs[system]))
    return share[~np.isnan(share)]


def with_interval(values: np.ndarray, digits: int) -> str:
    """The mean of some seeds, and half of its 95 % interval where there are several."""
    if not len(values):
        return "-"
    half = intervals.half_interval(values)
    return f"{values.mean():.{digits}f}" + (f" ± {half:.{digits}f}" if np.isfinite(half) else "")


def tabulate(setting: Setting, cluster: str, runs: Runs) -> Table:
    """One row a system."""
    task, seeds = setting.task, len(runs[CANNIKIN])
    good = f"{100 * setting.target:g} % right" if task.quality == ACCURACY else f"{setting.target:g} bits per byte"
    table = Table(
        title=f"seconds to {good}: {task.words}\ncluster {cluster}, times of {task.workload}, {common.runs(seeds)}",
        caption="reached: how many seeds reached it. batch: mean over epochs. of DDP:\n"
        "seconds, seed by seed. saved: by Cannikin of the system's seconds, in %;\n"
        "≤: the most of all the paper's tasks. ±: half the 95 % interval.",
    )
    table.add_column("system", no_wrap=True)
    for heading in ("reached", "seconds", "epochs", "batch", "of\nDDP", "saved\nours", "\npaper"):
        table.add_column(heading, justify="right", no_wrap=True)
    for system, each in runs.items():
        found = seconds(each)
        reached = ~np.isnan(found)
        small = max(np.nanmax(found, initial=0), np.nan_to_num(intervals.half_interval(found[reached]), posinf=0)) < 100
        ratios = found / seconds(runs[DDP])
        paper = "52" if system == ADAPTDL and task.workload == "ResNet-18" else f"≤ {AT_MOST.get(system)}"
        table.add_row(
            system,
            f"{reached.sum()}",
            with_interval(found[reached], 1 if small else 0),
            f"{np.mean([len(run.seconds) for run in each]):.1f}",
            f"{np.mean([run.totals.mean() for run in each]):.0f}",
            f"{np.nanmean(ratios):.2f}" if not np.isnan(ratios).all() else "-",
            "" if system == CANNIKIN else with_interval(saved(runs, system), 0),
            "" if system == CANNIKIN else paper,
        )
    return table


def notes(setting: Setting, runs: Runs) -> list[str]:
    """Why ours differ from the paper's."""
    task, totals, model = setting.task, setting.totals, setting.model
    gains = 100 * (1 - of_equal(setting, totals))
    first, N = totals[0], model.nodes
    ours, theirs = (np.array([run.seconds[:LEARNING][-1] for run in runs[system]]) for system in (CANNIKIN, ADAPTDL))
    parts = np.array([np.sum(np.diff(run.seconds, prepend=0) * of_equal(setting, run.totals)) / run.seconds[-1] for run in runs[ADAPTDL]])
    longer = 100 * np.mean((ours - theirs) / [run.seconds[-1] for run in runs[ADAPTDL]])
    epochs = np.mean([len(run.seconds) for run in runs[CANNIKIN]]) - np.mean([len(run.seconds) for run in runs[ADAPTDL]])
    most, messages = int(np.argmax(gains)), 1e3 * (model.t_overlap + model.t_last)
    return [
        f"{task.words}. Unequal parts save {gains[0]:.0f} % of an equal split's time at a total batch of {first}, at most"
        f" {gains[most]:.0f} %, at {totals[most]}: messages take {messages:.0f} ms, whoever computes how much. What the paper saves of"
        " AdaptDL's seconds beyond that must come of other total batches.",
        f"At AdaptDL's own total batches unequal parts would save {100 * (1 - parts.mean()):.0f} %. Cannikin saves"
        f" {with_interval(saved(runs, ADAPTDL), 0)} %. Its first two epochs, in which it learns the nodes at a total batch of {first}, take"
        f" {longer:.0f} % of AdaptDL's seconds longer than AdaptDL's; with total batches of its own it needs {epochs:+.1f} epochs.",
        f"DDP and LB-BSP keep {first}, {first / N:.3g} samples a node (LB-BSP moves 5 at once), where parts hardly matter: they differ by"
        f" chance. It stands for {setting.stands_for * first:.0f} samples of {task.workload}; the paper begins with"
        f" {WORKLOADS[task.workload].first_batch}.",
    ]


def of_equal(setting: Setting, totals: np.ndarray) -> np.ndarray:
    """OptPerf of total batches, of the time of an equal split."""
    model = setting.model
    return model.optperf(totals).seconds / model.batch_time(np.repeat(totals[:, None] / model.nodes, model.nodes, axis=1))
