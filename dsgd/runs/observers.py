"""Functions and loggers that receive the records of a run while it continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import numpy as np

from dsgd.causes import error_context
from dsgd.machines import agreement
from dsgd.runs.history import History, WithHistory
from dsgd.runs.interrupts import Stop
from dsgd.runs.results import Settings

Record = Mapping[str, Any]
_Function = Annotated[Callable[[Record], Any], "(record)"]
OnRecord = _Function | Sequence[_Function]


class Logger:
    """Receives the settings of a run, its records, and its end.

    Subclasses override what they need. A logger may be used for several runs, one after the other.
    """

    def start(self, settings: Settings) -> None:
        """Called once, before the first round.

        Args:
            settings: as in `dsgd.Result`. Those of a sweep contain the values of its grid by name,
                "grid".
        """

    def __call__(self, record: Record) -> None:
        """Called with each record, in order.

        Args:
            record: the entries of the history at this record, by name: numbers, or arrays
                `[seeds]`, in a sweep `[grid ..., seeds]`; "step" is the number of rounds. Series
                with one number per worker have another axis `[N]`.
        """

    def end(self, history: History, error: BaseException | None) -> None:
        """Called once, after the last record.

        Args:
            history: all records, as in `dsgd.Result` or `dsgd.Sweep`; {} if there is none.
            error: why the run ended early; None: it is complete.
        """


class Observers:
    """Passes the records of a run to functions, each record once.

    Errors of the functions end the run. They have an attribute `history` with the records so far.
    In a run of several processes, only process 0 calls the functions.

    Args:
        name: name of the method, for error messages.
        functions: functions of a record, some of which are loggers.
        settings: of the run.
        unfold: a history of the run -> the history that functions receive.
    """

    def __init__(
        self,
        name: str,
        functions: OnRecord,
        settings: Settings,
        unfold: Callable[[History], History] = dict,
    ) -> None:
        listed = functions if isinstance(functions, Sequence) else [functions]
        self.functions: tuple[Callable[..., Any], ...] = (
            tuple(listed) if agreement.process_index() == 0 else ()
        )
        self._where = f"on_record, of a run of {name}"
        self._settings, self._unfold = settings, unfold
        self._history: History = {}
        self._passed = 0

    @contextmanager
    def watch(self, stop: Stop) -> Iterator[None]:
        """Context of a run: starts the loggers, and ends them in any case."""
        self._stop = stop
        with ExitStack() as ends:
            for each in self.functions:
                if isinstance(each, Logger):
                    with self._users_code():
                        each.start(self._settings)
                    ends.push(self._ending(each))
            try:
                yield
            except WithHistory as error:  # its last records were not passed on yet
                self.update(error.history)
                raise

    def update(self, history: History) -> None:
        """Passes on the records that are new.

        Args:
            history: the history so far.
        """
        if not (history and self.functions):
            return
        self._history = self._unfold(history)
        axis = self._history["loss"].ndim - 1
        new = {
            name: np.moveaxis(values, 0 if name == "step" else axis, 0)[self._passed :]
            for name, values in self._history.items()
        }
        rows = {name: rows.tolist() if rows.ndim == 1 else list(rows) for name, rows in new.items()}
        with self._users_code():
            for values in zip(*rows.values(), strict=True):
                self._passed += 1
                for function in self.functions:
                    function(dict(zip(rows, values, strict=True)))

    def _ending(self, logger: Logger) -> Callable[..., None]:
        def end(kind: object, error: BaseException | None, trace: object) -> None:
            with self._users_code():
                logger.end(self._history, error)

        return end

    @contextmanager
    def _users_code(self) -> Iterator[None]:
        with self._stop.users_code(), error_context(self._where):
            try:
                yield
            except Exception as error:
                vars(error).setdefault("history", self._history)
                raise
