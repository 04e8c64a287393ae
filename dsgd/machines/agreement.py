"""What the processes of one run say to each other on the host, so that all decide the same: by
JAX's coordination service, not by devices.

All processes call these in one order, as they call programs; who waits here looks, all the while,
whether the others are still there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax._src import distributed  # JAX has no public way to its own key-value store

from dsgd.machines import watch

_SLICE = 500  # milliseconds of one look at the store: signals wait as long
_COMMON = (ValueError, OSError)  # what is told in all processes as it was in the first
_said = 0  # times that this process has spoken, as often as all others


class Elsewhere(RuntimeError):
    """What made another process leave the run; it is named."""


def alone() -> bool:
    """Whether this process is the only one; nothing of JAX is started to know it."""
    return distributed.global_state.client is None or distributed.global_state.num_processes == 1


def index() -> int:
    """The number of this process, from 0; likewise."""
    return 0 if alone() else distributed.global_state.process_id


def count() -> int:
    """How many processes there are; likewise."""
    return 1 if alone() else distributed.global_state.num_processes


def exchange(about: str, words: str) -> list[str]:
    """What every process says, in their order, the same list in all.

    Args:
        about: what it is about, the same in all.
        words: of this process.

    Raises:
        ValueError: the processes speak about different things.
        Elsewhere: another process failed instead of saying something.
        Lost: another process is no longer there.
    """
    if alone():
        return [words]
    return _exchange(about, {"said": words})


def first(act: Callable[[], str]) -> str:
    """What the act gives in process 0, which alone does it; in all.

    Raises:
        ValueError, OSError: as the act, in all processes.
    """
    if alone():
        return act()
    failed: Exception | None = None
    words: dict[str, Any] = {}
    if index() == 0:
        try:
            words = {"gave": act()}
        except _COMMON as error:
            failed, words = error, {"error": isinstance(error, OSError), "message": str(error)}
    told = json.loads(_exchange("files of process 0", {"said": json.dumps(words)})[0])
    if failed:
        raise failed
    if "error" in told:
        raise (OSError if told["error"] else ValueError)(told["message"])
    return told["gave"]


def largest(name: str, value: float) -> float:
    """The largest of the processes' numbers; `name` as in `together`."""
    with together(name):
        return max(float.fromhex(words) for words in exchange(name, value.hex()))


@contextmanager
def together(name: str, whole: bool = True) -> Iterator[None]:
    """A block that all processes go through. Who fails in it tells the others, who may be waiting.

    Args:
        name: of what they do, for messages.
        whole: whether all processes take part; else it does nothing.
    """
    if alone() or not whole:
        yield
        return
    with watch.within(name):
        try:
            yield
        except (Elsewhere, watch.Lost):
            raise
        except BaseException as error:
            if broken(error):
                raise watch.who_broke(name) from error
            _speak({"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"})
            raise


def broken(error: BaseException) -> bool:
    """Whether it is a collective's that lost another process: JAX has no type for it."""
    return any(
        sign in str(error) for sign in ("Gloo ", "NCCL", "UNAVAILABLE", "coordination service")
    )


def _client() -> Any:
    return distributed.global_state.client


def _exchange(about: str, words: dict[str, Any]) -> list[str]:
    everybody: list[dict[str, Any]] = json.loads(_answer(_speak({"about": about, **words})))
    for i, each in enumerate(everybody):
        if "failed" in each:
            raise Elsewhere(f"process {i} of {count()} left the run: {each['failed']}")
    for i, each in enumerate(everybody):
        if each["about"] != everybody[0]["about"]:
            told = f"process 0 asks for {everybody[0]['about']}, process {i} for {each['about']}"
            raise ValueError(
                f"the processes run different configurations ({told}): need the same calls in all"
            )
    return [each["said"] for each in everybody]


def _speak(words: dict[str, Any]) -> int:
    """Leaves it for process 0, which gathers; gives the number of the occasion."""
    global _said  # noqa: PLW0603 (one order of words for the whole process, as of its programs)
    _said += 1
    client = _client()
    client.key_value_set(f"dsgd/said/{_said}/{index()}", json.dumps(words))
    if index() == 0 and "failed" in words:  # it will not gather
        client.key_value_set(f"dsgd/all/{_said}", json.dumps([words]))
    return _said


def _answer(number: int) -> str:
    client = _client()
    if index() == 0:
        everybody = [json.loads(_waited(f"dsgd/said/{number}/{i}")) for i in range(count())]
        client.key_value_set(f"dsgd/all/{number}", json.dumps(everybody))
        # all have read what was said the time before the last, or they had not spoken since
        if number > 2:
            client.key_value_delete(f"dsgd/said/{number - 2}/")
            client.key_value_delete(f"dsgd/all/{number - 2}")
    return _waited(f"dsgd/all/{number}")


def _waited(key: str) -> str:
    """The value, when it is there."""
    client = _client()
    while True:
        lost = watch.any_lost()  # asked first: what another said before it ended is there
        try:
            return client.blocking_key_value_get(key, _SLICE)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise watch.who_broke("an exchange of words") from error
        if lost:
            watch.need_all()
        time.sleep(0)
