"""Loops of small rounds are one function on CPUs, in programs of the library only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax._src import compiler

import algorithms
import dsgd
from dsgd import problems
from dsgd.engine import programs, small_loops


def lowered(elements: int):
    """A loop whose number of turns is an argument, on so many float32."""

    def loop(turns, x):
        return jax.lax.fori_loop(0, turns, lambda i, x: jnp.sin(x) + i * jnp.max(x), x)

    return jax.jit(loop).lower(3, jnp.linspace(0, 1, elements))


def compiled(elements: int, platform: str = "cpu"):
    with small_loops.in_one_function(platform):
        return lowered(elements).compile()


def is_one_function(program) -> bool:
    return "xla_cpu_small_call" in program.as_text()


def test_small_loops_are_one_function_and_give_the_same():
    plain, ours = lowered(1_000).compile(), compiled(1_000)
    assert is_one_function(ours)
    x = jnp.linspace(0, 1, 1_000)
    np.testing.assert_allclose(ours(7, x), plain(7, x), rtol=1e-6)


def test_large_loops_are_not():
    assert not is_one_function(compiled(small_loops.BYTES // 4))


def test_other_programs_are_as_they_were():
    """Before and after, on other platforms, and those that another thread compiles meanwhile."""
    before = lowered(1_000).compile()
    with small_loops.in_one_function("cpu"), ThreadPoolExecutor(1) as another:
        meanwhile = another.submit(lambda: lowered(1_000).compile()).result()
    others = before, meanwhile, compiled(1_000, "gpu"), lowered(1_000).compile()
    assert not any(map(is_one_function, others))


def test_a_limit_in_the_users_flags_is_kept():
    plain = compiler.get_compile_options(1, 1)
    theirs = type(plain).ParseFromString(plain.SerializeAsString() + small_loops._LIMIT.replace(b"1000000", b"0000000"))
    with small_loops.in_one_function("cpu"):
        assert small_loops._with_limit(lambda: theirs)() is theirs
        assert small_loops._with_limit(lambda: plain)() is not plain


def test_rounds_of_small_models_are(mesh, key, monkeypatch):
    made: list[Any] = []
    compile_one = programs._compile
    monkeypatch.setattr(programs, "_compile", lambda *given: made.append(compile_one(*given)) or made[-1])
    programs.clear()
    method, problem = algorithms.make("dsgd", optax.sgd(0.1), 16), problems.random_quadratic(16, 100, diagonal=True, seed=0)
    dsgd.run(method, problem, steps=3, key=key, mesh=mesh)
    assert any(map(is_one_function, made))
