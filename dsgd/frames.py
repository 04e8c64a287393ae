"""Histories taken apart run by run, and as pandas frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from dsgd import checks, records
from dsgd.base import Result
from dsgd.runs.history import History
from dsgd.runs.sweeps import Sweep

if TYPE_CHECKING:
    import pandas as pd

_NEEDED = (
    "a dsgd.Result, a dsgd.Sweep, a history, or a dictionary of these by the names of their methods"
)
Runs = Annotated[Result | Sweep | Mapping[str, Any], _NEEDED]


@checks.arguments
def frame(runs: Runs) -> pd.DataFrame:
    """Histories in long form: one row for each run and record.

    Args:
        runs: a result, a sweep, a history as a result or an error has it, or a dictionary of these
            by method.

    Returns:
        A frame with the columns `method` (of a dictionary), the sweep's hyperparameters by their
        names, `seed` (0 ... R - 1; 0 of a single run), `step`, then the history's own: `loss`,
        `bits`, ... What has one number a worker, `[..., records, N]`, is N columns, `samples[0]`
        and so on. What a method does not have is NaN.

    Raises:
        ImportError: pandas is not installed.
        ValueError: no runs, something else among them, or a sweep of a hyperparameter that is also
            the name of a column.
    """
    try:
        import pandas as pd  # noqa: PLC0415 (an optional package)
    except ImportError as error:
        raise ImportError(
            "frame needs pandas, which the extra 'notebooks' brings: pip install pandas"
        ) from error
    frames = [
        pd.DataFrame(_columns(labels, history)) for labels, history in single_points("frame", runs)
    ]
    return pd.concat(frames, ignore_index=True)


def _columns(labels: dict[str, Any], history: History) -> dict[str, Any]:
    columns = dict(records.by_worker(history))
    step = columns.pop("step")
    if taken := {"seed", "step", *columns} & labels.keys():
        raise ValueError(
            f"frame: the sweep's {', '.join(sorted(taken))} is a column of the history, too: need "
            "another argument's name"
        )
    seeds = history["loss"].shape[0]
    values = {name: values.ravel() for name, values in columns.items()}
    return {
        **labels,
        "seed": np.repeat(np.arange(seeds), len(step)),
        "step": np.tile(step, seeds),
        **values,
    }


def single_points(where: str, runs: Runs) -> Iterator[tuple[dict[str, Any], History]]:
    """Each method's history at each point of its sweep, `[seeds, records]` also where there is one
    run, with what tells it from others.

    Args:
        where: who asks, for the error.
        runs: as in `frame`.

    Raises:
        ValueError: no runs, or something else among them.
    """
    if isinstance(runs, Mapping) and not _is_history(runs):
        if not runs:
            raise ValueError(f"{where}: runs = {{}}: need {_NEEDED}")
        for method, one in runs.items():
            for labels, history in _points(where, f"runs[{method!r}]", one):
                yield {"method": str(method), **labels}, history
    else:
        yield from _points(where, "runs", runs)


def _points(where: str, what: str, one: Any) -> Iterator[tuple[dict[str, Any], History]]:
    if isinstance(one, Sweep):
        for index in product(*map(range, map(len, one.grid.values()))):
            yield one.point(index), one.at(index)
        return
    history = one.history if isinstance(one, Result) else one
    if not _is_history(history):
        raise ValueError(f"{where}: {what} = {checks.shown(one)}: need {_NEEDED}")
    if history["loss"].ndim > 2:
        raise ValueError(
            f"{where}: {what} has a loss of shape {list(history['loss'].shape)}: need the "
            "dsgd.Sweep, which has its grid, too"
        )
    alone = history["loss"].ndim == 1
    yield (
        {},
        {
            name: values[None] if alone and name != "step" else values
            for name, values in history.items()
        },
    )


def _is_history(value: Any) -> bool:
    if not isinstance(value, Mapping) or not {"step", "loss"} <= value.keys():
        return False
    return all(isinstance(array, np.ndarray) and array.ndim for array in value.values())
