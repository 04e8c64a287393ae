"""Ctrl-C and SIGTERM: a run ends with the chunk in progress, and nothing that it has is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dsgd.runs.history import WithHistory

_MOST = 2  # signals that wait for the chunk in progress; one more breaks it off


class Interrupted(WithHistory, KeyboardInterrupt):
    """A run was stopped by Ctrl-C or SIGTERM, after the chunk in progress; what has a checkpoint
    has saved it.

    Args:
        message: how far it came.
        history: so far, as the run would have given it back; {} where it had no record yet.
    """


@contextmanager
def terminable() -> Iterator[None]:
    """Within the block, SIGTERM raises a KeyboardInterrupt, as Ctrl-C does: for scripts, whose
    `finally` and `except` then serve both.

    A run inside stops as it does by itself, with `Interrupted`. Outside the main thread, which
    alone gets signals, it does nothing.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    with _handled(stop, signal.SIGTERM):
        yield


class Stop:
    """Whether Ctrl-C or SIGTERM came since the `with` block began: a state that has just been
    donated must not be torn from its owner.
    """

    def __init__(self) -> None:
        self.asked: bool = False
        self._count = 0
        self._at_once = False

    def __enter__(self) -> Stop:
        self._handling = _handled(self._note, signal.SIGINT, signal.SIGTERM)
        self._handling.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._handling.__exit__(None, None, None)

    @contextmanager
    def users_code(self) -> Iterator[None]:
        """Within the block, which may wait for long and can be left anywhere, it breaks off at
        once. Any KeyboardInterrupt counts.
        """
        self._at_once = True
        try:
            yield
        except KeyboardInterrupt:
            self.asked = True
        finally:
            self._at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._count += 1
        if self._at_once or self._count > _MOST:
            raise KeyboardInterrupt(signal.Signals(number).name)


@contextmanager
def _handled(
    handler: Callable[[int, FrameType | None], None], *signals: signal.Signals
) -> Iterator[None]:
    """With that handler for those signals, and afterwards with those before. What is ignored, by
    nohup say, stays ignored.
    """
    before = (
        {number: signal.getsignal(number) for number in signals}
        if threading.current_thread() is threading.main_thread()
        else {}
    )
    # A handler that did not come from Python is None, and could not be put back.
    ours = {
        number: former for number, former in before.items() if former not in (None, signal.SIG_IGN)
    }
    try:
        for number in ours:
            signal.signal(number, handler)
        yield
    finally:
        for number, former in ours.items():
            signal.signal(number, former)
