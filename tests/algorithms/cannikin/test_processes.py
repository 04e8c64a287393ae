"""Cannikin on the real clock: one node a process, whose iterates are the simulation's and whose
times are its own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms import cannikin
from algorithms.cannikin import processes
from dsgd import clusters, problems
from dsgd.engine import loop

B, M, RATE, ROUNDS = 4, 5, 0.2, 3
SECONDS = clusters.constant(0.1)
CLUSTER = clusters.Cluster(
    SECONDS,
    per_sample=SECONDS,
    overlap=clusters.Overlap(SECONDS, SECONDS, 0.5, 0.1),
    up=clusters.constant(1e6),
    at_once=True,
)
ONE_NODE = {"epochs": 2, "key": jax.random.key(3), "micro_batches": M, "samples": 2 * 11}


def make(workers: int) -> dsgd.Problem:
    return problems.robust_regression(workers, 6, batch_size=B)


def given(sizes: Any, log: list[cannikin.Observation]) -> cannikin.System:
    """These, epoch by epoch; what is seen is kept."""

    def observe(epoch, seen):
        log.append(seen)
        return epoch + 1

    decide = lambda epoch: (np.asarray(sizes[epoch % len(sizes)]), epoch)  # noqa: E731
    return cannikin.System(lambda cluster: 0, decide, observe, lambda *args: 0, "given")


def close(one: Any, other: Any) -> None:
    for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_an_epoch_returns_the_measurements_of_all_nodes(monkeypatch):
    """Of two nodes and three rounds, made up: computation is all but the exchange, of which each
    round's least time counts; the epoch takes as long as on the slower node; the loss is the mean
    over rounds."""
    rng = np.random.default_rng(0)
    seen = rng.uniform(1, 2, (3, 2, 8))
    calls, sizes = [], np.array([3, 5])

    class Scripted(processes._Node):
        def __init__(self):
            self.model, self.rounds = "start", 0

        def round(self, sizes):
            calls.append((self.model, self.rounds))
            return f"model {len(calls)}", [float(len(calls))] * 7

    def gathered(rows):
        assert [row[:7] for row in rows] == [[2.0] * 7, [3.0] * 7, [4.0] * 7]
        assert len({row[7] for row in rows}) == 1
        return seen

    monkeypatch.setattr(
        processes.scalings, "rescaled", lambda name, model, factor: f"{model} times {factor}"
    )
    monkeypatch.setattr(processes.nodes, "gathered", gathered)
    node = Scripted()
    ran = node.epoch(sizes, 0.5, 3)
    assert calls == [
        ("start times 0.5", 0),
        ("start times 0.5", 0),
        ("model 2", 1),
        ("model 3", 2),
    ], "the first is a rehearsal"
    assert (node.model, node.rounds) == ("model 4", 3)
    forward, backward, communication, update, sqnorm, loss, global_sqnorm, whole = np.moveaxis(
        seen, 2, 0
    )
    np.testing.assert_allclose(ran.compute, forward + backward + update)
    np.testing.assert_array_equal(ran.backward, backward)
    np.testing.assert_array_equal(ran.first, backward)
    np.testing.assert_array_equal(
        ran.communication, [[min(row)] * 2 for row in communication.tolist()]
    )
    np.testing.assert_array_equal(ran.local_sqnorms, sqnorm)
    np.testing.assert_array_equal(ran.global_sqnorm, global_sqnorm[:, 0])
    assert ran.seconds == whole.max()
    assert ran.scalars == {"train_loss": pytest.approx(loss[:, 0].mean())}


def test_a_nodes_round_is_timed_part_by_part(key, monkeypatch):
    """With a clock that returns 1, 3, 6, 10 and 15 s. The mean gradient of one node is its own."""
    looks = iter([1.0, 3.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    problem = make(1)
    node = processes._Node(problem, optax.sgd(RATE), M, key)
    before = node.model.params
    after, row = node.round(np.array([B]))
    assert row[:4] == [2.0, 3.0, 4.0, 5.0]

    @jax.jit
    def expected(params, data):
        batch = problem.sample(
            jax.random.fold_in(loop.round_keys(loop.split(key)[1], jnp.int32(0))[1], 0), data
        )
        loss, slope = jax.value_and_grad(problem.loss)(params, batch)
        return (
            loss,
            optax.tree.norm(slope, squared=True),
            jax.tree.map(lambda x, g: x - RATE * g, params, slope),
        )

    loss, sqnorm, moved = expected(before, node.data)
    np.testing.assert_allclose(row[4:], [sqnorm, loss, sqnorm], rtol=1e-4)
    close(after.params, moved)


def test_a_problem_with_a_gradient_is_trained_as_in_the_simulation():
    problem, heavy = make(1), optax.sgd(RATE, momentum=0.9)
    problem = problem._replace(loss=dsgd.Loss(problem.loss, jax.grad(problem.loss)))
    found = cannikin.train_processes(problem, heavy, given([[11], [8]], []), **ONE_NODE)
    expected = cannikin.train(
        algorithms.minibatch_sgd(heavy),
        problem,
        given([[11], [8]], []),
        cluster=CLUSTER,
        **ONE_NODE,
    )
    close(found.params, expected.params)
    assert [epoch.rounds for epoch in found.epochs] == [2, 3]


def test_what_cannot_be_trained_is_refused():
    for wrong, words in (
        ({"problem": make(2)}, "1 process for 2 workers; expected one process per worker"),
        (
            {"limits": [3]},
            r"given returned batches array\(\[4\]\); expected integers, one for each node, from 0 to \[3\]",
        ),
        (
            {"scaling": lambda *args: 2.0},
            "train_processes: scaling returned 2, but the optimizer's step size is fixed",
        ),
    ):
        arguments = {
            "problem": make(1),
            "optimizer": optax.sgd(RATE),
            "system": given([[4]], []),
            **ONE_NODE,
            **wrong,
        }
        with pytest.raises(ValueError, match=words):
            cannikin.train_processes(**arguments)
