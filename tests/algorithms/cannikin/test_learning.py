"""The learned cluster model, compared with the cluster that was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls

from algorithms import cannikin
from algorithms.cannikin import ClusterModel, Learner


def cluster(n: int, seed: int = 0, **more: Any) -> ClusterModel:
    """Returns a cluster of n nodes, a tenth of whose messages is the last bucket."""
    q, s, k, m = np.random.default_rng(seed).uniform(0.1, 1.0, (4, n))
    return ClusterModel(q, s, k, m, **{"gamma": 0.2, "t_overlap": 2.7, "t_last": 0.3, **more})


def epoch(of: ClusterModel, batches: np.ndarray, rounds: int = 3) -> dict[str, Any]:
    """Returns the measurements of its nodes in an epoch."""
    a, P, T = (
        of.q * batches + of.s,
        of.k * batches + of.m,
        np.full(of.nodes, of.t_overlap + of.t_last),
    )
    a, P, first, T = (np.tile(each, (rounds, 1)) for each in (a, P, of.gamma * P, T))
    return {"batches": batches, "compute": a + P, "backward": P, "first": first, "communication": T}


def learned_model(learner: Learner, weighting: Any = "inverse-variance") -> ClusterModel:
    model = learner.model(weighting)
    assert model is not None
    return model


def alike(found: ClusterModel, true: ClusterModel, tolerance: float = 1e-9) -> None:
    for name in ("q", "s", "k", "m", "gamma", "t_overlap", "t_last"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(true, name), rtol=tolerance, atol=tolerance, err_msg=name
        )


def test_without_noise_two_epochs_determine_the_model():
    true, unequal = cluster(5), np.array([1.0, 90.0, 2.0, 3.0, 4.0])
    learner = cannikin.learner(5, 0.1)
    assert learner.next_batches(100).tolist() == [20.0] * 5
    one = learner.observe(**epoch(true, unequal))
    speeds = 1 / (true.q + true.k + (np.asarray(true.s) + true.m) / unequal)
    np.testing.assert_allclose(one.next_batches(100), 100 * speeds / speeds.sum(), rtol=1e-12)
    two = one.observe(**epoch(true, one.next_batches(100)))
    alike(learned_model(two), true)
    np.testing.assert_allclose(two.next_batches(100), true.optperf(100).batches, rtol=1e-9)
    assert (learner.model(), one.model()) == (None, None)


def test_a_model_is_the_best_fit_of_all_measurements():
    """Measurements that are NaN are ignored for each node. Coefficients are nonnegative least
    squares by scipy, or proportional to samples if times do not increase; gamma is weighted by
    inverse variances of means (equation 12 uses those of single measurements); T_comm is the
    smallest mean, not the smallest time.
    """
    n, rounds, draw = 100, 4, np.random.default_rng(1)
    true = ClusterModel(
        *(draw.uniform(0.1, 1, (4, n)) * (draw.random((4, n)) < 0.6) + [[1e-3], [0], [1e-3], [0]]),
        0.3,
        1.0,
        0.5,
    )
    learner, epochs = cannikin.learner(n, 1 / 3), []
    for _ in range(3):
        measured = epoch(true, draw.uniform(1, 5, n), rounds)
        noise = {"compute": 1.0, "backward": 1.0, "first": 0.1, "communication": 0.1}
        for name, values in measured.items():
            if name != "batches":
                noisy = np.maximum(
                    values + noise[name] * draw.normal(size=(rounds, n)),
                    1e-3 if name == "compute" else 0,
                )
                measured[name] = np.where(draw.random((rounds, n)) < 0.2, np.nan, noisy)
        learner = learner.observe(**measured)
        epochs.append({**measured, "batches": np.tile(measured["batches"], (rounds, 1))})
    b, total, P, first, T = (np.concatenate([one[name] for one in epochs]) for name in epochs[0])
    found, flat = learned_model(learner), 0
    for i in range(n):
        there = ~np.isnan(total[:, i]) & ~np.isnan(P[:, i])
        size, both = b[there, i], (total[there, i] - P[there, i], P[there, i])
        best = np.concatenate(
            [nnls(np.stack([size, np.ones(len(size))], axis=1), times)[0] for times in both]
        )
        if best[0] + best[2] == 0:
            flat += 1
            best = np.array(
                [
                    max(size @ times, 0) / (size @ size) * (1 - place)
                    for times in both
                    for place in (0, 1)
                ]
            )
        np.testing.assert_allclose(
            [found.q[i], found.s[i], found.k[i], found.m[i]], best, rtol=1e-8, atol=1e-10
        )
    assert flat
    gammas = np.divide(first, P, out=np.full(P.shape, np.nan), where=P > 0)
    counts = (~np.isnan(gammas)).sum(axis=0)
    often = gammas[:, counts > 1]
    variances = np.nanvar(often, axis=0, ddof=1) / counts[counts > 1]
    assert found.gamma == pytest.approx(
        np.average(np.nanmean(often, axis=0), weights=1 / variances)
    )
    assert learned_model(learner, "plain").gamma == pytest.approx(
        np.nanmean(gammas[:, counts > 0], axis=0).mean()
    )
    assert (found.t_overlap, found.t_last) == pytest.approx(
        np.nanmean(T, axis=0).min() * np.array([2 / 3, 1 / 3])
    )


@pytest.mark.parametrize(
    ("sizes", "speeds", "total", "limits", "factors"),
    [
        ([8, 8], [8, 8], 16, None, [0.5, 1.5]),
        ([8, 8, 8], [8, 8, 8], 24, None, [0.5, 1.5, 1.5]),
        ([8] * 6, [8] * 6, 48, None, [0.5, 1.5, 1.5, 0.5, 0.5, 1.5]),
        # in the order of size, largest first
        ([8, 16, 12], [8, 16, 12], 36, None, [1.5, 0.5, 1.5]),
        ([16, 8, 12], [16, 8, 12], 36, None, [0.5, 1.5, 1.5]),
        # a node without memory for more gets fewer samples, and the others start with more
        ([8, 8, 8], [8, 8, 8], 24, [8.9, 99, 99], [0.5, 1.5, 0.5]),
        ([8, 8, 8], [8, 8, 8], 24, [9.1, 99, 99], [0.5, 1.5, 1.5]),
        # only nodes that would compute the same size again
        ([10] * 4, [1, 2, 0.5, 1.5], 40, None, [1, 1, 1, 1]),
        ([10] * 4, [1, 2, 0.5, 1.5], 50, None, [0.5, 1, 1, 1]),
        # sizes count as equal if they differ by up to an eighth, or one sample
        ([16, 16], [17.99, 14.01], 32, None, [0.5, 1.5]),
        ([16, 16], [18.01, 13.99], 32, None, [1, 1]),
        ([4, 4], [4.99, 3.01], 8, None, [0.5, 1.5]),
        ([4, 4], [5.01, 2.99], 8, None, [1, 1]),
    ],
)
def test_sizes_that_would_be_repeated_are_alternately_halved_and_increased(
    sizes, speeds, total, limits, factors
):
    """After one epoch in which nodes had these sizes and computed the given samples per second."""
    seconds = np.ones((2, 1)) * sizes / speeds
    learner = cannikin.learner(len(sizes), 0.1, limits).observe(
        np.array(sizes, float), seconds, seconds / 2, seconds / 4, seconds
    )
    expected = np.multiply(speeds, factors)
    np.testing.assert_allclose(learner.next_batches(total), expected * total / expected.sum())


def test_limits_are_respected_before_and_after_there_is_a_model():
    limits = np.array([5.0, 12.0, 9.0])
    true = cluster(3, limits=limits)
    learner = cannikin.learner(3, 0.1, limits)
    assert learner.next_batches(20) == pytest.approx([5, 7.5, 7.5])
    for _ in range(2):
        batches = learner.next_batches(20)
        assert (batches <= limits).all()
        assert batches.sum() == pytest.approx(20)
        learner = learner.observe(**epoch(true, batches))
    alike(learned_model(learner), true)
    assert learner.next_batches(20) == pytest.approx(true.optperf(20).batches)
    with pytest.raises(
        ValueError, match="a total batch of 27 samples, but the limits add up to 26"
    ):
        cannikin.learner(3, 0.1, limits).next_batches(27)


def test_nodes_that_stay_keep_their_model_and_nodes_that_join_take_two_epochs():
    """Communication is measured again when nodes change; until then the old measurement is used."""
    old, new = cluster(4), cluster(5, seed=1)
    learner = cannikin.learner(4, 0.1)
    for _ in range(2):
        learner = learner.observe(**epoch(old, learner.next_batches(80)))
    left = learner.remove([2, 0])
    rows = [np.asarray(each)[[1, 3]] for each in (old.q, old.s, old.k, old.m)]
    alike(learned_model(left), ClusterModel(*rows, old.gamma, old.t_overlap, old.t_last))
    alike(learned_model(learner), old)
    slower = {
        **epoch(learned_model(left), np.array([4.0, 5.0])),
        "communication": np.full((3, 2), 4.0),
    }
    silent = left.observe(**{**slower, "communication": np.full((3, 2), np.nan)})
    assert learned_model(silent).t_last == pytest.approx(0.3)
    assert learned_model(silent.observe(**slower)).t_last == pytest.approx(0.4)
    joined = (np.asarray(each)[2:] for each in (new.q, new.s, new.k, new.m))
    rows = [np.concatenate(pair) for pair in zip(rows, joined, strict=True)]
    together = ClusterModel(*rows, old.gamma, 1.8, 0.2)
    grown = left.add(3)
    assert grown.next_batches(80)[2:] == pytest.approx([16.0] * 3)
    for _ in range(2):
        assert grown.model() is None
        grown = grown.observe(**epoch(together, grown.next_batches(80)))
    alike(learned_model(grown), together)
    assert learner.add(2, [3.0, 4.0]).limits.tolist() == [np.inf] * 4 + [3.0, 4.0]
