"""The methods on graphs by family, and what they need and cost, computed from their own rounds:
accepted mixing matrices, memory, messages, the limit, and the largest stable step size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.table import Table

import algorithms
import dsgd
import theory_checks
import topologies
from algorithms import facts
from dsgd import clusters, problems
from experiments.shared import tables

Build = Callable[[Any, dsgd.Topology], dsgd.Algorithm]
"""(step size, topology) -> method."""

PERIOD = 4  # local steps per message
MOMENTUM = 0.9  # the default of methods with momentum
SAMPLES = 4  # of each worker
WORKERS, ELEMENTS, ROUNDS, STEP = 8, 256, 4_000, 0.02
EXACT = 1e-8  # largest squared gradient of an exact method, as a share of that at the start


def builder(name: str, **changes: Any) -> Build:
    """Returns the builder of a method with SGD and its default settings, apart from `changes`."""
    return lambda step, W: facts.METHODS[name].instance(optax.sgd(step), W, **changes)


def builders(*names: str) -> dict[str, Build]:
    """Returns the builders of methods with their default settings."""
    return {name: builder(name) for name in names}


def _pulled(W: dsgd.Topology) -> dsgd.Topology:
    """Returns a topology with rows that sum to 1 on the edges of W."""
    if W.doubly_stochastic:
        return W
    edges = [matrix.toarray() > 0 for matrix in W.matrices]
    rows = [there / there.sum(axis=1, keepdims=True) for there in edges]
    return topologies.from_matrix(rows, f"pull of {W.name}", "pull")


FAMILIES: dict[str, dict[str, Build]] = {
    "gossip": builders("decentralized_sgd", "dgd"),
    "corrections": builders("d2", "extra", "exact_diffusion", "nids", "pg_extra"),
    "tracking": builders("gradient_tracking", "atc_tracking", "aug_dgm", "proximal_tracking"),
    "local steps": {
        "local_sgd": lambda step, W: algorithms.local_sgd(optax.sgd(step), PERIOD, W),
        **builders("k_gt", "local_exact_diffusion"),
        "prox_skip": builder("prox_skip", probability=1 / PERIOD),
    },
    "momentum": {
        "decentralized_sgd, momentum": lambda step, W: algorithms.decentralized_sgd(
            optax.sgd(step, MOMENTUM), W
        ),
        **builders("quasi_global_momentum", "decentlam", "momentum_tracking"),
    },
    "variance reduction": {
        "gt_svrg": builder("gt_svrg", period=2 * SAMPLES),
        "gt_vr": builder("gt_vr", probability=1 / (2 * SAMPLES)),
        "gt_sarah": builder("gt_sarah", period=2 * SAMPLES),
        **builders("gt_hsgd"),
        "gt_saga": builder("gt_saga", samples=SAMPLES),
        **builders("lt_admm_vr"),
    },
    "compressed": builders(
        *("choco_sgd", "deepsqueeze", "dcd_sgd", "ecd_sgd", "lead", "beer", "c_gt", "motef")
    ),
    "edges, duals": {
        **builders("dlm", "lt_admm", "relay_sgd"),
        "opapc": builder("opapc", strong_convexity=0.5),
    },
    "directed graphs": {
        **builders("stochastic_gradient_push", "push_diging"),
        "push_pull": lambda step, W: algorithms.push_pull(optax.sgd(step), _pulled(W), W),
        "ab": lambda step, W: algorithms.ab(optax.sgd(step), _pulled(W), W),
    },
}
METHODS = {name: build for family in FAMILIES.values() for name, build in family.items()}


class Traits(NamedTuple):
    """What a method needs and costs.

    Args:
        W: the mixing matrices that it accepts, a key of the graphs of `accepted`.
        varies: whether it accepts a schedule.
        lost: whether messages may be lost.
        memory: vectors of the size of the model that a worker keeps between rounds.
        sent: vectors that a worker sends to a neighbour, per round.
        limit: "exact", "biased", or "exact*" if it is exact with random samples, too.
        step: largest stable step size times L; None if the method is not a linear iteration, or
            has no step size.
    """

    W: str
    varies: bool
    lost: bool
    memory: int
    sent: float
    limit: str
    step: float | None

    def cells(self) -> list[str]:
        """Returns the cells of the method's row."""
        yes = {True: "yes", False: "no"}
        step = "-" if self.step is None else f"{self.step:.2f}"
        sent = f"{self.sent:.2g}"
        return [
            self.W,
            yes[self.varies],
            yes[self.lost],
            str(self.memory),
            sent,
            self.limit,
            step,
        ]


@cache
def traits(name: str) -> Traits:
    """Returns the traits of the method with this name in `METHODS`."""
    build = METHODS[name]
    W, graph, varies = accepted(build)
    method = build(STEP, graph)
    sent, limit = _run(method, graph, name in FAMILIES["variance reduction"])
    step = _stable_step(build, graph)
    return Traits(W, varies, _tolerates_losses(method), _memory(method), sent, limit, step)


def accepted(build: Build) -> tuple[str, dsgd.Topology, bool]:
    """Returns the weakest condition on W that suffices, the undirected graph on which the method is
    measured, and whether the method accepts schedules.
    """
    N = WORKERS
    ring, lazy = topologies.ring(N), topologies.ring(N, topologies.lazy)
    matchings = topologies.random_matchings(N)
    kinds = {
        "columns": (topologies.random_directed(N, 2), ring, topologies.random_pushes(N)),
        "doubly": (topologies.exponential(N), ring, topologies.one_peer_exponential(N)),
        "symmetric": (ring, ring, matchings),
        "lazy": (lazy, lazy, matchings),
        "tree": (topologies.chain(N), topologies.chain(N), matchings),
    }
    for W, (example, measured, schedule) in kinds.items():
        if _accepts(build, example):
            return W, measured, _accepts(build, schedule)
    raise ValueError("accepted: the method accepts none of the graphs; expected one that it does")


def _accepts(build: Build, graph: dsgd.Topology) -> bool:
    try:
        build(STEP, graph)
    except ValueError:
        return False
    return True


def _tolerates_losses(method: dsgd.Algorithm) -> bool:
    """Whether the method runs on a cluster that loses messages; nothing is compiled."""
    half = clusters.bernoulli(0.5, 1.0)
    try:
        dsgd.exchanges(
            method, _sums(None), cluster=clusters.Cluster(clusters.constant(1.0), delivered=half)
        )
    except ValueError:
        return False
    return True


def _memory(method: dsgd.Algorithm) -> int:
    """Returns the number of vectors of the size of the model in a worker's state."""
    state = jax.eval_shape(lambda: method.init(jnp.zeros(ELEMENTS), WORKERS))
    sizes = [
        sum(leaf.size for leaf in jax.tree.leaves(part)) for part in (state.workers, state.server)
    ]
    return round((sizes[0] / WORKERS + sizes[1]) / ELEMENTS)


def _run(method: dsgd.Algorithm, graph: dsgd.Topology, sampled: bool) -> tuple[float, str]:
    """Returns the vectors sent to a neighbour per round, and the limit."""
    if sampled and (found := _converges(method, graph, 1))[1]:
        return found[0], "exact*"
    sent, exact = _converges(method, graph, None)
    return sent, "exact" if exact else "biased"


def _converges(
    method: dsgd.Algorithm, graph: dsgd.Topology, batch_size: int | None
) -> tuple[float, bool]:
    """Returns the vectors sent to a neighbour per round, and whether the limit is the optimum."""
    history = dsgd.run(
        method, _sums(batch_size), steps=ROUNDS, key=jax.random.key(0), record_every=ROUNDS
    ).history
    links, slopes = np.count_nonzero(graph.W) - WORKERS, history["grad_sqnorm"]
    bits = history["bits"][-1] / 2 * WORKERS  # sent by all workers
    return float(bits / (32 * ELEMENTS * links * ROUNDS)), bool(slopes[-1] <= EXACT * slopes[0])


@cache
def _sums(batch_size: int | None) -> dsgd.Problem:
    """Returns ridge regression with different data on each worker; L is at most 1.

    Args:
        batch_size: random samples in a round; None: exact gradients.
    """
    random = np.random.default_rng(0)
    inputs = random.normal(size=(WORKERS * SAMPLES, ELEMENTS))
    inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
    return problems.finite_sum(
        problems.Model(lambda key: jnp.zeros(ELEMENTS), lambda x, inputs: inputs @ x),
        lambda outputs, targets: 0.25 * (outputs - targets) ** 2,
        (inputs, random.normal(size=WORKERS * SAMPLES)),
        WORKERS,
        "blocks",
        batch_size=batch_size,
        l2=0.5,
    )


def _stable_step(build: Build, graph: dsgd.Topology) -> float | None:
    """Returns the largest stable step size on quadratics with equal Hessians and L = 1; None if the
    method is not a linear iteration, or is stable with all step sizes because it has none.
    """
    b = np.random.default_rng(0).normal(size=(WORKERS, 3))
    problem = problems.quadratic(np.tile([1.0, 0.5, 0.1], (WORKERS, 1)), b)
    try:
        step = theory_checks.stable_step(lambda step: build(step, graph), problem)
    except ValueError:
        return None
    return step if np.isfinite(step) else None


def tabulate(families: Sequence[str], progress: bool) -> Table:
    """Returns a table of the methods of these families, with one row per method.

    Args:
        families: keys of `FAMILIES`.
        progress: whether to show a progress bar.
    """
    names = [name for family in families for name in FAMILIES[family]]
    found = {name: traits(name) for name in tables.bar(names, "methods on graphs", progress)}
    table = tables.table(
        "methods on graphs",
        ("method", "W", "may\nvary", "lost", "kept", "sent", "limit", "step"),
        "W, the same in all rounds unless it may vary: symmetric; lazy: symmetric with\n"
        "eigenvalues above -1/3; doubly stochastic, or only with columns that sum to 1\n"
        "(push_pull and ab: the models' W with rows that sum to 1); a tree.\n"
        "lost: whether messages may be lost. kept: vectors in a worker's memory.\n"
        f"sent: vectors to each neighbour per round, on average ({PERIOD} local steps).\n"
        "limit: with exact gradients; *: also with random samples.\n"
        f"step: largest stable step size times L, equal Hessians. On a ring of {WORKERS};\n"
        f"relay_sgd: a chain. gt_saga: {SAMPLES} samples. -: not linear, or no step size.",
        left=2,
    )
    for family in families:
        table.add_section()
        table.add_row(family, *[""] * 7)
        for name in FAMILIES[family]:
            table.add_row(name, *found[name].cells())
    return table
