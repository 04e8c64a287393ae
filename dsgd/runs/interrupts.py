"""Ctrl-C and SIGTERM: a run completes the chunk in progress, so that its state and history are
kept.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dsgd.runs.history import WithHistory

_MOST = 2  # signals that wait for the chunk in progress; a further one aborts it


class Interrupted(WithHistory, KeyboardInterrupt):
    """A run was stopped by Ctrl-C or SIGTERM, after the chunk in progress.

    If the run has a checkpoint folder, its state has been saved there.

    Args:
        message: how many rounds were completed.
        history: the history so far, in the form that the run returns; {} if there was no record
            yet.
    """


@contextmanager
def terminable() -> Iterator[None]:
    """Context in which SIGTERM raises KeyboardInterrupt, as Ctrl-C does.

    It is meant for scripts: their `finally` and `except` clauses then handle both signals. A run
    inside the block stops in its usual way, with `Interrupted`. Outside the main thread, which is
    the only one that receives signals, the context has no effect.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    with _handle(stop, signal.SIGTERM):
        yield


class Stop:
    """Records whether Ctrl-C or SIGTERM arrived since the `with` block began.

    The signals must not interrupt the block itself: after a buffer has been donated, the only valid
    copy of the state is the one that the running chunk computes.
    """

    def __init__(self) -> None:
        self.asked: bool = False
        self._count = 0
        self._raises_at_once = False

    def __enter__(self) -> Stop:
        self._handling = _handle(self._note, signal.SIGINT, signal.SIGTERM)
        self._handling.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._handling.__exit__(None, None, None)

    @contextmanager
    def users_code(self) -> Iterator[None]:
        """Context in which the signals raise KeyboardInterrupt at once, and any KeyboardInterrupt
        ends the block.

        It is used for user code, which may wait for a long time and can be left at any point.
        """
        self._raises_at_once = True
        try:
            yield
        except KeyboardInterrupt:
            self.asked = True
        finally:
            self._raises_at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._count += 1
        if self._raises_at_once or self._count > _MOST:
            raise KeyboardInterrupt(signal.Signals(number).name)


@contextmanager
def _handle(
    handler: Callable[[int, FrameType | None], None], *signals: signal.Signals
) -> Iterator[None]:
    """Installs a handler for some signals within the block, and then restores the previous ones.

    Signals that are ignored, for example under nohup, stay ignored.
    """
    before = (
        {number: signal.getsignal(number) for number in signals}
        if threading.current_thread() is threading.main_thread()
        else {}
    )
    # A handler that was not installed from Python is None, and could not be restored.
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
