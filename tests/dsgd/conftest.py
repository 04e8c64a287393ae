"""Problems for the tests of the loop."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import dsgd
from dsgd import problems


@pytest.fixture(scope="module")
def problem() -> dsgd.Problem:
    """A quadratic with four workers, three dimensions, and noise."""
    return problems.random_quadratic(4, 3, noise=0.3, seed=0)


@pytest.fixture(scope="module")
def gradient_is_batch() -> dsgd.Problem:
    """A problem with four workers and one parameter, which is the evaluated loss; the gradient is
    the batch.
    """
    return dsgd.Problem(
        init=lambda key: jnp.zeros(()),
        loss=lambda params, batch: params * batch,
        data=jnp.zeros(4),
        sample=lambda key, mine: mine,
        evaluate=lambda params, data, shared: ({"loss": params}, params),
    )
