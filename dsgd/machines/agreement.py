"""Communication of the processes of a run on the host, so that all of them make the same decisions.

It uses JAX's coordination service instead of the devices. All processes must call these functions
in the same order, as they call compiled programs. While a process waits here, it monitors whether
the others are still alive.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax._src import distributed  # JAX has no public interface to its key-value store

from dsgd.machines import heartbeat

_SLICE = 500  # milliseconds of one blocking read of the store, which delays signals
_COMMON = (ValueError, OSError)  # errors of process 0 that all processes raise with their own type
_num_exchanges = 0  # number of messages of this process; equal in all processes


class PeerFailed(RuntimeError):
    """Another process left the run because of an error. The message names the process and the
    error.
    """


def is_single_process() -> bool:
    """Whether this process is the only one. The call does not initialise JAX."""
    return distributed.global_state.client is None or distributed.global_state.num_processes == 1


def process_index() -> int:
    """Returns the index of this process, from 0. The call does not initialise JAX."""
    return 0 if is_single_process() else distributed.global_state.process_id


def process_count() -> int:
    """Returns the number of processes. The call does not initialise JAX."""
    return 1 if is_single_process() else distributed.global_state.num_processes


def all_gather(about: str, words: str) -> list[str]:
    """Gathers one text of every process: an all-gather on the host.

    Args:
        about: the topic of the exchange, which must be equal in all processes.
        words: the text of this process.

    Returns:
        The texts of all processes in the order of their indices, the same list in every process.

    Raises:
        ValueError: if the topics differ between processes.
        PeerFailed: if another process failed before the exchange.
        PeerLost: if another process died or stopped responding.
    """
    if is_single_process():
        return [words]
    return _exchange(about, {"said": words})


def call_on_process_zero(act: Callable[[], str]) -> str:
    """Calls `act` in process 0 only, and returns its result in every process.

    Raises:
        ValueError, OSError: as raised by `act`, in every process.
    """
    if is_single_process():
        return act()
    failed: Exception | None = None
    words: dict[str, Any] = {}
    if process_index() == 0:
        try:
            words = {"gave": act()}
        except _COMMON as error:
            failed, words = error, {"error": isinstance(error, OSError), "message": str(error)}
    result = json.loads(_exchange("files of process 0", {"said": json.dumps(words)})[0])
    if failed:
        raise failed
    if "error" in result:
        raise (OSError if result["error"] else ValueError)(result["message"])
    return result["gave"]


def largest(name: str, value: float) -> float:
    """Returns the largest of the processes' numbers. `name` is as in `all_or_none`."""
    with all_or_none(name):
        return max(float.fromhex(words) for words in all_gather(name, value.hex()))


@contextmanager
def all_or_none(name: str, whole: bool = True) -> Iterator[None]:
    """Context of a block that all processes execute. A process that fails in it reports its error
    to the others, which may be waiting.

    Args:
        name: the common task, for messages.
        whole: whether all processes take part; if not, the context has no effect.
    """
    if is_single_process() or not whole:
        yield
        return
    with heartbeat.watch(name):
        try:
            yield
        except (PeerFailed, heartbeat.PeerLost):
            raise
        except BaseException as error:
            if broken(error):
                raise heartbeat.who_broke(name) from error
            _send({"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"})
            raise


def broken(error: BaseException) -> bool:
    """Whether an error was raised by a collective that lost another process. JAX has no exception
    type for it.
    """
    return any(
        sign in str(error) for sign in ("Gloo ", "NCCL", "UNAVAILABLE", "coordination service")
    )


def _client() -> Any:
    return distributed.global_state.client


def _exchange(about: str, words: dict[str, Any]) -> list[str]:
    messages: list[dict[str, Any]] = json.loads(_gather(_send({"about": about, **words})))
    for i, each in enumerate(messages):
        if "failed" in each:
            raise PeerFailed(f"process {i} of {process_count()} left the run: {each['failed']}")
    for i, each in enumerate(messages):
        if each["about"] != messages[0]["about"]:
            topics = f"process 0 is at {messages[0]['about']}, process {i} at {each['about']}"
            raise ValueError(
                f"the processes run different configurations ({topics}); expected the same calls "
                "in every process"
            )
    return [each["said"] for each in messages]


def _send(words: dict[str, Any]) -> int:
    """Stores a message for process 0, which gathers them. Returns the number of the exchange."""
    global _num_exchanges  # noqa: PLW0603 (one order of messages for the whole process)
    _num_exchanges += 1
    client = _client()
    client.key_value_set(f"dsgd/said/{_num_exchanges}/{process_index()}", json.dumps(words))
    if process_index() == 0 and "failed" in words:  # process 0 will not gather the others' messages
        client.key_value_set(f"dsgd/all/{_num_exchanges}", json.dumps([words]))
    return _num_exchanges


def _gather(number: int) -> str:
    client = _client()
    if process_index() == 0:
        messages = [
            json.loads(_wait_for(f"dsgd/said/{number}/{i}")) for i in range(process_count())
        ]
        client.key_value_set(f"dsgd/all/{number}", json.dumps(messages))
        # Every process has sent a message since, so it has read those of two exchanges ago.
        if number > 2:
            client.key_value_delete(f"dsgd/said/{number - 2}/")
            client.key_value_delete(f"dsgd/all/{number - 2}")
    return _wait_for(f"dsgd/all/{number}")


def _wait_for(key: str) -> str:
    """Waits for the value of a key and returns it."""
    client = _client()
    while True:
        lost = heartbeat.any_lost()  # read first: a lost process may have left its message before
        try:
            return client.blocking_key_value_get(key, _SLICE)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise heartbeat.who_broke("an exchange of words") from error
        if lost:
            heartbeat.require_all()
        time.sleep(0)
