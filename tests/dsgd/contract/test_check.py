"""`dsgd.check` finds mistakes in methods, and none in correct ones."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.custom_batching import custom_vmap

import algorithms
import dsgd
from dsgd import network, problems, workers
from dsgd.contract import check
from dsgd.findings import Finding, Findings
from dsgd.machines import subprocess_call
from dsgd.wire import counts
from tests.dsgd.by_hand import method

N, D = 4, 3


@pytest.fixture(scope="module")
def problem() -> dsgd.Problem:
    return problems.random_quadratic(N, D, heterogeneity=1.0, noise=0.3, seed=0)


def by_name(findings: Findings) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings.findings}


def test_a_correct_method_passes_the_check(problem):
    findings = dsgd.check(method(), problem)
    findings.require()
    assert findings.holds
    assert all(finding.holds for finding in findings.findings)
    traced = ["parameters", "returns", "again", "compiled once", "seeds", "64 bits", "random keys"]
    assert [*by_name(findings)] == [*traced, "2 devices", "4 devices", "bits"]
    assert (
        by_name(findings)["bits"].found
        == f"{2 * 3 * D * 32 // 4} bits recorded per worker, {2 * 3 * D * 32 // 4} sent"
    )
    assert max(map(len, str(findings).splitlines())) <= 80
    assert "mine on quadratic" in str(findings)


def own_draws(gradients, round):
    """Returns noise that does not come from the key and differs in every trace."""
    return round.mean(gradients) + next(COUNT)


COUNT = itertools.count()


@custom_vmap
def twice_among_seeds(x):
    return x


@twice_among_seeds.def_vmap
def _(size, batched, x):
    return 2 * x, batched[0]


def unrecorded_mean(gradients, round):
    with round.unrecorded():
        return workers.mean(gradients)


def recorded_twice(gradients, round):
    round.sent(
        *[counts.from_bits(2 * 3 * D * 32 // 4, len(gradients))] * 2, network.ring_all_reduce
    )
    return round.mean(gradients)


def bits_by_devices(gradients, round):
    """Returns bits that depend on the number of devices; they are correct with one worker on
    each.
    """
    round.sent(
        *[counts.from_bits(32 * (len(gradients) - 1), len(gradients))] * 2, network.ring_shift
    )
    return round.mean(gradients)


DEVICES = {"2 devices", "4 devices"}
# Several mistakes in one method, if none of them hides another.
WRONG: dict[str, tuple[dict[str, Any], set[str], tuple[str, ...]]] = {
    "mean over the block, doubles": (
        {"mean": lambda g, round: g.mean(axis=0) + jnp.zeros(D)},
        {*DEVICES, "64 bits"},
        (
            "State.server differs between devices: a mean over one device's block is not the "
            "mean over all workers; use round.mean(g)",
            "expected float32[3]",
        ),
    ),
    "sum over the block's size, bits of the block": (
        {"mean": lambda g, round: bits_by_devices(g, round) * N / g.shape[0]},
        DEVICES,
        ("results differ from one device in State.server", "history['bits']"),
    ),
    "records nothing": ({"mean": unrecorded_mean}, {"bits"}, ("sends more than it records",)),
    "a query that sends": (
        {"query": lambda state, round: dsgd.Query(workers.mean_over_devices(state.server))},
        {"bits"},
        ("sends more than it records",),
    ),
    "records twice, a model that depends on the devices": (
        {"mean": recorded_twice, "model": lambda state: state.server * workers.devices()},
        {"bits", *DEVICES},
        ("records more than it sends", "4 devices: results differ from one device in params"),
    ),
    "another rule for seeds": (
        {"mean": lambda g, round: twice_among_seeds(round.mean(g))},
        {"seeds"},
        ("differs from the single run in State.server",),
    ),
    "parameters": (
        {"update": lambda key, state, gradients, round: state},
        {"parameters", "returns"},
        ("update is called as update(state, gradients, round)",),
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_found_and_named(mistake, problem):
    changes, wrong, expected = WRONG[mistake]
    findings = dsgd.check(method(**changes), problem)
    assert {finding.what for finding in findings.findings if finding.holds is False} == wrong
    assert not findings.holds
    assert "NO" in str(findings)
    with pytest.raises(ValueError, match=r"mine on quadratic.* violates the contract") as caught:
        findings.require()
    assert all(words in str(caught.value) for words in expected)


def test_a_run_that_differs_in_another_trace_is_found(problem):
    """A Python counter inside a member: a method that is built again differs."""
    findings = check._run_twice(
        check.Case(method(mean=own_draws), problem, None), jax.random.key(0), 2
    )
    assert {finding.what for finding in findings if finding.holds is False} == {
        "again",
        "compiled once",
    }


def test_simulated_collectives_and_too_many_workers_are_reported(problem):
    case = check.Case(algorithms.parameter_server_sgd(optax.sgd(0.1)), problem, None)
    (bits,) = check._bits(case, check._rounds(case, jax.random.key(0), 1))
    assert bits == Finding(
        "bits", None, "not compared: mean via parameter_server is simulated by other collectives"
    )
    assert check.devices_of(1) == [1]
    assert check.devices_of(7) == [1, 7]
    assert check.devices_of(12) == [6, 12]
    assert check.devices_of(64) == [8, 16]
    assert check.devices_of(17) == [1]


def test_with_too_few_devices_another_process_is_started(problem, monkeypatch):
    """Closures and lambdas of a test are sent to it."""
    monkeypatch.setattr(jax, "devices", lambda: [None])
    findings = subprocess_call.call(
        2,
        check.check_on_devices,
        check.Case(
            method(lambda g, round: g.mean(axis=0)),
            problem._replace(data=jax.tree.map(lambda x: x[:2], problem.data)),
            None,
        ),
        jax.random.key(0),
        2,
        check._run_among_seeds,
    )
    assert [(f.what, f.holds) for f in findings] == [("2 devices", False), ("bits", True)]


def test_arguments_that_cannot_be_pickled_are_reported():
    with pytest.raises(subprocess_call.SubprocessError, match="cannot be sent to another process"):
        subprocess_call.call(2, check.check_on_devices, threading.Lock())


@pytest.mark.long
def test_a_failed_process_reports_its_reason():
    with pytest.raises(
        subprocess_call.SubprocessError, match="exited with status 1: ZeroDivisionError"
    ) as caught:
        subprocess_call.call(1, lambda: 1 // 0)
    assert caught.value.__notes__[0].startswith("Traceback"), "all that it said"
