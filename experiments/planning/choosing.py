"""The candidates that the flags of a command choose."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import optax

import algorithms
import dsgd
import topologies
from algorithms import registry
from algorithms.candidates import candidate
from dsgd import Candidate, compressors
from experiments.shared import commands, tables

COMPRESSORS = {
    each.name: each
    for each in (
        compressors.identity,
        compressors.sign,
        *(compressors.top_k(share) for share in (0.1, 0.03, 0.01)),
        *(compressors.random_quantization(bits) for bits in (2, 4)),
        compressors.natural,
        compressors.low_rank(1),
    )
}
TOPOLOGIES = {
    each.__name__: each
    for each in (
        topologies.chain,
        topologies.complete,
        topologies.ring,
        topologies.star,
    )
}


def choose_candidates(
    args: Any, problem: dsgd.Problem, candidates: Sequence[Candidate]
) -> list[Candidate]:
    """Returns the candidates of the flags: those with these names, with the given step sizes,
    periods, compressors and topologies.
    """
    found = list(candidates)
    if args.methods is not None:
        found = [each for name in args.methods for each in find(name, candidates)]
    if args.learning_rates != commands.Tuning.learning_rates:
        found = [dataclasses.replace(each, learning_rates=None) for each in found]
    if args.periods is not None:
        found = [set_periods(each, args.periods) for each in found]
    if args.compressors is not None:
        commands.require_known("--compressors", args.compressors, COMPRESSORS)
        others = [compressors.whole_model(COMPRESSORS[name]) for name in args.compressors]
        found = [each.substitute(compressor=other) for each in found for other in others]
    if args.topologies is not None:
        commands.require_known("--topologies", args.topologies, TOPOLOGIES)
        makers = [TOPOLOGIES[name] for name in args.topologies]
        found = [each.substitute(topology=maker) for each in found for maker in makers]
    return select_accepted(list({str(each): each for each in found}.values()), problem)


def find(name: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns the candidates with this name, or else those of `algorithms.CANDIDATES` or
    `FOR_MODELS`; or the default instance of the registered method with this name or alias.
    """

    def named(name: str) -> list[Candidate]:
        lists = (candidates, algorithms.CANDIDATES, algorithms.FOR_MODELS)
        found = ([each for each in known if each.name == name] for known in lists)
        return next(filter(None, found), [])

    if found := named(name):
        return found
    spelled = name.lower().replace("-", "_")
    try:
        full = spelled if spelled in registry.METHODS else registry.full_name(spelled)
    except ValueError as error:
        known = ", ".join(dict.fromkeys(each.name for each in candidates))
        raise ValueError(
            f"--methods {name}: expected some of {known}, or a name that python -m algorithms lists"
        ) from error
    found = named(full)
    if not found and full not in registry.METHODS:
        raise ValueError(
            f"--methods {name}: expected {registry.find(full).name}, not a variant of it"
        )
    return found or [candidate(registry.METHODS[full].function)]


def select_accepted(candidates: Sequence[Candidate], problem: dsgd.Problem) -> list[Candidate]:
    """Returns the candidates that accept their compressors and topologies, and prints the reasons
    of the others.
    """
    found, reasons = [], []
    for each in candidates:
        values = {name: grid[0] for name, grid in each.swept.items()}
        try:
            each.build((each.optimizer or optax.sgd)(1.0), problem.workers, **values)
        except ValueError as error:
            reasons.append(f"Left out: {each} ({error}).")
        else:
            found.append(each)
    tables.notes(reasons)
    return found


def set_periods(candidate: Candidate, periods: tuple[int, ...]) -> Candidate:
    """Returns the candidate with other values of its period H."""
    grids = {name: periods if name == "H" else grid for name, grid in candidate.swept.items()}
    return dataclasses.replace(candidate, grids=grids)
