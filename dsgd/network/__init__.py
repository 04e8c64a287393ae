"""The survey's logical switch: what a round of messages costs, in closed form, and event by event; `told`, what a round sent."""

from dsgd.network import told
from dsgd.network.asynchronous import asynchronous_server_messages
from dsgd.network.clocks import Exchange, Ports, elapse, exchange
from dsgd.network.patterns import (
    asynchronous_gossip,
    asynchronous_server,
    cost,
    every,
    gossip,
    local,
    multi_server,
    one_machine,
    parameter_server,
    ring_all_reduce,
    ring_all_reduce_unpartitioned,
    round_seconds,
    star,
)
from dsgd.network.switch import Convention, Message, Passage, Timeline, simulate

__all__ = [
    "Convention",
    "Exchange",
    "Message",
    "Passage",
    "Ports",
    "Timeline",
    "asynchronous_gossip",
    "asynchronous_server",
    "asynchronous_server_messages",
    "cost",
    "elapse",
    "every",
    "exchange",
    "gossip",
    "local",
    "multi_server",
    "one_machine",
    "parameter_server",
    "ring_all_reduce",
    "ring_all_reduce_unpartitioned",
    "round_seconds",
    "simulate",
    "star",
    "told",
]
