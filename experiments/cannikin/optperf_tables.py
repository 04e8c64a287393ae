"""What Cannikin says of OptPerf, beside ours."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from experiments.cannikin.optperf_driving import Overhead, Settled
from experiments.cannikin.optperf_panels import CANNIKIN, LB_BSP
from experiments.shared import common

NEAR = 0.01  # of its own best, at which a system's batches count as tuned
SMALL, LARGE = ("ResNet-50", "ResNet-18", "NeuMF"), ("DeepSpeech2", "BERT")  # models, of section 5.3
SHARES = {"ResNet-50": "<< 1", "DeepSpeech2": "<< 1", "BERT": "<< 1", "ResNet-18": "9", "NeuMF": "12"}  # table 5


def tuned(times: np.ndarray) -> np.ndarray:
    """The first epoch of each run, from 1, from which on its batches are nearly its shortest, `[seeds, epochs]` to `[seeds]`."""
    longer = times > (1 + NEAR) * times.min(axis=1, keepdims=True)
    return 1 + np.max(np.arange(1, times.shape[1] + 1) * longer, axis=1)


def summary(
    epochs: dict[str, np.ndarray],
    optperf: float,
    found: dict[tuple[str, str], Settled],
    errors: dict[tuple[str, float], dict[str, np.ndarray]],
    shares: dict[str, float],
) -> Table:
    """The paper's numbers, and ours.

    Args:
        epochs: figure 9: seconds of a batch by system, `[seeds, epochs]`.
        optperf: the least.
        found: figure 10.
        errors: of the prediction.
        shares: of the overhead.
    """
    table = Table(
        title="OptPerf: the paper's numbers, and ours",
        caption=f"tuned: from then on within {100 * NEAR:g} % of its own shortest; means ± standard errors over {len(epochs[LB_BSP])} runs."
        " at most: over total batches and workloads, of 5.3 over runs, too.",
    )
    table.add_column("", no_wrap=True)
    for heading in ("paper", "ours"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("figure 9: ResNet-50 on A, 128 samples")
    table.add_row("  Cannikin's epoch when tuned", "3", common.with_error(tuned(epochs[CANNIKIN])))
    table.add_row("  LB-BSP's epoch when tuned", "> 10", common.with_error(tuned(epochs[LB_BSP])))
    for name in (CANNIKIN, LB_BSP):
        table.add_row(f"  {name}'s shortest batch / OptPerf", "-", common.with_error(epochs[name].min(axis=1) / optperf, 3))
    table.add_section()
    for cluster, paper in (("A", ("-", "-")), ("B", ("18", "53")), ("C", ("-", "-"))):
        table.add_row(f"figure 10: cluster {cluster}, % less time, at most")
        for words, system, number in (("LB-BSP", "lb_bsp", paper[0]), ("DDP", "ddp", paper[1])):
            table.add_row(
                f"  than {words}", number, f"{100 * max(of.gain(system).max() for (c, _), of in found.items() if c == cluster):.0f}"
            )
    table.add_section()
    table.add_row("5.3: % error of the predicted OptPerf, at most")
    for words, paper, weighting, those in (
        ("inverse variances: NeuMF, ResNets", "3", "inverse-variance", SMALL),
        ("inverse variances: BERT, DeepSpeech2", "7", "inverse-variance", LARGE),
        ("plain average, all", "21", "plain", SMALL + LARGE),
    ):
        worst = max(each[weighting].max() for (workload, _), each in errors.items() if workload in those)
        table.add_row(f"  {words}", paper, f"{100 * worst:.1f}")
    table.add_section()
    table.add_row("table 5: % of an epoch on B, at most")
    for name, share in shares.items():
        table.add_row(f"  {name}", SHARES[name], f"{100 * share:.1g}" if share < 1e-2 else f"{100 * share:.0f}")
    return table


def gains(found: dict[tuple[str, str], Settled]) -> Table:
    """Figure 10 in numbers.

    Args:
        found: by cluster and workload.
    """
    table = Table(
        title="Figure 10: % less time of Cannikin's batches,\nlargest over total batches (at which one)",
        caption="adapted: LB-BSP's batches of a total smaller by a tenth of the range, scaled up. together: those that all nodes have"
        " computed at the same time, at which LB-BSP aims in steps of 5. Times are exact.",
    )
    table.add_column("workload", no_wrap=True)
    table.add_column("totals", justify="right", no_wrap=True)
    for heading in ("DDP", "LB-BSP", "adapted", "together"):
        table.add_column(heading, justify="right", no_wrap=True)
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


def predictions(errors: dict[tuple[str, float], dict[str, np.ndarray]], noise: float) -> Table:
    """Section 5.3 in numbers.

    Args:
        errors: by workload and noise, then weighting, `[seeds]`.
        noise: of the rest.
    """
    table = Table(
        title="% error of the predicted OptPerf on cluster A,\nlargest over total batches",
        caption=f"nu: noise of the P4000's first bucket; of all other times {noise:g}. inverse-variance weighting / plain average, means"
        " over seeds.",
    )
    table.add_column("workload", no_wrap=True)
    levels = list(dict.fromkeys(level for _, level in errors))
    for level in levels:
        table.add_column(f"nu = {level:g}", justify="right", no_wrap=True)
    for workload in dict.fromkeys(name for name, _ in errors):
        cells = [[f"{100 * values.mean():.2f}" for values in errors[workload, level].values()] for level in levels]
        table.add_row(workload, *map(" / ".join, cells))
    return table


def overheads(found: dict[int, Overhead], candidates: int) -> Table:
    """Section 5.4 over numbers of nodes.

    Args:
        found: by nodes.
        candidates: total batches.
    """
    table = Table(title=f"milliseconds to learn from an epoch and decide,\n{candidates} total batches to choose from")
    for heading in ("nodes", "all candidates", "the chosen one"):
        table.add_column(heading, justify="right", no_wrap=True)
    for n, each in found.items():
        table.add_row(f"{n:,}", f"{1e3 * each.first:.3g}", f"{1e3 * each.then:.3g}")
    return table


def heterogeneity(found: dict[float, Settled], workload: str) -> Table:
    """Section 6.

    Args:
        found: by the fastest node's speed over the slowest one's.
        workload: what is trained.
    """
    table = Table(
        title=f"16 nodes with speeds from 1 to 1 / r, {workload}: % less time",
        caption="over total batches: median, and largest. bound: DDP, were there only computation.",
    )
    for heading in ("r", "than DDP", "largest", "bound", "than LB-BSP", "largest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for ratio, of in found.items():
        middle, most = ([f"{100 * take(of.gain(system)):.1f}" for system in ("ddp", "lb_bsp")] for take in (np.median, np.max))
        table.add_row(f"{ratio:g}", middle[0], most[0], f"{100 * (1 - 2 / (1 + ratio)):.1f}", middle[1], most[1])
    return table
