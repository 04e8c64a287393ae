"""Cases whose hyperparameters are searched beyond their grids, with one seed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import optax

import algorithms
from dsgd import problems
from experiments.shared import studies

PROBLEM = problems.random_quadratic(2, 3, smoothness=2.0, strong_convexity=0.5, noise=0.3)


def case(steps: int, **options) -> studies.Case:
    return studies.Case(
        studies.with_sgd(algorithms.minibatch_sgd), PROBLEM, steps=steps, share=0.2, **options
    )


def arguments(**options) -> SimpleNamespace:
    return SimpleNamespace(seed=3, seeds=4, learning_rates=(0.004, 0.012), **options)


def test_rates_are_extended_with_one_seed_and_all_seeds_run_at_the_best():
    found = studies.tune(arguments(), case(20, over=(studies.RATE,)))
    assert found is not None
    rate, tried = found.values[studies.RATE], sorted(found.grid[studies.RATE])
    assert tried[0] < rate < tried[-1]
    assert not found.edge()
    np.testing.assert_allclose(np.diff(np.log(tried)), np.log(3), rtol=1e-6)
    # Four different seeds, at this rate
    assert len(np.unique(found.history["loss"][:, -1])) == 4
    assert found.history["loss"].shape == (4, 21)
    np.testing.assert_array_equal(found.history["step"], np.arange(21))


def test_a_case_that_diverges_everywhere_has_no_result():
    def build(learning_rate):
        return algorithms.minibatch_sgd(optax.sgd(1e30 + learning_rate))

    diverging = case(8)._replace(build=build, over=(studies.RATE,))
    assert studies.tune(arguments(), diverging) is None
