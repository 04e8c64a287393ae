"""Communication of a round: the communicator that an update receives, compressed messages, counts
of bits, and the record that the engine reads.
"""

from dsgd import signatures, spelling
from dsgd.communication import bits
from dsgd.communication.bits import Bits
from dsgd.communication.calls.sender import MESSAGE
from dsgd.communication.communicator import UPDATE, Communicator, communicate
from dsgd.communication.compressed import (
    Delivery,
    flatten,
    last_messages,
    pad_shards,
    require_contraction,
    require_two,
    shards,
    start_shards,
    unflatten,
    unshard,
)
from dsgd.communication.record import Record, Sending, Statistics
from dsgd.communication.transports import Transport

__all__ = [
    "MESSAGE",
    "UPDATE",
    "Bits",
    "Communicator",
    "Delivery",
    "Record",
    "Sending",
    "Statistics",
    "Transport",
    "bits",
    "communicate",
    "flatten",
    "last_messages",
    "pad_shards",
    "require_contraction",
    "require_two",
    "shards",
    "start_shards",
    "unflatten",
    "unshard",
]

signatures.simplify(__name__)
spelling.add_suggestions(__name__)
