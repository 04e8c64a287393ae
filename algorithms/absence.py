"""What becomes of a worker that is away for a round; and why some methods cannot go on without one, or without a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsgd.base import PyTree, Round
from dsgd.graphs.topology import Topology

SERVES = "each worker is the server of a part of the model, which nobody else has"
REMEMBERED = "neighbours add up what each has sent, and would no longer know what was lost"
ONE_W = "its correction remembers what one W has changed in all rounds, and without some messages that is another W"
ASYNCHRONOUS = "it has no rounds to be away from: a worker that is away is a slow one, with longer seconds of compute"


def stay(before: PyTree, after: PyTree, round: Round) -> PyTree:
    """Who was away has what it had."""
    return before


def takes_average(before: Any, after: Any, round: Round) -> Any:
    """Who was away has what it had, and of averages that others made its model: it gets them when it comes back."""
    return before._replace(params=after.params)


def where_positive(topology: Topology, away: Callable) -> Callable | str:
    """`away`, if push-sum's masses stay above 0 where messages are lost, or why not."""
    if min(W.data.min() for W in topology.matrices) > 0:
        return away
    return f"the W of {topology.name} has negative weights, and without some messages what push-sum divides by may be 0"


def where_symmetric(topology: Topology, away: Callable) -> Callable | str:
    """`away`, if a message that is lost leaves the mean of the models where it is, or why not.

    A link is down in both directions: of a symmetric W the two have been pulled as much to each other, and neither is.
    """
    if topology.symmetric:
        return away
    return f"the W of {topology.name} is not symmetric, and what is lost moves the mean over workers, which push-sum keeps"
