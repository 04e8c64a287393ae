"""Quadratics of two leaves, in float64: exact gradients, a start that is not 0, and workers that do not agree."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import dsgd
from dsgd import problems

BIASES = 2


class Data(NamedTuple):
    A: jax.Array
    b: jax.Array


@cache
def numbers(N: int, d: int, **options: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of f_n(x) = x^T A_n x / 2 - b_n^T x: A `[N, d, d]`, b `[N, d]`, and the start; options as of `problems.random_quadratic`."""
    with jax.enable_x64(True):
        data = problems.random_quadratic(N, d, seed=1, **options).data
    return np.asarray(data.A), np.asarray(data.b), np.random.default_rng(7).normal(size=d)


def as_tree(x: Any) -> dict[str, Any]:
    return {"biases": x[:BIASES], "weights": x[BIASES:].reshape(2, -1)}


@cache
def quadratic(N: int, d: int, **options: Any) -> dsgd.Problem:
    A, b, start = numbers(N, d, **options)

    def loss(params, batch):
        x = ravel_pytree(params)[0]
        return x @ batch.A @ x / 2 - batch.b @ x

    with jax.enable_x64(True):
        data = Data(jnp.asarray(A), jnp.asarray(b))
    return dsgd.Problem(init=lambda key: as_tree(jnp.asarray(start)), loss=loss, sample=lambda key, mine: mine, data=data)
