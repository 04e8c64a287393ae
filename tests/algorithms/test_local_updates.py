"""Methods with local steps: methods that equal others, their limits, and sampled clients.

All runs have six workers, in float64. Each method has one program, whose arguments are the
method's hyperparameters (`theory_checks.machinery.trajectories`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import sampled

import algorithms
import dsgd
from dsgd import clusters, network, problems
from tests.algorithms import quadratics
from tests.methods.diloco import nesterov
from tests.methods.given import quadratic
from theory_checks.machinery import trajectories
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.trajectories import D, N

GAMMA, H, T = 0.1, 4, 240
NEVER = 10 * T


class Numbers(NamedTuple):
    """Arguments of the methods below; each method uses some of them."""

    gamma: float = GAMMA
    momentum: float = 0.0
    period: int = H
    step: float = 1.0
    outer_momentum: float = 0.0
    proximal: float = 0.0
    probability: float = 1.0
    switch: int = 0
    first: int = NEVER
    second: int = NEVER


METHODS: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "mini-batch": lambda of: algorithms.minibatch_sgd(sgd(of)),
    "mini-batch, Nesterov": lambda of: algorithms.minibatch_sgd(
        optax.sgd(of.gamma, momentum=of.momentum, nesterov=True)
    ),
    "local SGD": lambda of: algorithms.local_sgd(sgd(of), of.period),
    "local Adam": lambda of: algorithms.local_sgd(optax.adam(of.gamma), of.period),
    "DiLoCo": lambda of: algorithms.diloco(
        sgd(of), of.period, optax.sgd(of.step, momentum=of.outer_momentum, nesterov=True)
    ),
    "SlowMo": lambda of: algorithms.slowmo(sgd(of), of.period, of.step, of.outer_momentum),
    "FedAvg": lambda of: algorithms.fed_avg(plain_sgd(of), of.period),
    "FedProx": lambda of: algorithms.fed_prox(plain_sgd(of), of.period, of.proximal),
    "FedAvgM": lambda of: algorithms.fed_avgm(plain_sgd(of), of.period, of.step, of.outer_momentum),
    "FedAdam": lambda of: algorithms.fed_adam(plain_sgd(of), of.period, of.step),
    "FedNova": lambda of: algorithms.with_local_work(
        algorithms.fed_nova(plain_sgd(of), of.period), partial(first_rounds, of.period)
    ),
    "FedNova, server momentum": lambda of: algorithms.fed_nova(
        plain_sgd(of), of.period, optax.sgd(of.step, momentum=of.outer_momentum)
    ),
    "FedDyn": lambda of: algorithms.fed_dyn(plain_sgd(of), of.period, of.proximal),
    "MimeLite": lambda of: algorithms.mime_lite(sgd(of), of.period),
    "Mime": lambda of: algorithms.mime(sgd(of), of.period),
    "Scaffnew": lambda of: algorithms.scaffnew(plain_sgd(of), of.probability),
    "post-local SGD": lambda of: algorithms.post_local_sgd(sgd(of), of.switch, of.period),
    "AdaComm": lambda of: algorithms.adacomm(sgd(of), of.period, of.switch, minimum=-100.0),
    "EASGD": lambda of: algorithms.easgd(sgd(of), of.period, of.step),
    "EAMSGD": lambda of: algorithms.eamsgd(plain_sgd(of), of.momentum, of.period, of.step),
    "DES-LOC, momentum": lambda of: algorithms.des_loc(sgd(of), of.period, of.first, of.second),
    "DES-LOC": lambda of: algorithms.des_loc(optax.adam(of.gamma), of.period, of.first, of.second),
}


UNEQUAL = np.arange(N) % H + 1


def first_rounds(period: Any, state: dsgd.State, round: dsgd.Round) -> dsgd.LocalWork:
    """Returns the local work of client n: it computes in the first `UNEQUAL[n]` rounds of a period
    of H rounds, and in all rounds of any other period.
    """
    computes = (round.step % period < jnp.where(period == H, UNEQUAL, period))[:, None]
    return dsgd.LocalWork(computes, jnp.ones(computes.shape))


def sgd(of: Any) -> optax.GradientTransformation:
    return optax.sgd(of.gamma, momentum=of.momentum)


def plain_sgd(of: Any) -> optax.GradientTransformation:
    return optax.sgd(of.gamma)


build = quadratics.builders(METHODS)
in_float64 = quadratics.in_float64


@cache
def instance(noise: float, start: tuple[float, ...] | None = None) -> Instance:
    """Returns the quadratics with runs that start at `start`; None: at a random point."""
    return quadratics.instance(noise, quadratics.arrays()[2] if start is None else np.array(start))


def models(name: str, numbers: Numbers, of: Instance) -> np.ndarray:
    """Returns the mean of the workers' models after each round, `[T, d]`."""
    arguments = jax.tree.map(np.asarray, numbers)
    return trajectories.run(build(name), of._replace(more=arguments), length=T).home


# --- Identities.

IDENTITIES: dict[str, tuple[tuple[str, Numbers], tuple[str, Numbers]]] = {
    "DiLoCo without outer momentum": (
        ("DiLoCo", Numbers(momentum=0.5)),
        ("local SGD", Numbers(momentum=0.5)),
    ),
    "DiLoCo of one step": (
        ("DiLoCo", Numbers(period=1, step=0.7, outer_momentum=0.9)),
        ("mini-batch, Nesterov", Numbers(gamma=0.7 * GAMMA, momentum=0.9)),
    ),
    "SlowMo without slow momentum": (
        ("SlowMo", Numbers(momentum=0.5)),
        ("local SGD", Numbers(momentum=0.5)),
    ),
    "SlowMo of one step": (
        ("SlowMo", Numbers(period=1, step=0.7, outer_momentum=0.6)),
        ("mini-batch", Numbers(gamma=0.7 * GAMMA, momentum=0.6)),
    ),
    "FedAvg": (("FedAvg", Numbers()), ("local SGD", Numbers())),
    "FedNova, server momentum": (
        ("FedNova, server momentum", Numbers(step=0.7, outer_momentum=0.6)),
        ("FedAvgM", Numbers(step=0.7, outer_momentum=0.6)),
    ),
    "EAMSGD without momentum": (("EAMSGD", Numbers(step=0.9)), ("EASGD", Numbers(step=0.9))),
    "FedProx without its term": (("FedProx", Numbers()), ("FedAvg", Numbers())),
    "FedProx of one step": (
        ("FedProx", Numbers(period=1, proximal=3.0)),
        ("FedAvg", Numbers(period=1)),
    ),
    "FedAvgM without momentum": (("FedAvgM", Numbers()), ("FedAvg", Numbers())),
    "FedAvgM": (
        ("FedAvgM", Numbers(step=0.7, outer_momentum=0.6)),
        ("SlowMo", Numbers(step=0.7, outer_momentum=0.6)),
    ),
    "FedNova of equal steps": (("FedNova", Numbers(period=3)), ("FedAvg", Numbers(period=3))),
    "MimeLite without momentum": (("MimeLite", Numbers()), ("FedAvg", Numbers())),
    "MimeLite of one step": (
        ("MimeLite", Numbers(period=1, momentum=0.5)),
        ("mini-batch", Numbers(momentum=0.5)),
    ),
    "Scaffnew that always averages": (("Scaffnew", Numbers()), ("mini-batch", Numbers())),
    "AdaComm before its first decision": (
        ("AdaComm", Numbers(momentum=0.5, switch=NEVER)),
        ("local SGD", Numbers(momentum=0.5)),
    ),
    "AdaComm of one step": (
        ("AdaComm", Numbers(period=1, switch=1)),
        ("mini-batch", Numbers()),
    ),
    "post-local SGD, local at once": (
        ("post-local SGD", Numbers(momentum=0.5)),
        ("local SGD", Numbers(momentum=0.5)),
    ),
    "post-local SGD, never local": (
        ("post-local SGD", Numbers(switch=NEVER, momentum=0.5)),
        ("mini-batch", Numbers(momentum=0.5)),
    ),
    "DES-LOC of momentum, all periods 1": (
        ("DES-LOC, momentum", Numbers(period=1, first=1, momentum=0.5)),
        ("mini-batch", Numbers(momentum=0.5)),
    ),
    "DES-LOC, moments never averaged": (("DES-LOC", Numbers()), ("local Adam", Numbers())),
}


@pytest.mark.parametrize("name", sampled(IDENTITIES))
def test_two_methods_are_the_same(name):
    """The gradients are noisy; the noise depends on the round and the worker only."""
    left, right = (models(*side, instance(0.5)) for side in IDENTITIES[name])
    assert np.ptp(left) > 0.1
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)


def test_mime_of_one_step_is_mini_batch_momentum():
    """The gradients are exact, since Mime computes exact gradients for c."""
    left, right = (
        models(name, Numbers(period=1, momentum=0.5), instance(0.0))
        for name in ("Mime", "mini-batch")
    )
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)


def test_slowmo_is_bmuf_with_classical_block_momentum():
    """For a constant step size, gamma u of SlowMo is the change of BMUF's model."""
    A, b, _, x = map(np.asarray, instance(0.0)[:4])
    found = models("SlowMo", Numbers(step=0.8, outer_momentum=0.6), instance(0.0))
    slopes, Y, change, expected = quadratic(A, b), np.tile(x, (N, 1)), np.zeros(D), []
    for t in range(T):
        Y = Y - GAMMA * slopes(t, Y)
        if (t + 1) % H == 0:
            change = 0.6 * change + 0.8 * (Y.mean(axis=0) - x)
            x = x + change
            Y = np.tile(x, (N, 1))
        expected.append(Y.mean(axis=0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_dilocos_outer_step_is_pytorchs():
    """OpenDiLoCo's outer optimizer is `torch.optim.SGD` with the arguments used here."""
    torch = pytest.importorskip("torch")
    x, recursion = np.ones(3), nesterov(0.7, 0.9)
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for delta in np.random.default_rng(0).normal(size=(6, 3)):
        x = recursion(x, delta)
        parameter.grad = torch.tensor(delta)
        optimizer.step()
    np.testing.assert_allclose(x, parameter.detach().numpy(), rtol=1e-13)


def test_des_loc_with_all_periods_1_is_not_mini_batch_adam():
    """DES-LOC averages the squares of the gradients, mini-batch Adam squares their mean, which is
    at most as large. The first steps are equal, since both quotients are signs; later steps differ.
    """
    mean_of_squares = models("DES-LOC", Numbers(period=1, first=1, second=1), instance(0.5))
    local = models("DES-LOC", Numbers(period=1, first=1), instance(0.5))
    assert np.abs(mean_of_squares - local).max() > 1e-2


# --- Limits, which are fixed points of a period with exact gradients.


def limit(
    gamma: float = GAMMA,
    period: int | np.ndarray = H,
    proximal: float = 0.0,
    shares: np.ndarray | float = 1.0,
) -> np.ndarray:
    r"""Returns the model x to which the methods converge, the solution of $\sum_n s_n (I -
    Q_n^{H_n}) (x - y_n(x)) = 0$ with $Q_n = I - \gamma (A_n + \mu I)$. Worker n's change is $(I -
    Q_n^{H_n}) (x - y_n(x))$, where $y_n(x) = (A_n + \mu I)^{-1} (b_n + \mu x)$ is the minimizer of
    its proximal objective. Arguments: `period` is H, or `[N]`; `shares` are the weights s, 1 or
    `[N]`.
    """
    A, b = np.asarray(instance(0.0).A), np.asarray(instance(0.0).b)
    pulled = A + proximal * np.eye(D)
    steps = np.broadcast_to(period, N)
    powers = map(np.linalg.matrix_power, np.eye(D) - gamma * pulled, steps)
    changes = np.broadcast_to(shares, N)[:, None, None] * (np.eye(D) - np.stack(list(powers)))
    at_zero = changes @ np.linalg.solve(pulled, b[..., None])
    slope = changes @ (np.eye(D) - proximal * np.linalg.inv(pulled))
    return np.linalg.solve(slope.sum(axis=0), at_zero.sum(axis=0))[:, 0]


def error(x: np.ndarray) -> float:
    """Returns the distance to the optimum of the mean objective."""
    A, b = np.asarray(instance(0.0).A), np.asarray(instance(0.0).b)
    return float(np.linalg.norm(x - np.linalg.solve(A.mean(axis=0), b.mean(axis=0))))


LIMITS = {
    "local SGD": Numbers(),
    "DiLoCo": Numbers(step=0.7, outer_momentum=0.9),
    "SlowMo": Numbers(step=0.7, outer_momentum=0.6),
    "FedAvg": Numbers(),
    "FedProx": Numbers(proximal=1.0),
    "FedAvgM": Numbers(outer_momentum=0.9),
    "FedAdam": Numbers(step=0.1),
    "post-local SGD": Numbers(),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_outer_step_does_not_change_the_limit(name):
    """Runs that start at the limit of local SGD leave it within a period and return to it at the
    end.
    """
    best = limit(proximal=LIMITS[name].proximal)
    path = models(name, LIMITS[name], instance(0.0, tuple(best)))
    np.testing.assert_allclose(path[H - 1 :: H], np.tile(best, (T // H, 1)), rtol=0, atol=1e-12)
    assert np.abs(path[0] - best).max() > 1e-3


def test_with_unequal_steps_fednovas_limit_is_near_the_optimum_and_fedavgs_is_not():
    """FedNova divides the clients' changes by their numbers of steps, FedAvg does not."""
    best = limit(period=UNEQUAL, shares=1 / UNEQUAL)
    path = models("FedNova", Numbers(), instance(0.0, tuple(best)))
    np.testing.assert_allclose(path[H - 1 :: H], np.tile(best, (T // H, 1)), rtol=0, atol=1e-12)
    assert np.abs(path[0] - best).max() > 1e-3
    few = [error(limit(gamma, UNEQUAL, shares=1 / UNEQUAL)) for gamma in (1e-3, 1e-4)]
    assert few[1] / few[0] == pytest.approx(0.1, rel=0.02)
    fed_avg = [error(limit(gamma, UNEQUAL)) for gamma in (1e-3, 1e-4)]
    assert few[0] < 0.02 * min(fed_avg)


@pytest.mark.parametrize("name", ["FedDyn", "Mime", "Scaffnew"])
def test_corrected_local_steps_have_the_optimum_as_their_limit(name):
    numbers = {
        "FedDyn": Numbers(gamma=0.2, proximal=2.0),
        "Mime": Numbers(gamma=0.3, momentum=0.3, period=3),
        "Scaffnew": Numbers(gamma=0.4, probability=0.5),
    }
    path = models(name, numbers[name], instance(0.0))
    assert error(path[0]) > 0.1
    assert error(path[-1]) < 1e-10


def test_adacomms_period_is_1_in_the_end_so_that_its_limit_is_the_optimum():
    """Local SGD with the first period stays away from it."""
    path = models("AdaComm", Numbers(gamma=0.3, period=6, switch=10), instance(0.0))
    assert error(path[-1]) < 1e-9
    assert error(models("local SGD", Numbers(gamma=0.3, period=6), instance(0.0))[-1]) > 1e-3


def test_adacomm_refuses_a_loss_at_the_start_that_is_not_above_its_minimum():
    problem = problems.random_quadratic(4, 3)  # the loss at the start is 0

    def run(minimum: float) -> None:
        method = algorithms.adacomm(optax.sgd(0.1), 2, 2, minimum=minimum)
        dsgd.run(method, problem, steps=4, key=jax.random.key(0), mesh=1)

    run(-1.0)
    with pytest.raises(ValueError, match="loss at the start is 0; expected a loss above adacomm's"):
        run(0.0)


def limit_of_mime_lite(gamma: float, beta: float) -> np.ndarray:
    """Returns the model x that MimeLite does not change within a period, with the momentum of a
    constant mean gradient. The change of the server's model is affine in x.
    """
    A, b = np.asarray(instance(0.0).A), np.asarray(instance(0.0).b)
    slopes = quadratic(A, b)

    def change(x):
        y = np.tile(x, (N, 1))
        m = slopes(0, y).mean(axis=0) / (1 - beta)
        for _ in range(H):
            y = y - gamma * (slopes(0, y) + beta * m)
        return y.mean(axis=0) - x

    slope = np.stack([change(row) for row in np.eye(D)], axis=1) - change(np.zeros(D))[:, None]
    return np.linalg.solve(slope, -change(np.zeros(D)))


def test_mime_lites_limit_is_biased_in_proportion_to_the_step():
    numbers = Numbers(gamma=0.2, momentum=0.5)
    path, best = models("MimeLite", numbers, instance(0.0)), limit_of_mime_lite(0.2, 0.5)
    np.testing.assert_allclose(path[-1], best, rtol=0, atol=1e-6)
    assert error(best) > 1e-2
    few = [error(limit_of_mime_lite(gamma, 0.5)) for gamma in (1e-3, 1e-4)]
    assert few[1] / few[0] == pytest.approx(0.1, rel=0.02)


def test_feddyn_reaches_the_optimum_with_sampled_clients_and_few_steps():
    """In each period, four of eight clients make five gradient steps; absent clients keep their
    memories.
    """
    rng = np.random.default_rng(0)
    A, b = rng.uniform(0.5, 2.0, (8, D)), rng.normal(size=(8, D))
    cluster = clusters.Cluster(
        clusters.constant(1.0), present=clusters.sampled(4, of=8), participation_period=5
    )
    options: Any = {"steps": 1_000, "key": jax.random.key(1), "mesh": 1, "record_every": 1_000}
    method = algorithms.fed_dyn(optax.sgd(0.2), 5, 1.0)
    found = dsgd.run(method, problems.quadratic(A, b), cluster=cluster, **options)
    best = b.sum(axis=0) / A.sum(axis=0)
    np.testing.assert_allclose(found.params, best, rtol=0, atol=1e-10)
    memories = found.state.workers.memory
    np.testing.assert_allclose(memories, A * best - b, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.state.server.memory, memories.mean(axis=0), atol=1e-14)


def test_feddyns_memories_are_gradients_if_clients_find_their_minimizers():
    """In one period of 240 local steps, each client finds its minimizer; h is the mean of the
    memories.
    """
    of = instance(0.0)._replace(more=jax.tree.map(np.asarray, Numbers(period=T, proximal=1.0)))
    states = trajectories.run(build("FedDyn"), of, length=T).states
    x, memories = np.asarray(of.start), trajectories.rows(states.workers.memory)[-1]
    A, b = np.asarray(of.A), np.asarray(of.b)
    y = np.linalg.solve(A + np.eye(D), (b + x)[..., None])[..., 0]
    np.testing.assert_allclose(memories, quadratic(A, b)(0, y), rtol=0, atol=1e-10)
    h = trajectories.rows(states.server.memory, 1)
    every = trajectories.rows(states.workers.memory)
    np.testing.assert_allclose(h, every.mean(axis=1), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["DiLoCo", "FedProx"])
def test_the_limit_is_reached(name):
    numbers = {"DiLoCo": Numbers(step=0.7, outer_momentum=0.5), "FedProx": Numbers(proximal=1.0)}
    path = models(name, numbers[name], instance(0.0))
    best = limit(proximal=numbers[name].proximal)
    assert error(best) > 1e-3
    np.testing.assert_allclose(path[-1], best, rtol=0, atol=1e-6)


def test_the_limits_distance_to_the_optimum_is_of_order_gamma_times_h_minus_1():
    assert error(limit(period=1)) < 1e-12
    few, many = error(limit(1e-3, 3)), error(limit(1e-3, 5))
    assert many / few == pytest.approx(2.0, rel=0.02)
    assert error(limit(1e-4, 3)) / few == pytest.approx(0.1, rel=0.02)


def test_the_proximal_term_moves_the_limit_towards_the_optimum():
    """If the local problems are solved nearly exactly, FedAvg's limit is the mean of the workers'
    minimizers. FedProx's limit is closer to the optimum, the more so the larger mu is.
    """
    errors = [error(limit(0.05, 2_000, mu)) for mu in (0.0, 0.1, 1.0, 10.0)]
    assert errors == sorted(errors, reverse=True)
    assert errors[3] < 0.2 * errors[0]
    A, b = np.asarray(instance(0.0).A), np.asarray(instance(0.0).b)
    minimizers = np.linalg.solve(A, b[..., None])[..., 0]
    np.testing.assert_allclose(limit(0.05, 2_000), minimizers.mean(axis=0), atol=1e-10)


def test_easgds_center_has_the_limit_of_fedprox_with_exact_solves():
    """At the limit, each worker's model solves its proximal problem with rho = beta / (N gamma)."""
    numbers = Numbers(period=1, step=0.9)
    path = models("EASGD", numbers, instance(0.0))
    best = limit(0.05, 2_000, 0.9 / N / GAMMA)
    np.testing.assert_allclose(path[-1], best, rtol=0, atol=1e-6)
    assert error(best) > 1e-2


def test_eamsgds_center_has_that_limit_with_another_parameter():
    numbers, alpha = Numbers(period=1, step=0.9, momentum=0.5), 0.9 / N
    path = models("EAMSGD", numbers, instance(0.0))
    best = limit(0.05, 2_000, 0.5 * alpha / (GAMMA * (1 + 0.5 * alpha)))
    np.testing.assert_allclose(path[-1], best, rtol=0, atol=1e-6)
    assert error(best) > 1e-2


# --- Sampled clients and weights.

SIZES = np.array([1, 2, 4, 9])
SHARES = SIZES / SIZES.sum()
CENTERS = np.array([-8.0, -4.0, 2.0, 4.0])


@cache
def means() -> dsgd.Problem:
    """Returns the problem f_n(x) = |x - c_n|^2 / 2 with weights in proportion to the numbers of
    samples.
    """
    problem = problems.quadratic(np.ones((4, 1)), CENTERS[:, None])
    return problem._replace(weights=SHARES * 4, evaluate=None)


def changes_of_clients(method: dsgd.Algorithm, present: clusters.Quantity, seeds: int) -> Any:
    """Returns the first change of the server's model, from 0, for each seed, `[seeds]`, and the
    changes that the clients make in two steps, `[N]`.
    """
    cluster = clusters.Cluster(clusters.constant(1.0), present=present, participation_period=2)
    options: Any = {"steps": 2, "key": jax.random.key(0), "mesh": 1, "seeds": seeds}
    result = dsgd.run(method, means(), cluster=cluster, **options)
    return np.asarray(result.state.server.params)[:, 0], CENTERS * (1 - (1 - GAMMA) ** 2)


SAMPLED, BERNOULLI = clusters.sampled(2, of=4), clusters.bernoulli(0.5, 1.0)


@pytest.mark.parametrize("present", [SAMPLED, BERNOULLI], ids=["without replacement", "coins"])
def test_sampled_clients_have_the_mean_of_all_with_inclusion_probabilities(present):
    """Every measured change is that of one subset of clients. The mean over all subsets is exact;
    the mean over draws must agree with it within the sampling error.
    """
    method = algorithms.fed_avg(optax.sgd(GAMMA), 2, inclusion=0.5)
    found, changes = changes_of_clients(method, present, seeds=2_000)
    parts = SHARES * changes / 0.5
    subsets = [np.array(list(np.binary_repr(k, 4)), int) for k in range(16)]
    if present is SAMPLED:
        subsets = [subset for subset in subsets if subset.sum() == 2]
    values = np.array([subset @ parts for subset in subsets])
    nearest = np.abs(found[:, None] - values).argmin(axis=1)
    np.testing.assert_allclose(found, values[nearest], atol=1e-6)
    assert values.mean() == pytest.approx(SHARES @ changes)
    error = found.std() / np.sqrt(len(found))
    assert abs(found.mean() - SHARES @ changes) < 4 * error


def test_the_ratio_of_sampled_clients_is_biased_if_weights_differ():
    method = algorithms.fed_avg(optax.sgd(GAMMA), 2)
    found, changes = changes_of_clients(method, SAMPLED, seeds=2_000)
    pairs = [(i, j) for i in range(4) for j in range(i)]
    values = np.array(
        [np.average(changes[list(pair)], weights=SHARES[list(pair)]) for pair in pairs]
    )
    nearest = np.abs(found[:, None] - values).argmin(axis=1)
    np.testing.assert_allclose(found, values[nearest], atol=1e-6)
    assert abs(values.mean() - SHARES @ changes) > 10 * found.std() / np.sqrt(len(found))


def test_each_client_has_its_own_inclusion_probability():
    """Client n participates with probability pi_n, independently of the others."""
    chances = np.array([0.9, 0.5, 0.7, 0.3])
    coins = clusters.Quantity(
        lambda key, clock, worker: jax.random.bernoulli(
            jax.random.fold_in(key, worker), jnp.asarray(chances, jnp.float32)[worker]
        ).astype(jnp.float32),
        "coins",
        positive=False,
    )
    method = algorithms.fed_avg(optax.sgd(GAMMA), 2, inclusion=chances.tolist())
    found, changes = changes_of_clients(method, coins, seeds=2_000)
    error = found.std() / np.sqrt(len(found))
    assert abs(found.mean() - SHARES @ changes) < 4 * error
    assert error < 0.1


@pytest.mark.parametrize(
    ("inclusion", "cluster", "words"),
    [
        (0.5, None, "inclusion = 0.5 but all clients participate; expected a cluster with"),
        ([0.5, 0.5], clusters.Cluster(clusters.constant(1.0), present=SAMPLED), "2 numbers for 4"),
        ([0.5, 1.5], None, r"fed_avg: inclusion = 1.5; expected a number in \(0, 1\]"),
    ],
)
def test_inclusion_probabilities_that_do_not_fit_are_refused(inclusion, cluster, words):
    with pytest.raises(ValueError, match=words):
        dsgd.exchanges(
            algorithms.fed_avg(optax.sgd(GAMMA), 2, inclusion=inclusion), means(), cluster=cluster
        )


MOMENTUM = optax.sgd(GAMMA, momentum=0.5)
SWEPT: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "EASGD": lambda number: algorithms.easgd(MOMENTUM, 2, number),
    "EAMSGD": lambda number: algorithms.eamsgd(optax.sgd(GAMMA), 0.5, 2, number),
    "FedProx": lambda number: algorithms.fed_prox(MOMENTUM, 2, number),
    "FedDyn": lambda number: algorithms.fed_dyn(MOMENTUM, 2, number),
    "FedAdam": lambda number: algorithms.fed_adam(MOMENTUM, 2, 0.1, number),
}


@pytest.mark.parametrize("name", SWEPT)
def test_a_swept_number_keeps_the_type_of_states_in_half_precision(name):
    half = dsgd.Problem(
        lambda key: jnp.zeros(1, jnp.bfloat16),
        lambda x, center: jnp.sum((x - center) ** 2) / 2,
        jnp.asarray(CENTERS, jnp.bfloat16),
        lambda key, center: center,
    )
    options: Any = {"steps": 4, "key": jax.random.key(0), "mesh": 1}
    swept = dsgd.sweep(SWEPT[name], half, number=[0.25, 0.5], **options)
    alone = dsgd.run(SWEPT[name](0.5), half, **options).params
    assert swept.params.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.asarray(swept.params[1, 0], float), np.asarray(alone, float), rtol=0.02
    )


def test_clients_talk_to_a_server_by_default_and_workers_reduce_around_a_ring():
    (federated,) = dsgd.exchanges(algorithms.fed_adam(optax.sgd(0.1), 3, 0.1), means())
    assert (federated.pattern, federated.period) == (network.star, 3)
    (reduced,) = dsgd.exchanges(algorithms.diloco(optax.sgd(0.1), 3), means())
    assert reduced.pattern is network.ring_all_reduce
    average, first, second = dsgd.exchanges(algorithms.des_loc(optax.adam(0.1), 2), means())
    assert [average.period, first.period, second.period] == [2, 6, 12]
    *_, second = dsgd.exchanges(algorithms.des_loc(optax.adam(0.1), 2, first=5), means())
    assert second.period == 12


def test_des_loc_refuses_moments_whose_names_it_does_not_know():
    with pytest.raises(ValueError, match=r"des_loc: the state of optimizer .*scale_by_adan.* mu, "):
        dsgd.exchanges(algorithms.des_loc(optax.adan(0.1), 2), means())
