"""`start=`: a run that goes on from another; `until=`: one that ends before its last round."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd.engine import programs

N = 4


def factory(rate=0.1) -> dsgd.Algorithm:
    return algorithms.decentralized_sgd(
        optax.sgd(rate, momentum=0.5), topologies.one_peer_exponential(N)
    )


METHOD = factory()
unchecked = inspect.unwrap(dsgd.run)  # without pytest's look at annotations


def assert_equal(one, other) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize(("first", "seeds"), [(20, None), (25, 2)])
def test_two_stages_with_one_key_are_the_run_of_both(first, seeds, problem, mesh, key):
    """Bits and clock begin at 0; the start's record is the last of the stage before."""
    options = {
        "key": key,
        "mesh": mesh,
        "seeds": seeds,
        "record_every": 10,
        "cluster": dsgd.clusters.Cluster(dsgd.clusters.constant(0.5)),
    }
    straight = dsgd.run(METHOD, problem, steps=40, **options)
    one = dsgd.run(METHOD, problem, steps=first, **options)
    kept = jax.tree.map(np.array, one.state)
    for start in (one, one.state):
        two = dsgd.run(METHOD, problem, steps=40 - first, start=start, **options)
        assert_equal(two.state, straight.state)
        rounds = two.history["step"] - first
        np.testing.assert_array_equal(rounds, [0, 30 - first, 40 - first])
        np.testing.assert_array_equal(two.history["loss"][..., 0], one.history["loss"][..., -1])
        np.testing.assert_array_equal(
            two.history["loss"][..., 1:], straight.history["loss"][..., -2:]
        )
        np.testing.assert_array_equal(
            two.history["bits"], np.broadcast_to(2 * 3 * 32 * rounds, two.history["bits"].shape)
        )
        np.testing.assert_allclose(
            two.history["clock"],
            np.broadcast_to(0.5 * rounds, two.history["clock"].shape),
            rtol=1e-6,
        )
        assert_equal(one.state, kept)


def test_another_rate_and_another_key_compile_only_what_is_new(problem, mesh, key):
    one = dsgd.run(METHOD, problem, steps=10, key=key, mesh=mesh)
    before = programs.compiled()
    dsgd.run(METHOD, problem, steps=10, key=jax.random.key(1), mesh=mesh, start=one)
    assert programs.compiled() == before
    slower = dsgd.run(factory(0.01), problem, steps=10, key=key, mesh=mesh, start=one)
    assert programs.compiled() == before + 1, "the loop; models are taken home as before"
    np.testing.assert_array_equal(slower.history["loss"][0], one.history["loss"][-1])


def test_a_stage_has_checkpoints_of_its_own(problem, mesh, key, tmp_path):
    one = dsgd.run(METHOD, problem, steps=10, key=key, mesh=mesh)
    stage = {"key": key, "mesh": mesh, "start": one}
    straight = dsgd.run(METHOD, problem, steps=20, **stage)
    dsgd.run(METHOD, problem, steps=8, checkpoint=tmp_path, **stage)
    assert_equal(dsgd.run(METHOD, problem, steps=20, checkpoint=tmp_path, **stage), straight)
    other = dsgd.run(METHOD, problem, steps=10, key=jax.random.key(1), mesh=mesh)
    with pytest.raises(
        ValueError, match=r"contains another run \(start = \w+ in the checkpoint, \w+ in this run\)"
    ):
        dsgd.run(METHOD, problem, steps=20, checkpoint=tmp_path, **(stage | {"start": other}))


def test_the_batches_of_a_stage_begin_with_the_first_given(gradient_is_batch, mesh, key):
    method = algorithms.minibatch_sgd(optax.sgd(1.0))
    batches = [np.full(N, float(t), np.float32) for t in range(30)]
    one = dsgd.run(method, gradient_is_batch, steps=20, key=key, mesh=mesh, batches=batches)
    two = dsgd.run(
        method, gradient_is_batch, steps=10, key=key, mesh=mesh, batches=batches[20:], start=one
    )
    np.testing.assert_array_equal(two.history["loss"], -np.cumsum([0, *range(30)])[20:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state._replace(step=jnp.int32(-1)),
            r"state.step = -1; expected one number of rounds",
        ),
        (
            lambda state: state._replace(step=jnp.array([3, 4])),
            r"expected one number of rounds, at least 0, for all runs",
        ),
        (
            lambda state: state._replace(step=jnp.int32(2**31 - 5)),
            r"steps = 10 after round 2147483643; expected fewer than 2\^31",
        ),
        (
            lambda state: jax.tree.map(lambda leaf: leaf[None], state),
            r"start: state.workers.params as float32\[1, 4, 3\]; expected float32\[4, 3\]",
        ),
        (
            lambda state: state._replace(workers=state.workers._replace(params=jnp.zeros((N, 5)))),
            r"start: state.workers.params as float32\[4, 5\]; expected float32\[4, 3\]",
        ),
        (
            lambda state: state._replace(server=jnp.zeros(2)),
            r"start: state with leaves .server, .workers.params, .*; expected the tree with "
            r"leaves .workers.params, .*, .step",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, message, problem, mesh, key):
    state = dsgd.run(METHOD, problem, steps=10, key=key, mesh=mesh).state
    with pytest.raises(ValueError, match=message):
        unchecked(METHOD, problem, steps=10, key=key, mesh=mesh, start=change(state))


def test_a_run_ends_where_its_history_is_enough(problem, mesh, key, tmp_path):
    asked = []

    def low(history):
        asked.append(len(history["step"]))
        return history["loss"][-1] < -0.2

    options = {"key": key, "mesh": mesh, "checkpoint": tmp_path}
    short = dsgd.run(METHOD, problem, steps=1_000_000, until=low, **options)
    end = int(short.history["step"][-1])
    assert end < 50_000, "asked after each chunk"
    assert len(short.history["loss"]) == asked[-1] == end + 1 == int(short.state.step) + 1
    assert short.history["loss"][-1] < -0.2
    assert asked == sorted(set(asked))
    assert all(short.history["loss"][count - 1] >= -0.2 for count in asked[:-1])
    assert_equal(dsgd.run(METHOD, problem, steps=1_000_000, until=low, **options), short)
    assert_equal(dsgd.run(METHOD, problem, steps=end, key=key, mesh=mesh), short)
