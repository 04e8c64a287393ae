"""`dsgd.check` finds each kind of message that an update sends without recording it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import dsgd
import topologies
from dsgd import Round, State, communication, problems, workers
from dsgd.contract import collectives
from tests.dsgd.by_hand import method

N, D = 4, 4
PROBLEM = problems.random_quadratic(N, D, heterogeneity=1.0, noise=0.3, seed=0)
RING = topologies.ring(N)
AXIS = workers.AXIS


def failures(algorithm: dsgd.Algorithm) -> dict[str, str]:
    return {
        finding.what: finding.found
        for finding in dsgd.check(algorithm, PROBLEM).findings
        if finding.holds is False
    }


def next_device(g):
    size = lax.axis_size(AXIS)
    return lax.ppermute(g, AXIS, [(i, (i + 1) % size) for i in range(size)])


@jax.custom_vjp
def own_derivative(g):
    return lax.psum(g.sum(axis=0), AXIS) / N


own_derivative.defvjp(lambda g: (own_derivative(g), None), lambda kept, slope: (slope,))


# All return the correct mean: only the record is wrong.
RAW: dict[str, tuple[Callable, list[str]]] = {
    "psum": (lambda g, round: lax.psum(g.sum(axis=0), AXIS) / N, ["lax.psum"]),
    "ppermute": (lambda g, round: round.mean(next_device(g)), ["lax.ppermute"]),
    "all_gather": (
        lambda g, round: lax.all_gather(g, AXIS, tiled=True).mean(axis=0),
        ["lax.all_gather"],
    ),
    "workers.mix": (lambda g, round: round.mean(workers.mix(g, RING)), ["lax.ppermute"]),
    "in cond": (
        lambda g, round: lax.cond(
            round.step < 0, lambda g: g[0], lambda g: lax.psum(g.sum(axis=0), AXIS) / N, g
        ),
        ["lax.psum"],
    ),
    "in scan": (
        lambda g, round: lax.scan(
            lambda c, _: (c, lax.psum(g.sum(axis=0), AXIS) / N), 0, jnp.arange(2)
        )[1][0],
        ["lax.psum"],
    ),
    "in a function with its own derivative": (lambda g, round: own_derivative(g), ["lax.psum"]),
    "in round.when": (
        lambda g, round: round.mean(
            round.when(round.step >= 0, lambda g: workers.local_block(workers.gather(g), N), g)
        ),
        ["lax.all_gather"],
    ),
}


def unrecorded_collectives(mean: Callable) -> list[str]:
    """Returns the unrecorded collectives that `check` finds in the trace of an update with a worker
    on each device.
    """

    def block(gradients):
        this = Round(jnp.int32(0), N, jax.random.key(0), problem=PROBLEM)
        after, _ = communication.communicate(
            method(mean), State(jnp.zeros(D)), gradients, this, jax.random.key(1)
        )
        return after.server

    spread = jax.shard_map(
        block, mesh=workers.mesh(N), in_specs=P(AXIS), out_specs=P(), check_vma=False
    )
    return collectives.find_unrecorded(jax.make_jaxpr(spread)(jnp.zeros((N, D))))


@pytest.mark.parametrize("kind", RAW)
def test_a_collective_outside_the_communicator_is_found_by_name_and_line(kind):
    mean, names = RAW[kind]
    found = unrecorded_collectives(mean)
    assert [each.split()[0] for each in found] == names
    assert all("(test_forgotten_messages.py:" in each for each in found)


ALLOWED = {
    "mean": lambda g, round: round.mean(g),
    "every": lambda g, round: round.every(2, lambda g: round.mix(g, RING), g)[0],
    "ids and the number of devices": lambda g, round: round.mean(
        g + 0 * (lax.psum(1, AXIS) + lax.axis_index(AXIS))
    ),
    "collectives within a device": lambda g, round: (
        round.mean(g) + jax.vmap(lambda x: lax.psum(x, "own"), axis_name="own")(g[None])[0, 0]
    ),
}


@pytest.mark.parametrize("kind", ALLOWED)
def test_calls_of_the_round_are_recorded(kind):
    assert unrecorded_collectives(ALLOWED[kind]) == []


def test_check_names_all_collectives_that_are_not_recorded():
    """All in one update."""
    means = [RAW[kind][0] for kind in ("psum", "all_gather", "ppermute")]
    found = failures(method(lambda g, round: sum(mean(g, round) for mean in means) / len(means)))
    assert list(found) == ["bits"]
    assert found["bits"].startswith("update calls lax.all_gather (test_forgotten_messages.py:")
    for name in ("all_gather", "ppermute", "psum"):
        assert f"lax.{name} (test_forgotten_messages.py:" in found["bits"]
    assert (
        "which is not recorded; use the calls of the round (round.mean, round.mix, ...), or "
        "round.unrecorded()" in found["bits"]
    )


def test_check_allows_unrecorded_collectives_that_are_declared():
    """A diagnostic for the history; the bits are those of the mean alone, which `check` does not
    compare in this case.
    """

    def update(g, round):
        with round.unrecorded():
            round.log(
                largest=lax.pmax(jnp.abs(g).max(), AXIS), spread=workers.mean(jnp.square(g)).sum()
            )
        return round.mean(g)

    assert unrecorded_collectives(update) == []


HIDDEN = {
    "cond": lambda g, round: lax.cond(round.step > 2, round.mean, lambda g: g[0], g),
    "scan": lambda g, round: lax.scan(lambda c, _: (c, round.mean(g)), 0, jnp.arange(2))[1][0],
    "vmap": lambda g, round: jax.vmap(lambda c: round.mean(g))(jnp.arange(2))[0],
    "jit": lambda g, round: jax.jit(round.mean)(g),
    "grad": lambda g, round: jax.grad(lambda g: round.mean(g).sum())(g)[0],
    "a branch of round.when": lambda g, round: round.when(
        round.step > 2, lambda g: lax.cond(True, round.average, lambda g: g, g), g
    )[0],
}


@pytest.mark.parametrize("where", HIDDEN)
def test_a_call_in_a_hidden_branch_is_refused_by_name(where):
    call = "average" if "when" in where else "mean"
    refused = rf"mine: round.{call} is called inside .*use round.when\(condition, send, x\)"
    with pytest.raises(ValueError, match=refused):
        unrecorded_collectives(HIDDEN[where])


RECORDING = {  # calls that record without an exchange of their own
    "when": lambda round, g: round.every(2, round.average, g),
    "joint": lambda round, g: round.joint().__enter__(),
    "delayed": lambda round, g: round.delayed(1).__enter__(),
    "computed": lambda round, g: round.computed(jnp.ones(N)),
    "log": lambda round, g: round.log(size=g[0, 0]),
    "refuse_if": lambda round, g: round.refuse_if(g[0, 0] > 1e9, "too large"),
}


@pytest.mark.parametrize("call", RECORDING)
def test_every_call_that_records_knows_that_it_is_hidden(call):
    def record(g, round):
        RECORDING[call](round, g)
        return g[0]

    def hidden(g, round):
        return lax.cond(round.step > 2, lambda g: record(g, round), lambda g: g[0], g)

    with pytest.raises(ValueError, match=rf"mine: round.{call} is called inside jax.lax.cond"):
        unrecorded_collectives(hidden)
