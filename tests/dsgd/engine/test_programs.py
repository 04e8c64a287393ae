"""Compiled programs: shared, and limited in number."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from dsgd.engine import programs

MAPS = Path("/proc/self/maps")


class Plan(NamedTuple):
    number: float
    mesh: jax.sharding.Mesh
    runs: int = 1


def add(plan: Plan, x: jax.Array) -> jax.Array:
    return x + plan.number


@pytest.fixture
def run(mesh):
    """Returns (number, x) -> x + number; each number has its own program."""
    programs.clear()
    yield lambda number, x=1: int(programs.call(add, Plan(number, mesh), np.int32(x)))
    programs.clear()


@pytest.mark.skipif(not MAPS.exists(), reason="maps of memory are counted on Linux")
def test_only_the_latest_programs_are_kept(run, monkeypatch):
    """Forty programs, as in a notebook: the memory maps of evicted programs are released."""
    monkeypatch.setattr(programs, "MOST", 8)
    before, used = programs.count_compiled(), []
    for number in range(40):
        assert run(number) == 1 + number
        used.append(MAPS.read_bytes().count(b"\n"))
    assert programs.count_compiled() == before + 40
    print(used[::10])
    assert used[-1] <= used[19] + 20


def test_the_program_used_longest_ago_goes_first(run, monkeypatch):
    monkeypatch.setattr(programs, "MOST", 2)
    for number in (1, 2, 1, 3):  # 3 evicts 2
        run(number)
    before = programs.count_compiled()
    assert [run(1), run(3)] == [2, 4]
    assert programs.count_compiled() == before
    assert run(2) == 3
    assert programs.count_compiled() == before + 1


def test_a_text_that_would_lack_its_constants_is_refused(mesh):
    """Two runs that differ in a matrix would share a program."""
    jax.config.update("jax_use_simplified_jaxpr_constants", True)
    try:
        with pytest.raises(
            ValueError,
            match="the text of a program lacks its constants; expected the flag to be off",
        ):
            programs.text(add, Plan(1, mesh), jax.ShapeDtypeStruct((), np.int32))
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", False)
    one, other = (
        programs.text(add, Plan(number, mesh), jax.ShapeDtypeStruct((), np.int32))
        for number in (1, 2)
    )
    assert one != other


def test_the_garbage_collector_is_restored_after_a_failed_program(mesh):
    def fails(plan, x):
        assert not gc.isenabled()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        programs.call(fails, type("Plan", (), {"mesh": mesh})(), 1)
    assert gc.isenabled()


def test_programs_that_differ_in_numbers_only_suggest_a_sweep_once(run, monkeypatch, caplog):
    monkeypatch.setattr(programs, "_suggested", [])
    with caplog.at_level("WARNING", programs.__name__):
        for number, said in ((1, 0), (2, 0), (0.25, 0), (0.25, 0), (0.75, 1), (0.5, 1)):
            run(number)
            assert len(caplog.messages) == said
    assert "dsgd.sweep compiles one program for all values" in caplog.text


def test_neither_sweeps_nor_equal_texts_suggest_a_sweep(run, mesh, monkeypatch, caplog):
    monkeypatch.setattr(programs, "_suggested", [])

    def first(plan, x):
        return jax.tree.leaves(x)[0] + plan.number

    before = programs.count_compiled()
    with caplog.at_level("WARNING", programs.__name__):
        for number in (0.25, 0.75):
            programs.call(add, Plan(number, mesh, runs=2), np.int32(1))
        for tree in ([np.int32(1)], (np.int32(1),)):  # two programs with one text
            programs.call(first, Plan(0.5, mesh), tree)
    assert programs.count_compiled() == before + 4
    assert not caplog.messages
