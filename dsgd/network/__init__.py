"""The survey's logical switch: the time that a round of messages takes, in closed form and by event
simulation.
"""

from dsgd import signatures, spelling
from dsgd.network.clocks import Ports, Timing
from dsgd.network.exchanges import elapse, exchange
from dsgd.network.kinds import (
    AllGather,
    AllReduce,
    Asynchronous,
    NServers,
    OneServer,
    PointToPoint,
)
from dsgd.network.levels import Clocks, Inside, Levels
from dsgd.network.patterns import (
    all_gather,
    asynchronous_gossip,
    asynchronous_server,
    asynchronous_server_messages,
    block_all_reduce,
    cost,
    gossip,
    local,
    multi_server,
    parameter_server,
    ring_all_reduce,
    ring_all_reduce_unpartitioned,
    ring_shift,
    round_seconds,
    star,
)
from dsgd.network.switch import Convention, Message, Passage, Timeline, simulate

__all__ = [
    "AllGather",
    "AllReduce",
    "Asynchronous",
    "Clocks",
    "Convention",
    "Inside",
    "Levels",
    "Message",
    "NServers",
    "OneServer",
    "Passage",
    "PointToPoint",
    "Ports",
    "Timeline",
    "Timing",
    "all_gather",
    "asynchronous_gossip",
    "asynchronous_server",
    "asynchronous_server_messages",
    "block_all_reduce",
    "cost",
    "elapse",
    "exchange",
    "gossip",
    "local",
    "multi_server",
    "parameter_server",
    "ring_all_reduce",
    "ring_all_reduce_unpartitioned",
    "ring_shift",
    "round_seconds",
    "simulate",
    "star",
]

signatures.simplify(__name__)
spelling.add_suggestions(__name__)
