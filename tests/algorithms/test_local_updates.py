"""Methods with local steps: their limits, and sampled clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import clusters, problems
from tests.algorithms import quadratics
from tests.methods.diloco import nesterov
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import D, N

GAMMA, H, T = 0.1, 4, 240
SGD = optax.sgd(GAMMA)
float64 = quadratics.float64


def models(make: Callable[[], dsgd.Algorithm], start: np.ndarray) -> np.ndarray:
    """Returns the mean of the workers' models after each round, in float64, `[T, d]`."""
    return trajectories.run(lambda of: make(), quadratics.instance(0.0, start), length=T).home


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
    A, b, _ = quadratics.arrays()
    pulled = A + proximal * np.eye(D)
    steps = np.broadcast_to(period, N)
    powers = map(np.linalg.matrix_power, np.eye(D) - gamma * pulled, steps)
    changes = np.broadcast_to(shares, N)[:, None, None] * (np.eye(D) - np.stack(list(powers)))
    at_zero = changes @ np.linalg.solve(pulled, b[..., None])
    slope = changes @ (np.eye(D) - proximal * np.linalg.inv(pulled))
    return np.linalg.solve(slope.sum(axis=0), at_zero.sum(axis=0))[:, 0]


def error(x: np.ndarray) -> float:
    """Returns the distance to the optimum of the mean objective."""
    return float(np.linalg.norm(x - quadratics.minimizer()))


LIMITS: dict[str, Callable[[], dsgd.Algorithm]] = {
    "DiLoCo": lambda: algorithms.diloco(SGD, H, optax.sgd(0.7, 0.9, nesterov=True)),
    "FedProx": lambda: algorithms.fed_prox(SGD, H, 1.0),
    "FedAdam": lambda: algorithms.fed_adam(SGD, H, 0.1),
    "post-local SGD": lambda: algorithms.post_local_sgd(SGD, 0, H),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_outer_step_does_not_change_the_limit(name):
    """Runs that start at the limit of local SGD leave it within a period and return to it at the
    end.
    """
    best = limit(proximal=float(name == "FedProx"))
    path = models(LIMITS[name], best)
    np.testing.assert_allclose(path[H - 1 :: H], np.tile(best, (T // H, 1)), rtol=0, atol=1e-12)
    assert np.abs(path[0] - best).max() > 1e-3


UNEQUAL = np.arange(N) % H + 1


def first_rounds(state: dsgd.State, round: dsgd.Round) -> dsgd.LocalWork:
    """Returns the local work: client n computes in the first `UNEQUAL[n]` rounds of a period."""
    computes = (round.step % H < UNEQUAL)[:, None]
    return dsgd.LocalWork(computes, jnp.ones(computes.shape))


def test_with_unequal_steps_fednovas_limit_is_near_the_optimum_and_fedavgs_is_not():
    """FedNova divides the clients' changes by their numbers of steps, FedAvg does not."""
    best = limit(period=UNEQUAL, shares=1 / UNEQUAL)
    path = models(
        lambda: algorithms.with_local_work(algorithms.fed_nova(SGD, H), first_rounds), best
    )
    np.testing.assert_allclose(path[H - 1 :: H], np.tile(best, (T // H, 1)), rtol=0, atol=1e-12)
    assert np.abs(path[0] - best).max() > 1e-3
    few = [error(limit(gamma, UNEQUAL, shares=1 / UNEQUAL)) for gamma in (1e-3, 1e-4)]
    assert few[1] / few[0] == pytest.approx(0.1, rel=0.02)
    assert few[0] < 0.02 * error(limit(1e-4, UNEQUAL))


def test_easgds_center_has_the_limit_of_fedprox_with_exact_solves():
    """At the limit, each worker's model solves its proximal problem with rho = beta / (N gamma)."""
    path = models(lambda: algorithms.easgd(SGD, 1, 0.9), quadratics.arrays()[2])
    best = limit(0.05, 2_000, 0.9 / N / GAMMA)
    np.testing.assert_allclose(path[-1], best, rtol=0, atol=1e-6)
    assert error(best) > 1e-2


def test_adacomm_refuses_a_loss_at_the_start_that_is_not_above_its_minimum():
    problem = problems.random_quadratic(4, 3)  # the loss at the start is 0
    method = algorithms.adacomm(SGD, 2, 2, minimum=0.0)
    with pytest.raises(ValueError, match="loss at the start is 0; expected a loss above adacomm's"):
        dsgd.run(method, problem, steps=4, key=jax.random.key(0), mesh=1)


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
    ("present", "chances"),
    [
        (SAMPLED, 0.5),
        (clusters.systematic(2, [1.0, 2.0, 5.0, 4.0]), [1 / 6, 1 / 3, 5 / 6, 2 / 3]),
        (clusters.bernoulli([0.9, 0.5, 0.7, 0.3], 2.0), [0.9, 0.5, 0.7, 0.3]),
        (clusters.sampled(3, of=4, weights=[2.0, 3.0, 7.0, 5.0]), None),
        (clusters.markov(4.0, 1.5), 8 / 11),
    ],
    ids=["uniform", "systematic", "coins", "successive", "chains"],
)
def test_a_selection_has_its_inclusion_probabilities(present, chances):
    """The same as if they are given, and the mean of all clients within the sampling error."""
    method = algorithms.fed_avg(optax.sgd(GAMMA), 2, inclusion="selection")
    found, changes = changes_of_clients(method, present, seeds=1_000)
    if chances is not None:
        method = algorithms.fed_avg(optax.sgd(GAMMA), 2, inclusion=chances)
        given, _ = changes_of_clients(method, present, seeds=1_000)
        np.testing.assert_allclose(found, given, rtol=1e-5)
    error = found.std() / np.sqrt(len(found))
    assert abs(found.mean() - SHARES @ changes) < 4 * error < 0.4


def test_lost_messages_divide_the_inclusion_probabilities():
    """A client's change counts if it participates and its message arrives."""
    cluster = clusters.Cluster(
        clusters.constant(1.0), present=SAMPLED, participation_period=2, delivered=BERNOULLI
    )
    options: Any = {"steps": 2, "key": jax.random.key(0), "mesh": 1, "seeds": 30}
    found, given = (
        dsgd.run(
            algorithms.fed_avg(optax.sgd(GAMMA), 2, inclusion=inclusion),
            means(),
            cluster=cluster,
            **options,
        ).state.server.params
        for inclusion in ("selection", 0.25)
    )
    np.testing.assert_allclose(found, given, rtol=1e-6)


def on(**options: Any) -> clusters.Cluster:
    """Returns a cluster with the given participation."""
    return clusters.Cluster(clusters.constant(1.0), **options)


@pytest.mark.parametrize(
    ("inclusion", "cluster", "words"),
    [
        (
            "selection",
            on(present=clusters.round_robin(2, of=4)),
            r"fed_avg: inclusion = 'selection' but the probabilities of present = round_robin\(2, "
            r"of=4\) are unknown; expected a selection with",
        ),
        (
            "selection",
            on(present=SAMPLED, delivered=clusters.exponential(1.0)),
            r"the probabilities of delivered = exponential\(1\) are unknown",
        ),
        ("selection", None, "inclusion = 'selection' but all clients participate"),
        (
            "selection",
            on(present=clusters.bernoulli([0.5, 0.0, 0.5, 0.2], 1.0)),
            r"fed_avg: inclusion of present = bernoulli.* = 0.0; expected a number in \(0, 1\]",
        ),
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


def test_des_loc_refuses_moments_whose_names_it_does_not_know():
    with pytest.raises(ValueError, match=r"des_loc: the state of optimizer .*scale_by_adan.* mu, "):
        dsgd.exchanges(algorithms.des_loc(optax.adan(0.1), 2), means())
