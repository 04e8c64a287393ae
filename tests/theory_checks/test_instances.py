"""Constants of the problems on which statements are tested."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from theory_checks.machinery import instances


def test_constants_of_wells_are_exact_everywhere():
    """The gradient is L sin(x + s), and differs between samples by constants; f is 0 at -s, and f''
    has the eigenvalue L there and -L at a maximum.
    """
    L, d, start, batch_size = 1.7, 3, np.array([0.1, 2.0, np.pi]), 4
    problem = instances.wells(
        4,
        d,
        start=start,
        smoothness=L,
        noise=0.6,
        heterogeneity=1.3,
        batch_size=batch_size,
        replacement=False,
        seed=5,
    )
    of, M = instances.constants(problem), 8
    assert of.heterogeneity is not None
    single = jax.tree.map(lambda leaf: leaf[:, :, None], problem.data)  # [N, M, batches of 1, ...]
    for x in (np.zeros(d), -start, np.array([3.0, -1.0, 0.5])):
        each = np.asarray(
            jax.vmap(jax.vmap(jax.grad(problem.loss), (None, 0)), (None, 0))(x, single)
        )
        local, mean = each.mean(axis=1), each.mean(axis=(0, 1))
        assert mean == pytest.approx(L * np.sin(x + start), abs=1e-12)
        fewer = (M - batch_size) / (M - 1)
        variances = (
            np.mean(np.sum((each - local[:, None]) ** 2, axis=2), axis=1) * fewer / batch_size
        )
        assert variances == pytest.approx(of.noise**2, rel=1e-12)
        assert np.mean(np.sum((local - mean) ** 2, axis=1)) == pytest.approx(
            of.heterogeneity**2, rel=1e-12
        )

    def f(x):
        return jax.vmap(problem.loss, (None, 0))(x, problem.data).mean()

    assert f(-start) == pytest.approx(0.0, abs=1e-12)
    assert instances.constants(problem).gap == pytest.approx(
        L * np.sum(1 - np.cos(start)), rel=1e-12
    )
    assert np.diag(jax.hessian(f)(-start)) == pytest.approx(L, rel=1e-12)
    assert np.diag(jax.hessian(f)(np.pi - start)) == pytest.approx(-L, rel=1e-12)


def test_one_worker_has_wells_without_heterogeneity():
    of = instances.wells(1, 2, start=0.3, noise=0.5, heterogeneity=2.0).constants
    assert (of.noise, of.heterogeneity) == (0.5, 0.0)
