"""D2: Tang, Lian, Yan, Zhang, Liu, "D2: decentralized training over decentralized data", 2018.

Published, from memory: the training loss of LeNet on CIFAR-10 with 5 workers, each with the images
of 2 of the 10 classes ("unshuffled") or with an equal part of all. With the same step size, D2 is
as fast as centralized SGD (C-PSGD) on both, and decentralized SGD (D-PSGD) is much slower or fails
on unshuffled data. Here the data are digits, the network is a multilayer perceptron, the graph is a
ring, and the step size is the best one of C-PSGD.
"""

from __future__ import annotations

import jax
import numpy as np

import algorithms
import dsgd
import topologies
from dsgd import problems
from experiments.published.outcomes import Claim, Outcome, Panel
from experiments.shared.studies import with_sgd

WORKERS, BATCH, RATES = 5, 16, (0.1, 0.3, 1.0, 3.0)


def d2(quick: bool) -> Outcome:
    """Training loss on shuffled and unshuffled data, of D2, D-PSGD and C-PSGD."""
    ring = topologies.ring(WORKERS)
    methods = {
        "C-PSGD": with_sgd(algorithms.minibatch_sgd),
        "D-PSGD": with_sgd(algorithms.decentralized_sgd, ring),
        "D2": with_sgd(algorithms.d2, ring),
    }
    data = problems.load("digits")
    classes, rng = np.asarray(data.train_targets), np.random.default_rng(0)
    parts = {
        "unshuffled": [np.flatnonzero(classes // 2 == worker) for worker in range(WORKERS)],
        "shuffled": np.array_split(rng.permutation(len(classes)), WORKERS),
    }
    epoch = len(classes) // (WORKERS * BATCH) + 1
    epochs, seeds = (20, 1) if quick else (60, 4)
    rows, panels, best = [], [], None
    for name, part in parts.items():
        problem = problems.neural_network(
            "mlp", data, WORKERS, part, batch_size=BATCH, replacement="epoch"
        )
        losses = {
            method: dsgd.sweep(
                build,
                problem,
                steps=epochs * epoch,
                key=jax.random.key(0),
                seeds=seeds,
                record_every=epoch,
                learning_rate=RATES,
            ).history["loss"]
            for method, build in methods.items()
        }  # [rates, seeds, epochs]
        if best is None:
            best = int(np.argmin(losses["C-PSGD"][..., -1].mean(axis=1)))
        lines = {method: (np.arange(epochs + 1), loss[best]) for method, loss in losses.items()}
        last = {method: float(y[:, -5:].mean()) for method, (_, y) in lines.items()}
        for method in ("D2", "D-PSGD"):
            fails = (name, method) == ("unshuffled", "D-PSGD")
            claim, bounds = ("slower", (1.25, None)) if fails else ("equal", (0.75, 1.25))
            ratio = last[method] / last["C-PSGD"]
            what = f"{name}: loss, {method} / C-PSGD"
            rows.append(Claim(what, claim, ratio, "from memory", *bounds))
        panels.append(Panel("epochs", "training loss", lines, title=f"{name}, γ = {RATES[best]:g}"))
    note = "On digits D-PSGD converges on unshuffled data, too, but its loss is larger."
    return Outcome(rows, panels, note)
