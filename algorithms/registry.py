"""The registry: all methods by name. It imports all of them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import partial

import optax

from algorithms import facts
from algorithms.facts import Facts
from dsgd import Algorithm, checks, spelling

for _family in (
    "asynchronous",
    "compressed",
    "decentralized",
    "dropcompute",
    "kimad",
    "local_updates",
    "synchronous",
):
    _folder = importlib.import_module(f"algorithms.{_family}")
    for _module in pkgutil.iter_modules(_folder.__path__, f"{_folder.__name__}."):
        importlib.import_module(_module.name)

METHODS: dict[str, Facts] = dict(
    sorted(facts.imported.items(), key=lambda item: item[1].function.__module__)
)
"""The facts of each method, by the name of its function, in the order of the files."""
ALIASES: dict[str, Sequence[str]] = {
    **spelling.SYNONYMS,
    **{alias.replace("-", "_"): [name] for name, each in METHODS.items() for alias in each.aliases},
}
"""The names of the functions by their other names, for messages."""


def instances() -> dict[str, Callable[[optax.GradientTransformation, int], Algorithm]]:
    """Returns the function (optimizer, N) -> method of each default instance and variant."""
    found: dict[str, Callable[[optax.GradientTransformation, int], Algorithm]] = {}
    for each in METHODS.values():
        if each.settings is not None:
            found[each.name] = each.instance
            for end, changes in each.variants.items():
                found[f"{each.name}_{end}"] = partial(each.instance, **changes)
    return found


def find(name: str) -> Facts:
    """Returns the facts of the method of an entry of the registry, which may be a variant."""
    return next(
        each
        for each in METHODS.values()
        if name in (each.name, *(f"{each.name}_{end}" for end in each.variants))
    )


def full_name(name: str) -> str:
    """Returns the name in the registry for a name or an alias, whatever its capitals, hyphens and
    underscores.

    Raises:
        ValueError: if no method has this name.
    """
    spelled, known = _fold(name), {_fold(each): each for each in instances()}
    if spelled in known:
        return known[spelled]
    for each in METHODS.values():
        for alias in map(_fold, each.aliases):
            full = _fold(each.name) + spelled.removeprefix(alias)
            if spelled.startswith(alias) and full in known:
                return known[full]
    names = list(known.values())
    end = spelling.suggest(name, names, ALIASES) or f"; expected one of {', '.join(names)}"
    raise ValueError(f"make: unknown method {checks.show(name)}{end}")


def _fold(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "")


ALGORITHMS: dict[str, Callable[[optax.GradientTransformation, int], Algorithm]] = instances()
"""The methods by the names of their functions, and variants. Each value is a function (optax
optimizer, N) -> Algorithm that uses the method's default arguments.

All contract tests run on every entry."""


@checks.arguments
def make(name: str, optimizer: optax.GradientTransformation, workers: int) -> Algorithm:
    """Returns the registered method with this name, with its default options.

    Args:
        name: a key of `ALGORITHMS` or an alias, in any spelling: `fed_avg`, `FedAvg`, `sgp`.
        optimizer: the local step.
        workers: N, number of workers.

    Raises:
        ValueError: if the name is not registered.
    """
    build = ALGORITHMS[full_name(name)]
    return build(optimizer, checks.positive_int("make: workers", workers))
