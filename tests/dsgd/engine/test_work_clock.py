"""The clock of unequal work, and of messages that overlap with it, compared with loops in numpy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
import dsgd
import topologies
from dsgd import LocalWork, Round, clusters, problems
from tests.dsgd.engine import clocks
from tests.dsgd.engine.clocks import EQUAL, METHODS, OPTIMIZER, UNEQUAL, VECTOR, N, exchange

# By round, worker and micro-batch, of at most 8 samples: some micro-batches have none, and some
# workers have none.
SAMPLES = np.array(
    [
        [[8, 8], [3, 0], [0, 1], [8, 2]],
        [[0, 0], [8, 8], [1, 1], [5, 0]],
        [[1, 8], [2, 7], [0, 0], [0, 4]],
    ]
)
PER_SAMPLE = np.array([0.25, 0.125, 1.0, 0.5])
FIXED = np.array([0.5, 1.75, 0.25, 3.0])
WORKING = replace(UNEQUAL, per_sample=clusters.constant(PER_SAMPLE), micro_batches=1)
STEPS = 12
run = partial(clocks.run, steps=STEPS)


@pytest.fixture(scope="module")
def sized_problem() -> dsgd.Problem:
    """A problem whose batches have 8 samples, which can be truncated; 96 bits."""
    problem = problems.random_quadratic(N, 3, noise=0.3, seed=0)
    return problem._replace(
        sample=dsgd.Sampler(problem.sample, batch_size=8, truncate=lambda batch, samples: batch)
    )


def working(method: dsgd.Algorithm, samples: np.ndarray) -> dsgd.Algorithm:
    """Returns the method whose workers compute these samples, by round."""

    def query(state, round):
        now = jnp.asarray(samples, jnp.int32)[round.step % len(samples)]
        work = LocalWork(now, jnp.ones(now.shape))
        return method.query(state, round._replace(work=work))._replace(work=work)

    return method._replace(query=query)


def seconds_of(samples: np.ndarray) -> np.ndarray:
    """Converts `[..., N, M]` samples to seconds of each micro-batch."""
    return np.where(samples > 0, FIXED[:, None] + PER_SAMPLE[:, None] * samples, 0)


def round_of(samples: np.ndarray | None = None, **options) -> Round:
    work = (
        None
        if samples is None
        else LocalWork(jnp.asarray(samples, jnp.int32), jnp.ones(samples.shape))
    )
    return Round(jnp.int32(0), N, jax.random.key(0), work=work, **options)


# --- Overlap.

BACKWARD, FIRST, LAST = 0.4, 0.25, 0.125
OVERLAP = clusters.Overlap(
    clusters.constant(BACKWARD * FIXED), clusters.constant(BACKWARD * PER_SAMPLE), FIRST, LAST
)


def test_pieces_of_a_batch_take_as_long_as_the_batch(sized_problem):
    """The measured backward pass is that of the whole batch, not that of the last piece."""
    pieces = np.array([[[5, 3], [1, 0], [0, 4], [0, 0]]])
    whole = pieces.sum(axis=2, keepdims=True)
    apart, single_batch = (
        run(
            working(algorithms.with_diagnostics(METHODS["minibatch_sgd"]), samples),
            sized_problem,
            replace(WORKING, overlap=OVERLAP, single_batch=True),
            steps=3,
        ).history
        for samples in (pieces, whole)
    )
    for name in ("clock", "measured_compute", "measured_backward", "measured_first"):
        np.testing.assert_array_equal(apart[name], single_batch[name], err_msg=name)
    samples = whole[0, :, 0]
    P = np.where(samples > 0, BACKWARD * (FIXED + PER_SAMPLE * samples), np.nan)
    np.testing.assert_allclose(apart["measured_backward"][2:], [P] * 2, rtol=1e-6)
    np.testing.assert_allclose(apart["measured_first"][2:], [FIRST * P] * 2, rtol=1e-6)


@pytest.mark.parametrize("name", ["minibatch_sgd", "server", "local schedule"])
def test_overlapping_messages_start_with_the_first_bucket_and_the_last_follows_the_gradient(
    name, sized_problem
):
    """For each worker, with the last micro-batch that has samples."""
    done, expected = np.zeros(N), [0.0]
    for t in range(STEPS):
        each = seconds_of(SAMPLES)[t % len(SAMPLES)]
        last = np.array([row[row > 0][-1] if row.any() else 0 for row in each])
        finish = done + each.sum(axis=1)
        whole = exchange(name, finish - (1 - FIRST) * BACKWARD * last, WORKING, t)
        done = np.maximum(whole, exchange(name, finish, WORKING, t, LAST * VECTOR))
        expected.append(done.max())
    history = run(
        working(METHODS[name], SAMPLES), sized_problem, replace(WORKING, overlap=OVERLAP)
    ).history
    np.testing.assert_allclose(history["clock"], expected, rtol=1e-6)


def test_a_backward_pass_is_never_more_than_the_micro_batch():
    overlap = clusters.Overlap(clusters.constant(100.0), clusters.constant(0.0), 0.0, 0.5)
    backward = replace(WORKING, overlap=overlap).backward(round_of(SAMPLES[0]), jnp.arange(N))
    assert backward.tolist() == [FIXED[0] + 2, FIXED[1] + 3 / 8, FIXED[2] + 1, FIXED[3] + 1]


@pytest.mark.parametrize(
    "method",
    [
        algorithms.asynchronous_sgd(OPTIMIZER),
        algorithms.asynchronous_gossip_sgd(OPTIMIZER, topologies.ring(N)),
    ],
)
def test_methods_that_keep_their_own_time_refuse_an_overlap(method, sized_problem):
    overlap = clusters.Overlap(clusters.constant(0.1), clusters.constant(0.0), 0.5, 0.5)
    with pytest.raises(ValueError, match=r"asynchronous.* own time, but .* overlap"):
        run(method, sized_problem, replace(EQUAL, overlap=overlap))
