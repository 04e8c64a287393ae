"""The methods on graphs by family; what they need, from `algorithms.facts`, and what they cost,
computed from their own rounds: memory, messages, and the largest stable step size.
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
from algorithms import facts, registry
from dsgd import clusters, problems
from experiments.shared import tables

Build = Callable[[Any, dsgd.Topology], dsgd.Algorithm]
"""(step size, topology) -> method."""

PERIOD = 4  # local steps per message
MOMENTUM = 0.9  # the default of methods with momentum
SAMPLES = 4  # of each worker
WORKERS, ELEMENTS, ROUNDS, STEP = 8, 256, 400, 0.02
KINDS = {  # conditions on W, the strongest first, and their words in the table
    "tree": "tree",
    "eigenvalues of W above -1/3": "lazy",
    "symmetric W": "symmetric",
    "doubly stochastic W": "doubly",
    "columns of W sum to 1": "columns",
}
LIMITS = {"": "biased", "any data": "exact", "any data and samples": "exact*"}


def builder(name: str, **changes: Any) -> Build:
    """Returns the builder of a method with SGD and its default settings, apart from `changes`."""
    return lambda step, W: registry.METHODS[name].instance(optax.sgd(step), W, **changes)


def builders(*names: str) -> dict[str, Build]:
    """Returns the builders of methods with their default settings."""
    return {name: builder(name) for name in names}


def _pull(W: dsgd.Topology) -> dsgd.Topology:
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
        "push_pull": lambda step, W: algorithms.push_pull(optax.sgd(step), _pull(W), W),
        "ab": lambda step, W: algorithms.ab(optax.sgd(step), _pull(W), W),
    },
}
METHODS = {name: build for family in FAMILIES.values() for name, build in family.items()}


class Costs(NamedTuple):
    """What a method costs.

    Args:
        lost: whether messages may be lost.
        memory: vectors of the size of the model that a worker keeps between rounds.
        sent: vectors that a worker sends to a neighbour, per round.
        step: largest stable step size times L; None if the method is not a linear iteration, or
            has no step size.
    """

    lost: bool
    memory: int
    sent: float
    step: float | None


@cache
def measure(name: str) -> Costs:
    """Measures the costs of the method with this name in `METHODS`, on a ring, or on a chain if it
    needs a tree.
    """
    build, needs = METHODS[name], facts_of(name).needs
    weights = topologies.lazy if "eigenvalues of W above -1/3" in needs else topologies.metropolis
    graph = topologies.chain(WORKERS) if "tree" in needs else topologies.ring(WORKERS, weights)
    method = build(STEP, graph)
    problem = _make_sums(1 if facts_of(name).exact == "any data and samples" else None)
    sent = _count_sent(method, graph, problem)
    return Costs(_tolerates_losses(method), _memory(method), sent, _stable_step(build, graph))


def facts_of(name: str) -> facts.Facts:
    """Returns the facts of the method with this name in `METHODS`."""
    return registry.METHODS[name.partition(",")[0]]


def _tolerates_losses(method: dsgd.Algorithm) -> bool:
    """Returns whether the method runs on a cluster that loses messages; nothing is compiled."""
    half = clusters.bernoulli(0.5, 1.0)
    try:
        dsgd.exchanges(
            method,
            _make_sums(None),
            cluster=clusters.Cluster(clusters.constant(1.0), delivered=half),
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


def _count_sent(method: dsgd.Algorithm, graph: dsgd.Topology, problem: dsgd.Problem) -> float:
    """Returns the vectors sent to a neighbour per round."""
    history = dsgd.run(
        method, problem, steps=ROUNDS, key=jax.random.key(0), record_every=ROUNDS
    ).history
    links = np.count_nonzero(graph.W) - WORKERS
    bits = history["bits"][-1] / 2 * WORKERS  # sent by all workers
    return float(bits / (32 * ELEMENTS * links * ROUNDS))


@cache
def _make_sums(batch_size: int | None) -> dsgd.Problem:
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
    costs = {name: measure(name) for name in tables.bar(names, "methods on graphs", progress)}
    table = tables.table(
        "methods on graphs",
        ("method", "W", "may\nvary", "lost", "kept", "sent", "limit", "step"),
        "W, the same in all rounds unless it may vary: symmetric; lazy: symmetric with\n"
        "eigenvalues above -1/3; doubly stochastic, or only with columns that sum to 1\n"
        "(push_pull and ab: one with columns, one with rows that sum to 1); a tree.\n"
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
            table.add_row(name, *cells(name, costs[name]))
    return table


def cells(name: str, costs: Costs) -> list[str]:
    """Returns the cells of the method's row."""
    known, yes = facts_of(name), ("no", "yes")
    return [
        _condition(name),
        yes[not {"one W", "tree"} & {*known.needs}],
        yes[costs.lost],
        str(costs.memory),
        f"{costs.sent:.2g}",
        LIMITS[known.exact],
        "-" if costs.step is None else f"{costs.step:.2f}",
    ]


def _condition(name: str) -> str:
    """Returns the condition on W among the method's needs. If they contain none: "columns" if the
    method accepts a W of which only the columns sum to 1, else "doubly".
    """
    for need, words in KINDS.items():
        if need in facts_of(name).needs:
            return words
    try:
        METHODS[name](STEP, topologies.random_directed(WORKERS, 2))
    except ValueError:
        return "doubly"
    return "columns"
