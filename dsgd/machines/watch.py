"""Whether the other processes are still there: each shows that it lives, and looks at the others,
in a thread of its own.
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

_ALIVE, _ENDED, _LEFT = "dsgd/alive/", "ended", "left"  # left: it asks for nothing more
_OVER = (_ENDED, _LEFT)
# seconds, at most, in which a process that fails is heard by the others: with process 0, all that
# was said is gone
_HEARD = 10.0
_LOOKS = 20  # in the time after which a silent process is lost
_SOONER = 4  # of it, the part after which one is, where a connection broke
# looks, after which a process that does not notice by itself that another is lost is ended
_GRACE = 3
# with which a process ends that lost another: the same command goes on from the last checkpoint
STATUS = os.EX_TEMPFAIL


class Lost(ConnectionError):
    """Another process of the run ended, or nothing was heard of it for too long; the message says
    which one.
    """


class _Watch:
    """What one process knows of the others."""

    def __init__(self, client: Any, index: int, names: list[str], lost_after: float) -> None:
        self.client, self.index, self.names, self.lost_after = client, index, names, lost_after
        self.lost: str | None = None  # why the run cannot go on
        self.doing: str | None = None  # of which all others are a part
        self.noticed = False
        # it asks others no more; it is looked after no more
        self.ended, self.gone = threading.Event(), threading.Event()
        self._seen = {i: ("", time.monotonic()) for i in range(len(names)) if i != index}
        self._answered = time.monotonic()
        # Two: who asks the coordinator may wait for it without end.
        self.asks, guards = (
            threading.Thread(target=work, daemon=True, name="dsgd-watch")
            for work in (self._ask, self._guard)
        )
        for thread in (self.asks, guards):
            thread.start()

    def who(self, i: int) -> str:
        """A process, for people."""
        return f"process {i} of {len(self.names)} ({self.names[i]})"

    def say(self, words: str) -> None:
        """What the others see of this process."""
        self.client.key_value_set(f"{_ALIVE}{self.index}", words, allow_overwrite=True)

    def look(self) -> None:
        """Shows that this one lives, and sees who does."""
        now = time.monotonic()
        there = {
            int(key.rpartition("/")[2]): words
            for key, words in self.client.key_value_dir_get(_ALIVE)
        }
        for i, (before, since) in self._seen.items():
            words = there.get(i, "")
            if words != before:
                self._seen[i] = (words, now)
            self._judge(i, words, now - (now if words != before else since))
        self._answered = now

    def words(self, i: int) -> str:
        """What another process last said."""
        return self._seen[i][0]

    def wait(self, states: tuple[str, ...], until: Callable[[float], bool]) -> None:
        """For all others to say that they are in one of these states; until(seconds of silence of
        one that has not).
        """
        while waited_for := [
            since for words, since in self._seen.values() if not words.startswith(states)
        ]:
            if until(time.monotonic() - max(waited_for)):
                return
            self.look()
            time.sleep(self.lost_after / _LOOKS / 5)

    def silence(self) -> float:
        """Seconds since one of the others was heard of, of whom that is longest."""
        return max(
            (
                time.monotonic() - since
                for words, since in self._seen.values()
                if not words.startswith(_OVER)
            ),
            default=0.0,
        )

    def silent(self) -> str:
        """Who that is, for people."""
        i = min(
            self._seen,
            key=lambda i: self._seen[i][1] if not self.words(i).startswith(_OVER) else math.inf,
        )
        return f"{self.who(i)} is lost: the connection broke, and it was last heard of {self.silence():.1f} s ago"

    def _judge(self, i: int, words: str, silence: float) -> None:
        state, _, why = words.partition(": ")
        ended = state in _OVER
        if ended and why:
            self.lost = self.lost or f"{self.who(i)} ended: {why}"
        elif silence > self.lost_after and not ended:
            self.lost = (
                self.lost
                or f"{self.who(i)} was not heard of for {self.lost_after:g} s: it was killed, or cannot be reached"
            )
        elif silence > self.lost_after and self.doing:
            self.lost = self.lost or f"{self.who(i)} has ended, without its part of {self.doing}"

    def _ask(self) -> None:
        for beat in itertools.count(1):
            if self.ended.wait(self.lost_after / _LOOKS):
                return
            with suppress(jax.errors.JaxRuntimeError):  # for the guard to see
                self.say(str(beat))
                self.look()

    def _guard(self) -> None:
        since_lost = 0
        while not self.gone.wait(self.lost_after / _LOOKS):
            if time.monotonic() - self._answered > self.lost_after:
                self.lost = (
                    self.lost
                    or f"{self.who(0)}, which coordinates, did not answer for {self.lost_after:g} s"
                )
                # it waits for the others, and for the coordinator's answer without end
                if self.ended.is_set():
                    leave_at_once(f"Error: {self.lost}")
            since_lost = since_lost + 1 if self.lost and self.doing and not self.noticed else 0
            if since_lost > _GRACE:  # in a collective, which nothing ends
                leave_at_once(f"Error: {self.lost} (in {self.doing})")


_watch: _Watch | None = None


def begin(client: Any, index: int, names: list[str], lost_after: float) -> None:
    """From now on this process is heard of, and hears of the others.

    Args:
        client: of JAX's coordination service.
        index: of this process.
        names: of all, for people.
        lost_after: seconds of silence after which a process is lost.
    """
    global _watch  # noqa: PLW0603 (of the process, as JAX's own runtime)
    _watch = _Watch(client, index, names, lost_after)


def introduce(names: list[str]) -> None:
    """The names of all, for people."""
    if _watch is not None:
        _watch.names = names


@contextmanager
def within(name: str) -> Iterator[None]:
    """A block of which all processes are a part: it cannot go on without one of them."""
    if _watch is None:
        yield
        return
    before, _watch.doing, _watch.noticed = _watch.doing, name, False
    try:
        yield
    finally:
        _watch.doing = before


def any_lost() -> bool:
    """Whether another process is."""
    return bool(_watch and _watch.lost)


def need_all() -> None:
    """Raises `Lost` where another process is."""
    if _watch and _watch.lost:
        _watch.noticed = True
        raise Lost(_watch.lost)


def who_broke(what: str) -> Lost:
    """Which process it was, for whose loss a collective failed: who ended, or has been silent for a
    while since; that is waited for.
    """
    if _watch is None:
        return Lost(f"{what}: another process was lost")
    _watch.noticed = True
    end = time.monotonic() + _watch.lost_after
    while (
        not _watch.lost
        and _watch.silence() < _watch.lost_after / _SOONER
        and time.monotonic() < end
    ):
        time.sleep(0.02)
    return Lost(_watch.lost or _watch.silent())


class Ended(NamedTuple):
    """How a process leaves the others: whether it must not wait for them, and whether process 0,
    another one, has said the same.
    """

    broken: bool = False
    said: bool = False


def end(why: str = "") -> Ended:
    """Tells the others that this process ends: in order, or why; and waits for them: where it is in
    order, until they have ended, too.
    """
    global _watch
    watch, _watch = _watch, None
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
        if watch.index == 0:  # with it goes what the others may still be reading
            watch.wait((_LEFT,), lambda silent: silent > soon)
    except jax.errors.JaxRuntimeError:
        watch.lost = watch.lost or "the coordinator is gone"
    finally:
        watch.gone.set()
    return Ended(
        bool(why or watch.lost), bool(why) and watch.index > 0 and watch.words(0) in (ended, left)
    )


def leave_at_once(words: str = "", status: int = STATUS) -> None:
    """The end of this process, from any thread: in JAX's orderly end it would wait for those who
    are gone.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.write(2, f"{words}\n".encode() if words else b"")
    os._exit(status)
