"""Scores, places and survivors of successive halving."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import algorithms
from dsgd import Candidate
from dsgd.clusters import Cluster, constant
from dsgd.planning import changes, goals, halving, networks, planner, training
from dsgd.planning.estimates import (
    estimate,
    group,
    positive_estimate,
    restart_estimate,
    with_restarts,
)
from dsgd.planning.goals import Goal, Scores

RNG = np.random.default_rng(0)
POINTS, SEEDS, RECORDS, NETWORKS = 3, 2, 6, 4


def draw() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws values `[points, seeds, records]`, costs on each network, and horizons."""
    values = RNG.uniform(size=(POINTS, SEEDS, RECORDS))
    steps = RNG.uniform(0.1, 1.0, size=(NETWORKS, POINTS, SEEDS, RECORDS))
    costs = np.cumsum(steps, axis=-1)
    costs -= costs[..., :1]
    return values, costs, RNG.uniform(0.5, 3.0, NETWORKS)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_run_counts_until_the_target_or_the_horizon(sign):
    """The oracle reads the records one by one."""
    for _ in range(20):
        values, costs, horizon = draw()
        for target in (None, sign * 0.2):
            goal = Goal("loss", sign, target, None if target is not None else 1.0)
            found = goals.score(goal, values, costs, horizon)
            for at in np.ndindex(NETWORKS, POINTS, SEEDS):
                cost, value = np.inf, None
                for record in range(RECORDS):
                    if costs[at][record] > horizon[at[0]]:
                        break
                    value = values[at[1:]][record]
                    if target is not None and value <= sign * target:
                        cost = costs[at][record]
                        break
                assert found.cost[at] == cost
                assert found.value[at] == value
                assert found.last[at] == values[at[1:]][-1]


def test_the_cost_to_the_target_decides_and_then_the_value():
    cost = np.array([[[2.0], [np.inf]], [[1.0], [np.inf]]])
    value = np.array([[[0.1], [0.5]], [[0.1], [0.5]]])
    other = scores(np.full((2, 1, 1), np.inf), np.full((2, 1, 1), 0.3))
    first, second = halving.ranks([scores(cost, value), other])
    np.testing.assert_array_equal(first, [[0, 2], [0, 2]])
    np.testing.assert_array_equal(second, [[1], [1]])


def scores(cost: np.ndarray, value: np.ndarray) -> Scores:
    return Scores(cost, np.zeros(cost.shape, int), value, value, np.full(cost.shape, 7.0))


def rung(count: int, networks: int, points: int) -> halving.Rung:
    """Returns a rung of candidates with random losses on each network."""
    trained = [
        training.Trained(
            training.Contender(
                Candidate(f"{i}", algorithms.minibatch_sgd),
                tuple({"learning_rate": float(rate)} for rate in range(points)),
                (1,) * points,
            ),
            {},
            None,  # pyright: ignore[reportArgumentType] (no runs)
            4,
        )
        for i in range(count)
    ]
    shape = (networks, points, 1)
    found = [scores(np.full(shape, np.inf), RNG.uniform(size=shape)) for _ in range(count)]
    return halving.Rung(trained, found)


def test_the_best_on_each_network_survive():
    """The best candidates of each network survive, more on the plan's cluster, which has the
    numbers 0 and 3, with their best points on each network. The others leave.
    """
    each = rung(count=24, networks=6, points=8)
    goal = Goal("accuracy", -1, seconds=1.0)
    alive, left = halving._survivors(each, goal, share=0.25, finalists=4)  # a quarter of 24 is more
    left = [one for _, one in left]
    by_name = {contender.candidate.name: contender for contender in alive}
    best = np.stack([found.value[..., 0].min(axis=1) for found in each.scores], axis=1)
    expected = {int(i) for row in (0, 3) for i in np.argsort(best[row])[:6]}
    for network in range(6):
        expected |= set(np.argsort(best[network])[: halving.ELSEWHERE])
    assert {int(name) for name in by_name} == expected
    assert {int(one.method) for one in left} == set(range(24)) - expected
    for one in left:  # accuracies, of which the score is the negative
        assert one.value == -best[0, int(one.method)]
    for name, contender in by_name.items():
        value = each.scores[int(name)].value[..., 0]
        kept = {int(i) for row in np.argsort(value, axis=1)[:, :2] for i in row}
        assert {int(point["learning_rate"]) for point in contender.points} == kept


def test_rounds_of_the_rungs():
    assert planner.lengths(1000) == [15, 62, 250, 1000]
    assert planner.lengths(8) == [8]


def test_intervals_are_those_of_student():
    """Of 0, 1, 2 the mean is 1, and t with 2 degrees of freedom is 4.3027 at 97.5 %."""
    small = np.array([0.1, 0.2, 0.3])
    value, low, high = estimate(np.array([0.0, 1.0, 2.0]), small)
    half = 4.302653 / np.sqrt(3)
    np.testing.assert_allclose([value, low, high], [1, 1 - half, 1 + half], 1e-6)
    # of 1, 2, 6 the mean is 3, and the deviation the root of 7
    positive = positive_estimate(np.array([1.0, 2.0, 6.0]), small)
    factor = np.exp(half * np.sqrt(7) / 3)
    np.testing.assert_allclose(positive, [3, 3 / factor, 3 * factor], 1e-6)
    assert estimate(np.array([3.0]), small[:1]) == (3.0, 3.0, 3.0)
    assert positive_estimate(np.array([3.0, np.inf]), small[:2]).value == np.inf
    # nothing is below 0 seconds
    value, low, high = positive_estimate(np.array([0.0, 2.0]), small[:2])
    np.testing.assert_allclose([value, low, high], [1, 0, 1 + 12.7062047 / 1], 1e-6)


def test_the_expected_cost_with_restarts():
    """It is the mean cost of sequences of runs that end with one that reaches the target; and its
    standard error and its interval are right for runs of which a fifth fails.
    """
    count, seeds, fail = 4000, 40, 0.2
    spent = RNG.uniform(2.0, 6.0, (count, seeds))
    reached = RNG.uniform(size=spent.shape) >= fail
    spent = np.where(reached, spent, 9.0)
    cost = np.where(reached, spent, np.inf)
    true = 4.0 + 9.0 * fail / (1 - fail)
    found = with_restarts(cost, spent)
    np.testing.assert_allclose(found.mean(axis=1), spent.sum(axis=1) / reached.sum(axis=1))
    error = found.std(axis=1, ddof=1).mean() / np.sqrt(seeds)
    np.testing.assert_allclose(error, found.mean(axis=1).std(), rtol=0.05)
    each = [restart_estimate(*pair, np.full(seeds, 0.1)) for pair in zip(cost, spent, strict=True)]
    covered = np.mean([one.low <= true <= one.high for one in each[:1000]])
    assert 0.93 < covered < 0.99
    # all arrive, and none does
    one = spent[0]
    np.testing.assert_array_equal(with_restarts(one, one), one)
    assert restart_estimate(one, one, 0 * one) == positive_estimate(one, 0 * one)
    never = np.full(seeds, np.inf)
    assert np.isinf(with_restarts(never, one)).all()
    assert np.isinf(restart_estimate(never, one, 0 * one)).all()


def test_groups_are_those_that_do_not_differ_from_their_first_row():
    """Rows 2 and 4 do not differ from row 0, nor row 3 from row 1."""
    alike = {(0, 2), (0, 4), (1, 2), (1, 3)}
    assert group(5, lambda i, j: (i, j) not in alike) == [[0, 2, 4], [1, 3]]


def test_a_method_replaces_the_current_one_beyond_two_standard_errors():
    """Along the path the second method replaces the first; the third is better than the first, but
    not than the second by more than two standard errors of both; the fourth never counts.
    """
    mean = np.array([[1, 2, 3, 4, 5], [2, 1.9, 2.5, 2, 2], [3, 3, 3, 2.2, 1.75], 5 * [np.inf]])
    error = np.full_like(mean, 0.1)
    path = np.array([1, 2, 3, 4])
    assert changes._replacements(mean, error, path) == [(2, 1)]
    assert changes._replacements(mean, 0.8 * error, path) == [(2, 1), (4, 2)]
    assert changes._replacements(mean, 20 * error, path) == []
    error[:] = 0.05
    error[1] = 0.5  # that of the method which is replaced counts
    assert changes._replacements(mean, error, path) == [(3, 1)]


def made_up(seconds: float, period: int = 1) -> training.Trained:
    """Returns runs of 12 rounds that take this long, with the losses 12, 11, ..., 0."""
    record = np.arange(13)
    candidate = Candidate("one", algorithms.asynchronous_sgd)
    history = {"step": record, "clock": seconds * record / 12, "loss": 12.0 - record}
    history |= {name: history[name][None, None] for name in ("clock", "loss")}
    sweep: Any = SimpleNamespace(history=history)
    contender = training.Contender(candidate, ({"learning_rate": 0.1},), (period,), 1, True)
    return training.Trained(contender, history, sweep, 1)


def test_candidates_are_compared_when_the_first_and_when_half_of_them_have_finished():
    """Of five candidates whose runs take 2, 4, 6, 8 and 100 s: the loss of each after 6 s and after
    2 s.
    """
    trained = [made_up(seconds) for seconds in (6.0, 100.0, 2.0, 8.0, 4.0)]
    goal = Goal("loss", 1, target=-1.0)
    around = networks.vary(Cluster(constant(0.3)), 0)
    costs = [goal.costs(each, around) for each in trained]
    rung = halving.score_runs(trained, costs, around, goal, 0.25)
    value = np.array([each.value[:, 0, 0] for each in rung.scores]).T
    np.testing.assert_array_equal(value, [[0, 12, 0, 3, 0], [8, 12, 0, 9, 6]])
    # a quarter of a budget of 12 s, and when the first has finished
    rung = halving.score_runs(
        trained, costs, around, goal._replace(target=None, seconds=12.0), 0.25
    )
    value = np.array([each.value[:, 0, 0] for each in rung.scores]).T
    np.testing.assert_array_equal(value, [[6, 12, 0, 8, 3], [8, 12, 0, 9, 6]])


def test_a_model_without_an_exchange_after_it_does_not_count():
    """Of 12 rounds with exchanges every 5 rounds, the records 11 and 12 have none."""
    trained = made_up(24.0, period=5)
    found = trained.take_ends(trained.history["clock"])[0, 0]
    expected = [0, *5 * [10], *5 * [20], np.inf, np.inf]
    np.testing.assert_array_equal(found, expected)
    late = goals.score(Goal("loss", 1, 1.0), trained.history["loss"], found[None, None, None], ONE)
    early = goals.score(Goal("loss", 1, 2.0), trained.history["loss"], found[None, None, None], ONE)
    assert (late.cost.item(), early.cost.item()) == (np.inf, 20)
    assert late.value.item() == 2.0
    both = np.stack([found, np.full(13, np.inf)])
    np.testing.assert_array_equal(halving._last_exchange(both), [20, np.inf])


ONE = np.full(1, np.inf)
