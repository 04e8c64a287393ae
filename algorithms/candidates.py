"""The candidates of `dsgd.plan` and of maps: methods of all families with the settings that matter
on a network.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import topologies
from algorithms.asynchronous.asynchronous_gossip_sgd import asynchronous_gossip_sgd
from algorithms.asynchronous.asynchronous_sgd import asynchronous_sgd
from algorithms.asynchronous.malenia_sgd import malenia_sgd
from algorithms.asynchronous.rennala_sgd import rennala_sgd
from algorithms.asynchronous.ringleader_sgd import ringleader_sgd
from algorithms.asynchronous.ringmaster_sgd import ringmaster_sgd
from algorithms.compressed.compressed_sgd import compressed_sgd
from algorithms.compressed.ef21 import ef21
from algorithms.compressed.error_compensated_sgd import error_compensated_sgd
from algorithms.decentralized.choco_sgd import choco_sgd
from algorithms.decentralized.decentralized_sgd import decentralized_sgd
from algorithms.decentralized.exact_diffusion import exact_diffusion
from algorithms.decentralized.lead import lead
from algorithms.decentralized.local_exact_diffusion import local_exact_diffusion
from algorithms.facts import imported
from algorithms.local_updates.diloco import diloco
from algorithms.local_updates.local_sgd import local_sgd
from algorithms.local_updates.scaffold import scaffold
from algorithms.local_updates.sparse_loco import qsparse_local_sgd
from algorithms.synchronous.minibatch_sgd import minibatch_sgd
from dsgd import Algorithm, Candidate, Topology, compressors
from dsgd.compressors import whole_model

_PERIODS = (4, 16, 64)


def candidate(function: Callable[..., Algorithm], title: str = "", **changes: Any) -> Candidate:
    """Returns the candidate of a registered method: its default instance, with several periods if
    it has a period, and with the values of other settings that the method names.

    Args:
        function: of a method, such as `algorithms.diloco`.
        title: its name in tables and figures; "": that of the function.
        changes: other values of its settings, and of `graph`.

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
    first, *others = inspect.signature(function).parameters.values()
    if first.name != "optimizer":
        raise ValueError(
            f"candidate: {facts.name} takes {first.name} in place of an optimizer; expected a "
            "method with an optimizer, since its learning rate is tuned"
        )
    settings: dict[str, Any] = {"graph": facts.graph, **(facts.settings or {}), **changes}
    arguments, keywords, grids = [], {}, dict[str, Any]()
    for parameter in others:
        if parameter.annotation in ("Topology", Topology):
            value = settings["graph"]
        elif parameter.name == "period" and "period" in settings:
            value = "H"
            grids[value] = _PERIODS
        elif parameter.name in facts.grids and parameter.name not in changes:
            value = parameter.name
            grids[value] = facts.grids[value]
        elif parameter.name in settings:
            value = settings[parameter.name]
        else:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            keywords[parameter.name] = value
        else:
            arguments.append(value)
    called = partial(function, **keywords) if keywords else function
    return Candidate(title or facts.name, called, tuple(arguments), grids)


_SIGN = whole_model(compressors.sign)
_TENTH, _SHARE, _HUNDREDTH = (whole_model(compressors.top_k(k)) for k in (0.1, 0.03, 0.01))
_LAZY_RING = partial(topologies.ring, weights=topologies.lazy)
_compensated = partial(candidate, error_compensated_sgd)
_sparse = partial(candidate, qsparse_local_sgd)
_gossip = partial(candidate, decentralized_sgd)

SYNCHRONOUS = (
    candidate(minibatch_sgd),
    candidate(local_sgd),
    candidate(diloco),
    candidate(scaffold),
    candidate(compressed_sgd),
    _compensated(),
    _compensated(up=_TENTH, down=_TENTH),
    _compensated(up=_SHARE, down=_SHARE),
    candidate(ef21),
    _sparse(compressor=_SIGN),
    _sparse(compressor=_HUNDREDTH),
    _gossip(),
    _gossip(graph=topologies.one_peer_exponential),
    candidate(exact_diffusion, graph=_LAZY_RING),
    candidate(local_exact_diffusion),
    candidate(choco_sgd),
    candidate(lead, compressor=whole_model(compressors.qsgd(2, "linf"))),
)
"""The baseline, `minibatch_sgd`, first. The iterates of these methods do not depend on the
clock."""

ASYNCHRONOUS = (
    candidate(asynchronous_sgd),
    candidate(rennala_sgd),
    candidate(ringmaster_sgd),
    candidate(malenia_sgd),
    candidate(ringleader_sgd),
    candidate(asynchronous_gossip_sgd, graph=topologies.complete),
)
"""Methods with iterates that depend on the cluster, so that they run on each cluster on which they
are compared. The data of the workers may differ for Malenia and Ringleader."""

CANDIDATES = (*SYNCHRONOUS, *ASYNCHRONOUS)
"""All of them: what `python -m experiments.plan` compares by default."""
