"""Cannikin on the real clock, with one process per node: the iterates are those of the simulation,
the times are measured.
"""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

import dsgd
from algorithms import cannikin, real_workers
from algorithms.cannikin import epochs, processes
from dsgd import problems

B, M, RATE = 4, 5, 0.2
ONE_NODE = {"epochs": 2, "key": jax.random.key(3), "micro_batches": M, "samples": 2 * 11}


def make(workers: int) -> dsgd.Problem:
    return problems.robust_regression(workers, 6, batch_size=B)


def test_an_epoch_returns_the_measurements_of_all_nodes(monkeypatch):
    """Two nodes and three constructed rounds: computation is everything except the exchange, whose
    time is the smallest in each round; the epoch takes as long as on the slower node; the loss is
    the mean over rounds. The first round is a warm-up.
    """
    seen, calls = np.random.default_rng(0).uniform(1, 2, (3, 2, 8)), []

    class Scripted(processes._Node):
        def __init__(self):
            self.model, self.step, self.n = "start", 0, 1

        def _compute(self, sizes, step):
            assert sizes.tolist() == [3, 5]
            return step

        def _finish(self, step):
            calls.append((self.model, step))
            return f"model {len(calls)}", [float(len(calls))] * 7

    def gather(rows):
        assert [row[:7] for row in rows] == [[2.0] * 7, [3.0] * 7, [4.0] * 7]
        return seen

    monkeypatch.setattr(
        processes.scalings, "rescale", lambda name, model, factor: f"{model} times {factor}"
    )
    monkeypatch.setattr(real_workers.nodes, "gather", gather)
    node = Scripted()
    ran = node.epoch(np.array([3, 5]), 0.5, 3)
    first = "start times 0.5"
    assert [*calls, (node.model, node.step)] == [
        *[(first, None), (first, 0), ("model 2", 1), ("model 3", 2)],
        ("model 4", 3),
    ]
    forward, backward, communication, update, sqnorm, loss, global_sqnorm, whole = np.moveaxis(
        seen, 2, 0
    )
    least = np.repeat(communication.min(axis=1)[:, None], 2, axis=1)
    expected = epochs.EpochMeasurements(
        whole.sum(axis=0).max(),
        forward + backward + update,
        *[backward, backward, least, sqnorm, global_sqnorm[:, 0]],
        {"train_loss": loss[:, 0].mean()},
    )
    jax.tree.map(np.testing.assert_allclose, ran, expected)


def test_a_nodes_round_is_timed_part_by_part(key, monkeypatch):
    """The clock returns 1, 3, 6, 10 and 15 s. The mean gradient of a single node is its own."""
    looks = iter([1.0, 3.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    node = processes._Node(make(1), optax.sgd(RATE), M, key)
    _, (*seconds, sqnorm, _, global_sqnorm) = node._finish(node._compute(np.array([B]), 0))
    assert seconds == [2.0, 3.0, 4.0, 5.0]
    assert sqnorm == pytest.approx(global_sqnorm)


def test_what_cannot_be_trained_is_refused():
    good = {"problem": make(1), "optimizer": optax.sgd(RATE), "system": cannikin.equal_split(4)}
    for wrong, words in (
        ({"problem": make(2)}, "2 workers"),
        ({"limits": [3]}, "memory for 3"),
        ({"scaling": lambda *args: 2.0}, "scaling returned 2"),
    ):
        with pytest.raises(ValueError, match=words):
            cannikin.train_processes(**good | ONE_NODE | wrong)
