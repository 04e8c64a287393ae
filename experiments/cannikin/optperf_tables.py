"""What Cannikin says of OptPerf, beside ours."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from experiments.cannikin.optperf_driving import Settled
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
