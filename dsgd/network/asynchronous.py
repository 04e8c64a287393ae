"""The messages of an asynchronous server, for the event simulation."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from dsgd import checks
from dsgd.network.switch import Message, Number


@checks.arguments
def asynchronous_server_messages(compute: Sequence[Sequence[Number]], servers: int = 1) -> list[Message]:
    r"""Each worker computes, sends its gradient to the server, receives the new model, and begins again (the survey's section 4.1).

    With P servers, each has one part of the model, and messages are 1/P as long. A worker sends its parts one after the other, the next
    when the last has arrived, and they come back in the same order: so every server sees the gradients in one order.

    Args:
        compute: seconds of each worker's gradients, one list a worker: of a lap each.
        servers: P. They are numbered after the workers.

    Returns:
        Worker by worker, lap by lap: P messages to the servers, P from them.

    Raises:
        ValueError: no workers, or servers < 1.
    """
    checks.positive_int("asynchronous_server_messages: servers", servers)
    if not len(compute):
        raise ValueError("asynchronous_server_messages for no workers: need at least one list of seconds")
    N, size, messages = len(compute), Fraction(1, servers), []
    for worker, laps in enumerate(compute):
        last: tuple[int, ...] = ()
        for lap, seconds in enumerate(laps):
            first = len(messages)
            for part in range(servers):
                after, work = (last, seconds) if part == 0 else ((first + part - 1,), 0)
                messages.append(Message(worker, N + part, size, after, work, label=f"gradient {lap}"))
            for part in range(servers):
                after = (first + part,) if part == 0 else (first + part, first + servers + part - 1)
                messages.append(Message(N + part, worker, size, after, label=f"model {lap}"))
            last = (len(messages) - 1,)
    return messages
