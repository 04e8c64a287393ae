"""Methods for training over slow links: methods that equal others, their limits, and their
messages.

All runs have six workers, in float64. Each method has one program, whose arguments are the
method's hyperparameters (`theory_checks.machinery.trajectories`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import sampled

import algorithms
import dsgd
import topologies
from algorithms.local_updates.streaming_diloco import of_fragments
from dsgd import clusters, compressors, network
from tests.algorithms import quadratics
from tests.methods.sparta import drawn
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import N, Trajectory

GAMMA, H, T = 0.02, 4, 2_000
NEVER = 10 * T
PAIRS = topologies.random_matchings(N, 4)
IDENTITY = compressors.identity


class Numbers(NamedTuple):
    """Arguments of the methods below; each method uses some of them."""

    gamma: float = GAMMA
    momentum: float = 0.0
    period: int = H
    step: float = 1.0
    outer_momentum: float = 0.0
    share: float = 0.5
    decay: float = 0.95


METHODS: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "local SGD": lambda of: algorithms.local_sgd(sgd(of), of.period),
    "local SGD on pairs": lambda of: algorithms.local_sgd(sgd(of), of.period, PAIRS),
    "DiLoCo": lambda of: algorithms.diloco(sgd(of), of.period, outer(of)),
    "one fragment at once": lambda of: algorithms.streaming_diloco(
        sgd(of), 1, of.period, outer(of), delay=0, local_share=of.share, compressor=None
    ),
    "two fragments, delayed": lambda of: algorithms.streaming_diloco(
        sgd(of), 2, of.period, outer(of), delay=1, local_share=of.share
    ),
    "two fragments, uncompressed": lambda of: algorithms.streaming_diloco(
        sgd(of), 2, of.period, outer(of), delay=1, local_share=of.share, compressor=None
    ),
    "delayed": lambda of: algorithms.delayed_diloco(sgd(of), of.period, outer(of)),
    "eager": lambda of: algorithms.eager_diloco(sgd(of), of.period, outer(of)),
    "SparseLoCo": lambda of: algorithms.sparse_loco(
        sgd(of), of.period, compressors.chunked_top_k(1, 5), outer(of), decay=of.decay
    ),
    "SparseLoCo, all elements": lambda of: algorithms.sparse_loco(
        sgd(of), of.period, compressors.chunked_top_k(5, 5), outer(of), decay=of.decay
    ),
    "MuLoCo, uncompressed": lambda of: algorithms.muloco(sgd(of), of.period, IDENTITY, outer(of)),
    "NoLoCo": lambda of: algorithms.noloco(
        sgd(of), PAIRS, of.period, step=of.step, consensus=of.step, momentum=of.outer_momentum
    ),
    "SPARTA": lambda of: algorithms.sparta(sgd(of), 0.3),
    "SPARTA, all elements": lambda of: algorithms.sparta(sgd(of), 1.0),
}


def sgd(of: Any) -> optax.GradientTransformation:
    return optax.sgd(of.gamma, momentum=of.momentum)


def outer(of: Any) -> optax.GradientTransformation:
    return optax.sgd(of.step, momentum=of.outer_momentum, nesterov=True)


build = quadratics.builders(METHODS)
in_float64 = quadratics.in_float64


@cache
def run(name: str, numbers: Numbers, noise: float = 0.0) -> Trajectory:
    start = quadratics.minimizer()
    return quadratics.run(build(name), numbers, T, noise=noise, start=start)


def models(name: str, numbers: Numbers, noise: float = 0.0) -> np.ndarray:
    """Returns the workers' models after each round, `[T, N, d]`."""
    return trajectories.rows(run(name, numbers, noise).states.workers.params)[1:]


# --- Identities.

MIXED: Any = {"momentum": 0.5}
NESTEROV: Any = {"step": 0.7, "outer_momentum": 0.6}
IDENTITIES: dict[str, tuple[tuple[str, Numbers], tuple[str, Numbers]]] = {
    "Streaming DiLoCo of one fragment, at once": (
        ("one fragment at once", Numbers(share=0.0, **MIXED, **NESTEROV)),
        ("DiLoCo", Numbers(**MIXED, **NESTEROV)),
    ),
    "Streaming DiLoCo that keeps the local models": (
        ("two fragments, delayed", Numbers(share=1.0, **NESTEROV)),
        ("local SGD", Numbers(period=NEVER)),
    ),
    "SparseLoCo of all elements": (
        ("SparseLoCo, all elements", Numbers(step=0.7, **MIXED)),
        ("DiLoCo", Numbers(step=0.7, **MIXED)),
    ),
    "MuLoCo, uncompressed": (
        ("MuLoCo, uncompressed", Numbers(**MIXED, **NESTEROV)),
        ("DiLoCo", Numbers(**MIXED, **NESTEROV)),
    ),
    "NoLoCo of full steps": (
        ("NoLoCo", Numbers(**MIXED)),
        ("local SGD on pairs", Numbers(**MIXED)),
    ),
    "SPARTA of all elements": (
        ("SPARTA, all elements", Numbers(**MIXED)),
        ("local SGD", Numbers(period=1, **MIXED)),
    ),
}


@pytest.mark.parametrize("name", sampled(IDENTITIES))
def test_two_methods_are_the_same(name):
    """The gradients are noisy; the noise depends on the round and the worker only."""
    left, right = (models(*side, noise=0.5) for side in IDENTITIES[name])
    assert np.ptp(left) > 0.1
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)


# --- Limits with exact gradients.


def limit(name: str, numbers: Numbers) -> tuple[float, float]:
    """Returns two distances at the end of a run, over whole cycles of pairs and periods: that of
    the mean model to the minimizer of f, and the largest distance of a model to the mean of the
    models.
    """
    X = models(name, numbers)[-4 * PAIRS.period * H :]
    error = X.mean(axis=(0, 1)) - quadratics.minimizer()
    spread = np.linalg.norm(X - X.mean(axis=1, keepdims=True), axis=-1).max()
    return float(np.linalg.norm(error)), float(spread)


@pytest.mark.parametrize("name", ["delayed", "SparseLoCo, all elements"])
def test_the_limit_is_that_of_diloco(name):
    """The models are equal after each exchange."""
    numbers = Numbers(step=0.4, outer_momentum=0.5)
    X = models(name, numbers)
    np.testing.assert_allclose(X[H - 1 :: H], X[H - 1 :: H, :1] + np.zeros_like(X[:1]), rtol=1e-12)
    np.testing.assert_allclose(X[-1], models("DiLoCo", numbers)[-1], rtol=0, atol=1e-6)
    assert limit("DiLoCo", numbers)[0] > 1e-2


@pytest.mark.parametrize(
    "name",
    sampled(["DiLoCo", "one fragment at once", "two fragments, uncompressed", "eager", "NoLoCo"]),
)
def test_a_limit_and_the_models_are_off_by_the_order_of_gamma(name):
    error, spread = limit(name, Numbers(step=0.7, outer_momentum=0.5))
    smaller = limit(name, Numbers(gamma=GAMMA / 2, step=0.7, outer_momentum=0.5))
    assert error / smaller[0] == pytest.approx(2.0, rel=0.15)
    assert spread / smaller[1] == pytest.approx(2.0, rel=0.15)


def test_sparta_is_off_by_the_order_of_gamma():
    """Compares means over a stationary state: since the elements are random, there is no limit."""
    error, smaller = (limit("SPARTA", Numbers(gamma=gamma))[0] for gamma in (GAMMA, GAMMA / 2))
    assert error / smaller == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_models_that_keep_a_share_are_further_off(share):
    errors = [
        limit("one fragment at once", Numbers(share=share, step=0.7, outer_momentum=0.5))[0]
        for share in (0.0, share)
    ]
    assert errors[1] >= errors[0]


def test_what_a_memory_forgets_does_not_vanish_with_gamma():
    """Biased compressors need an error memory that does not decay. With a decay, or without a
    memory (E3M0 in Streaming DiLoCo), the limit differs from the optimum by more than that of local
    SGD, and the difference does not vanish with the step size.
    """
    whole, decaying = (
        [limit("SparseLoCo", Numbers(gamma=gamma, decay=decay))[0] for gamma in (GAMMA, GAMMA / 2)]
        for decay in (1.0, 0.95)
    )
    assert whole[0] / whole[1] == pytest.approx(2.0, rel=0.15)
    assert decaying[1] > max(0.7 * decaying[0], 2 * whole[1])
    numbers = [Numbers(gamma=gamma, step=0.7, outer_momentum=0.5) for gamma in (GAMMA, GAMMA / 2)]
    rounded = [limit("two fragments, delayed", each)[0] for each in numbers]
    assert rounded[1] > 0.7 * rounded[0] > limit("two fragments, uncompressed", numbers[0])[0]


# --- Fragments and messages.


def test_layers_are_dealt_out_to_fragments():
    block = {"kernel": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}
    listed = {"blocks": [block] * 3, "embedding": jnp.zeros(3), "head": block}
    # leaves: two for each block, the embedding, two of the head; layers: 3 blocks and these two
    assert of_fragments(listed, 2) == [[0, 1, 4, 5, 7, 8], [2, 3, 6]]
    named = {"params": {"first": block, "second": block, "third": {"attention": block}}}
    assert of_fragments(named, 3) == [[0, 1], [2, 3], [4, 5]]
    assert of_fragments(jnp.zeros(3), 1) == [[0]]
    with pytest.raises(ValueError, match="fragments = 4, but the model has 3 layers; expected"):
        of_fragments(named, 4)


@pytest.mark.parametrize(
    ("period", "fragments", "delay"), [(2, 3, 0), (3, 2, 3)], ids=["fragments", "delay"]
)
def test_a_period_that_is_too_short_is_refused(period, fragments, delay):
    with pytest.raises(ValueError, match=f"period = {period} with {fragments} fragments and delay"):
        algorithms.streaming_diloco(optax.sgd(0.1), fragments, period, delay=delay)


def test_each_fragment_is_an_exchange_of_its_own():
    uncompressed = algorithms.streaming_diloco(optax.sgd(0.1), 2, 4, compressor=None)
    patterns = [(each.pattern, each.period) for each in dsgd.exchanges(uncompressed, two_layers())]
    assert patterns == [(network.ring_all_reduce, 4)] * 2
    quantized = algorithms.streaming_diloco(optax.sgd(0.1), 2, 4)
    calls = [(each.call, each.pattern) for each in dsgd.exchanges(quantized, two_layers())]
    assert calls == [("all_gather of e3m0", network.all_gather)] * 2


def test_messages_of_a_fragment_are_sent_while_the_workers_compute():
    """A gradient takes a second. An all-reduce takes 0.7 s for each element: 3.5 s for the fragment
    that is sent after rounds 2, 6, ..., and 4.2 s for that of rounds 4, 8, .... The result is
    needed three rounds later. An all-reduce begins when the previous one has ended.
    """
    cluster = clusters.Cluster(clusters.constant(1.0), up=clusters.constant(1.75 * 32 / 0.7))
    method = algorithms.streaming_diloco(optax.sgd(0.1), 2, 4, delay=3, compressor=None)
    options: Any = {"steps": 9, "key": jax.random.key(0), "cluster": cluster}
    with jax.enable_x64(False):
        found = dsgd.run(method, two_layers(), **options).history["clock"]
    # sent from 2 to 5.5, from 5.5 to 9.7, from 9.7 to 13.2
    np.testing.assert_allclose(found, [0, 1, 2, 3, 4, 5.5, 6.5, 9.7, 10.7, 13.2], rtol=1e-5)


@pytest.mark.parametrize("method", [algorithms.delayed_diloco, algorithms.eager_diloco])
def test_messages_of_a_delayed_step_have_a_whole_period(method):
    (found,) = dsgd.exchanges(method(optax.sgd(0.1), 3), two_layers())
    assert (found.period, found.delay) == (3, 3)


def two_layers() -> dsgd.Problem:
    """Returns the problem f_n(x, y) = |x - n|^2 / 2 + |y - n|^2 / 2 on eight workers."""
    numbers = jnp.arange(8.0)

    def loss(params, n):
        return sum(jnp.sum((leaf - n) ** 2) for leaf in params.values()) / 2

    start = {"x": jnp.zeros(5), "y": jnp.zeros((3, 2))}
    return dsgd.Problem(lambda key: start, loss, numbers, lambda key, data: data)


@pytest.mark.long
def test_fragments_keep_the_contract():
    """`dsgd.check` runs the method on several devices, and compares the recorded bits of each
    fragment with those of the compiled program.
    """
    with jax.enable_x64(False):
        method = algorithms.streaming_diloco(optax.sgd(0.1), 2, 4, delay=1)
        dsgd.check(method, two_layers()).require()


def test_sparta_draws_other_elements_in_each_round():
    masks = drawn(run("SPARTA", Numbers(), noise=0.5))
    assert (masks.sum(axis=1) == np.ceil(0.3 * 7) + np.ceil(0.3 * 15)).all()
    # One of each of three runs of the first seven elements, and of five runs of the others.
    share = np.array([1 / 2] * 4 + [1 / 3] * 18)
    deviation = np.sqrt(share * (1 - share) / T)
    assert (np.abs(masks.mean(axis=0) - share) < 5 * deviation).all()


def test_muon_is_an_inner_optimizer():
    """Muon's step for a matrix has singular values near 1, so that it has the same length in each
    direction.
    """
    rng = np.random.default_rng(0)
    targets = jnp.asarray(rng.normal(size=(4, 6, 5)) * np.logspace(0, 2, 5))
    problem = dsgd.Problem(
        lambda key: {"w": jnp.zeros((6, 5))},
        lambda params, target: jnp.sum((params["w"] - target) ** 2) / 2,
        targets,
        lambda key, data: data,
    )
    method = algorithms.muloco(optax.contrib.muon(0.1), 1, IDENTITY, optax.sgd(1.0))
    found = dsgd.run(method, problem, steps=1, key=jax.random.key(0), mesh=1)
    local = [np.linalg.svd(np.asarray(target), full_matrices=False)[::2] for target in targets]
    assert all(U.shape == (6, 5) for U, _ in local)
    change = np.asarray(found.params["w"])
    polar = np.mean([U @ V for U, V in local], axis=0)
    along = np.sum(change * polar) / np.linalg.norm(change) / np.linalg.norm(polar)
    assert along > 0.95
