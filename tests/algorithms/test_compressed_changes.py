"""Local steps and momenta with compressed messages: a limit, messages of a warm-up, and compressors
that are refused.
"""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import compressors, problems
from tests.algorithms import quadratics
from theory_checks.machinery import trajectories

T, FEW = 1_200, compressors.top_k(0.2)


@pytest.mark.parametrize("factor_masking", [True, False])
def test_the_limit_of_factor_masking_is_off_by_more_than_the_order_of_gamma(factor_masking):
    """Between two messages, momentum multiplies a constant gradient by a factor that increases with
    the number of rounds. So gradients that are sent rarely count more. Distances are means over
    half of the run, since top-k ends in cycles.
    """
    star = quadratics.minimizer()
    of = quadratics.instance(0.0, star)

    def build(of):
        options = {"momentum": 0.9, "factor_masking": factor_masking}
        return algorithms.dgc(optax.sgd(of.learning_rate), FEW, **options)

    large, small = (
        np.linalg.norm(
            trajectories.run(build, of._replace(learning_rate=np.float64(gamma)), length=T).home[
                T // 2 :
            ]
            - star,
            axis=1,
        ).mean()
        for gamma in (0.02, 0.01)
    )
    if factor_masking:
        assert small > 0.8 * large
    else:
        assert large / small == pytest.approx(2.0, rel=0.15)


EXPANDING = compressors.random_k(0.1)


@pytest.mark.parametrize(
    "method",
    [
        algorithms.cser(optax.sgd(0.1), 2, EXPANDING),
        algorithms.cser(optax.sgd(0.1), 2, compressors.random_places(0.1), compressors.identity),
        algorithms.dgc(optax.sgd(0.1), FEW, warm_up=[EXPANDING]),
    ],
    ids=["reset", "steps", "warm-up"],
)
def test_compressors_without_a_contraction_are_refused(method):
    with pytest.raises(ValueError, match=r"(cser|dgc).*random_(k|places)\(0.1\)"):
        dsgd.exchanges(method, problems.random_quadratic(4, 20))


def test_a_stage_of_the_warm_up_sends_its_own_messages():
    """9 and 2 of 20 elements, with 5-bit indices in planes of whole bytes."""
    method = algorithms.dgc(
        optax.sgd(0.1), compressors.top_k(0.1), warm_up=[compressors.top_k(0.45)], stage=2
    )
    problem = problems.random_quadratic(3, 20)
    bits = dsgd.run(method, problem, steps=5, key=jax.random.key(0)).history["bits"]
    first, rest = 9 * 32 + 40 + 16, 2 * 32 + 8 + 8
    np.testing.assert_array_equal(np.diff(bits), 2 * 2 * np.array([first] * 2 + [rest] * 3))
