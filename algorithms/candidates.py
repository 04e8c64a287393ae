"""The candidates of `dsgd.plan` and of maps, from what the methods state about themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import optax

from algorithms.facts import Facts, Use, imported
from algorithms.registry import METHODS
from dsgd import Algorithm, Candidate, Topology

_PERIODS = (4, 16, 64)
_OF_LANGUAGE_MODELS = {
    "optimizer": partial(optax.adamw, weight_decay=0.1),
    "learning_rates": (3e-4, 1e-3, 3e-3, 1e-2),
    "period": (10, 30, 100, 500),
}


def candidate(function: Callable[..., Algorithm], title: str = "", **changes: Any) -> Candidate:
    """Returns the candidate of a registered method: its default instance, with several periods if
    it has a period.

    Args:
        function: of a method, such as `algorithms.diloco`.
        title: its name in tables and figures; "": that of the function.
        changes: other values of its settings, of `graph`, and of the candidate's `optimizer` and
            `learning_rates`. A tuple of numbers is a grid of values.

    Raises:
        ValueError: if the method has no default instance, or takes a step size in place of an
            optimizer.
    """
    facts = imported[function.__name__]
    if facts.settings is None:
        raise ValueError(
            f"candidate: {facts.name} has no default instance; expected dsgd.Candidate with its "
            "arguments"
        )
    periods = {"period": _PERIODS} if "period" in facts.settings else {}
    return _make(facts, {**facts.settings, **periods, **changes}, title)


def _make(facts: Facts, settings: Mapping[str, Any], title: str = "") -> Candidate:
    """Returns the candidate with these arguments; those that the method does not take are ignored.

    Raises:
        ValueError: if the method takes a step size in place of an optimizer.
    """
    first, *others = inspect.signature(facts.function).parameters.values()
    if first.name != "optimizer":
        raise ValueError(
            f"candidate: {facts.name} takes {first.name} in place of an optimizer; expected a "
            "method with an optimizer, since its learning rate is tuned"
        )
    settings = {"graph": facts.graph, **settings}
    given, keywords, grids = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for parameter in others:
        name = parameter.name
        key = "graph" if parameter.annotation in ("Topology", Topology) else name
        if key not in settings:
            continue
        value = settings[key]
        if _is_grid(value):
            swept = "H" if name == "period" else name
            grids[swept], value = value, swept
        (keywords if parameter.kind is parameter.KEYWORD_ONLY else given)[name] = value
    positional = [each for each in others if each.kind is not each.KEYWORD_ONLY]
    while positional and positional[-1].name not in given:
        positional.pop()
    arguments = tuple(given.get(each.name, each.default) for each in positional)
    called = partial(facts.function, **keywords) if keywords else facts.function
    return Candidate(
        title or facts.name,
        called,
        arguments,
        grids,
        settings.get("optimizer"),
        settings.get("learning_rates"),
    )


def _is_grid(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, int | float) for each in value)


def _stated(use: Use) -> Iterator[tuple[Facts, Mapping[str, Any]]]:
    """Yields the methods that a planner tries for a purpose, with what each states for it: the
    baseline `minibatch_sgd` first, then in the order of the files.
    """
    for facts in sorted(METHODS.values(), key=lambda facts: facts.name != "minibatch_sgd"):
        for changes in facts.candidates.get(use, ()):
            yield facts, changes


_GENERAL = [
    (facts.family == "asynchronous", candidate(facts.function, **changes))
    for facts, changes in _stated("any problem")
]

SYNCHRONOUS = tuple(each for is_asynchronous, each in _GENERAL if not is_asynchronous)
"""The baseline, `minibatch_sgd`, first. The iterates of these methods do not depend on the
clock."""

ASYNCHRONOUS = tuple(each for is_asynchronous, each in _GENERAL if is_asynchronous)
"""Methods with iterates that depend on the cluster, so that they run on each cluster on which they
are compared. The data of the workers may differ for Malenia and Ringleader."""

CANDIDATES = (*SYNCHRONOUS, *ASYNCHRONOUS)
"""All of them: what `python -m experiments.plan` compares by default."""

FOR_MODELS = tuple(
    _make(facts, {**_OF_LANGUAGE_MODELS, **changes})
    for facts, changes in _stated("language models")
)
"""Methods for training language models, the baseline `minibatch_sgd` first, with the arguments of
their papers, several periods if they have one, and step sizes of their own. Their base optimizer is
AdamW, unless the method has a rule of its own."""
