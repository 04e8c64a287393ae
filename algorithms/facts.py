"""What is true of each method, stated once, above its function. The registry, the reference, and
the choice of methods by name follow from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import optax

from algorithms import optimizers
from dsgd import Algorithm, Topology

Build = Callable[..., Algorithm]
Exact = Literal["", "any data", "any data and samples"]
Need = Literal[
    "all workers",
    "columns of W sum to 1",
    "contractive compressor",
    "doubly stochastic W",
    "eigenvalues of W above -1/3",
    "exact gradients",
    "one W",
    "some exact gradients",
    "symmetric W",
    "tree",
    "unbiased compressor",
]
Use = Literal["any problem", "language models"]
_STEPS = ("step_size", "step_sizes")  # of methods without an optimizer
F = TypeVar("F", bound=Build)


@dataclass(frozen=True)
class Facts:
    """What is true of a method.

    Args:
        function: returns the method.
        sends: what a worker sends, to whom, and when if not in every round.
        exact: for which data and gradients the limit is the optimum of the mean objective: with
            exact gradients, or also with samples.
        needs: conditions on the arguments, the problem and the cluster.
        regularizer: whether it makes proximal steps of the problem's regularizer.
        paper: source, for tables; the docstring has the title.
        page: page of docs/ about it.
        aliases: other names, such as the survey's short name.
        graph: N -> topology of the default instance; None: the method has no topology.
        settings: the other arguments of the default instance; None: there is none, since they
            depend on the problem.
        candidates: with which arguments a planner tries the method (`algorithms.candidates`). For
            any problem: changes of the default instance. For language models: all arguments that
            are not the function's own defaults, which are those of the paper; and `optimizer` (step
            size -> optimizer) and `learning_rates`, if they are not those of AdamW. A tuple of
            numbers is a grid of values among which the planner chooses.
        variants: other instances, by the end of their names: settings that differ.
    """

    function: Build
    sends: str
    exact: Exact
    needs: Sequence[Need]
    regularizer: bool
    paper: str
    page: str
    aliases: Sequence[str]
    graph: Callable[[int], Topology] | None
    settings: Mapping[str, Any] | None
    candidates: Mapping[Use, Sequence[Mapping[str, Any]]]
    variants: Mapping[str, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """The name of the function, also in flags and tables."""
        return self.function.__name__

    @property
    def family(self) -> str:
        """The folder of the method's file."""
        return self.function.__module__.split(".")[1]

    def instance(
        self,
        optimizer: optax.GradientTransformation,
        workers: int | Topology,
        **changes: Any,
    ) -> Algorithm:
        """Returns the method with its default arguments.

        Args:
            optimizer: the local step; a method with a step size receives that of the optimizer.
            workers: N, or the topology of a method on graphs.
            changes: other values of `settings` and `graph`.
        """
        settings = {**(self.settings or {}), **changes}
        make = settings.pop("graph", self.graph)
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.name == "optimizer":
                settings["optimizer"] = optimizer
            elif parameter.name in _STEPS:
                settings[parameter.name] = optimizers.step_size(optimizer)
            elif parameter.annotation in ("Topology", Topology):
                settings[parameter.name] = (
                    make(workers) if isinstance(workers, int) and make else workers
                )
        return self.function(**settings)


imported: dict[str, Facts] = {}
"""The facts of each method in the modules that have been imported, by the name of its function."""


def method(
    *,
    sends: str,
    paper: str,
    exact: Exact = "",
    needs: Sequence[Need] = (),
    regularizer: bool = False,
    page: str = "",
    aliases: Sequence[str] = (),
    graph: Callable[[int], Topology] | None = None,
    settings: Mapping[str, Any] | None = MappingProxyType({}),
    candidates: Mapping[Use, Sequence[Mapping[str, Any]]] = MappingProxyType({}),
    variants: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Callable[[F], F]:
    """Returns a decorator that registers a method, and leaves its function as it is.

    Args:
        sends, paper, exact, needs, regularizer, page, aliases, graph, settings, candidates,
            variants: see `Facts`.
    """

    def register(function: F) -> F:
        imported[function.__name__] = Facts(
            function,
            sends,
            exact,
            needs,
            regularizer,
            paper,
            page,
            aliases,
            graph,
            settings,
            candidates,
            variants,
        )
        return function

    return register
