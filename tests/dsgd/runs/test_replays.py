"""`dsgd.replay`: the seconds of a taped run on any cluster equal those of the run itself there."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from budgets import smoke_cases

import algorithms
import dsgd
from dsgd import clusters
from tests.algorithms import references
from tests.algorithms.test_reference_histories import REFERENCES, RELATIVE

N, STEPS, CLUSTERS = references.N, references.STEPS, references.CLUSTERS
KEY = jax.random.key(1)
# Their iterates, or their own clocks, depend on the cluster.
ON_EACH_CLUSTER = {"asynchronous_sgd", "asynchronous_gossip_sgd"}
KINDS = ("blocking", "pipelined", "changing", "noisy")
SGD = algorithms.minibatch_sgd(optax.sgd(0.1))
# with a recorded clock on some of these clusters
RECORDED = [
    name for name in algorithms.ALGORITHMS if any(f"{name}, {kind}" in REFERENCES for kind in KINDS)
]
BLOCKING, CHANGING = CLUSTERS["blocking"], CLUSTERS["changing"]


def tape(method: dsgd.Algorithm, **options) -> dsgd.Result:
    given = {"steps": STEPS, "key": KEY, "taped": True, "mesh": 1} | options
    return dsgd.run(method, references.quadratic(), **given)


def clock_of(method: dsgd.Algorithm, cluster: clusters.Cluster, **options) -> np.ndarray:
    given = {"steps": STEPS, "key": KEY, "mesh": 1} | options
    return dsgd.run(method, references.quadratic(), cluster=cluster, **given).history["clock"]


def test_methods_that_stop_workers_or_measure_times_are_refused():
    for method in (
        algorithms.backup_workers_sgd(references.SGD, 2),
        algorithms.drop_compute(SGD, 1.0, micro_batches=4),
        algorithms.kimad_sgd(references.SGD, algorithms.kimad.top_k((0.1, 0.3)), 1e-3),
    ):
        with pytest.raises(ValueError, match=r"taped, but .* reads the cluster"):
            tape(method)


@pytest.mark.parametrize("name", smoke_cases(RECORDED, set(RECORDED[:4])))
def test_one_run_has_the_recorded_seconds_of_runs_on_two_clusters(name):
    method = algorithms.make(name, references.MOMENTUM, N)
    if name in ON_EACH_CLUSTER:
        with pytest.raises(ValueError, match=r"taped, but .* reads the cluster"):
            tape(method)
        return
    recorded = [kind for kind in KINDS if "clock" in REFERENCES.get(f"{name}, {kind}", {})]
    turn = RECORDED.index(name)  # two kinds each: a kind is a program
    result = tape(method)
    for kind in {recorded[(turn + k) % len(recorded)] for k in (0, 1)}:
        found, expected = dsgd.replay(result, CLUSTERS[kind]), REFERENCES[f"{name}, {kind}"]
        np.testing.assert_allclose(found, expected["clock"], RELATIVE, err_msg=kind)


def test_participation_of_the_run_is_that_of_the_replay():
    """The clock of another network is that of the run there; other participation is refused."""
    method = algorithms.make("local_sgd", references.MOMENTUM, N)
    for kind in ("sampled-4", "lossy"):
        result = tape(method, cluster=CLUSTERS[kind])
        slower = replace(CLUSTERS[kind], up=clusters.constant(50.0), convention="pipelined")
        np.testing.assert_allclose(
            dsgd.replay(result, CLUSTERS[kind]), result.history["clock"], 1e-6
        )
        np.testing.assert_allclose(dsgd.replay(result, slower), clock_of(method, slower), 1e-6)
        with pytest.raises(ValueError, match="another participation, message loss or noise"):
            dsgd.replay(result, BLOCKING)
    result = tape(method, cluster=CLUSTERS["sampled-4"])
    with pytest.raises(ValueError, match="another participation, message loss or noise"):
        dsgd.replay(result, replace(CLUSTERS["sampled-4"], participation_period=8))
    with pytest.raises(ValueError, match="another participation, message loss or noise"):
        dsgd.replay(tape(method), CLUSTERS["sampled-4"])


def test_a_sweep_on_many_clusters_is_each_run_on_each_cluster():
    """Also with a swept period of delayed messages, which is traced."""

    def method(period):
        return algorithms.delayed_diloco(references.SGD, period)

    periods, mbit, latencies = [2, 3], [1e2, 1e3, 1e4], [0.0, 0.5]

    def cluster(up, latency):
        return clusters.Cluster(
            2.0 * clusters.constant([1.0, 1.5, 0.7, 2.0, 1.1, 0.9, 1.3, 0.6]),
            up=up * clusters.constant(1.0),
            latency=latency,
        )

    swept = dsgd.sweep(
        method,
        references.quadratic(),
        steps=STEPS,
        key=KEY,
        seeds=2,
        mesh=1,
        taped=True,
        period=periods,
    )
    found = dsgd.replay(swept, cluster, up=mbit, latency=latencies)
    assert found.shape == (3, 2, 2, 2, STEPS + 1)
    for i, period in enumerate(periods):
        alone = clock_of(method(period), cluster(mbit[1], latencies[1]), seeds=2)
        np.testing.assert_allclose(found[1, 1, i], alone, 1e-6)
        of_point = dsgd.replay(swept.result((i,)), cluster(mbit[1], latencies[1]))
        np.testing.assert_array_equal(of_point, found[1, 1, i])
    rounds = np.array([[3, 8], [0, 5]])
    at = dsgd.replay(swept, cluster, up=mbit, latency=latencies, rounds=rounds)
    for index in np.ndindex(at.shape):
        np.testing.assert_allclose(at[index], found[index][rounds[index[2:]]], 1e-6)


def test_a_run_that_continues_has_the_draws_of_its_rounds():
    method = algorithms.make("minibatch_sgd", references.MOMENTUM, N)
    whole, first = dsgd.replay(tape(method), CHANGING), tape(method, steps=3)
    np.testing.assert_allclose(dsgd.replay(first, CHANGING, rounds=2), whole[2], 1e-6)
    second = tape(method, steps=STEPS - 3, start=first)
    assert dsgd.replay(second, BLOCKING).shape == (STEPS - 2,)
    drawn = replace(BLOCKING, compute=clusters.lognormal(0.0, 1.0))
    parts = [dsgd.replay(part, drawn) for part in (first, second)]
    together = dsgd.replay(tape(method), drawn)
    np.testing.assert_allclose(parts[0], together[:4], 1e-6)
    np.testing.assert_allclose(parts[1], together[3:] - together[3], 1e-5)
    assert (np.diff(whole) > 0).all()


def test_the_tape_is_the_same_on_several_devices():
    method = algorithms.make("decentralized_sgd", references.MOMENTUM, N)
    one, four = tape(method), tape(method, mesh=4)
    np.testing.assert_array_equal(dsgd.replay(one, CHANGING), dsgd.replay(four, CHANGING))
    assert sorted(one.history) == sorted(
        dsgd.run(method, references.quadratic(), steps=STEPS, key=KEY, mesh=1).history
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tape(SGD, record_every=2), "run: taped, with record_every = 2; expected"),
        (lambda: tape(SGD, cluster=CLUSTERS["partly"]), "run: taped, but participation or"),
        (
            lambda: tape(
                SGD, cluster=replace(BLOCKING, delivered=clusters.sinusoid(1.0, 1.0, 0.1))
            ),
            "run: taped, but participation or message loss, sinusoid",
        ),
        (
            lambda: dsgd.replay(tape(SGD, taped=False), BLOCKING),
            "replay: the result has no tape; expected one of dsgd.run(..., taped=True)",
        ),
        (
            lambda: dsgd.replay(tape(SGD), BLOCKING, latency=[0.1]),
            "replay: cluster is a Cluster, with values for latency; expected a function",
        ),
        (
            lambda: dsgd.replay(tape(SGD), lambda latency: BLOCKING),
            "replay: cluster is a function, but there are no values for its arguments",
        ),
        (
            lambda: dsgd.replay(tape(SGD), lambda up: up, up=[0.1]),
            "replay: cluster returned 0.1; expected a dsgd.clusters.Cluster",
        ),
        (
            lambda: dsgd.replay(tape(SGD), clusters.Cluster(clusters.constant([1.0, 2.0]))),
            "cluster: it has 2 workers but the problem has 8",
        ),
        (
            lambda: dsgd.replay(
                tape(SGD),
                lambda up, latency: replace(BLOCKING, latency=latency * (2 if up > 1 else 3)),
                latency=[0.1, 0.2],
                up=[0.5, 3.0],
            ),
            "replay: up is used as a Python value (in an if, a loop, an index or a shape), but all",
        ),
        (
            lambda: dsgd.replay(tape(SGD), BLOCKING, rounds=9),
            "replay: rounds = 9; expected an integer from 0 to 8",
        ),
        (
            lambda: dsgd.replay(tape(SGD), lambda up: replace(BLOCKING, latency=-up), up=[0.1]),
            "Cluster: latency = -0.1; expected seconds >= 0, finite",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
