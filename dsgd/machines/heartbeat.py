"""Liveness of the processes of a run.

In a thread of its own, each process sends heartbeats and monitors those of the others.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import jax

_ALIVE, _ENDED, _LEFT = "dsgd/alive/", "ended", "left"  # a process that left reads nothing more
_OVER = (_ENDED, _LEFT)
# Time limit in seconds for the others to read the error of a failing process. All messages are
# lost when process 0 ends.
_HEARD = 10.0
_LOOKS = 20  # number of polls within `lost_after`
_SOONER = 4  # after a broken connection, a process is lost after `lost_after` / _SOONER
# Number of polls after which a process that is stuck in a collective of a lost process is ended
_GRACE = 3
# Exit status of a process that lost another one: a retry resumes from the last checkpoint.
STATUS = os.EX_TEMPFAIL


class PeerLost(ConnectionError):
    """Another process of the run exited, or gave no sign of life for too long. The message names
    it.
    """


class _Heartbeat:
    """The knowledge of one process about the others."""

    def __init__(self, client: Any, index: int, names: list[str], lost_after: float) -> None:
        self.client, self.index, self.names, self.lost_after = client, index, names, lost_after
        self.lost: str | None = None  # why the run cannot continue
        self._silent: int | None = None  # the process whose silence is the reason
        self.doing: str | None = None  # the common task of all processes
        self.noticed = False
        # `ended` stops the heartbeat, `gone` stops the guard.
        self.ended, self.gone = threading.Event(), threading.Event()
        self._seen = {i: ("", time.monotonic()) for i in range(len(names)) if i != index}
        self._answered = time.monotonic()
        # Two threads, because a call to the coordinator may block forever.
        self.asks, guards = (
            threading.Thread(target=work, daemon=True, name="dsgd-watch")
            for work in (self._ask, self._guard)
        )
        for thread in (self.asks, guards):
            thread.start()

    def who(self, i: int) -> str:
        """Returns a description of process i for messages."""
        return f"process {i} of {len(self.names)} ({self.names[i]})"

    def say(self, words: str) -> None:
        """Publishes the state of this process."""
        self.client.key_value_set(f"{_ALIVE}{self.index}", words, allow_overwrite=True)

    def look(self) -> None:
        """Reads the states of the other processes and detects those that are lost."""
        now = time.monotonic()
        states = {
            int(key.rpartition("/")[2]): words
            for key, words in self.client.key_value_dir_get(_ALIVE)
        }
        for i, (before, since) in self._seen.items():
            words = states.get(i, "")
            if words != before:
                self._seen[i] = (words, now)
                if i == self._silent:  # it was only slow, for example on a busy core
                    self.lost = self._silent = None
            self._judge(i, words, now - (now if words != before else since))
        self._answered = now

    def words(self, i: int) -> str:
        """Returns the last state that process i published."""
        return self._seen[i][0]

    def wait(self, states: tuple[str, ...], until: Callable[[float], bool]) -> None:
        """Waits until all other processes are in one of these states.

        Args:
            states: prefixes of the states.
            until: (longest silence in seconds of a process that is not) -> whether to stop
                waiting.
        """
        while waited_for := [
            since for words, since in self._seen.values() if not words.startswith(states)
        ]:
            if until(time.monotonic() - max(waited_for)):
                return
            self.look()
            time.sleep(self.lost_after / _LOOKS / 5)

    def silence(self) -> float:
        """Returns the longest time in seconds since another running process gave a sign of life."""
        return max(
            (
                time.monotonic() - since
                for words, since in self._seen.values()
                if not words.startswith(_OVER)
            ),
            default=0.0,
        )

    def silent(self) -> str:
        """Returns a message about the process with the longest silence."""
        i = min(
            self._seen,
            key=lambda i: self._seen[i][1] if not self.words(i).startswith(_OVER) else math.inf,
        )
        return (
            f"{self.who(i)} is lost: the connection broke, and its last sign of life was "
            f"{self.silence():.1f} s ago"
        )

    def _judge(self, i: int, words: str, silence: float) -> None:
        state, _, why = words.partition(": ")
        ended = state in _OVER
        if ended and why:
            self.lost = self.lost or f"{self.who(i)} exited: {why}"
        elif silence > self.lost_after and not ended and not self.lost:
            self._silent = i
            self.lost = (
                f"{self.who(i)} gave no sign of life for {self.lost_after:g} s: it was killed or "
                "cannot be reached"
            )
        elif silence > self.lost_after and self.doing:
            self.lost = self.lost or f"{self.who(i)} exited before its part of {self.doing}"

    def _ask(self) -> None:
        for beat in itertools.count(1):
            if self.ended.wait(self.lost_after / _LOOKS):
                return
            with suppress(jax.errors.JaxRuntimeError):  # the guard detects a missing answer
                self.say(str(beat))
                self.look()

    def _guard(self) -> None:
        since_lost = 0
        while not self.gone.wait(self.lost_after / _LOOKS):
            if time.monotonic() - self._answered > self.lost_after:
                self.lost = (
                    self.lost
                    or f"{self.who(0)}, the coordinator, did not answer for {self.lost_after:g} s"
                )
                # This process is waiting for the others, and for an answer that will not come.
                if self.ended.is_set():
                    leave_at_once(f"Error: {self.lost}")
            since_lost = since_lost + 1 if self.lost and self.doing and not self.noticed else 0
            if since_lost > _GRACE:  # stuck in a collective that will never finish
                leave_at_once(f"Error: {self.lost} (in {self.doing})")


_heartbeat: _Heartbeat | None = None


def begin(client: Any, index: int, names: list[str], lost_after: float) -> None:
    """Starts the heartbeat of this process and the monitoring of the others.

    Args:
        client: client of JAX's coordination service.
        index: index of this process.
        names: names of all processes, for messages.
        lost_after: seconds without a sign of life after which a process counts as lost.
    """
    global _heartbeat  # noqa: PLW0603 (one per process, as JAX's own runtime)
    _heartbeat = _Heartbeat(client, index, names, lost_after)


def introduce(names: list[str]) -> None:
    """Sets the names of all processes, for messages."""
    if _heartbeat is not None:
        _heartbeat.names = names


@contextmanager
def watch(name: str) -> Iterator[None]:
    """Context of a block that all processes execute together, and that none can finish without the
    others.
    """
    if _heartbeat is None:
        yield
        return
    before, _heartbeat.doing, _heartbeat.noticed = _heartbeat.doing, name, False
    try:
        yield
    finally:
        _heartbeat.doing = before


def any_lost() -> bool:
    """Whether another process is lost."""
    return bool(_heartbeat and _heartbeat.lost)


def require_all() -> None:
    """Raises `PeerLost` if another process is lost."""
    if _heartbeat and _heartbeat.lost:
        _heartbeat.noticed = True
        raise PeerLost(_heartbeat.lost)


def who_broke(what: str) -> PeerLost:
    """Returns the exception for a collective that failed.

    It names the process that exited, or that has been silent. The function waits until that is
    known.

    Args:
        what: the collective, for the message.
    """
    if _heartbeat is None:
        return PeerLost(f"{what}: another process was lost")
    _heartbeat.noticed = True
    end = time.monotonic() + _heartbeat.lost_after
    while (
        not _heartbeat.lost
        and _heartbeat.silence() < _heartbeat.lost_after / _SOONER
        and time.monotonic() < end
    ):
        time.sleep(0.02)
    return PeerLost(_heartbeat.lost or _heartbeat.silent())


class Ended(NamedTuple):
    """How a process leaves the others.

    Args:
        broken: whether it must not wait for the others.
        said: whether process 0 (another process) has reported the same error.
    """

    broken: bool = False
    said: bool = False


def end(why: str = "") -> Ended:
    """Reports to the others that this process ends, and waits for them.

    After a normal end it waits until they have ended as well, and after an error until they have
    read it.

    Args:
        why: the error; "" for a normal end.
    """
    global _heartbeat
    watch, _heartbeat = _heartbeat, None
    if watch is None:
        return Ended()
    watch.ended.set()
    watch.asks.join(watch.lost_after)
    soon, limit = watch.lost_after / _SOONER, time.monotonic() + min(watch.lost_after, _HEARD)
    ended, left = (f"{state}: {why}" if why else state for state in _OVER)
    try:
        watch.say(ended)
        watch.wait(
            _OVER,
            lambda silent: silent > soon or time.monotonic() > limit if why else bool(watch.lost),
        )
        watch.say(left)
        if watch.index == 0:  # the others may still read messages that end with process 0
            left_at = time.monotonic()  # the others may have ended, and be silent, long before
            watch.wait((_LEFT,), lambda silent: min(silent, time.monotonic() - left_at) > soon)
    except jax.errors.JaxRuntimeError:
        watch.lost = watch.lost or "the coordinator is gone"
    finally:
        watch.gone.set()
    return Ended(
        bool(why or watch.lost), bool(why) and watch.index > 0 and watch.words(0) in (ended, left)
    )


def leave_at_once(words: str = "", status: int = STATUS) -> None:
    """Ends this process immediately, from any thread. JAX's orderly shutdown would wait for
    processes that no longer exist.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.write(2, f"{words}\n".encode() if words else b"")
    os._exit(status)
