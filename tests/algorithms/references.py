"""The runs with recorded histories: one method of each exchange, and methods with their own
clock, on clusters, with partial participation, lost messages and unequal work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import multiprocess_cases
import numpy as np
import optax

import algorithms
import dsgd
import topologies
from algorithms import (
    cannikin,
    drop_compute,
    dropcompute,
    kimad,
    kimad_sgd,
    with_diagnostics,
    with_local_work,
)
from dsgd import clusters, compressors, problems, work
from dsgd.engine import columns

FILE = Path(__file__).with_name("reference_histories.json")
N, D, STEPS = 8, 13, 8
SGD, MOMENTUM, ADAM = optax.sgd(0.1), optax.sgd(0.1, momentum=0.5), optax.adam(0.05)
DRAW = np.random.default_rng(5)
# number of devices -> history, and the final parameters as "params"
Run = Callable[[int], dict[str, np.ndarray]]

# --- Problems.


@cache
def quadratic() -> dsgd.Problem:
    return problems.random_quadratic(N, D, heterogeneity=1.0, noise=0.5, seed=3)


@cache
def robust(replacement: Any = True) -> dsgd.Problem:
    """Returns a problem with ten samples for each worker, in batches of three."""
    return problems.robust_regression(
        N, 6, samples=10, batch_size=3, replacement=replacement, seed=2
    )


@cache
def classes() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 3, 96)
    return rng.normal(size=(96, 5)) + labels[:, None], labels


@cache
def layers(replacement: Any = True) -> dsgd.Problem:
    """Returns a network of two layers."""

    def init(key):
        first, second = jax.random.split(key)
        hidden = {"kernel": jax.random.normal(first, (5, 4)) / 2, "bias": jnp.zeros(4)}
        return {
            "hidden": hidden,
            "out": {"kernel": jax.random.normal(second, (4, 3)) / 2, "bias": jnp.zeros(3)},
        }

    def apply(params, inputs):
        hidden = jnp.tanh(inputs @ params["hidden"]["kernel"] + params["hidden"]["bias"][None])
        return hidden @ params["out"]["kernel"] + params["out"]["bias"][None]

    loss = optax.softmax_cross_entropy_with_integer_labels
    return problems.finite_sum(
        problems.Model(init, apply), loss, classes(), N, batch_size=4, replacement=replacement
    )


# --- Clusters.

STEADY = clusters.Cluster(
    clusters.constant([1.0, 1.5, 0.7, 2.0, 1.1, 0.9, 1.3, 0.6]),
    up=clusters.constant([900.0, 500.0, 700.0, 800.0, 1000.0, 400.0, 650.0, 720.0]),
    down=clusters.constant([800.0, 520.0, 740.0, 870.0, 1100.0, 450.0, 750.0, 620.0]),
    latency=0.05,
)
# Random seconds, so that the slowest workers change from round to round, and the clock depends on
# all of them.
UNSTEADY = replace(
    STEADY, compute=clusters.measured(np.random.default_rng(6).uniform(0.5, 2.0, (N, 5)))
)
PIPELINED = replace(UNSTEADY, convention="pipelined")
CHANGING = clusters.Cluster(
    clusters.lognormal(-0.5, 0.4) + clusters.constant(0.2),
    up=clusters.trace(DRAW.integers(300, 1500, (N, 7)).astype(float), 0.5),
    down=clusters.sinusoid(600.0, 0.7, 300.0, noise=0.1),
    latency=0.03,
    overlap=clusters.Overlap(clusters.constant(0.3), clusters.constant(0.05), 0.25, 0.2),
)
NOISY = clusters.Cluster(
    clusters.constant(0.45) + clusters.exponential(0.225),
    up=clusters.constant(2e3),
    latency=0.01,
    per_sample=clusters.constant(0.02),
    micro_batches=3,
    noise=0.1,
)
PARTICIPATES = DRAW.random((N, 11)) < 0.8
PARTICIPATES[:, 4] = False
PARTLY = replace(
    UNSTEADY,
    present=clusters.trace(PARTICIPATES.astype(float), 1.7),
    delivered=clusters.bernoulli(0.8, 1.0),
)


def sampled_cluster(rounds: int) -> clusters.Cluster:
    """Five of eight workers participate, which are drawn every `rounds` rounds."""
    return replace(UNSTEADY, present=clusters.sampled(5, of=N), participation_period=rounds)


CLUSTERS: dict[str, clusters.Cluster | None] = {
    "none": None,
    "blocking": STEADY,
    "pipelined": PIPELINED,
    "changing": CHANGING,
    "varying": replace(CHANGING, overlap=None),
    "noisy": NOISY,
    "partly": PARTLY,
    "lossy": replace(PIPELINED, delivered=clusters.bernoulli(0.7, 1.0)),
    "sampled": sampled_cluster(1),
    "sampled-2": sampled_cluster(2),
    "sampled-4": sampled_cluster(4),
    "noisy-partly": replace(NOISY, present=PARTLY.present),
}
# In their histories, also the bits that each worker sent and received, and the seconds that it
# measured.
WITH_MEASUREMENTS = {"pipelined", "changing", "varying", "partly"}

# --- Registered methods.

# messages in some rounds, before and after the steps, that arrive later, or that are drawn
OTHERS = (
    "local_sgd",
    "scaffold",
    "mime",
    "delayed_diloco",
    "streaming_diloco",
    "marina",
    "tern_grad",
)


def results(history: Mapping[str, Any], params: Any) -> dict[str, np.ndarray]:
    """Without columns that `tests/dsgd/runs/test_history_columns.py` compares with exact counts."""
    parameters = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    kept = sorted(
        history.keys() - {*columns.OF_TOTALS, columns.EPOCHS, columns.GAP, columns.DISTANCE}
    )
    return {**{name: np.asarray(history[name]) for name in kept}, "params": parameters}


def run(
    method: Callable[[], dsgd.Algorithm],
    problem: Callable[[], dsgd.Problem],
    cluster: str,
    mesh: int,
    **options: Any,
):
    given = {
        "steps": STEPS,
        "key": jax.random.key(1),
        "cluster": CLUSTERS[cluster],
        "mesh": mesh,
        **options,
    }
    running = with_diagnostics(method()) if cluster in WITH_MEASUREMENTS else method()
    found = dsgd.run(running, problem(), **given)
    return results(found.history, found.params)


def case(
    method: Callable[[], dsgd.Algorithm],
    problem: Callable[[], dsgd.Problem],
    cluster: str,
    **options: Any,
) -> Run:
    return partial(run, method, problem, cluster, **options)


def registered_runs() -> dict[str, Run]:
    """Returns one method of each exchange, and `OTHERS`, on the clusters of their histories."""
    recorded = [case.partition(", ") for case in json.loads(FILE.read_text())]
    found = {}
    for name in dict.fromkeys((*filter(None, multiprocess_cases.METHODS.values()), *OTHERS)):
        known = {cluster for each, _, cluster in recorded if each == name} & CLUSTERS.keys()
        for cluster in sorted(known or {"pipelined", "partly"}, key=list(CLUSTERS).index):
            found[f"{name}, {cluster}"] = case(
                partial(algorithms.make, name, MOMENTUM, N), quadratic, cluster
            )
    return found


# --- Factories that are not registered, and other arguments of registered ones.

RING, PUSH, MATCHED = (
    topologies.ring(N),
    topologies.one_peer_exponential(N),
    topologies.random_matchings(N, period=3),
)
DIRECTED = topologies.from_matrix(
    np.eye(N) / 2 + np.roll(np.eye(N), 1, axis=0) / 4 + np.roll(np.eye(N), 3, axis=0) / 4,
    "two successors",
)
SUMS_KEPT = topologies.from_matrix(
    np.eye(N) * np.linspace(0.3, 0.7, N)
    + np.roll(np.eye(N) * (1 - np.linspace(0.3, 0.7, N)), 1, axis=0),
    "unequal shares",
)
COUNTS = np.array([[3, 1], [2, 0], [0, 0], [3, 3], [1, 0], [3, 0], [2, 0], [3, 2]])
SETS = kimad.top_k((0.1, 0.3, 1.0))

Table = dict[str, tuple[Callable[[], dsgd.Algorithm], str]]  # names of clusters by case

ON_QUADRATICS: Table = {
    "backup workers": (
        lambda: algorithms.backup_workers_sgd(MOMENTUM, 2),
        "blocking pipelined changing noisy partly",
    ),
    "local_sgd on a ring": (
        lambda: algorithms.local_sgd(MOMENTUM, 2, RING),
        "blocking changing partly sampled-2",
    ),
    "local_sgd on matchings": (lambda: algorithms.local_sgd(SGD, 2, MATCHED), "pipelined partly"),
    "decentralized_sgd on a star": (
        lambda: algorithms.decentralized_sgd(MOMENTUM, topologies.star(N)),
        "blocking pipelined changing partly",
    ),
    "decentralized_sgd on a directed graph": (
        lambda: algorithms.decentralized_sgd(SGD, DIRECTED),
        "pipelined changing partly",
    ),
    "decentralized_sgd on a schedule": (
        lambda: algorithms.decentralized_sgd(SGD, PUSH),
        "blocking pipelined changing partly",
    ),
    "decentralized_sgd on matchings": (
        lambda: algorithms.decentralized_sgd(MOMENTUM, MATCHED),
        "changing partly lossy",
    ),
    "stochastic_gradient_push of unequal shares": (
        lambda: algorithms.stochastic_gradient_push(SGD, SUMS_KEPT),
        "pipelined partly",
    ),
    "push_pull on a directed graph": (
        lambda: algorithms.push_pull(
            SGD,
            topologies.random_directed(N, 2, weights=topologies.pull),
            topologies.random_directed(N, 2),
        ),
        "pipelined partly",
    ),
}

ON_LAYERS: Table = {
    "powersgd": (lambda: algorithms.powersgd(MOMENTUM, 1), "changing partly"),
    "asynchronous_sgd, two servers": (
        lambda: algorithms.asynchronous_sgd(SGD, servers=2),
        "pipelined",
    ),
    "kimad": (lambda: kimad_sgd(SGD, SETS, 4.0), "blocking pipelined changing noisy partly"),
    "kimad+": (
        lambda: kimad_sgd(
            MOMENTUM,
            SETS,
            4.0,
            rule=kimad.allocate,
            monitor=kimad.exponential_average(0.3),
            down=[compressors.top_k(0.3), compressors.identity],
            weights=np.linspace(0.05, 0.2, N),
        ),
        "pipelined varying noisy",
    ),
    "kimad, local steps of the whole model": (
        lambda: kimad_sgd(
            SGD,
            kimad.whole_model(SETS),
            4.0,
            monitor=kimad.harmonic_mean(2),
            update=kimad.local_steps(SGD, 2),
            warm_up=1,
        ),
        "blocking varying",
    ),
    "kimad with an oracle": (
        lambda: kimad_sgd(
            SGD, SETS, 2.5, computation=[0.5] * N, congestion=0.4, monitor=kimad.oracle
        ),
        "pipelined varying",
    ),
}

ON_SAMPLES: Table = {
    f"unequal work, {name}": (
        lambda name=name: with_local_work(algorithms.make(name, MOMENTUM, N), unequal()),
        cluster,
    )
    for name, cluster in {
        "minibatch_sgd": "partly",
        "sgd": "noisy",
        "error_compensated_sgd": "noisy",
        "local_sgd": "partly",
        "scaffold": "noisy",
        "decentralized_sgd": "partly",
        "stochastic_gradient_push": "noisy",
        "asynchronous_sgd": "noisy",
        "asynchronous_gossip_sgd": "noisy",
    }.items()
} | {
    "drop_compute around minibatch_sgd": (
        lambda: with_diagnostics(drop_compute(algorithms.minibatch_sgd(MOMENTUM), 2.0, 3)),
        "noisy changing",
    ),
    "drop_compute around decentralized_sgd, local": (
        lambda: drop_compute(algorithms.decentralized_sgd(SGD, RING), 2.0, 3, correction="local"),
        "noisy noisy-partly",
    ),
    "drop_compute around local_sgd, by period": (
        lambda: drop_compute(algorithms.local_sgd(SGD, 2), 1.6, 1, period=2),
        "noisy noisy-partly",
    ),
    "drop_compute around local_sgd, chosen": (
        lambda: drop_compute(
            algorithms.local_sgd(SGD, 2), dropcompute.auto_threshold(1), 1, period=2
        ),
        "noisy",
    ),
    "drop_compute around kimad": (
        lambda: drop_compute(kimad_sgd(SGD, kimad.top_k((0.3, 1.0)), 4.0), 2.0, 3),
        "noisy",
    ),
    "drop_compute around asynchronous_sgd": (
        lambda: drop_compute(algorithms.asynchronous_sgd(SGD), 2.0, 3),
        "noisy",
    ),
    "micro-batches, the mean of workers": (
        lambda: with_local_work(
            algorithms.minibatch_sgd(SGD), work.micro_batches(COUNTS > 1, average="workers")
        ),
        "partly changing",
    ),
}


def unequal() -> Any:
    return work.local_batches(COUNTS.sum(axis=1), batch_size=3, micro_batches=2)


def not_registered() -> dict[str, Run]:
    found = {}
    for title, table, problem in (
        ("", ON_QUADRATICS, quadratic),
        (" on layers", ON_LAYERS, layers),
        (" on samples", ON_SAMPLES, robust),
    ):
        for name, (method, on) in table.items():
            for cluster in on.split():
                found[f"{name}{title}, {cluster}"] = case(method, problem, cluster)
    return found


# --- Other calls.


def swept(
    method: Callable[..., dsgd.Algorithm],
    problem: Callable[[], dsgd.Problem],
    cluster: str,
    mesh: int,
    **grid: Any,
) -> dict[str, Any]:
    found = dsgd.sweep(
        method,
        problem(),
        steps=STEPS,
        key=jax.random.key(1),
        seeds=2,
        cluster=CLUSTERS[cluster],
        mesh=mesh,
        **grid,
    )
    return results(found.history, found.params)


SWEPT: dict[str, tuple[Callable[..., dsgd.Algorithm], dict[str, Any], str]] = {
    "local_sgd": (
        lambda period: algorithms.local_sgd(SGD, period),
        {"period": [1, 2, 4]},
        "blocking changing partly",
    ),
    "scaffold": (lambda period: algorithms.scaffold(SGD, period), {"period": [2, 4]}, "partly"),
    "decentralized_sgd": (
        lambda rate: algorithms.decentralized_sgd(optax.sgd(rate), MATCHED),
        {"rate": [0.1, 0.2]},
        "partly",
    ),
    "drop_compute around local_sgd": (
        lambda period: drop_compute(algorithms.local_sgd(SGD, period), 1.6, 1, period=period),
        {"period": [1, 2]},
        "noisy",
    ),
    "kimad": (lambda seconds: kimad_sgd(SGD, SETS, seconds), {"seconds": [3.0, 4.0]}, "pipelined"),
}

NODES = clusters.Cluster(
    clusters.constant([0.1, 0.2, 0.15, 0.3, 0.12, 0.1, 0.25, 0.2]),
    up=clusters.constant(2e3),
    per_sample=clusters.constant([0.02, 0.04, 0.03, 0.07, 0.02, 0.05, 0.03, 0.04]),
    single_batch=True,
    overlap=clusters.Overlap(clusters.constant(0.05), clusters.constant(0.01), 0.25, 0.125),
    noise=0.02,
)
SYSTEMS = {
    "Cannikin": lambda: cannikin.cannikin([24, 32, 48], 24),
    "LB-BSP": lambda: cannikin.lb_bsp(32),
    "AdaptDL": lambda: cannikin.adaptdl([24, 32, 48], 24),
}


def train(system: Callable[[], Any], mesh: int) -> dict[str, np.ndarray]:
    method = algorithms.minibatch_sgd(cannikin.scalable(SGD))
    given: dict[str, Any] = {
        "cluster": NODES,
        "epochs": 4,
        "micro_batches": 5,
        "samples": 96,
        "scaling": cannikin.adascale,
    }
    found = cannikin.train(method, robust(), system(), key=jax.random.key(2), mesh=mesh, **given)
    by_epoch = {
        name: np.stack([getattr(epoch, name) for epoch in found.epochs])
        for name in ("batches", "rounds", "seconds", "factor", "noise_scale")
    }
    return results(
        {**by_epoch, "loss": [epoch.scalars["loss"] for epoch in found.epochs]}, found.params
    )


def other_calls() -> dict[str, Run]:
    found = {}
    for name, (method, grid, on) in SWEPT.items():
        problem = layers if name == "kimad" else quadratic
        for cluster in on.split():
            found[f"{name} swept, {cluster}"] = partial(swept, method, problem, cluster, **grid)
    for name, system in SYSTEMS.items():
        found[f"{name} in epochs"] = partial(train, system)
    rarely = {"record_every": 3, "evaluate_every": 2, "train_loss": True, "seeds": 2}
    for name in ("local_sgd", "decentralized_sgd", "asynchronous_sgd"):
        cluster = "pipelined" if name == "asynchronous_sgd" else "partly"
        found[f"{name} recorded every third round"] = case(
            partial(algorithms.make, name, SGD, N), quadratic, cluster, **rarely
        )
    return found


CASES: dict[str, Run] = registered_runs() | not_registered() | other_calls()
