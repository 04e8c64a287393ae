"""Figures 9 and 10 of Cannikin, and the results on OptPerf in its sections 5.3, 5.4 and 6: the
paper's numbers and ours.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

import dsgd
from dsgd import plots
from experiments.cannikin.driving import Overhead, Settled
from experiments.shared import figures, statistics, tables

CANNIKIN, LB_BSP, DDP, ADAPTED = "Cannikin", "LB-BSP", "DDP", "LB-BSP, adapted"
LOOK = {name: figures.look(i) for i, name in enumerate((CANNIKIN, LB_BSP, DDP, ADAPTED))}
MARKS = "osD^v"
NEAR = 0.01  # relative distance to its own best time within which a system's batches are tuned
# workloads of section 5.3
SMALL, LARGE = ("ResNet-50", "ResNet-18", "NeuMF"), ("DeepSpeech2", "BERT")
# table 5
SHARES = {
    "ResNet-50": "<< 1",
    "DeepSpeech2": "<< 1",
    "BERT": "<< 1",
    "ResNet-18": "9",
    "NeuMF": "12",
}


def epochs_to_shortest(times: np.ndarray) -> np.ndarray:
    """Returns the epoch of each run, counted from 1, after which all batches take nearly the
    shortest time of the run: `[seeds, epochs]` to `[seeds]`.
    """
    longer = times > (1 + NEAR) * times.min(axis=1, keepdims=True)
    return 1 + np.max(np.arange(1, times.shape[1] + 1) * longer, axis=1)


def summary(
    epochs: dict[str, np.ndarray],
    optperf: float,
    found: dict[tuple[str, str], Settled],
    errors: dict[tuple[str, float], dict[str, np.ndarray]],
    shares: dict[str, float],
) -> Table:
    """Tabulates the paper's numbers and ours.

    Args:
        epochs: figure 9: seconds of a batch by system, `[seeds, epochs]`.
        optperf: the shortest time.
        found: figure 10.
        errors: errors of the prediction.
        shares: shares of the overhead.
    """
    table = tables.table(
        "OptPerf: the paper's numbers and ours",
        ("", "paper", "ours"),
        f"tuned: first epoch from which batches stay within {100 * NEAR:g} % of the system's "
        f"shortest; means ± standard errors over {len(epochs[LB_BSP])} runs. at most: maximum "
        "over total batches and workloads, for 5.3 also over runs.",
    )
    table.add_row("figure 9: ResNet-50 on A, 128 samples")
    for name, paper in ((CANNIKIN, "3"), (LB_BSP, "> 10")):
        when = statistics.format_with_error(epochs_to_shortest(epochs[name]))
        table.add_row(f"  {name}'s epoch when tuned", paper, when)
    for name in (CANNIKIN, LB_BSP):
        shortest = statistics.format_with_error(epochs[name].min(axis=1) / optperf, 3)
        table.add_row(f"  {name}'s shortest batch / OptPerf", "-", shortest)
    table.add_section()
    for cluster, paper in (("A", ("-", "-")), ("B", ("18", "53")), ("C", ("-", "-"))):
        table.add_row(f"figure 10: cluster {cluster}, % less time, at most")
        those = [of for (name, _), of in found.items() if name == cluster]
        for words, system, number in (("LB-BSP", "lb_bsp", paper[0]), ("DDP", "ddp", paper[1])):
            most = 100 * max(of.gain(system).max() for of in those)
            table.add_row(f"  than {words}", number, f"{most:.0f}")
    table.add_section()
    table.add_row("5.3: % error of the predicted OptPerf, at most")
    for words, paper, weighting, those in (
        ("inverse variances: NeuMF, ResNets", "3", "inverse-variance", SMALL),
        ("inverse variances: BERT, DeepSpeech2", "7", "inverse-variance", LARGE),
        ("plain average, all", "21", "plain", SMALL + LARGE),
    ):
        worst = max(
            each[weighting].max() for (workload, _), each in errors.items() if workload in those
        )
        table.add_row(f"  {words}", paper, f"{100 * worst:.1f}")
    table.add_section()
    table.add_row("table 5: % of an epoch on B, at most")
    for name, share in shares.items():
        percent = f"{100 * share:.1g}" if share < 1e-2 else f"{100 * share:.0f}"
        table.add_row(f"  {name}", SHARES[name], percent)
    return table


def gains(found: dict[tuple[str, str], Settled]) -> Table:
    """Tabulates the numbers of figure 10.

    Args:
        found: results by cluster and workload.
    """
    table = tables.table(
        "Figure 10: % of time saved by Cannikin's batches,\nmaximum over total batches (at which "
        "one)",
        ("workload", "totals", "DDP", "LB-BSP", "adapted", "together"),
        "adapted: LB-BSP's split for a total batch smaller by a tenth of the range, scaled up. "
        "together: the split with which all nodes finish computing at the same time, which is "
        "LB-BSP's aim, in steps of 5. Times are exact.",
    )
    last = ""
    for (cluster, workload), of in found.items():
        if cluster != last:
            table.add_section()
            last = cluster
        cells = []
        for system in ("ddp", "lb_bsp", "adapted", "together"):
            gain = of.gain(system)
            at = int(np.nanargmax(gain))
            cells.append(f"{100 * gain[at]:.0f} ({of.totals[at]})")
        table.add_row(f"{cluster} {workload}", f"{of.totals[0]}-{of.totals[-1]}", *cells)
    return table


def figure_9(epochs: dict[str, np.ndarray], optperf: float, noise: float) -> Figure:
    """Draws the milliseconds of a batch against epochs.

    Args:
        epochs: seconds of a batch by system, `[seeds, epochs]`.
        optperf: the shortest time, seconds.
        noise: nu.
    """
    sheet, (axes,) = plots.figure(1, width=7, height=3.8)
    for name, times in epochs.items():
        middle, error = dsgd.history.mean_and_error(1e3 * times)
        x = np.arange(1, times.shape[1] + 1)
        axes.errorbar(x, middle, yerr=error, marker=".", capsize=2, label=name, **LOOK[name])
    axes.axhline(1e3 * optperf, color="black", linewidth=0.8, label="OptPerf")
    axes.set(xlabel="epoch", ylabel="milliseconds of a batch", ylim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    seeds = len(next(iter(epochs.values())))
    what = f"Figure 9: ResNet-50 on cluster A, 128 samples, noise {noise:g}"
    figures.title(sheet, f"{what}; {statistics.errors('bars', seeds)}")
    return sheet


def figure_10(found: dict[tuple[str, str], Settled]) -> Figure:
    """Draws the time of a batch against total batches, relative to OptPerf, with a panel for each
    cluster and workload.

    Args:
        found: results by cluster and workload.
    """
    clusters, workloads = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))
    columns = len(clusters)
    sheet, panels = plots.figure(
        columns, len(workloads), width=figures.WIDTH / columns, height=2.0, sharey=False
    )
    panels = panels.reshape(-1, columns)
    for (cluster, workload), of in found.items():
        axes = panels[workloads.index(workload), clusters.index(cluster)]
        systems = {CANNIKIN: of.cannikin, LB_BSP: of.lb_bsp, ADAPTED: of.adapted, DDP: of.ddp}
        for name, times in systems.items():
            axes.plot(of.totals, times / of.optperf, marker=".", label=name, **LOOK[name])
        figures.describe(axes, title=f"{cluster}: {workload}", log="x")
        few = of.totals[[0, len(of.totals) // 2, -1]]
        axes.set_xticks(few, [str(total) for total in few])
        axes.set_xticks([], minor=True)
    for column in panels.T:
        low, high = zip(*(axes.get_ylim() for axes in column), strict=True)
        for axes in column:
            axes.set_ylim(min(low), max(high))
        column[-1].set_xlabel("total batch")
    for axes in panels[:, 0]:
        axes.set_ylabel("time / OptPerf")
    figures.legend(sheet, 4, panels[0, 0])
    figures.title(
        sheet,
        "Figure 10: batch times at which each system settles, by its cluster's model without noise",
    )
    return sheet


def overhead(overheads: dict[int, Overhead]) -> Figure:
    """Draws the measured overhead against numbers of nodes.

    Args:
        overheads: by number of nodes.
    """
    sheet, (axes,) = plots.figure(1, width=7, height=3.8)
    n = np.array(list(overheads))
    first, then = np.array([(each.first, each.then) for each in overheads.values()]).T
    for i, (words, times) in enumerate((("all candidates", first), ("one", then))):
        axes.plot(n, 1e3 * times, marker="o", label=words, **figures.look(i))
    title = "learning and deciding, 100 candidates"
    figures.describe(axes, "nodes", "milliseconds of an epoch", title, log="xy", legend=True)
    axes.set_xticks(n, [f"{each:,}" for each in n])
    axes.set_xticks([], minor=True)
    return sheet


def studies(
    errors: dict[tuple[str, float], dict[str, np.ndarray]],
    gains: dict[float, Settled],
    noise: float,
    workload: str,
) -> Figure:
    """Draws errors of the prediction, and gains against heterogeneity.

    Args:
        errors: errors of OptPerf by workload and noise, then by weighting, `[seeds]`.
        gains: by the speed of the fastest node over that of the slowest.
        noise: nu of all times except those of one node's first bucket.
        workload: workload of the gains.
    """
    sheet = Figure(figsize=(figures.WIDTH, 7.4), layout="constrained")
    above, below = sheet.subfigures(2, 1, squeeze=False)[:, 0]
    panels = plots.panels(above, 2, sharey=True)
    for axes, weighting in zip(panels, ("inverse-variance", "plain"), strict=True):
        draw_errors(axes, errors, weighting, noise)
    panels[0].set_ylabel("% error of OptPerf")
    panels[0].legend(frameon=False, fontsize=9, loc="upper left")
    (by_ratio,) = plots.panels(below, 1)
    ratios = np.array(list(gains))
    for name, key in ((DDP, "ddp"), (LB_BSP, "lb_bsp")):
        each = 100 * np.array([of.gain(key) for of in gains.values()])
        largest, median = each.max(axis=1), np.median(each, axis=1)
        by_ratio.plot(ratios, largest, marker="o", label=f"{name}, largest", **LOOK[name])
        by_ratio.plot(ratios, median, alpha=0.5, label=f"{name}, median", **LOOK[name])
    dense = np.linspace(ratios.min(), ratios.max(), 100)
    alone = {"color": "black", "linewidth": 0.8, "label": "DDP, computation alone"}
    by_ratio.plot(dense, 100 * (1 - 2 / (1 + dense)), **alone)
    title = f"16 nodes, {workload}, over total batches"
    figures.describe(by_ratio, "fastest / slowest node", "% of time saved", title, legend=True)
    return sheet


def draw_errors(
    axes: Axes,
    errors: dict[tuple[str, float], dict[str, np.ndarray]],
    weighting: str,
    noise: float,
) -> None:
    """Draws the errors of the predicted OptPerf against the noise of one bucket, with one of the
    weightings.
    """
    for i, workload in enumerate(dict.fromkeys(workload for workload, _ in errors)):
        levels = [level for name, level in errors if name == workload]
        each = np.stack([errors[workload, level][weighting] for level in levels], axis=1)
        middle, error = dsgd.history.mean_and_error(100 * each)
        look = figures.look(i, marker=MARKS[i], capsize=2, label=workload)
        axes.errorbar(levels, middle, error, **look)
    x = f"noise of the P4000's first bucket ({noise:g} elsewhere)"
    words = "inverse variances" if weighting == "inverse-variance" else "equal weights"
    figures.describe(axes, x, title=f"prediction on cluster A, {words}", log="xy")
