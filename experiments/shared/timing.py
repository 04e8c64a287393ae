"""Execution times of compiled programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def program(function: Callable, *args: Any) -> Callable[[], Any]:
    """Returns a function that executes the compiled `function` on these arguments and waits for its
    result; it has been executed once.

    The result is written to the buffer of the last one, because a large array in newly allocated
    memory would take ten times as long for its pages.
    """
    out = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, *args)
    )
    traced = jax.jit(lambda out, *args: function(*args), donate_argnums=0, keep_unused=True).trace(
        out, *args
    )
    compiled = traced.lower().compile()

    def run():
        nonlocal out
        out = jax.block_until_ready(compiled(out, *args))
        return out

    run()
    return run


def seconds(run: Callable[[], Any]) -> float:
    """Returns the seconds of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def time_in_turn(programs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, np.ndarray]:
    """Returns the seconds of each program, `[repeats]`; the programs take turns."""
    rounds = [{name: seconds(run) for name, run in programs.items()} for _ in range(repeats)]
    return {name: np.array([taken[name] for taken in rounds]) for name in programs}
