"""`start=`: a run that continues another; `until=`: a run that ends before its last round."""

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
from dsgd import clusters, problems
from tests.dsgd.by_hand import run

N = 4
METHOD = algorithms.decentralized_sgd(
    optax.sgd(0.1, momentum=0.5), topologies.one_peer_exponential(N)
)
unchecked = inspect.unwrap(dsgd.run)  # without the checks of annotations


def assert_equal(one, other) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize(("first", "seeds"), [(20, None), (25, 2)])
def test_two_stages_with_one_key_are_the_run_of_both(first, seeds, problem):
    """Bits and clock start at 0; the first record is the last of the previous stage."""
    cluster = clusters.Cluster(clusters.constant(0.5))
    options = {"seeds": seeds, "record_every": 10, "cluster": cluster}
    straight = run(METHOD, problem, 40, **options)
    one = run(METHOD, problem, first, **options)
    kept = jax.tree.map(np.array, one.state)
    for start in (one, one.state):
        two = run(METHOD, problem, 40 - first, start=start, **options)
        assert_equal(two.state, straight.state)
        rounds = two.history["step"] - first
        np.testing.assert_array_equal(rounds, [0, 30 - first, 40 - first])
        losses = one.history["loss"][..., -1:], straight.history["loss"][..., -2:]
        np.testing.assert_array_equal(two.history["loss"], np.concatenate(losses, axis=-1))
        for name, each in (("bits", 2 * 3 * 32), ("clock", 0.5)):
            expected = np.broadcast_to(each * rounds, two.history[name].shape)
            np.testing.assert_allclose(two.history[name], expected, rtol=1e-6)
        assert_equal(one.state, kept)


def test_a_state_that_orbax_restores_without_a_target_continues_the_run(problem, tmp_path):
    import orbax.checkpoint as ocp

    straight, one = (run(METHOD, problem, steps) for steps in (40, 25))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", one.state)
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "state")
    assert isinstance(restored["workers"]["optimizer"], list)
    assert_equal(run(METHOD, problem, 15, start=restored).state, straight.state)
    for start, message in (
        ({"state": restored}, "start is a dictionary with 'state'; expected .*'workers', 'step'"),
        (restored | {"workers": {"params": restored["workers"]["params"]}}, "start: state with le"),
    ):
        with pytest.raises(ValueError, match=message):
            run(METHOD, problem, 15, start=start)


def test_a_stage_has_its_own_checkpoints(problem, tmp_path):
    one, other = (run(METHOD, problem, 10, key=jax.random.key(seed)) for seed in (0, 1))
    straight = run(METHOD, problem, 20, start=one)
    run(METHOD, problem, 8, checkpoint=tmp_path, start=one)
    assert_equal(run(METHOD, problem, 20, checkpoint=tmp_path, start=one), straight)
    with pytest.raises(
        ValueError, match=r"contains another run \(start = \w+ in the checkpoint, \w+ in this run\)"
    ):
        run(METHOD, problem, 20, checkpoint=tmp_path, start=other)


def test_the_batches_of_a_stage_start_with_the_first_given(gradient_is_batch):
    method = algorithms.minibatch_sgd(optax.sgd(1.0))
    batches = [np.full(N, float(t), np.float32) for t in range(30)]
    one = run(method, gradient_is_batch, 20, batches=batches)
    two = run(method, gradient_is_batch, 10, batches=batches[20:], start=one)
    np.testing.assert_array_equal(two.history["loss"], -np.cumsum([0, *range(30)])[20:])


REFUSED = {
    r"state.step = -1; expected": lambda state: state._replace(step=jnp.int32(-1)),
    "expected one number of rounds": lambda state: state._replace(step=jnp.array([3, 4])),
    r"steps = 10 after round 2147483643; expected fewer than 2\^31": lambda state: state._replace(
        step=jnp.int32(2**31 - 5)
    ),
    r"state.workers.params as float32\[1, 4, 3\]": lambda state: jax.tree.map(
        lambda leaf: leaf[None], state
    ),
    r"start: state with leaves .server,": lambda state: state._replace(server=jnp.zeros(2)),
    r"start has a state of 2 workers; expected 4, .*problem._replace\(init=": lambda _: run(
        algorithms.local_sgd(optax.sgd(0.1), 2), problems.random_quadratic(2, 3), 2
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_arguments_that_do_not_fit_are_refused_by_name(message, problem, key):
    state = run(METHOD, problem, 10).state
    with pytest.raises(ValueError, match=message):
        unchecked(METHOD, problem, steps=10, key=key, mesh=1, start=REFUSED[message](state))


def test_a_run_ends_when_until_accepts_its_history(problem, tmp_path):
    asked = []

    def low(history):
        asked.append(len(history["step"]))
        return history["loss"][-1] < -0.2

    short = run(METHOD, problem, 1_000_000, until=low, checkpoint=tmp_path)
    end = int(short.history["step"][-1])
    assert end < 50_000, "asked after each chunk"
    assert len(short.history["loss"]) == asked[-1] == end + 1
    assert short.history["loss"][-1] < -0.2
    assert asked == sorted(set(asked))
    assert all(short.history["loss"][count - 1] >= -0.2 for count in asked[:-1])
    assert_equal(run(METHOD, problem, 1_000_000, until=low, checkpoint=tmp_path), short)
    assert_equal(run(METHOD, problem, end), short)
