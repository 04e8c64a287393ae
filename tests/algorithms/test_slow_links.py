"""Methods for training over slow links: what a decaying memory costs, fragments, and messages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms.local_updates.streaming_diloco import fragment_leaves
from dsgd import clusters, compressors, network
from tests.algorithms import quadratics
from tests.methods.sparta import drawn_elements
from theory_checks.machinery import trajectories

T = 2_000
IDENTITY = compressors.identity
float64 = quadratics.float64


def test_what_a_memory_forgets_does_not_vanish_with_gamma():
    """Biased compressors need an error memory that does not decay. With a decay, the limit differs
    from the optimum by more than that of local SGD, and the difference does not vanish with the
    step size.
    """

    def build(of):
        few = compressors.chunked_top_k(1, 5)
        return algorithms.sparse_loco(optax.sgd(of.learning_rate), 4, few, decay=of.more)

    def distance(gamma: float, decay: float) -> float:
        of = quadratics.instance(0.0, quadratics.minimizer())
        of = of._replace(learning_rate=np.float64(gamma), more=np.float64(decay))
        models = trajectories.run(build, of, length=T).home[-64:]
        return float(np.linalg.norm(models.mean(axis=0) - quadratics.minimizer()))

    whole, decaying = ([distance(gamma, d) for gamma in (0.02, 0.01)] for d in (1.0, 0.95))
    assert whole[0] / whole[1] == pytest.approx(2.0, rel=0.15)
    assert decaying[1] > max(0.7 * decaying[0], 2 * whole[1])


# --- Fragments and messages.


def test_layers_are_dealt_out_to_fragments():
    block = {"kernel": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}
    listed = {"blocks": [block] * 3, "embedding": jnp.zeros(3), "head": block}
    # leaves: two for each block, the embedding, two of the head; layers: 3 blocks and these two
    assert fragment_leaves(listed, 2) == [[0, 1, 4, 5, 7, 8], [2, 3, 6]]
    named = {"params": {"first": block, "second": block, "third": {"attention": block}}}
    assert fragment_leaves(named, 3) == [[0, 1], [2, 3], [4, 5]]
    assert fragment_leaves(jnp.zeros(3), 1) == [[0]]
    with pytest.raises(ValueError, match="fragments = 4, but the model has 3 layers; expected"):
        fragment_leaves(named, 4)


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


def test_sparta_draws_other_elements_in_each_round():
    of = quadratics.instance(0.5, quadratics.minimizer())
    masks = drawn_elements(
        trajectories.run(lambda of: algorithms.sparta(optax.sgd(0.02), 0.3), of, length=T)
    )
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
