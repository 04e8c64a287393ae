"""Methods with the settings among which a planner chooses."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import dsgd.compressors
from dsgd import checks
from dsgd.base import Algorithm, Compressor
from dsgd.graphs.topology import Topology
from dsgd.runs.sweeps import grid_values

RATE = "learning_rate"


@checks.arguments
@dataclass(frozen=True, eq=False)
class Candidate:
    """A method with fixed settings, and with others that one compiled program sweeps.

        Candidate("local SGD", algorithms.local_sgd, ("H",), {"H": (4, 16, 64)})
        Candidate("EF21", algorithms.ef21, (compressors.sign, compressors.sign))
        Candidate("decentralized SGD", algorithms.decentralized_sgd, (topologies.ring,))

    Args:
        name: of the method, in tables and figures.
        function: (optimizer, *arguments) -> method.
        arguments: what the function receives after the optimizer. A string is the name of a
            hyperparameter in `grids`, a function is called with the number of workers (and returns
            a topology or a number), and everything else is passed unchanged.
        grids: values of the hyperparameters besides the step size, by name; None: there are none.
        optimizer: step size -> the function's first argument, such as `optax.adamw`; None: that of
            the plan.
        learning_rates: step sizes; None: those of the plan.

    Raises:
        ValueError: if an argument is a string without a grid, a grid belongs to no argument, is
            empty or contains non-finite numbers, or the step size is one of them; or `optimizer`
            cannot be called with a step size.
    """

    name: str
    function: Callable[..., Algorithm]
    arguments: tuple[Any, ...] = ()
    grids: Mapping[str, Sequence[float]] | None = None
    optimizer: Callable[..., Any] | None = None
    learning_rates: Sequence[float] | None = None

    def __post_init__(self) -> None:
        names = {argument for argument in self.arguments if isinstance(argument, str)}
        if names != set(self.swept):
            raise ValueError(
                f"Candidate: {self} has the arguments {sorted(names)} and grids of "
                f"{sorted(self.swept)}; expected a grid for each argument that is a string"
            )
        if RATE in self.swept:
            raise ValueError(
                f"Candidate: {self} has a grid of {RATE}; expected it as `learning_rates`, which "
                "are those of the optimizer"
            )
        for name, grid in self.swept.items():
            grid_values(name, grid)
        if self.learning_rates is not None:
            grid_values("learning_rates", self.learning_rates)
        if self.optimizer is not None:
            checks.require_call("Candidate: optimizer", self.optimizer, "step size")

    @property
    def swept(self) -> dict[str, Sequence[float]]:
        """The values of the hyperparameters by name."""
        return dict(self.grids or {})

    @property
    def settings(self) -> str:
        """The topology and the compressors, for tables."""
        return ", ".join(dict.fromkeys(filter(None, map(_label, self.arguments))))

    def __str__(self) -> str:
        return f"{self.name}, {self.settings}" if self.settings else self.name

    def build(self, optimizer: Any, workers: int, **values: Any) -> Algorithm:
        """Returns the method.

        Args:
            optimizer: its first argument.
            workers: N.
            values: values of the hyperparameters in `grids`, which may be traced.
        """
        arguments = [_resolve(each, workers, values) for each in self.arguments]
        return self.function(optimizer, *arguments)

    def rates(self, of_plan: Sequence[float]) -> list[float]:
        """Returns its step sizes, or else those of the plan."""
        rates = of_plan if self.learning_rates is None else self.learning_rates
        return grid_values("learning_rates", rates).tolist()

    def expression(self, optimizer: str, workers: int, values: Mapping[str, float]) -> str:
        """Returns the Python expression that makes the method, to be copied.

        Args:
            optimizer: the expression of the optimizer.
            workers: N.
            values: values of the hyperparameters in `grids`.
        """
        return call(
            self.function, optimizer, *(_write(each, workers, values) for each in self.arguments)
        )

    def substitute(self, compressor: Compressor | None = None, topology: Any = None) -> Candidate:
        """Returns the candidate with another compressor or topology in all places of one.

        Args:
            compressor: the compressor; None: unchanged.
            topology: function of the number of workers that returns it; it gets the weights of the
                candidate's own topology if it accepts them. None: unchanged.
        """

        def replace_argument(argument: Any) -> Any:
            if isinstance(argument, Compressor) and compressor is not None:
                return compressor
            if not callable(argument) or topology is None:
                return argument
            keywords = argument.keywords if isinstance(argument, functools.partial) else {}
            accepted = inspect.signature(topology).parameters
            keywords = {name: each for name, each in keywords.items() if name in accepted}
            return functools.partial(topology, **keywords) if keywords else topology

        return replace(self, arguments=tuple(map(replace_argument, self.arguments)))


def require(candidates: Sequence[Candidate]) -> None:
    """Raises ValueError if there are no candidates, or two have the same name."""
    if not candidates:
        raise ValueError("plan: no candidates; expected at least one dsgd.Candidate")
    names = [str(each) for each in candidates]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"plan: several candidates have the name {', '.join(twice)}; expected distinct methods "
            "or settings"
        )


def call(function: Callable[..., Any], *arguments: str) -> str:
    """Returns the expression of a call, with the keywords of `functools.partial`."""
    keywords = {}
    while isinstance(function, functools.partial):
        keywords = {**function.keywords, **keywords}
        arguments = (*map(repr, function.args), *arguments)
        function = function.func
    named = (f"{name}={value!r}" for name, value in keywords.items())
    return f"{_reference(function)}({', '.join((*arguments, *named))})"


def _reference(function: Callable[..., Any]) -> str:
    """Returns the name of a function with that of the shortest module that has it."""
    name = getattr(function, "__name__", type(function).__name__)
    module = getattr(function, "__module__", None) or ""
    root = module.split(".")[0]
    is_public = getattr(sys.modules.get(root), name, None) is function
    return f"{root if is_public else module}.{name}"


def _resolve(argument: Any, workers: int, values: Mapping[str, Any]) -> Any:
    """Returns what the function receives for an argument of a candidate."""
    if isinstance(argument, str):
        return values[argument]
    if isinstance(argument, Compressor) or not callable(argument):
        return argument
    return argument(workers)


def _label(argument: Any) -> str:
    """Describes a topology or a compressor; other arguments have no label."""
    if isinstance(argument, Compressor):
        return re.sub(r"^whole_model\((.*)\)$", r"\1", argument.name)
    inner = _inner(argument) if callable(argument) else None
    return getattr(inner, "__name__", "").replace("_", " ")


def _write(argument: Any, workers: int, values: Mapping[str, float]) -> str:
    """Returns the expression of an argument."""
    if isinstance(argument, str):
        return repr(np.asarray(values[argument]).item())
    if isinstance(argument, Compressor):
        return _qualify(argument.name, "compressors", dsgd.compressors)
    if not callable(argument):
        return repr(argument)
    made, root = argument(workers), _inner(argument).__module__.split(".")[0]
    if isinstance(made, int):
        return repr(made)
    if isinstance(made, Topology) and root == "topologies":
        return _qualify(made.name, root, sys.modules[root])
    return call(argument, f"{workers}")


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function inside `functools.partial`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _qualify(name: str, prefix: str, module: Any) -> str:
    """Returns a name such as `top_k(0.1)` with the module's prefix of its functions. Other words
    are texts.
    """

    def qualify(word: re.Match[str]) -> str:
        return f"{prefix}.{word[0]}" if hasattr(module, word[0]) else repr(word[0])

    return re.sub(r"(?<![\w.])[a-z_]\w*", qualify, name)
