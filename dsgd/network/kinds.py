"""What patterns carry, as their types: a call of the communicator, and an argument `via` of a
method, accept only patterns that carry what they need. A plain `Pattern` carries nothing.
"""

from __future__ import annotations

from dsgd.base import Pattern


class AllReduce(Pattern):
    """A pattern that carries a mean over all workers to all workers. Each worker sends at least one
    vector.
    """


class AllGather(AllReduce):
    """A pattern that carries each worker's vector to all workers."""


class OneServer(AllReduce):
    """A pattern that carries messages to one server, which is no worker, and its replies."""


class NServers(AllReduce):
    """A pattern that carries messages to N servers on the workers, each of one part of the vector,
    and their replies.
    """


class PointToPoint(Pattern):
    """A pattern that carries messages from each worker to some others, its neighbours."""


class Asynchronous(Pattern):
    """A pattern that carries the messages of an event, between a few workers or with a server."""
