"""Local steps and momenta with compressed messages: methods that equal others, and their limits.

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
from dsgd import compressors, problems, work
from tests.algorithms import quadratics
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import N, Trajectory

GAMMA, H, T = 0.02, 4, 1_200
IDENTITY = compressors.identity
# The shards of the six servers of EC-SGD are the chunks of this compressor.
CHUNKS = compressors.whole_model(compressors.chunked_top_k(2, 4))
FEW, PLACES = compressors.top_k(0.2), compressors.random_places


class Numbers(NamedTuple):
    """Arguments of the methods below; each method uses some of them."""

    gamma: float = GAMMA
    momentum: float = 0.0
    period: int = H
    step: float = 1.0
    clip: float = 1e9
    stage: int = 5


METHODS: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "SGD": lambda of: algorithms.minibatch_sgd(sgd(of)),
    "SGD, Nesterov": lambda of: algorithms.minibatch_sgd(nesterov(of)),
    "EC-SGD": lambda of: algorithms.error_compensated_sgd(sgd(of), CHUNKS, IDENTITY_OF_ALL),
    "local SGD": lambda of: algorithms.local_sgd(sgd(of), of.period),
    "SparseLoCo": lambda of: algorithms.sparse_loco(sgd(of), of.period, FEW, decay=1.0),
    "Qsparse": lambda of: algorithms.qsparse_local_sgd(sgd(of), of.period, FEW),
    "Qsparse, chunks": lambda of: algorithms.qsparse_local_sgd(sgd(of), of.period, CHUNKS),
    "Qsparse, all": lambda of: algorithms.qsparse_local_sgd(
        sgd(of), of.period, compressors.top_k(1.0)
    ),
    "FedAvg": lambda of: algorithms.fed_avg(optax.sgd(of.gamma), of.period),
    "SCAFFOLD": lambda of: algorithms.scaffold(optax.sgd(of.gamma), of.period),
    "FedPAQ, all": lambda of: algorithms.fed_paq(optax.sgd(of.gamma), of.period, IDENTITY),
    "FedCOMGATE": lambda of: algorithms.fed_comgate(
        of.gamma, of.period, compressors.random_k(0.5), step=of.step
    ),
    "FedCOMGATE, all": lambda of: algorithms.fed_comgate(of.gamma, of.period, IDENTITY),
    "Fed-EF": lambda of: algorithms.fed_ef(optax.sgd(of.gamma), of.period, FEW),
    "CSER": lambda of: algorithms.cser(sgd(of), of.period, FEW, CHUNKS),
    "CSER, codes": lambda of: algorithms.cser(
        sgd(of), of.period, PLACES(0.5, unbiased=False), PLACES(0.2, unbiased=False)
    ),
    "CSER, resets only": lambda of: algorithms.cser(sgd(of), of.period, IDENTITY),
    "local SGD, unequal work": lambda of: algorithms.with_local_work(
        algorithms.local_sgd(sgd(of), of.period), some
    ),
    "CSER, unequal work": lambda of: algorithms.with_local_work(
        algorithms.cser(sgd(of), of.period, IDENTITY), some
    ),
    "CSER, identities": lambda of: algorithms.cser(sgd(of), of.period, IDENTITY, IDENTITY),
    "CSER, all codes": lambda of: algorithms.cser(
        sgd(of), of.period, PLACES(1.0, unbiased=False), PLACES(1.0, unbiased=False)
    ),
    "DGC": lambda of: algorithms.dgc(optax.sgd(of.gamma), FEW, of.momentum),
    "DGC, without masking": lambda of: algorithms.dgc(
        optax.sgd(of.gamma), FEW, of.momentum, factor_masking=False
    ),
    "DGC, chunks": lambda of: algorithms.dgc(optax.sgd(of.gamma), CHUNKS, of.momentum),
    "DGC, warm": lambda of: algorithms.dgc(
        optax.sgd(of.gamma), FEW, of.momentum, clip=of.clip, warm_up=[FEW, FEW], stage=of.stage
    ),
    "DGC, all": lambda of: algorithms.dgc(optax.sgd(of.gamma), compressors.top_k(1.0), of.momentum),
    "DGC, all, without masking": lambda of: algorithms.dgc(
        optax.sgd(of.gamma), IDENTITY, of.momentum, factor_masking=False
    ),
    "DGC, all, Nesterov": lambda of: algorithms.dgc(
        optax.sgd(of.gamma), IDENTITY, of.momentum, nesterov=True, factor_masking=False
    ),
}
IDENTITY_OF_ALL = compressors.whole_model(IDENTITY)


def some(state: dsgd.State, round: dsgd.Round) -> dsgd.LocalWork:
    """Returns a round in which two of three workers compute."""
    return work.micro_batches((jnp.arange(N)[:, None] + round.step) % 3 > 0)


def sgd(of: Any) -> optax.GradientTransformation:
    return optax.sgd(of.gamma, momentum=of.momentum)


def nesterov(of: Any) -> optax.GradientTransformation:
    return optax.sgd(of.gamma, momentum=of.momentum, nesterov=True)


build = quadratics.builders(METHODS)
in_float64 = quadratics.in_float64


@cache
def run(name: str, numbers: Numbers, noise: float = 0.0) -> Trajectory:
    return quadratics.run(build(name), numbers, T, noise=noise, start=quadratics.minimizer())


# --- Identities.

MIXED: Any = {"momentum": 0.5}
IDENTITIES: dict[str, tuple[tuple[str, Numbers], tuple[str, Numbers]]] = {
    "Qsparse-local-SGD of all elements": (
        ("Qsparse, all", Numbers(**MIXED)),
        ("local SGD", Numbers(**MIXED)),
    ),
    "Qsparse-local-SGD": (("Qsparse", Numbers(**MIXED)), ("SparseLoCo", Numbers(**MIXED))),
    "Qsparse-local-SGD, H = 1": (("Qsparse, chunks", Numbers(period=1)), ("EC-SGD", Numbers())),
    "Fed-EF": (("Fed-EF", Numbers()), ("Qsparse", Numbers())),
    "FedPAQ of all elements": (("FedPAQ, all", Numbers()), ("FedAvg", Numbers())),
    "FedCOMGATE of all elements": (("FedCOMGATE, all", Numbers()), ("SCAFFOLD", Numbers())),
    "CSER, no messages between resets": (
        ("CSER, resets only", Numbers(**MIXED)),
        ("local SGD", Numbers(**MIXED)),
    ),
    "CSER, unequal work": (
        ("CSER, unequal work", Numbers(**MIXED)),
        ("local SGD, unequal work", Numbers(**MIXED)),
    ),
    "CSER, identities": (("CSER, identities", Numbers(**MIXED)), ("SGD", Numbers(**MIXED))),
    "CSER, all codes": (("CSER, all codes", Numbers(**MIXED)), ("SGD", Numbers(**MIXED))),
    "DGC of all elements": (("DGC, all", Numbers(**MIXED)), ("SGD", Numbers())),
    "DGC of all elements, without masking": (
        ("DGC, all, without masking", Numbers(**MIXED)),
        ("SGD", Numbers(**MIXED)),
    ),
    "DGC of all elements, Nesterov": (
        ("DGC, all, Nesterov", Numbers(**MIXED)),
        ("SGD, Nesterov", Numbers(**MIXED)),
    ),
    "DGC without momentum": (("DGC, chunks", Numbers()), ("EC-SGD", Numbers())),
    "DGC, a warm-up of equal stages": (
        ("DGC, warm", Numbers(**MIXED)),
        ("DGC", Numbers(**MIXED)),
    ),
}


@pytest.mark.parametrize("name", sampled(IDENTITIES, "Qsparse-local-SGD, H = 1"))
def test_two_methods_are_the_same(name):
    """The gradients are noisy; the noise depends on the round and the worker only."""
    left, right = (run(*side, noise=0.5).home for side in IDENTITIES[name])
    assert np.ptp(left) > 0.1
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)


# --- Limits with exact gradients.


def distances(name: str, momentum: float = 0.0) -> tuple[float, float]:
    """Returns the distances to the minimizer of f for a step size and half of it: means over half
    of the run, since top-k ends in cycles.
    """
    large, small = (
        np.linalg.norm(models - quadratics.minimizer(), axis=1).mean()
        for models in (
            run(name, Numbers(gamma=gamma, momentum=momentum)).home[-T // 2 :]
            for gamma in (GAMMA, GAMMA / 2)
        )
    )
    return large, small


@pytest.mark.parametrize(
    ("name", "momentum"),
    [
        ("Qsparse", 0.0),
        ("CSER", 0.0),
        ("CSER, codes", 0.0),
        ("DGC", 0.0),
        ("DGC, without masking", 0.9),
    ],
)
def test_a_limit_is_off_by_the_order_of_gamma(name, momentum):
    large, small = distances(name, momentum)
    assert large / small == pytest.approx(2.0, rel=0.15)


def test_the_limit_of_factor_masking_is_off_by_more_than_the_order_of_gamma():
    """Between two messages, momentum multiplies a constant gradient by a factor that increases with
    the number of rounds. So gradients that are sent rarely count more.
    """
    large, small = distances("DGC", 0.9)
    assert small > 0.8 * large


def test_the_limit_of_fedcomgate_is_the_minimizer():
    """The messages of random elements differ in each period; their error vanishes."""
    found = run("FedCOMGATE", Numbers(gamma=0.05, step=0.7))
    assert np.abs(found.home[: T // 8] - quadratics.minimizer()).max() > 1e-2
    np.testing.assert_allclose(found.home[-1], quadratics.minimizer(), rtol=0, atol=1e-9)
    corrections = trajectories.rows(found.states.workers.memory)
    np.testing.assert_allclose(corrections.sum(axis=1), 0, atol=1e-12)


# --- Arguments.

INVALID: dict[str, tuple[Callable[[], dsgd.Algorithm], str]] = {
    "biased": (
        lambda: algorithms.fed_paq(optax.sgd(0.1), 2, FEW),
        r"fed_paq: the compressor top_k\(0.2\) is biased; expected an unbiased one: use fed_ef",
    ),
    "step": (
        lambda: algorithms.fed_comgate(0.0, 2, IDENTITY),
        r"fed_comgate: step_size = 0.0; expected a number in \(0, inf\)",
    ),
    "momentum": (
        lambda: algorithms.dgc(optax.sgd(0.1), momentum=1.0),
        r"dgc: momentum = 1.0; expected a number in \[0, 1\)",
    ),
    "clip": (
        lambda: algorithms.dgc(optax.sgd(0.1), clip=0.0),
        r"dgc: clip = 0.0; expected a number in \(0, inf\)",
    ),
    "stage": (lambda: algorithms.dgc(optax.sgd(0.1), stage=0), "dgc: stage = 0; expected"),
    "period": (
        lambda: algorithms.cser(optax.sgd(0.1), 0, IDENTITY),
        "cser: period = 0; expected",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_argument_is_refused(name):
    make, words = INVALID[name]
    with pytest.raises(ValueError, match=words):
        make()


EXPANDING = compressors.random_k(0.1)


@pytest.mark.parametrize(
    "method",
    [
        algorithms.cser(optax.sgd(0.1), 2, EXPANDING),
        algorithms.cser(optax.sgd(0.1), 2, PLACES(0.1), IDENTITY),
        algorithms.dgc(optax.sgd(0.1), EXPANDING),
        algorithms.dgc(optax.sgd(0.1), FEW, warm_up=[EXPANDING]),
        algorithms.qsparse_local_sgd(optax.sgd(0.1), 2, EXPANDING),
        algorithms.fed_ef(optax.sgd(0.1), 2, EXPANDING),
    ],
    ids=lambda method: method.name,
)
def test_compressors_without_a_contraction_are_refused(method):
    with pytest.raises(
        ValueError, match=rf"{method.name.partition('(')[0]}.*random_(k|places)\(0.1\)"
    ):
        dsgd.exchanges(method, problems.random_quadratic(4, 20))


def test_a_stage_of_the_warm_up_sends_its_own_messages():
    """9 and 2 of 20 elements, with 5-bit indices in planes of whole bytes."""
    method = algorithms.dgc(
        optax.sgd(0.1), compressors.top_k(0.1), warm_up=[compressors.top_k(0.45)], stage=2
    )
    with jax.enable_x64(False):
        problem = problems.random_quadratic(3, 20)
        bits = dsgd.run(method, problem, steps=5, key=jax.random.key(0)).history["bits"]
    first, rest = 9 * 32 + 40 + 16, 2 * 32 + 8 + 8
    np.testing.assert_array_equal(np.diff(bits), 2 * 2 * np.array([first] * 2 + [rest] * 3))
