"""Signatures in `help`."""

from __future__ import annotations

import inspect
import pydoc
import typing
from collections.abc import Callable
from typing import Annotated, Literal

import pytest

import algorithms
import dsgd
import topologies
from dsgd import checks, clusters, communication, compressors, network, problems


@checks.arguments
def described(
    share: float | None,
    *others: int,
    rule: Annotated[Callable[[int], int], "(worker)"] = abs,
    mode: Literal["a", "b"] = "b",
    monitor: algorithms.kimad.Monitor = algorithms.kimad.last,
    via: network.OneServer = network.star,
    **changes: int,
) -> dict[str, int]:
    return {}


@pytest.mark.parametrize(
    ("public", "line"),
    [
        (
            described,
            "described(share: float | None, *others: int, "
            "rule: Annotated[Callable[[int], int], '(worker)'] = abs, "
            "mode: Literal['a', 'b'] = 'b', monitor: algorithms.kimad.Monitor = Monitor(last), "
            "via: network.OneServer = OneServer(star), **changes: int) -> dict[str, int]\n",
        ),
        (dsgd.State, "State(server: PyTree = (), workers: PyTree = (), step: "),
        (algorithms.kimad.Monitor, "Monitor(start: Callable[[int], PyTree], observe: "),
        (algorithms.memories.Vector, "Vector(start: Callable"),
        (communication.Transport, "__new__(_cls, pattern: Pattern, bits: Callable[[Sizes, Sizes]"),
        (communication.Transport, "move: Callable = <lambda>, simulated: bool = False"),
    ],
)
def test_help_shows_annotations_and_defaults_as_in_the_source(public, line):
    assert line in pydoc.plain(pydoc.render_doc(public))


PACKAGES = (
    algorithms,
    algorithms.kimad,
    clusters,
    communication,
    compressors,
    dsgd,
    network,
    problems,
    topologies,
)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_signatures_have_no_addresses(package):
    """Except for the models of flax, which have signatures of their own, and exceptions."""
    for name in set(package.__all__) - {"CNN", "MLP", "ResNet18", "Transformer"}:
        public = getattr(package, name)
        if callable(public) and not (inspect.isclass(public) and issubclass(public, Exception)):
            signature = str(inspect.signature(public))
            assert " at 0x" not in signature, name
            assert "ForwardRef" not in signature, name


def test_annotations_and_defaults_are_unchanged():
    parameters = inspect.signature(described).parameters
    assert parameters["rule"].default is abs
    assert parameters["monitor"].default is algorithms.kimad.last
    assert parameters["share"].annotation == "float | None"
    assert typing.get_type_hints(dsgd.State)["step"]
    assert inspect.signature(described).bind(0.5, mode="a").arguments == {"share": 0.5, "mode": "a"}
