"""The decisions of each system from constructed observations, compared with computations by hand; a
total batch in integer parts.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import cannikin
from algorithms.cannikin import policies, scalings

MODEL = cannikin.ClusterModel(
    [0.01, 0.02, 0.05],
    [0.1, 0.2, 0.3],
    [0.02, 0.05, 0.08],
    [0.05, 0.2, 0.1],
    0.25,
    0.6,
    0.2,
    [40, 40, 40],
)
NOISE = cannikin.NoiseScale(1500.0, 3.0)  # noise scale of 500 samples
EVERY = [
    cannikin.cannikin([30, 60], 30),
    cannikin.adaptdl([30, 60], 30),
    cannikin.lb_bsp(30),
    cannikin.equal_split(30),
]


def observation(
    b: np.ndarray, model: cannikin.ClusterModel = MODEL, noise: cannikin.NoiseScale = NOISE
) -> policies.Observation:
    """Returns observations of two rounds without errors; a node without samples measures
    nothing.
    """
    P = np.where(b > 0, np.asarray(model.k) * b + model.m, np.nan)
    a = np.asarray(model.q) * b + model.s
    T_comm = np.full(len(b), model.t_overlap + model.t_last)
    return policies.Observation(
        b, *(np.tile(each, (2, 1)) for each in (a + P, P, model.gamma * P, T_comm)), noise
    )


def epochs(
    system: cannikin.System, number: int, model: cannikin.ClusterModel = MODEL
) -> tuple[list[np.ndarray], Any]:
    """Returns the decisions of a system on a cluster without noise, epoch by epoch, and its
    state.
    """
    limits = np.full(model.nodes, 100) if model.limits is None else np.array(model.limits, int)
    share = model.t_last / (model.t_overlap + model.t_last)
    memory, found = system.start(policies.Cluster(model.nodes, share, limits)), []
    for _ in range(number):
        batches, memory = system.decide(memory)
        memory = system.observe(memory, observation(batches, model))
        found.append(batches)
    return found, memory


# --- LB-BSP.


def decide_after(batches: list[int], limits: list[int], *seconds: Any) -> list[list[int]]:
    """Returns the decisions of LB-BSP after each of some epochs, in which nodes took these seconds,
    `[n]` or `[rounds, n]`.
    """
    system, b, found = cannikin.lb_bsp(sum(batches)), np.array(batches), []
    memory = policies._Tuned(policies.Cluster(len(b), 0.1, np.array(limits)), b, b, np.inf, True)
    for each in seconds:
        times = np.atleast_2d(np.array(each, float))
        seen = policies.Observation(b, times, *[np.zeros(times.shape)] * 3, NOISE)
        memory = system.observe(memory, seen)
        found.append(system.decide(memory)[0].tolist())
    return found


@pytest.mark.parametrize(
    ("batches", "limits", "seconds", "expected"),
    [
        ([20, 20, 20], [40, 40, 40], [1.0, 2.0, 3.0], [25, 20, 15]),
        # the fastest node is at its limit, so the next one gets the samples
        ([20, 20, 20], [20, 40, 40], [1.0, 2.0, 3.0], [20, 25, 15]),
        ([20, 20, 20], [22, 40, 40], [1.0, 2.0, 3.0], [22, 20, 18]),  # its limit leaves two samples
        # only the slowest node is below its limit
        ([20, 20, 20], [20, 20, 40], [1.0, 2.0, 3.0], [20, 20, 20]),
        ([20, 20, 20], [20, 20, 20], [1.0, 2.0, 3.0], [20, 20, 20]),
        # the slowest node has three samples
        ([57, 0, 3], [90, 90, 90], [1.0, 0.0, 3.0], [57, 3, 0]),
        ([20, 20, 20], [40, 40, 40], [2.0, 2.0, 2.0], [20, 20, 20]),
        # means over rounds with measurements: 2, 2.5 and, for a node without measurements, 0
        # seconds
        ([10] * 3, [40] * 3, [[3, 1, np.nan], [1, np.nan, np.nan], [2, 4, np.nan]], [10, 5, 15]),
    ],
)
def test_lb_bsp_moves_samples_from_the_slowest_to_the_fastest_below_its_limit(
    batches, limits, seconds, expected
):
    assert decide_after(batches, limits, seconds) == [expected]


def test_lb_bsp_takes_the_last_change_back_only_if_the_slowest_became_slower():
    """The batches are constant afterwards."""
    found = decide_after([20, 20], [40, 40], [1.0, 2.5], [1.0, 2.5], [1.0, 2.6], [9.0, 1.0])
    assert found == [[25, 15], [30, 10], [25, 15], [25, 15]]


# --- Goodput.


@pytest.mark.parametrize(
    ("noise", "sqnorm", "samples"),
    [(0.125, 2.0, 0.0625), (-1.0, 2.0, 0.0), (1.0, 0.0, np.inf), (-1.0, -1.0, np.inf)],
)
def test_the_noise_scale_in_samples(noise, sqnorm, samples):
    """Negative estimates of the noise are replaced by 0; if the gradient's estimate is not
    positive, the scale is infinite.
    """
    assert cannikin.NoiseScale(noise, sqnorm).samples == samples


TOTALS = np.array([30, 60, 75, 90, 120])


@pytest.mark.parametrize(
    ("make", "seconds", "parts", "second", "best"),
    [
        (
            cannikin.cannikin,
            lambda B: MODEL.optperf(B).seconds,
            lambda B: MODEL.optperf_integer(B).batches,
            30,
            60,
        ),
        (
            cannikin.adaptdl,
            lambda B: MODEL.batch_time(np.full(3, B / 3)),
            lambda B: np.full(3, B // 3),
            60,
            90,
        ),
    ],
    ids=["Cannikin", "AdaptDL"],
)
def test_the_total_batch_is_that_of_the_largest_goodput(make, seconds, parts, second, best):
    """With OptPerf, or with equal parts. If the gradient is not visible in the noise, goodput is
    throughput; without noise, the first batch suffices.
    """
    system, times = make(TOTALS, 30), np.array([seconds(B) for B in TOTALS])
    found, memory = epochs(system, 5)
    assert [batches.sum() for batches in found] == [30, second, best, best, best]
    np.testing.assert_array_equal(found[0], [10, 10, 10])
    assert (found[1] != found[0]).all()
    np.testing.assert_array_equal(found[-1], parts(best))
    goodput = TOTALS / times * (500 + 30) / (500 + TOTALS)
    assert TOTALS[goodput.argmax()] == best
    for noise, total in (
        (cannikin.NoiseScale(1.0, -1.0), TOTALS[np.argmax(TOTALS / times)]),
        (cannikin.NoiseScale(-1.0, 1.0), 30),
    ):
        known = system.observe(memory, observation(found[-1], noise=noise))
        assert system.decide(known)[0].sum() == total


@pytest.mark.parametrize("system", EVERY[:2], ids=lambda system: system.name)
def test_nodes_that_join_are_learned_in_two_epochs_and_those_that_stay_are_known(system):
    q, s, k, m = (np.append(each, each[1]) for each in (MODEL.q, MODEL.s, MODEL.k, MODEL.m))
    more = cannikin.ClusterModel(q, s, k, m, 0.25, 0.6, 0.2)
    memory = system.resize(epochs(system, 3)[1], np.arange(3), 1, np.full(4, 40))
    for total in (30, None):  # the first total batch, as at the start
        assert memory.learner.model() is None
        batches, memory = system.decide(memory)
        assert batches.sum() == (total or batches.sum())
        memory = system.observe(memory, observation(batches, more))
    np.testing.assert_allclose(memory.learner.model().q, more.q, rtol=1e-6)
    memory = system.resize(memory, np.array([0, 2]), 0, np.array([40, 40]))
    batches, memory = system.decide(memory)
    np.testing.assert_allclose(memory.learner.model().k, [0.02, 0.08], rtol=1e-6)
    assert (len(batches), memory.candidates.patterns.shape) == (2, (2, 2))


def test_candidates_that_memory_does_not_allow_are_left_out():
    start = policies.Cluster(3, 0.25, np.array([40, 20, 10]))
    assert cannikin.cannikin([30, 60, 71]).start(start).candidates.totals.tolist() == [30, 60]
    assert cannikin.adaptdl([30, 31, 60], 30).start(start).candidates.totals.tolist() == [30]
    with pytest.raises(ValueError, match=r"AdaptDL: total batches of 31 .* memory for 30"):
        cannikin.adaptdl([31, 60], 30).start(start)


# --- Step sizes.


def test_step_sizes_grow_with_the_progress_of_a_step():
    """tr Sigma = 1500, |G|^2 = 3; the limits with only noise, and without noise."""
    assert cannikin.adascale(NOISE, 40, 10) == pytest.approx((150 + 3) / (37.5 + 3))
    assert cannikin.adascale(NOISE, 10, 10) == 1
    for noise, sqnorm, factor in (
        (600.0, -3.0, 4),
        (-600.0, 3.0, 1),
        (-1.0, -1.0, 1),
        (0.0, 0.0, 1),
    ):
        assert cannikin.adascale(cannikin.NoiseScale(noise, sqnorm), 40, 10) == factor
    assert (cannikin.square_root(NOISE, 40, 10), cannikin.constant(NOISE, 40, 10)) == (2, 1)


def test_steps_of_adam_are_scaled_not_its_gradients():
    scaled, adam, gradient = (
        cannikin.scalable(optax.adam(0.1)),
        optax.adam(0.1),
        jnp.array([3.0, -0.5]),
    )
    state = scalings.rescale("mine", scaled.init(gradient), cannikin.square_root(NOISE, 40, 10))
    np.testing.assert_allclose(
        scaled.update(gradient, state)[0],
        2 * adam.update(gradient, adam.init(gradient))[0],
        rtol=1e-6,
    )


# --- Nodes with few samples, for which rounding may give the same sizes again.

FOUR = {"q": np.arange(1.0, 5.0), "gamma": 0.2, "t_overlap": 5.0, "t_last": 1.0}
ONES = {"s": np.ones(4), "k": 2 * np.arange(1.0, 5.0), "m": np.ones(4)}
SIXTEEN = cannikin.ClusterModel(
    np.linspace(1, 4, 16), np.full(16, 0.5), np.linspace(2, 8, 16), np.ones(16), 0.1, 20.0, 2.0
)


def limited_model(limits: list[int]) -> cannikin.ClusterModel:
    """A node with memory for one sample is assumed to compute in proportion to its samples, as it
    does here; a node without memory is never measured, and learning does not wait for it.
    """
    s, m = np.array([[0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 2.0, 1.0]]) * np.sign(limits)
    return cannikin.ClusterModel(**FOUR, s=s, k=[2.0, 4.0, 1.0, 8.0], m=m, limits=limits)


@pytest.mark.parametrize(
    ("model", "totals", "decided"),
    [
        *((SIXTEEN, [total], [total] * 6) for total in (32, 33, 47, 48, 71)),
        # too few samples for two sizes of each node: the next larger total batch that suffices
        (cannikin.ClusterModel(**FOUR, **ONES), [2, 40, 80], [2, 40, 40]),
        (cannikin.ClusterModel(**FOUR, **ONES), [4, 40, 80], [4, 40]),
        (cannikin.ClusterModel(**FOUR, **ONES), [5, 40, 80], [5, 40]),
        (limited_model([1, 50, 50, 50]), [40], [40] * 4),
        (limited_model([1, 50, 0, 50]), [40], [40] * 4),
    ],
)
def test_few_samples_are_enough_to_learn_all_nodes(model, totals, decided):
    """For BERT, the paper starts with 9 samples on 16 nodes."""
    found = epochs(cannikin.cannikin(totals), max(5, len(decided)), model)[0]
    assert [batches.sum() for batches in found[: len(decided)]] == decided
    for batches in found[-2:]:
        best = model.optperf_integer(int(batches.sum())).seconds
        assert model.batch_time(batches) == pytest.approx(best)


# --- Invalid arguments, and parts in integer samples.


def test_equal_parts_that_memory_does_not_allow_are_refused():
    with pytest.raises(ValueError, match="has memory for 2"):
        policies.equal_parts(11, np.array([3, 3, 2, 3]))
    np.testing.assert_array_equal(policies.equal_parts(11, np.array([3, 3, 3, 2])), [3, 3, 3, 2])


@pytest.mark.parametrize(
    ("real", "limits", "expected"),
    [
        ([1.5, 2.5, 3.0], [9, 9, 9], [2, 2, 3]),  # the first of equal remainders
        ([1.2, 2.7, 3.1], [9, 2, 9], [2, 2, 3]),
        # more than one sample each, if others are at their limits
        ([0.0, 0.0, 6.0], [9, 1, 3], [2, 1, 3]),
    ],
)
def test_remaining_samples_go_to_the_largest_remainders_within_the_limits(real, limits, expected):
    found = policies.whole(np.array(real), sum(expected), np.array(limits))
    np.testing.assert_array_equal(found, expected)


NEW = np.nan  # a node that was not measured, or was measured at two sizes


@pytest.mark.parametrize(
    ("batches", "seen_at", "limits", "expected"),
    [
        ([4, 4], [4.0, 4.0], [4, 9], [3, 5]),  # the first node is at its limit
        ([4, 4], [4.0, 4.0], [4, 4], [4, 4]),
        ([4, 1], [4.0, 1.0], [9, 9], [3, 2]),  # no node gives up its last sample
        ([4, 2], [4.0, 2.0], [9, 9], [5, 1]),
        ([1, 1], [1.0, 1.0], [9, 9], [1, 1]),
        ([4, 5, 6, 7], [4.0, 5.0, 6.0, 7.0], [9] * 4, [5, 4, 7, 6]),
        # a single such node: the largest other node gives a sample
        ([4, 6, 5], [4.0, NEW, NEW], [9] * 3, [5, 5, 5]),
        # not a node that would get its only measured size
        ([4, 6, 5], [4.0, 5.0, NEW], [9] * 3, [5, 6, 4]),
        # nor a node that would be left with one sample
        ([4, 3, 2], [4.0, 2.0, NEW], [9] * 3, [4, 3, 2]),
        ([4, 6], [4.0, NEW], [4, 9], [4, 6]),  # the other node is at its limit
        # a node that has swapped may give a sample once more
        ([4, 5, 6], [4.0, 5.0, 6.0], [20] * 3, [5, 3, 7]),
    ],
)
def test_nodes_at_their_only_size_swap_a_sample(batches, seen_at, limits, expected):
    given = np.array(batches)
    np.testing.assert_array_equal(
        policies.perturb(given, np.array(seen_at), np.array(limits)), expected
    )
    np.testing.assert_array_equal(given, batches)
