"""Kimad on a cluster compared with its algorithm in numpy: all that it carries, what it sends, how long that takes, and what it refuses."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import kimad, kimad_sgd
from dsgd import Algorithm, Loss, Problem, Result, clusters, codecs, compressors, problems, run, sweep
from tests.algorithms.kimad.networks import Monitor, Sinusoids, Star, budgets, exponential_average, harmonic_mean, last
from theory_checks.machinery.trajectories import LAYERS, D, rows, tree
from theory_checks.recursions import kimad as papers
from theory_checks.recursions.shared import plain

N, GAMMA, ROUNDS, WORD = 4, 0.2, 12, 64
UP = Sinusoids((1.0, 0.5, 2.0, 0.8), 900.0, 0.9, 250.0)
DOWN = Sinusoids((1.0, 3.0, 0.7, 1.5), 4000.0, 0.5, 600.0)
COMPUTING = np.array([0.25, 0.5, 0.125, 0.25])
WEIGHTS = np.array([0.4, 0.3, 0.2, 0.1])
RATIOS = (0.1, 0.3, 0.6, 1.0)
KEY = jax.random.key(0)


@cache
def problem() -> Problem:
    """Four quadratics that differ, with exact gradients, in two layers."""
    made = problems.random_quadratic(N, D, heterogeneity=2.0, seed=1)
    gradient = made.gradient
    assert gradient is not None

    def whole(params):
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])

    return made._replace(
        init=lambda key: tree(made.init(key) + 1.0),
        loss=Loss(lambda params, batch: made.loss(whole(params), batch), lambda params, batch: tree(gradient(whole(params), batch))),
        evaluate=None,
    )


class Setup(NamedTuple):
    """One way to call it, and the same in numpy."""

    options: dict[str, Any]
    monitor: Monitor | None
    rule: papers.Rule = papers.one_for_all
    layers: tuple[int, ...] = LAYERS
    down: tuple[float, ...] = RATIOS
    round_time: float = 1.5
    congestion: float = 1.0
    weights: np.ndarray = np.full(N, 1 / N)
    period: int = 1
    warm_up: int = 0
    latency: float = 0.0


ONE_FOR_ALL = Setup({"monitor": kimad.last, "weights": WEIGHTS}, last, weights=WEIGHTS, latency=0.05)
ORACLE = "an oracle, for the downlink less time"
SETUPS = {
    "Kimad, weights, the last message's rate": ONE_FOR_ALL,
    "Kimad+, an average of rates, another set down": Setup(
        {
            "monitor": kimad.exponential_average(0.3),
            "rule": kimad.allocate,
            "down": [compressors.top_k(0.3), compressors.identity],
            "computation": COMPUTING,
        },
        exponential_average(0.3),
        papers.allocate,
        down=(0.3, 1.0),
    ),
    "two local steps, the whole model, a harmonic mean, first as it is": Setup(
        {"monitor": kimad.harmonic_mean(3), "update": kimad.local_steps(optax.sgd(0.1), 2), "warm_up": 2},
        harmonic_mean(3),
        layers=(D,),
        round_time=2.5,
        period=2,
        warm_up=2,
    ),
    ORACLE: Setup({"monitor": kimad.oracle, "computation": COMPUTING}, None, round_time=2.5, congestion=0.4),
}


@cache
def made(name: str) -> tuple[Algorithm, clusters.Cluster]:
    """One object for equal names, so that it is traced once."""
    setup = SETUPS[name]
    choices = kimad.top_k(RATIOS)
    choices = choices if setup.layers == LAYERS else kimad.whole_model(choices)
    method = kimad_sgd(optax.sgd(GAMMA), choices, setup.round_time, congestion=setup.congestion, **setup.options)
    return method, clusters.Cluster(clusters.constant(COMPUTING), UP.quantity, DOWN.quantity, latency=setup.latency)


def on_cluster(name: str, mesh: int, rounds: int) -> Result:
    method, cluster = made(name)
    with jax.enable_x64(True):
        return run(method, problem(), steps=rounds * SETUPS[name].period, key=KEY, cluster=cluster, mesh=mesh)


class InNumpy(NamedTuple):
    rounds: list[dict[str, np.ndarray]]
    star: Star
    estimates: list[tuple[np.ndarray, np.ndarray]]


@cache
def in_numpy(name: str) -> InNumpy:
    setup, estimates = SETUPS[name], []
    A, b = (np.asarray(leaf, float) for leaf in problem().data[:2])
    star = Star(UP, DOWN, COMPUTING, setup.latency, setup.period)

    def updates(k, x_hat):
        y = np.tile(x_hat, (N, 1))
        if setup.period == 1:
            return np.einsum("nij,nj->ni", A, y) - b
        for _ in range(setup.period):
            y = y - 0.1 * (np.einsum("nij,nj->ni", A, y) - b)
        return x_hat - y

    up, down = (
        papers.selecting(setup.layers, papers.top_k(ratios, WORD), setup.rule, WORD, setup.warm_up) for ratios in (RATIOS, setup.down)
    )
    bits = budgets(star, setup.monitor, setup.round_time, setup.congestion, "computation" in setup.options, estimates)
    rounds = papers.kimad(np.ones(D), updates, plain(GAMMA), up, down, bits, setup.weights)
    return InNumpy(list(islice(rounds, ROUNDS + 1))[:ROUNDS], star, estimates)


def carried(result: Result) -> dict[str, np.ndarray]:
    server = result.state.server
    return {
        "x": rows(server.model.params, 0),
        "x_hat": rows(server.estimate, 0),
        "sum of w u_hat": rows(server.updates, 0),
        "u_hat": rows(result.state.workers.estimate, 1),
    }


def hold(name: str, mesh: int, lengths: tuple[int, ...]) -> None:
    expected, period = in_numpy(name), SETUPS[name].period
    for length in lengths:
        result = on_cluster(name, mesh, length)
        for symbol, values in carried(result).items():
            np.testing.assert_allclose(
                values, expected.rounds[length - 1][symbol], rtol=0, atol=1e-9, err_msg=f"{symbol} of round {length}"
            )
    history = {key: values[period::period] for key, values in result.history.items()}  # of rounds that send, without the start
    for what in ("message_up", "message_down", "error_up", "error_down"):
        papers_own = np.array([one[what] for one in expected.rounds])
        np.testing.assert_allclose(history[what], papers_own, rtol=1e-5 if "error" in what else 0, atol=1e-9, err_msg=what)
    for direction, i in (("up", 0), ("down", 1)):
        estimates = np.array([one[i] for one in expected.estimates[:ROUNDS]])
        shown = np.nan_to_num(history[f"estimated_{direction}"], nan=np.inf)
        np.testing.assert_allclose(shown, estimates, rtol=1e-4, err_msg=direction)
    np.testing.assert_allclose(history["clock"], expected.star.ends[1 : ROUNDS + 1], rtol=1e-5)
    each_up = np.array([one["message_up"] for one in expected.rounds])
    each_down = np.array([one["message_down"] for one in expected.rounds])
    np.testing.assert_allclose(np.diff(result.history["bits"])[period - 1 :: period], each_up.mean(axis=1) + each_down)


DEVICES = dict(zip(SETUPS, (2, 1, 4, 1), strict=True))  # one and eight alike: `test_contract`


@pytest.mark.parametrize("name", SETUPS)
def test_every_round_is_the_papers(name):
    hold(name, DEVICES[name], (1, 2, ROUNDS))


@pytest.mark.parametrize("name", SETUPS)
def test_compressors_follow_the_bandwidth(name):
    """The comparison says something: choices change from round to round, and differ among workers and layers."""
    up, down = (np.array([one[f"choices_{direction}"] for one in in_numpy(name).rounds]) for direction in ("up", "down"))
    assert len(np.unique(up[SETUPS[name].warm_up :])) >= 3
    assert len(np.unique(down[SETUPS[name].warm_up :])) >= 2
    assert any(len(np.unique(of_round, axis=0)) > 1 for of_round in up)
    if SETUPS[name].rule is papers.allocate:
        assert any(len(set(of_worker)) > 1 for of_round in up for of_worker in of_round), "never more than one for all layers"


# --- How long rounds take.

FINE = tuple(np.arange(0.05, 1.01, 0.05).tolist())
FAST = Sinusoids(UP.factors, 6 * UP.eta, UP.theta, 6 * UP.delta)
TIMES, CONGESTIONS, PERIOD = np.array([1.5, 2.5, 4.0]), np.array([0.5, 1.0, 2.0]), 2


def swept(cluster: clusters.Cluster, steps: int, **options: Any) -> dict[str, np.ndarray]:
    """Histories `[round times, congestions, steps + 1]`, without seeds."""

    def factory(round_time, congestion):
        return kimad_sgd(optax.sgd(GAMMA), kimad.top_k(FINE), round_time, congestion=congestion, **options)

    found = sweep(factory, problem(), steps=steps, key=KEY, cluster=cluster, mesh=1, round_time=TIMES, congestion=CONGESTIONS)
    return {name: values if name == "step" else values[:, :, 0] for name, values in found.history.items()}


def longest_rounds(clock: np.ndarray) -> np.ndarray:
    """In round times, `[round times, congestions]`."""
    return np.diff(clock, axis=-1).max(axis=-1) / TIMES[:, None]


def test_with_an_oracle_no_round_takes_longer_than_its_time():
    """Though links differ, so that workers do not begin together: who begins earlier is not done later. (The method's clock is the one in
    numpy, `hold` says.)"""
    setup, (rounds, star, estimates) = SETUPS[ORACLE], in_numpy(ORACLE)
    left = (setup.round_time - np.array([*COMPUTING, COMPUTING.max()])) / (1 + setup.congestion)
    fits = []
    for one, (up, down) in zip(rounds, estimates, strict=False):
        budgets_up, budget_down = up * left[:N], setup.congestion * down.min() * left[N]
        fits.append((one["message_up"] <= budgets_up).all() and one["message_down"] <= budget_down)
    seconds = np.diff(star.ends)[:ROUNDS][fits]
    assert len(seconds) > ROUNDS / 2
    assert (seconds <= setup.round_time * (1 + 1e-9)).all()
    assert seconds.max() > 0.9 * setup.round_time, "and that time is used"


def test_with_an_oracle_no_uplink_takes_longer_than_its_share():
    """Where workers begin together, and take several steps: their links to the server are equal on the way back."""
    back = Sinusoids((1.0,) * N, DOWN.eta, DOWN.theta, DOWN.delta)
    cluster = clusters.Cluster(clusters.constant(COMPUTING / PERIOD), FAST.quantity, back.quantity)
    update = kimad.local_steps(optax.sgd(0.1), PERIOD)
    history = swept(cluster, 20 * PERIOD, monitor=kimad.oracle, computation=COMPUTING, update=update)
    clock, sent = history["clock"][..., ::PERIOD], history["message_up"][:, :, PERIOD::PERIOD]
    assert not history["missing"][..., 1:].any()
    assert (longest_rounds(clock) <= 1 + 1e-5).all()
    shares = np.zeros((*sent.shape[:2], 0))
    for i, j, k, n in np.ndindex(sent.shape):
        took = FAST.seconds(n, clock[i, j, k] + COMPUTING[n], sent[i, j, k, n])
        shares = np.append(shares, took * (1 + CONGESTIONS[j]) / (TIMES[i] - COMPUTING[n]))
    assert shares.max() <= 1 + 1e-4
    assert shares.max() > 0.99


def test_estimates_are_wrong_by_what_changes_meanwhile():
    r"""$|d \ln B / dt| \le \theta \eta / \delta$, and from the beginning of a message to the end of the next it is two rounds at most."""
    change, slowest = 0.04, 900.0
    slow = Sinusoids(UP.factors, slowest, change, slowest)
    cluster = clusters.Cluster(clusters.constant(COMPUTING), slow.quantity, slow.quantity)
    longest = longest_rounds(swept(cluster, 40, monitor=kimad.last, computation=COMPUTING)["clock"][..., 2:])  # before, estimates are none
    assert (longest <= np.exp(2 * change * longest * TIMES[:, None])).all()
    assert (longest > 1).any(), "some are wrong"


# --- What messages are.


def test_bits_are_those_of_real_messages():
    """Of `compressors.top_k`, in arrays, and of which compressor each layer has; and what exceeds the budget is recorded."""

    def fixed(which):
        return lambda errors, sizes, budget: jnp.full(len(sizes), which, jnp.int32)

    def factory(which):
        return kimad_sgd(optax.sgd(GAMMA), kimad.top_k(RATIOS[:3]), 2.0, computation=1.0, rule=fixed(which), monitor=kimad.oracle)

    cluster = clusters.Cluster(clusters.constant(1.0), clusters.constant(10.0))
    found = sweep(factory, problem(), steps=3, key=KEY, cluster=cluster, mesh=1, which=np.arange(3)).history
    for which, ratio in enumerate(RATIOS[:3]):
        messages = [compressors.encode(compressors.top_k(ratio), KEY, jnp.ones(d, jnp.float32)).message for d in LAYERS]
        header = codecs.pack(jnp.full(len(LAYERS), which, jnp.uint32), 2)
        bits = 8 * sum(leaf.nbytes for leaf in jax.tree.leaves((messages, header)))
        np.testing.assert_array_equal(found["message_up"][which, 0, 1:], bits)
        np.testing.assert_array_equal(np.diff(found["bits"][which, 0]), 2 * bits)
        np.testing.assert_array_equal(found["missing"][which, 0, 1:], bits - 5)  # half of a second's ten


def small(too_small: Literal["wait", "error"], round_time: float = 2.0, congestion: float = 1.0) -> Result:
    options: dict[str, Any] = {"computation": 1.0, "congestion": congestion, "too_small": too_small}
    method = kimad_sgd(optax.sgd(GAMMA), kimad.top_k(RATIOS), round_time, **options)
    return run(method, problem(), steps=4, key=KEY, cluster=clusters.Cluster(clusters.constant(1.0), clusters.constant(100.5)), mesh=1)


def test_a_budget_that_is_too_small():
    """It has half a second, 50 bits; the smallest message has 32 of an element, and its place in a byte or two: once, and of 15 twice."""
    needed = (32 + 16) + 2 * 32 + 8 + 8
    history = small("wait").history
    np.testing.assert_array_equal(history["message_up"][2:], needed)
    np.testing.assert_array_equal(history["missing"][1:], [0, *[needed - 50] * 3])  # of the first, nobody knows
    np.testing.assert_allclose(np.diff(history["clock"])[1:], 1 + 2 * needed / 100.5, rtol=1e-5)
    with pytest.raises(ValueError, match=f"a message has {needed - 50} bits more than round_time leaves for it; pass more time"):
        small("error")


def test_a_downlink_whose_time_is_neglected_limits_no_message():
    """It is the largest of the set, and no round ends for it; all of the rest is the uplink's: four seconds of 100.5 bits,
    where half of them have room for the smallest only."""
    history = small("error", round_time=5.0, congestion=0.0).history
    np.testing.assert_array_equal(history["message_down"][1:], 32 * D + 8)
    np.testing.assert_array_equal(history["error_down"][1:], 0)
    np.testing.assert_array_equal(history["missing"][1:], 0)
    second = sum(papers.top_k(RATIOS, 32).sizes(d)[1] for d in LAYERS)
    assert second + 8 > 2 * 100.5
    np.testing.assert_array_equal(history["message_up"][2:], second + 8)
