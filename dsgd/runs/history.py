"""Records of a run on the host: collected chunk by chunk, validated, and joined to a history."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from dsgd import checks, spelling
from dsgd.engine import columns, indices, tape
from dsgd.engine.clock import to_seconds
from dsgd.wire import counts

__all__ = ["Diverged", "evaluated_records", "mean_and_error", "tail_mean"]

History = dict[str, np.ndarray]
_EVALUATED, _ARRIVED = "evaluated", "arrived"


class WithHistory(BaseException):
    """An exception that carries the history of a run, and keeps it when it is pickled between
    processes.

    Args:
        message: what happened.
        history: as in `Result`.
    """

    def __init__(self, message: str, history: History) -> None:
        super().__init__(message)
        self.history = history

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.history), self.__dict__


class Diverged(WithHistory, FloatingPointError):
    """The loss of a run became infinite or NaN.

    The attribute `history`, with arrays `[seeds?, records]`, ends with the first record in which a
    loss is not finite.
    """


@checks.arguments
def evaluated_records(history: History) -> History:
    """Returns the records of a history in which the problem was evaluated.

    In a history of a run with `evaluate_every` = 1, these are all records.

    Args:
        history: as in `dsgd.Result` or `dsgd.Sweep`.
    """
    if _EVALUATED not in history:
        return history
    records, axis = _mask(history), history[_EVALUATED].ndim - 1
    return {
        name: np.compress(records, values, axis=0 if name == "step" else axis)
        for name, values in history.items()
    }


def require_column(where: str, name: str, history: History) -> None:
    """Raises a ValueError, which suggests another name, if a history has no series of this name.

    Args:
        where: beginning of the message.
        name: the name.
        history: as in `dsgd.Result`.
    """
    if name not in history:
        end = spelling.suggest(name, history) or f"; expected one of {', '.join(history)}"
        raise ValueError(f"{where} = {name!r} is not in the history{end}")


@checks.arguments
def tail_mean(values: np.ndarray, share: float = 0.1) -> np.ndarray:
    """Returns the mean over the last records, at least one: `[..., records]` to `[...]`.

    If only some records were evaluated (`evaluate_every`), select them first:
    `tail_mean(evaluated_records(history)["loss"])`.

    Args:
        values: a series of a history, `[..., records]`.
        share: fraction of the records over which to average, counted from the end.

    Raises:
        ValueError: if there are no records, or `share` is outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(
            f"tail_mean: share = {share}; expected a fraction of the records, in (0, 1]"
        )
    if not np.ndim(values) or not values.size:
        raise ValueError(
            f"tail_mean: values has shape {np.shape(values)}; expected a non-empty [..., records]"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # the losses of a run that diverges
        return values[..., -max(1, int(share * values.shape[-1])) :].mean(axis=-1)


@checks.arguments
def mean_and_error(values: np.ndarray) -> tuple[Any, Any]:
    """Returns the mean over seeds and its standard error.

    Args:
        values: `[seeds, ...]`.

    Returns:
        Two arrays `[...]` (two numbers for `[seeds]`). The standard error for one seed is 0.

    Raises:
        ValueError: if there are no seeds.
    """
    if not np.ndim(values) or not len(values):
        raise ValueError(
            f"mean_and_error: values has shape {np.shape(values)}; expected [seeds, ...] with at "
            "least one seed"
        )
    seeds = values.shape[0]
    with np.errstate(invalid="ignore"):  # the deviation of infinite values is NaN
        error = (
            values.std(axis=0, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.zeros(values.shape[1:])
        )
    return values.mean(axis=0), error


def _mask(records: dict[str, np.ndarray]) -> np.ndarray:
    """Returns which records were evaluated, bool `[records]`. It is the same for all runs."""
    length = records["loss"].shape[-1]
    return (
        records[_EVALUATED].reshape(-1, length)[0].astype(bool)
        if _EVALUATED in records
        else np.ones(length, bool)
    )


class Log:
    """The records of a run so far.

    Args:
        runs: number of leading axes of independent runs.
        N: number of workers.
        record_every: number of rounds between records.
        first: number of rounds completed before the first record.
        minimum: `Constants.minimum` of the problem.
        samples: number of samples of all workers; 0 if data do not consist of samples.
    """

    def __init__(
        self,
        *,
        runs: int,
        N: int,
        record_every: int,
        first: int = 0,
        minimum: float | None = None,
        samples: int = 0,
    ) -> None:
        self.axis = runs
        self.N = N
        self.record_every = record_every
        self.first = first
        self.minimum = minimum
        self.samples = samples
        self.steps: list[int] = []  # number of completed rounds at each record
        self.pieces: list[dict[str, np.ndarray]] = []

    def extend(self, records: dict[str, np.ndarray], done: int) -> None:
        """Appends the records of a chunk, the last of which is after round `done`. The first record
        of all is the initial state.
        """
        before = len(self.steps)
        self.steps.extend(
            range(
                self.steps[-1] + self.record_every if before else self.first,
                done,
                self.record_every,
            )
        )
        self.steps.append(done)
        count = len(self.steps) - before
        first = (*[slice(None)] * self.axis, slice(count))
        self.pieces.append({name: value[first].copy() for name, value in records.items()})
        self._check_clock()

    def last_loss(self) -> float:
        """Returns the loss of the last evaluation: the mean over seeds, and in a sweep that of the
        best point.
        """
        piece = next(piece for piece in reversed(self.pieces) if _mask(piece).any())
        last = piece["loss"][..., _mask(piece)][..., -1]
        # In float32 the sum of losses near its limit would overflow.
        means = np.atleast_1d(last.mean(axis=-1 if self.axis else None, dtype=np.float64))
        finite = means[np.isfinite(means)]
        return float(finite.min()) if finite.size else float("nan")

    def records(self) -> dict[str, np.ndarray]:
        """Returns all records by name, for `resume`.

        `step` is `[records]`. The totals, and the messages that were sent and delivered in each
        interval, are `dsgd.wire.counts`, the clock is two numbers, and the rest is as in `history`.
        """
        joined = {
            name: np.concatenate([piece[name] for piece in self.pieces], axis=self.axis)
            for name in self.pieces[-1]
        }
        return {"step": np.asarray(self.steps), **joined}

    def resume(self, records: dict[str, np.ndarray]) -> None:
        """Restores the `records` of an earlier log.

        Raises:
            ValueError: if they are not one array for each name, with the same number of records.
        """
        pieces = dict(records)
        steps = pieces.pop("step", np.zeros(0))
        lengths = {values.shape[self.axis : self.axis + 1] for values in pieces.values()}
        if steps.dtype.kind != "i" or not steps.size or lengths != {steps.shape}:
            raise ValueError(
                "checkpoint: its records differ in length; expected those of one run; pass another "
                "folder, or delete the file to start from the beginning"
            )
        self.steps = steps.tolist()
        self.pieces = [pieces]

    def history(self) -> History:
        """Returns the history: numpy arrays by name; {} before the first record.

        Arrays are `[runs ..., records]`, those with one number per worker `[runs ..., records, N]`,
        and `step` is `[records]`. A method's own metrics are NaN in the initial record.
        """
        if not self.pieces:
            return {}
        records = {
            name: values
            for name, values in self.records().items()
            if not (indices.is_kept(name) or tape.is_series(name))
        }
        steps = records.pop("step")
        each = counts.to_int(records.pop(columns.TOTALS))
        up, down, exchanges, samples = np.moveaxis(
            np.cumsum(each, axis=self.axis, dtype=np.uint64), -1, 0
        )
        totals: dict[str, np.ndarray] = dict(
            zip(
                columns.OF_TOTALS,
                (up / self.N, down / self.N, exchanges.astype(np.int64), samples / self.N),
                strict=True,
            )
        )
        if self.samples:
            totals[columns.EPOCHS] = samples / self.samples
        if _ARRIVED in records:
            sent, came = np.moveaxis(counts.to_int(records[_ARRIVED]), -1, 0)
            records[_ARRIVED] = np.divide(
                came, sent, out=np.full(sent.shape, np.nan), where=sent > 0
            )
        if "clock" in records:
            records["clock"] = to_seconds(records["clock"])
        if _EVALUATED in records:
            records[_EVALUATED] = records[_EVALUATED].astype(bool)
        if self.minimum is not None:
            objective = records["objective" if "objective" in records else "loss"]
            records[columns.GAP] = objective.astype(np.float64) - self.minimum
        return {"step": steps, "bits": up / self.N + down / self.N, **totals, **records}

    def tape(self) -> dict[str, np.ndarray]:
        """Returns the series of the tape, `[runs ..., rounds, ...]`."""
        rounds = (*[slice(None)] * self.axis, slice(1, None))
        return {
            name: values[rounds] for name, values in self.records().items() if tape.is_series(name)
        }

    def check(self, method: str, diagnose: Callable[[History, int, int], str]) -> None:
        """Raises `Diverged` if an evaluated loss of the last chunk is not finite.

        Args:
            method: name of the method.
            diagnose: (evaluated records of the history, number of them before the first non-finite
                one, index of the run) -> the reason, or "".
        """
        if np.isfinite(self.pieces[-1]["loss"][..., _mask(self.pieces[-1])]).all():
            return
        history = self.history()
        loss, records = history["loss"], np.flatnonzero(_mask(history))
        bad = ~np.isfinite(loss).reshape(-1, loss.shape[-1])[:, records].all(axis=0)
        first = int(np.flatnonzero(bad)[0])
        at = int(records[first])
        run = int(np.flatnonzero(~np.isfinite(loss[..., at]))[0])
        seed = f" of seed {run}" if self.axis else ""
        before = self.steps[records[first - 1]]
        finite = f" (finite after {before})" if first and self.steps[at] - before > 1 else ""
        until = (*[slice(None)] * self.axis, slice(at + 1))
        record = {
            name: values[: at + 1] if name == "step" else values[until]
            for name, values in history.items()
        }
        value = loss.reshape(-1, loss.shape[-1])[run, at]
        symptom = f"{method}: the loss{seed} is {value} after round {self.steps[at]}{finite}"
        where = "(the error's attribute `history` has the records so far)"
        if reason := diagnose(evaluated_records(record), first, run):
            raise Diverged(f"{symptom}: {reason}; expected finite numbers {where}", record)
        overrides = "".join(
            f", or a method without {allowed}" for allowed in re.findall(r"\ballow_\w+", method)
        )
        raise Diverged(f"{symptom}; try a smaller step size{overrides} {where}", record)

    def _check_clock(self) -> None:
        """Raises ValueError if the clock is not finite or decreases."""
        if "clock" not in self.pieces[-1]:
            return
        *before, latest = [to_seconds(piece["clock"]) for piece in self.pieces[-2:]]
        clock = np.concatenate(
            [*(np.take(piece, [-1], axis=self.axis) for piece in before), latest], axis=self.axis
        )
        if not np.isfinite(clock).all() or (np.diff(clock, axis=self.axis) < 0).any():
            finite = clock[np.isfinite(clock)]
            at = (
                f"at {finite.min():g} to {finite.max():g} s"
                if finite.size == clock.size
                else f"at {clock[~np.isfinite(clock)][0]:g} s"
            )
            raise ValueError(
                f"the cluster's clock is not finite or decreases, {at} by round {self.steps[-1]}; "
                "expected seconds >= 0, bandwidths > 0 and powers at which every computation ends, "
                "finite in float32; pass present=clusters.lifetimes(...) for workers that stop"
            )
