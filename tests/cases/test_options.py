"""Options of all methods: each has another value than its default in a comparison with a recursion,
or in a test of all methods that have it.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import optax
import pytest

import algorithms
import dsgd
from dsgd import compressors, network, problems
from dsgd.base import Algorithm
from tests.methods import given
from tests.methods.files import CASES
from theory_checks.machinery import trajectories

METHODS: dict[str, Callable[..., Algorithm]] = {
    name: function
    for name, function in ((name, getattr(algorithms, name)) for name in algorithms.__all__)
    if inspect.isfunction(function)
    and inspect.signature(function).return_annotation in (Algorithm, "Algorithm")
}


def options(name: str) -> dict[str, Any]:
    """Returns the defaults of a method's options."""
    parameters = inspect.signature(METHODS[name]).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


class Call(NamedTuple):
    """A call of a method's function."""

    name: str
    arguments: dict[str, Any]


def calls(make: Callable[[], Any]) -> list[Call]:
    """Returns all calls of the methods' functions while `make` runs."""
    found = list[Call]()

    def enter(frame, event, argument):
        if event == "call" and frame.f_code in CODES:
            found.append(Call(CODES[frame.f_code], dict(frame.f_locals)))

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        make()
    finally:
        sys.setprofile(before)
    return found


CODES = {inspect.unwrap(function).__code__: name for name, function in METHODS.items()}


@cache
def comparisons() -> dict[str, list[dict[str, Any]]]:
    """Returns the arguments with which each method is compared with its recursion."""
    found = {name: list[dict[str, Any]]() for name in METHODS}
    with jax.enable_x64(True):
        for name, case in CASES.items():
            if case.absent:
                continue
            of = trajectories.instance(given.draws(), case.more(given.draws()))
            called = calls(partial(given.build(case), of))
            assert name.partition(",")[0] in {call.name for call in called}, "another method"
            for call in called:
                found[call.name].append(call.arguments)
    return found


ELSEWHERE = {
    "drop_compute.all_dropped": "an error or a warning: dropcompute/test_method",
    "error_feedback": "EC-SGD, EF21, DIANA and EF-BV are its cases: test_memories",
    "gt_saga": "draws samples: test_variance_reduction",
    "kimad_sgd.too_small": "an error or a wait: kimad/test_method",
    "kimad_sgd.update": "local steps: kimad/test_method",
    "powersgd.rank": "a matrix of three rows has at most rank 3, and 2 is the default",
    "saga": "draws samples: test_variance_reduction",
    "streaming_diloco.compressor": "another one than the paper's: test_slow_links",
    "tern_grad": "draws signs: test_one_bit_methods",
}
"""Methods that no recursion has, and options that have their default, or 1, in all of them."""
OF_ALL = {"via", "inclusion"}  # tested below, for all methods that have them
WRAPPERS = {"make", "with_diagnostics", "with_local_work", "with_page", "with_saga", "with_starts"}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def differs(option: str, arguments: dict[str, Any], default: Any) -> bool:
    """Returns whether a mistake in the use of an argument can be seen: it is not the default, and
    no number that is 0, 1 or equal to another number of the call.
    """
    value = arguments[option]
    if not is_number(value):
        return value is not default and not (isinstance(value, str) and value == default)
    others = [other for name, other in arguments.items() if name != option and is_number(other)]
    return value not in (0, 1, default, *others)


def test_arguments_differ_from_their_defaults_in_comparisons_with_recursions():
    """Numbers are also not 0 or 1, and not equal to each other."""
    unseen = set[str]()
    for name in METHODS.keys() - WRAPPERS:
        found = comparisons()[name]
        if not found:
            unseen.add(name)
            continue
        for each in inspect.signature(METHODS[name]).parameters.values():
            optional = each.default is not each.empty
            if each.name in OF_ALL or each.name.startswith("allow_"):
                continue
            chosen = optional or any(is_number(call[each.name]) for call in found)
            if chosen and not any(differs(each.name, call, each.default) for call in found):
                unseen.add(f"{name}.{each.name}")
    assert unseen == ELSEWHERE.keys()


SGD = optax.sgd(0.1)
OTHERWISE: dict[str, Callable[[], Algorithm]] = {
    "error_feedback": lambda: algorithms.error_feedback(
        SGD, algorithms.memories.Up(compressors.identity)
    ),
    "fed_opt": lambda: algorithms.fed_opt(SGD, 3, optax.sgd(0.5)),
    "fed_per": lambda: algorithms.fed_per(SGD, 3, False),
    "fed_rep": lambda: algorithms.fed_rep(SGD, 3, 2, False),
    "saga": lambda: algorithms.saga(SGD, 9999),
    "streaming_diloco": lambda: algorithms.streaming_diloco(SGD, 1, 3, compressor=None),
}
OTHER = {
    network.ring_all_reduce: network.star,
    network.star: network.parameter_server,
    network.multi_server: network.star,
}


def make_method(name: str, **options: Any) -> Algorithm:
    """Returns a method as it is compared, or as in `OTHERWISE`, with other options."""
    own = OTHERWISE.get(name)
    (arguments, *_) = [call.arguments for call in calls(own)] if own else comparisons()[name]
    return METHODS[name](**{**arguments, **options})


def having(option: str) -> list[str]:
    """Returns the methods that have an option."""
    return [name for name in METHODS if option in options(name)]


@cache
def regression() -> dsgd.Problem:
    return problems.robust_regression(trajectories.N, 4, batch_size=3)


@pytest.mark.parametrize(
    "name", [name for name in having("via") if isinstance(options(name)["via"], dsgd.Pattern)]
)
def test_all_messages_use_the_given_pattern(name):
    """The exchanges of a method with another pattern are the same with this pattern in the place of
    the default.
    """
    usual = options(name)["via"]
    with jax.enable_x64(True):
        default, found = (
            [each.pattern for each in dsgd.exchanges(make_method(name, via=via), regression())]
            for via in (usual, OTHER[usual])
        )
    assert usual in default
    assert found == [OTHER[usual] if pattern == usual else pattern for pattern in default]


@pytest.mark.parametrize("name", having("inclusion"))
def test_an_inclusion_probability_is_used(name):
    """It is refused if all clients participate."""
    with jax.enable_x64(True), pytest.raises(ValueError, match=r"inclusion = 0.5 but all clients"):
        dsgd.exchanges(make_method(name, inclusion=0.5), regression())


# --- Ranges that the docstrings state.

BETWEEN = re.compile(r"in ([\[(])(\d+), (\d+)([\])])")


def outside(name: str) -> Iterator[tuple[str, float]]:
    """Yields numbers outside the ranges of a method's options: numbers of rounds are at least 1."""
    parts = re.split(r"\n {8}(?=\w[\w, ]*: )", METHODS[name].__doc__ or "")
    said = {option: part for part in parts for option in part.partition(":")[0].split(", ")}
    for option, each in inspect.signature(METHODS[name]).parameters.items():
        text = " ".join(said.get(option, "").split())
        if not (number := re.search("a number|an integer|Real|Period", str(each.annotation))):
            continue
        yield option, math.nan
        if found := BETWEEN.search(text):
            left, low, high, right = found.groups()
            yield option, float(low) - (left == "[")
            yield option, float(high) + (right == "]")
        elif found := re.search(r"at least (\d+)", text):
            yield option, int(found[1]) - 1
        elif re.search("above 0|positive", text) or number[0] in ("Period", "an integer"):
            yield option, 0


@pytest.mark.parametrize("name", [name for name in METHODS if [*outside(name)]])
def test_numbers_outside_their_stated_range_are_refused(name):
    with jax.enable_x64(True):
        make_method(name)
        for option, value in outside(name):
            with pytest.raises(ValueError, match=rf"^\w+: {option} = {value}; expected"):
                make_method(name, **{option: value})
