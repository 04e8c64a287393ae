"""The map as a page: a reader changes the cluster, and the page computes the seconds itself.

On equal workers whose messages are of the same length, an exchange takes all workers equally long,
by the closed form of its pattern, which is linear in the latency and in the seconds of a bit. All
that a worker waits for is then linear, too: after a number of rounds, the clock shows

    gradient (gradients + spread * delays) + latency * latencies + bits / bandwidth

seconds. The four counts of a run are its seconds on four clusters in each of which all but one of
these times are 0: `dsgd.replay` computes them, with the random delays of its draws. Replays on
further clusters verify the sum; methods that it does not describe are left out of the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

import dsgd
from dsgd import Candidate, clusters, records
from dsgd.planning.candidates import RATE
from dsgd.planning.training import Trained, select
from experiments.planning import plane

ACCURACY = 1e-6  # largest relative difference of the page's seconds from those of replays
_NONE = 1e-30  # seconds of a bit where bits take no time
# The seconds of a gradient, the mean of its random delay, the latency, and the seconds of a bit:
# those of the four counts, and three to verify the sum.
_CLUSTERS = np.array(
    [
        *([1.0, 0, 0, _NONE], [0, 1.0, 0, _NONE], [0, 0, 1.0, _NONE], [0, 0, 0, 1.0]),
        *([0.02, 0.03, 3e-4, 2e-6], [0.3, 0.05, 0.07, 3e-9], [5e-4, 2e-4, 2e-5, 7e-8]),
    ]
)
_TARGETS = 16  # losses per power of ten


def counts(runs: plane.Runs) -> np.ndarray | None:
    """Returns the gradients, delays, latencies and bits after each round,
    `[4, points, seeds, rounds]`; None if their sum differs from replays.
    """
    on = partial(_place, runs.participation)
    sweep = runs.trained.sweep
    found = dsgd.replay(sweep, on, number=np.arange(len(_CLUSTERS)))
    unit, others = found[:4], found[4:]
    expected = np.tensordot(_CLUSTERS[4:], unit, axes=1)
    return unit if np.allclose(expected, others, rtol=ACCURACY / 2, atol=0) else None


def _place(participation: Mapping[str, Any], number: Any) -> clusters.Cluster:
    """Returns one of `_CLUSTERS`, in which workers participate as in the runs."""
    gradient, delay, latency, bit = (select(column, number) for column in _CLUSTERS.T)
    return clusters.Cluster(
        clusters.constant(gradient) + delay * clusters.exponential(1.0),
        up=clusters.constant(1 / bit),
        latency=latency,
        **participation,
    )


def targets(trained: list[Trained], target: float) -> list[float]:
    """Returns the losses among which a reader chooses, from the largest: the target, and others
    that are the same for all runs, from three quarters of the first to the smallest loss that a
    method reaches with all seeds.
    """
    first = max(each.history["loss"][..., 0].max() for each in trained)
    last = min(np.fmin.reduce(each.history["loss"], -1).max(-1).min() for each in trained)
    powers = np.arange(*np.round(_TARGETS * np.log10([last, 0.75 * first])))
    steps = {float(f"{10 ** (power / _TARGETS):.2g}") for power in powers}
    return sorted({float(f"{target:.6g}"), *(loss for loss in steps if loss >= last)}, reverse=True)


def panel(
    runs: Mapping[Candidate, list[plane.Runs | plane.OnEach]],
    target: float,
    workers: int,
    share: float,
    participants: int,
    partition: str,
) -> dict[str, Any]:
    """Returns the recorded rounds of all methods, for `write`.

    Args:
        runs: the runs of each candidate.
        target: the loss that the page shows first.
        workers: N.
        share: the share of the workers that participate in each round.
        participants: their number.
        partition: of the data.
    """
    left_out: dict[str, str] = {}
    settings: list[dict[str, Any]] = []
    known: dict[tuple[str, ...], int] = {}
    found: list[tuple[Trained, np.ndarray]] = []
    for candidate, several in runs.items():
        if not several:
            left_out[str(candidate)] = "requires all workers"
        for each in several:
            if isinstance(each, plane.OnEach):
                left_out[str(candidate)] = "its rounds depend on the network"
            elif (numbers := counts(each)) is None:
                left_out[str(candidate)] = "its seconds are not the sum of its counts"
            else:
                found.append((each.trained, numbers))
    rows: dict[float, list[Any]] = {}
    for loss in targets([trained for trained, _ in found], target) if found else ():
        rows[loss] = []
        for trained, numbers in found:
            candidate, points, *_ = trained.contender
            for i, rounds in plane.best_points(trained, loss):
                values = {name: x for name, x in points[i].items() if name != RATE}
                words = plane.describe(candidate.settings, values)
                which = known.setdefault((candidate.name, words), len(settings))
                if which == len(settings):
                    expression = candidate.expression("optax.sgd(RATE)", workers, values)
                    settings.append(
                        {"method": candidate.name, "words": words, "expression": expression}
                    )
                at = numbers[:, i, np.arange(len(rounds)), rounds]
                rows[loss].append([which, points[i][RATE], *map(_short, at)])
    return {
        "partition": partition,
        "workers": workers,
        "share": share,
        "participants": participants,
        "target": float(f"{target:.6g}"),
        "left_out": left_out,
        "settings": settings,
        "targets": [{"loss": loss, "rows": each} for loss, each in rows.items()],
    }


def _short(numbers: np.ndarray) -> list[float]:
    """Returns numbers with nine digits, integers without a point."""
    rounded = (float(f"{number:.9g}") for number in numbers)
    return [int(number) if number.is_integer() else number for number in rounded]


def write(path: Path, panels: list[dict[str, Any]], **facts: Any) -> None:
    """Writes the page, which needs no other file and no network.

    Args:
        path: the file.
        panels: those of `panel`.
        facts: what the page shows besides: the problem, its number of elements, the ends of the
            axes, the size, seconds of a gradient, seeds, the quantile of Student's distribution for
            their mean, and the methods with their colours.
    """
    data = json.dumps({"panels": panels, **facts}, separators=(",", ":")).replace("<", "\\u003c")
    template = resources.files("experiments.planning").joinpath("map_page.html")
    text = template.read_text(encoding="utf-8").replace("/* DATA */ null", data)
    with records.replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
