"""Methods with local steps and an outer step, compared with their recursions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import optax

import algorithms
from dsgd.base import Algorithm
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Case, Inputs, Symbols, on_workers
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.trajectories import N, Trajectory
from theory_checks.recursions import outer

H, MU, TAU, PERIODS = 3, 0.4, 0.05, (2, 3, 4)
# of AdaComm: H_0 and the interval, and a bound below most losses at the start
FIRST_AND_INTERVAL, LOWEST = (12, 4), -3.0


def _with_server(found: Trajectory, papers: Symbols) -> Symbols:
    return {
        "params": trajectories.rows(found.states.workers.params),
        "server": trajectories.rows(found.states.server.params, 1),
    }


def _with_moments(found: Trajectory, papers: Symbols) -> Symbols:
    memory = found.states.workers.optimizer
    return {
        **on_workers(found, {"params": papers["params"]}),
        **{name: trajectories.rows(optax.tree.get(memory, name)) for name in ("mu", "nu")},
    }


def _decaying(gamma: Any) -> Callable[[Any], Any]:
    """Returns the step size of each round."""
    return lambda t: gamma / (1 + t / 32)


def _adacomm(of: Instance) -> Algorithm:
    gammas = _decaying(of.learning_rate)
    return algorithms.adacomm(
        optax.sgd(gammas), *FIRST_AND_INTERVAL, minimum=LOWEST, schedule=gammas
    )


def _with_period(found: Trajectory, papers: Symbols) -> Symbols:
    params = on_workers(found, {"params": papers["params"]})
    return {**params, "period": found.metrics["period"]}


def _outer(
    name: str,
    reference: str,
    make: Callable[[optax.GradientTransformation], Algorithm],
    step: Callable[[Inputs], outer.Outer],
    hypotheses: str = "noisy gradients; workers differ",
    optimizer: str = "plain",
    **options: Any,
) -> Case:
    def rounds(inputs: Inputs) -> Iterator[Symbols]:
        return outer.local_steps(inputs.x, inputs.G, N, inputs.steps, H, step(inputs), **options)

    return Case(
        name,
        reference,
        lambda optimizer, of: make(optimizer),
        rounds,
        _with_server,
        hypotheses,
        optimizer,
    )


CASES = (
    _outer(
        "DiLoCo",
        "Douillard et al. 2023, algorithm 1",
        lambda optimizer: algorithms.diloco(
            optimizer, H, optax.sgd(0.6, momentum=0.8, nesterov=True)
        ),
        lambda inputs: outer.nesterov(0.6, 0.8),
        "Adam's moments are local and kept",
        "adam",
        fresh=False,
    ),
    _outer(
        "SlowMo",
        "Wang et al. 2020, algorithm 1",
        lambda optimizer: algorithms.slowmo(optimizer, H, 0.8, 0.6),
        lambda inputs: outer.slow_momentum(inputs.gamma, 0.8, 0.6),
        fresh=False,
    ),
    _outer(
        "FedAvg",
        "McMahan et al. 2017, algorithm 1",
        lambda optimizer: algorithms.fed_avg(optimizer, H),
        lambda inputs: outer.averaging,
        "Adam's moments start again in each period",
        "adam",
        fresh=True,
    ),
    _outer(
        "FedProx",
        "Li et al. 2020, algorithm 2",
        lambda optimizer: algorithms.fed_prox(optimizer, H, MU),
        lambda inputs: outer.averaging,
        fresh=True,
        proximal=MU,
    ),
    _outer(
        "FedAvgM",
        "Hsu et al. 2019",
        lambda optimizer: algorithms.fed_avgm(optimizer, H, 0.7, 0.6),
        lambda inputs: outer.block_momentum(0.7, 0.6),
        fresh=True,
    ),
    _outer(
        "FedAdagrad",
        "Reddi et al. 2021, algorithm 2",
        lambda optimizer: algorithms.fed_adagrad(optimizer, H, 0.1, 0.3, TAU),
        lambda inputs: outer.adaptive("adagrad", 0.1, 0.3, 0.0, TAU),
        fresh=True,
    ),
    _outer(
        "FedYogi",
        "Reddi et al. 2021, algorithm 2",
        lambda optimizer: algorithms.fed_yogi(optimizer, H, 0.1, 0.8, 0.95, TAU),
        lambda inputs: outer.adaptive("yogi", 0.1, 0.8, 0.95, TAU),
        fresh=True,
    ),
    _outer(
        "FedAdam",
        "Reddi et al. 2021, algorithm 2",
        lambda optimizer: algorithms.fed_adam(optimizer, H, 0.1, 0.6, 0.9, TAU),
        lambda inputs: outer.adaptive("adam", 0.1, 0.6, 0.9, TAU),
        fresh=True,
    ),
    Case(
        "post-local SGD",
        "Lin et al. 2020",
        lambda optimizer, of: algorithms.post_local_sgd(optimizer, 2, H),
        lambda inputs: outer.post_local(inputs.X, inputs.G, N, inputs.steps, 2, H),
        on_workers,
        optimizer="momentum",
    ),
    Case(
        "AdaComm",
        "Wang and Joshi 2019, AdaComm",
        lambda optimizer, of: _adacomm(of),
        lambda inputs: outer.adacomm(
            inputs.X, inputs.G, inputs.losses, _decaying(inputs.gamma), *FIRST_AND_INTERVAL, LOWEST
        ),
        _with_period,
        "the step size decays; the losses of batches determine the periods",
        length=4 * trajectories.ROUNDS,
    ),
    Case(
        "DES-LOC",
        "Iacob et al. 2025",
        lambda optimizer, of: algorithms.des_loc(optimizer, *PERIODS),
        lambda inputs: outer.desynced(inputs.X, inputs.G, inputs.gamma, PERIODS),
        _with_moments,
        "models and moments are averaged with different periods",
        "adam",
    ),
    Case(
        "EAMSGD",
        "Zhang et al. 2015, EAMSGD",
        lambda optimizer, of: algorithms.eamsgd(optimizer, 0.8, 2, 0.6),
        lambda inputs: outer.elastic_momentum(
            inputs.X, inputs.x, inputs.G, inputs.gamma, 0.8, 0.6 / N, 2
        ),
        lambda found, papers: {
            "params": trajectories.rows(found.states.workers.params),
            "velocity": trajectories.rows(found.states.workers.optimizer[1].trace),
            "x": trajectories.rows(found.states.server, 1),
        },
    ),
    Case(
        "EASGD",
        "Zhang et al. 2015, (5) and (6)",
        lambda optimizer, of: algorithms.easgd(optimizer, 2, 0.6),
        lambda inputs: outer.elastic(inputs.X, inputs.x, inputs.G, inputs.steps, 0.6 / N, 2),
        lambda found, papers: {
            "params": trajectories.rows(found.states.workers.params),
            "x": trajectories.rows(found.states.server, 1),
        },
        optimizer="momentum",
    ),
)
