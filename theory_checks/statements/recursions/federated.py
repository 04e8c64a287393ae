"""Federated methods, compared with their recursions."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import optax

import algorithms
from dsgd.base import Algorithm, LocalWork, Round, State
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Case, Inputs, Symbols, on_workers
from theory_checks.machinery.trajectories import N, Trajectory
from theory_checks.recursions import federated, slow_links
from theory_checks.recursions.compressed import clipped, largest_half
from theory_checks.recursions.outer import nesterov
from theory_checks.recursions.shared import Gradients
from theory_checks.statements.recursions.shared import HALF_OF_ALL, SHORT

H, ALPHA, P, BETA, ETA = 3, 0.7, 0.5, 0.4, 0.8
TAU = np.arange(N) % (H + 1)


def _some_steps(state: State, round: Round) -> LocalWork:
    """Returns the local work: client n computes in the first TAU[n] rounds of each period."""
    computes = (round.step % H < TAU)[:, None]
    return LocalWork(computes, jnp.ones(computes.shape))


def _fed_nova(optimizer: optax.GradientTransformation) -> Algorithm:
    return algorithms.with_local_work(
        algorithms.fed_nova(optimizer, H, optax.sgd(1.0, momentum=BETA)), _some_steps
    )


def _of_one_batch(inputs: Inputs) -> Gradients:
    """Returns the gradients of the only micro-batch of a method that sets its local work."""
    return lambda t, X: inputs.exact(t, X) + inputs.found.noise[t, :, 0]


def _fed_nova_rounds(inputs: Inputs) -> Iterator[Symbols]:
    return federated.fed_nova(inputs.x, _of_one_batch(inputs), inputs.gamma, 0.9, TAU, H, BETA)


def _with_server(found: Trajectory, papers: Symbols) -> Symbols:
    return {
        "params": trajectories.rows(found.states.workers.params),
        "server": trajectories.rows(found.states.server.params, 1),
    }


def _with_memories(found: Trajectory, papers: Symbols) -> Symbols:
    return {
        **_with_server(found, papers),
        "memory": trajectories.rows(found.states.workers.memory),
        "h": trajectories.rows(found.states.server.memory, 1),
    }


def _with_momentum(found: Trajectory, papers: Symbols) -> Symbols:
    momentum = optax.tree.get(found.states.server.optimizer, "trace")
    return {**_with_server(found, papers), "momentum": trajectories.rows(momentum, 1)}


# Stated to be unbiased, so that the methods accept a compressor without random numbers.
QUANTIZED = SHORT._replace(omega=lambda d: 1.0)
CASES = (
    Case(
        "FedPAQ",
        "Reisizadeh et al. 2020",
        lambda optimizer, of: algorithms.fed_paq(optimizer, H, QUANTIZED),
        lambda inputs: federated.fed_paq(inputs.x, inputs.G, N, inputs.gamma, H, clipped),
        on_workers,
        f"Q: {SHORT.name}",
    ),
    Case(
        "FedCOMGATE",
        "Haddadpour et al. 2021",
        lambda optimizer, of: algorithms.fed_comgate(of.learning_rate, H, QUANTIZED, step=ETA),
        lambda inputs: federated.fed_comgate(inputs.x, inputs.G, N, inputs.gamma, ETA, H, clipped),
        on_workers,
        f"Q: {SHORT.name}",
    ),
    Case(
        "Fed-EF",
        "Li and Li 2023",
        lambda optimizer, of: algorithms.fed_ef(
            optimizer, H, HALF_OF_ALL, optax.sgd(ETA, momentum=BETA, nesterov=True)
        ),
        lambda inputs: slow_links.remembered(
            inputs.x,
            inputs.G,
            N,
            inputs.step,
            H,
            nesterov(ETA, BETA),
            1.0,
            largest_half,
            (slice(None),),
        ),
        on_workers,
        f"C: {HALF_OF_ALL.name}; momentum of the server",
    ),
    Case(
        "FedNova",
        "Wang et al. 2020, FedNova",
        lambda optimizer, of: _fed_nova(optimizer),
        _fed_nova_rounds,
        _with_server,
        "momentum of clients and server; clients make 0 to 3 steps",
        "momentum",
    ),
    Case(
        "FedDyn",
        "Acar et al. 2021, algorithm 1",
        lambda optimizer, of: algorithms.fed_dyn(optimizer, H, ALPHA),
        lambda inputs: federated.fed_dyn(inputs.x, inputs.G, N, inputs.gamma, ALPHA, H),
        _with_memories,
    ),
    Case(
        "MimeLite",
        "Karimireddy et al. 2020, algorithm 1",
        lambda optimizer, of: algorithms.mime_lite(optimizer, H, ETA),
        lambda inputs: federated.mime_lite(inputs.x, inputs.G, N, inputs.gamma, 0.9, H, ETA),
        _with_momentum,
        "momentum, frozen in local steps",
        "momentum",
    ),
    Case(
        "Mime",
        "Karimireddy et al. 2020, algorithm 1",
        lambda optimizer, of: algorithms.mime(optimizer, H, ETA),
        lambda inputs: federated.mime(
            inputs.x, inputs.G, inputs.exact, N, inputs.gamma, 0.9, H, ETA
        ),
        _with_momentum,
        "momentum, frozen in local steps; gradients at two points with the same noise",
        "momentum",
    ),
    Case(
        "Scaffnew",
        "Mishchenko et al. 2022, algorithm 2",
        lambda optimizer, of: algorithms.scaffnew(optimizer, P),
        lambda inputs: federated.scaffnew(
            inputs.X, inputs.G, inputs.gamma, P, inputs.found.sent[:, 0] > 0
        ),
        on_workers,
    ),
)
