"""What the tests of the loop run on."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import dsgd
from dsgd import problems


@pytest.fixture(scope="module")
def problem() -> dsgd.Problem:
    """Four workers, three dimensions, with noise."""
    return problems.random_quadratic(4, 3, noise=0.3, seed=0)


@pytest.fixture(scope="module")
def gradient_is_batch() -> dsgd.Problem:
    """Four workers, one parameter, which is the loss that is evaluated."""
    return dsgd.Problem(
        init=lambda key: jnp.zeros(()),
        loss=lambda params, batch: params * batch,
        data=jnp.zeros(4),
        sample=lambda key, mine: mine,
        evaluate=lambda params, data, shared: ({"loss": params}, params),
    )
