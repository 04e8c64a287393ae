"""Kimad, DropCompute and Cannikin in real processes, which are started once: the iterates are those
of the simulated runs.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms import cannikin, dropcompute, kimad
from algorithms.kimad import processes
from algorithms.kimad.wire import Wire
from dsgd import clusters, problems, work

KEY = 3
RATIOS, ROUNDS = (0.01, 1.0, 0.1), 6  # ratios and rounds of Kimad
# seconds of a micro-batch of DropCompute's process 1, and of all others
SLOW, FAST, M, MEASURED, STEPS = 0.03, 0.005, 4, 3, 9
# batches of Cannikin's nodes, with truncated and whole pieces of 4 samples, and none
SIZES, PIECES = ((11, 7, 0), (9, 8, 7), (12, 5, 3)), 3


def task(workers: int) -> dsgd.Problem:
    return problems.robust_regression(workers, 6, batch_size=4)


def following(sizes: Any, log: list[cannikin.Observation]) -> cannikin.System:
    """Returns a system with these batches that stores its observations."""

    def observe(epoch, seen):
        log.append(seen)
        return epoch + 1

    return cannikin.System(
        lambda cluster: 0,
        lambda epoch: (np.array(sizes[epoch]), epoch),
        observe,
        lambda *args: 0,
        "given",
    )


EPOCHS: dict[str, Any] = {
    "epochs": len(SIZES),
    "micro_batches": PIECES,
    "samples": 48,
    "scaling": lambda noise, B, B0: 1.0 if B == B0 else 0.5,
}


@pytest.fixture(scope="module")
def ran() -> list[Any]:
    """Returns results of three processes: Kimad with one ratio, and with several but no time;
    DropCompute without a threshold, and with a chosen one; Cannikin with given batches, and the
    observations of its nodes.
    """
    two, three, follow, key = task(2), task(3), following, jax.random.key_data(jax.random.key(KEY))
    epochs, sizes, pause = EPOCHS, SIZES, (FAST, SLOW, FAST)
    ratios, rounds, M_, measured, steps = RATIOS, ROUNDS, M, MEASURED, STEPS

    def everything():
        options, log = {"key": jax.random.wrap_key_data(key)}, []
        sgd, scalable = optax.sgd(0.1), cannikin.scalable(optax.sgd(0.05))
        train = processes.train_processes
        always = train(two, sgd, [0.3], 1.0, seconds=60.0, rounds=rounds, **options)
        hurried = train(two, sgd, ratios, 1e-9, seconds=60.0, rounds=rounds, **options)
        mine = pause[jax.process_index()]
        whole = dropcompute.train_processes(three, sgd, math.inf, M_, steps=3, **options)
        chosen = dropcompute.auto_threshold(measured)
        dropped = dropcompute.train_processes(
            three, sgd, chosen, M_, steps=steps, delay=lambda step, m: mine, **options
        )
        fixed = cannikin.train_processes(three, scalable, follow(sizes, log), **epochs, **options)
        return always, hurried, whole, dropped, fixed, log

    return [
        list(each)
        for each in zip(*dsgd.run_local_processes(3, everything, timeout=300), strict=True)
    ]


def simulate(method: dsgd.Algorithm, workers: int, steps: int) -> dsgd.Result:
    return dsgd.run(
        method, task(workers), steps=steps, key=jax.random.key(KEY), mesh=1, train_loss=True
    )


def alike(processes: list[Any]) -> None:
    """Checks that all processes have bit-identical results."""
    for other in processes[1:]:
        jax.tree.map(np.testing.assert_array_equal, processes[0], other)


def test_kimads_iterates_are_those_of_the_simulated_method(ran):
    server, *workers = ran[0]
    found = simulate(
        algorithms.kimad_sgd(optax.sgd(0.1), kimad.whole_model(kimad.top_k([0.3])), 1.0), 2, ROUNDS
    )
    np.testing.assert_allclose(server.history["loss"], found.history["loss"][1:], rtol=1e-5)
    np.testing.assert_allclose(server.params, found.params, atol=1e-5)
    np.testing.assert_array_equal(
        server.history["bits_up"], found.history["message_up"][1:].mean(axis=1)
    )
    alike([worker.params for worker in workers])
    assert all(worker.history is None for worker in workers)


def test_kimads_messages_without_time_are_the_smallest_once_the_link_is_known(ran):
    history, wire = ran[1][0].history, Wire(RATIOS, ran[1][0].params.size)
    np.testing.assert_array_equal(
        history["bits_up"], [wire.sizes[2]] + [wire.sizes[0]] * (ROUNDS - 1)
    )
    assert np.isfinite(history["rate_up"]).all()
    assert (np.diff(history["seconds"]) > 0).all()


def test_dropcompute_without_drops_is_minibatch_sgd(ran):
    alike(ran[2])
    method = algorithms.with_local_work(
        algorithms.minibatch_sgd(optax.sgd(0.1)), work.micro_batches(np.ones((3, M), bool))
    )
    expected = simulate(method, 3, 3)
    np.testing.assert_allclose(ran[2][0].params, expected.params, rtol=1e-5)
    np.testing.assert_allclose(
        ran[2][0].history["loss"], expected.history["train_loss"][1:], rtol=1e-5
    )


def test_dropcomputes_threshold_is_chosen_and_the_slow_process_drops_more(ran):
    alike(ran[3])
    history = ran[3][0].history
    tau = dropcompute.threshold(
        history["latencies"][:MEASURED], history["communication"][:MEASURED], stop="between"
    )
    assert tau < M * SLOW
    np.testing.assert_array_equal(
        history["threshold"], MEASURED * [math.inf] + (STEPS - MEASURED) * [tau]
    )
    dropped, spent = np.isnan(history["latencies"]), np.nancumsum(history["latencies"], axis=-1)
    begun = np.concatenate([np.zeros((STEPS, 3, 1)), spent[..., :-1]], axis=-1)
    np.testing.assert_array_equal(begun <= history["threshold"][:, None, None], ~dropped)
    np.testing.assert_array_equal(history["dropped"], dropped.mean(axis=(1, 2)))
    assert dropped[:, 1].mean() > dropped[:, [0, 2]].mean()
    assert (history["latencies"][:, 1][~dropped[:, 1]] >= SLOW).all()
    assert (history["communication"] > 0).all()
    assert (
        history["seconds"] >= spent[..., -1].max(axis=1) + history["communication"] - 1e-9
    ).all()


def test_cannikins_iterates_are_those_of_the_simulation_and_its_measurements_those_of_all_nodes(
    ran,
):
    for results in ran[4:]:
        alike(results)
    found, log = (results[0] for results in ran[4:])
    seconds = clusters.constant(0.1)
    overlap = clusters.Overlap(seconds, seconds, 0.5, 0.1)
    cluster = clusters.Cluster(
        seconds, per_sample=seconds, overlap=overlap, up=clusters.constant(1e6), single_batch=True
    )
    method = algorithms.minibatch_sgd(cannikin.scalable(optax.sgd(0.05)))
    expected = cannikin.train(
        method, task(3), following(SIZES, []), cluster=cluster, key=jax.random.key(KEY), **EPOCHS
    )
    np.testing.assert_allclose(found.params, expected.params, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(
        [e.noise_scale for e in found.epochs], [e.noise_scale for e in expected.epochs], rtol=1e-3
    )
    assert [epoch.factor for epoch in found.epochs] == [1.0, 0.5, 0.5]
    for seen, epoch, sizes in zip(log, found.epochs, SIZES, strict=True):
        assert epoch.batches.tolist() == list(sizes)
        assert seen.compute.shape == (epoch.rounds, 3)
        assert (seen.compute > seen.backward).all()
        assert (seen.backward == seen.first).all()
        assert (seen.communication == seen.communication[:, :1]).all()
        assert (epoch.seconds >= (seen.compute + seen.communication).sum(axis=0)).all(), (
            "each node's parts follow each other"
        )
