"""Loggers that write the records of runs to the trackers of other projects, to CSV files, or to the
terminal; see `on_record` of `dsgd.run`.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from dsgd import checks, optional, records
from dsgd.runs.history import History
from dsgd.runs.interrupts import Interrupted
from dsgd.runs.observers import Logger, Record
from dsgd.runs.results import Settings

__all__ = ["CSV", "Console", "Logger", "MLflow", "TensorBoard", "WandB"]

Seeds = Literal["mean", "runs"]
_SECONDS = 1.0  # between two lines of a terminal, or two requests of MLflow
_MOST_METRICS = 1_000  # of a request of MLflow


class _ByRun(Logger):
    """Writes one run for each point of a sweep's grid, and for each seed if `seeds` is "runs".

    Metrics that are not finite numbers are omitted.

    Args:
        seeds: "mean": one run with the means over the seeds; "runs": one run for each seed.
    """

    def __init__(self, seeds: Seeds) -> None:
        self._seeds: Seeds = _validate(seeds)

    def start(self, settings: Settings) -> None:
        self._settings = settings
        self._runs: dict[str, Any] = {}

    def __call__(self, record: Record) -> None:
        for labels, metrics in _split(record, self._settings, self._seeds):
            texts = [f"{label} = {value:.4g}" for label, value in labels.items()]
            name = ", ".join([self._settings["method"], *texts])
            kept = {metric: value for metric, value in metrics.items() if np.isfinite(value)}
            if name not in self._runs:
                settings = {key: value for key, value in self._settings.items() if key != "grid"}
                self._runs[name] = self._open(name, {**settings, **labels}, record["step"], kept)
            self._write(self._runs[name], record["step"], kept)

    def end(self, history: History, error: BaseException | None) -> None:
        for run in self._runs.values():
            self._close(run, error)

    def _open(
        self, name: str, settings: dict[str, Any], step: int, metrics: dict[str, float]
    ) -> Any:
        """Returns a new run, before its first record."""
        raise NotImplementedError

    def _write(self, run: Any, step: int, metrics: dict[str, float]) -> None:
        raise NotImplementedError

    def _close(self, run: Any, error: BaseException | None) -> None:
        raise NotImplementedError


@checks.arguments
class TensorBoard(_ByRun):
    """Writes event files that TensorBoard shows: metrics by round, and the settings.

    If the folder has events of a run of the same name, TensorBoard shows the new ones in their
    place.

    Args:
        folder: the folder; each run has a subfolder with its name: the method, and the point and
            the seed.
        seeds: "mean": the means over the seeds; "runs": each seed is a run.

    Raises:
        ImportError: if tensorboardX is not installed.
    """

    def __init__(self, folder: str | Path, *, seeds: Seeds = "mean") -> None:
        super().__init__(seeds)
        self._folder = records.user_path("TensorBoard: folder", folder)
        self._package = optional.load("TensorBoard", "tensorboardX", "tensorboard")

    def _open(
        self, name: str, settings: dict[str, Any], step: int, metrics: dict[str, float]
    ) -> Any:
        folder = self._folder / name.replace("/", "_")
        writer = self._package.SummaryWriter(str(folder), purge_step=step)
        columns = {key: value for key, value in _texts(settings).items() if value is not None}
        summaries = optional.load("TensorBoard", "tensorboardX.summary", "tensorboard")
        for summary in summaries.hparams(columns, metrics)[:2]:
            writer.file_writer.add_summary(summary)
        return writer

    def _write(self, run: Any, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            run.add_scalar(name, value, step)

    def _close(self, run: Any, error: BaseException | None) -> None:
        run.close()


@checks.arguments
class WandB(_ByRun):
    """Writes runs of Weights & Biases. With `WANDB_MODE=offline` nothing leaves the machine.

    Args:
        project: name of the project; None: the default of Weights & Biases.
        folder: folder for the files of the runs; None: the default of Weights & Biases.
        seeds: "mean": the means over the seeds; "runs": each seed is a run.

    Raises:
        ImportError: if wandb is not installed.
    """

    def __init__(
        self, project: str | None = None, *, folder: str | Path | None = None, seeds: Seeds = "mean"
    ) -> None:
        super().__init__(seeds)
        self._project = project
        self._folder = None if folder is None else records.user_path("WandB: folder", folder)
        self._package = optional.load("WandB", "wandb", "wandb")

    def _open(
        self, name: str, settings: dict[str, Any], step: int, metrics: dict[str, float]
    ) -> Any:
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
        return self._package.init(
            project=self._project,
            dir=self._folder,
            name=name,
            group=settings["method"],
            config=settings,
            reinit="create_new",
        )

    def _write(self, run: Any, step: int, metrics: dict[str, float]) -> None:
        run.log(metrics, step=step)

    def _close(self, run: Any, error: BaseException | None) -> None:
        run.finish(exit_code=int(error is not None))


@checks.arguments
class MLflow(_ByRun):
    """Writes runs of MLflow: parameters, metrics by round, and the status.

    Args:
        experiment: name of the experiment, which is made if it does not exist.
        uri: address of the store, for example "sqlite:///mlflow.db" (which needs the packages
            sqlalchemy and alembic); None: MLflow's default.
        seeds: "mean": the means over the seeds; "runs": each seed is a run.

    Raises:
        ImportError: if mlflow is not installed.
    """

    def __init__(
        self,
        experiment: str = "dsgd",
        *,
        uri: str | None = None,
        seeds: Seeds = "mean",
    ) -> None:
        super().__init__(seeds)
        self._experiment, self._uri = experiment, uri
        self._package = optional.load("MLflow", "mlflow", "mlflow")

    def start(self, settings: Settings) -> None:
        super().start(settings)
        self._client = self._package.MlflowClient(self._uri)
        found = self._client.get_experiment_by_name(self._experiment)
        self._id = (
            found.experiment_id if found else self._client.create_experiment(self._experiment)
        )
        self._waiting: dict[str, list[Any]] = {}
        self._sent = time.monotonic()

    def __call__(self, record: Record) -> None:
        super().__call__(record)
        if time.monotonic() - self._sent > _SECONDS:
            self._send()

    def _open(
        self, name: str, settings: dict[str, Any], step: int, metrics: dict[str, float]
    ) -> Any:
        run = self._client.create_run(self._id, run_name=name).info.run_id
        for key, value in _texts(settings).items():
            self._client.log_param(run, key, value)
        return run

    def _write(self, run: Any, step: int, metrics: dict[str, float]) -> None:
        now = int(1000 * time.time())
        self._waiting.setdefault(run, []).extend(
            self._package.entities.Metric(name, value, now, step) for name, value in metrics.items()
        )

    def _send(self) -> None:
        for run, metrics in self._waiting.items():
            for first in range(0, len(metrics), _MOST_METRICS):
                self._client.log_batch(run, metrics[first : first + _MOST_METRICS])
        self._waiting, self._sent = {}, time.monotonic()

    def end(self, history: History, error: BaseException | None) -> None:
        self._send()
        super().end(history, error)

    def _close(self, run: Any, error: BaseException | None) -> None:
        status = (
            "FINISHED"
            if error is None
            else "KILLED"
            if isinstance(error, Interrupted)
            else "FAILED"
        )
        self._client.set_terminated(run, status)


@checks.arguments
class CSV(Logger):
    """Writes a CSV file, which grows with each record: one row for each record and point of a
    sweep's grid, and for each seed if `seeds` is "runs".

    Columns: the hyperparameters of a sweep, `seed`, `step`, and the series of the history. The file
    is replaced when a run begins. The settings are written next to it, to `<name>.json`.

    Args:
        path: the file.
        seeds: "mean": the means over the seeds; "runs": each seed has rows.
    """

    def __init__(self, path: str | Path, *, seeds: Seeds = "mean") -> None:
        self._path = records.user_path("CSV: path", path)
        self._seeds: Seeds = _validate(seeds)

    def start(self, settings: Settings) -> None:
        self._settings = settings
        records.write_json(self._path.with_suffix(".json"), dict(settings))
        self._file = self._path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._has_heading = False

    def __call__(self, record: Record) -> None:
        for labels, metrics in _split(record, self._settings, self._seeds):
            row = {**labels, "step": record["step"], **metrics}
            if not self._has_heading:
                self._writer.writerow(row)
                self._has_heading = True
            self._writer.writerow(row.values())
        self._file.flush()

    def end(self, history: History, error: BaseException | None) -> None:
        self._file.close()


class Console(Logger):
    """Prints the settings, a line with the latest record at most once a second, and a table of the
    last record with means over seeds. The lines of a sweep are those of the point with the smallest
    loss.
    """

    def start(self, settings: Settings) -> None:
        import rich  # noqa: PLC0415 (imported only if it is used)

        self._console, self._settings = rich.get_console(), settings
        self._shown = time.monotonic()
        self._console.print(
            ", ".join(f"{name} = {value}" for name, value in settings.items() if value is not None),
            highlight=False,
            markup=False,
        )

    def __call__(self, record: Record) -> None:
        if time.monotonic() - self._shown < _SECONDS:
            return
        self._shown = time.monotonic()
        rows = list(_split(record, self._settings, "mean"))
        labels, metrics = min(rows, key=lambda row: np.nan_to_num(row[1]["loss"], nan=np.inf))
        numbers = {**labels, **metrics}
        self._console.print(
            f"round {record['step']:,}: "
            + ", ".join(
                f"{name} {value:.4g}" for name, value in numbers.items() if np.isfinite(value)
            ),
            highlight=False,
            markup=False,
        )

    def end(self, history: History, error: BaseException | None) -> None:
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        if not history:
            return
        axis = history["loss"].ndim - 1
        last = {
            name: values[-1] if name == "step" else np.take(values, -1, axis)
            for name, values in history.items()
        }
        rows = list(_split(last, self._settings, "mean"))
        how = "" if error is None else f", {type(error).__name__}"
        table = Table(title=Text(f"{self._settings['method']}: round {last['step']:,}{how}"))
        numbers = [{**labels, **metrics} for labels, metrics in rows]
        if len(numbers) == 1:  # a row for each metric, since a line has no room for all
            table.show_header = False
            table.add_column()
            table.add_column(justify="right")
            for name, value in numbers[0].items():
                table.add_row(Text(name.replace("_", " ")), f"{value:.4g}")
        else:
            for name in numbers[0]:
                table.add_column(Text(name.replace("_", " ")), justify="right")
            for each in numbers:
                table.add_row(*(f"{value:.4g}" for value in each.values()))
        self._console.print(table)


def _validate(seeds: Seeds) -> Seeds:
    if seeds not in get_args(Seeds):
        raise ValueError(f"loggers: seeds = {seeds!r}; expected 'mean' or 'runs'")
    return seeds


def _split(
    record: Record, settings: Mapping[str, Any], seeds: Seeds
) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
    """Yields the labels of each run (hyperparameters, and the seed if `seeds` is "runs"), and its
    metrics, one for each worker if a series has one number per worker.
    """
    metrics = {
        name: np.asarray(value, float)
        for name, value in record.items()
        if name not in ("step", "evaluated")
    }
    axes = metrics["loss"].ndim
    grid: dict[str, Any] = settings.get("grid", {})
    for index in product(*(range(len(values)) for values in grid.values())):
        labels = {name: values[i] for (name, values), i in zip(grid.items(), index, strict=True)}
        each = {name: values[index] for name, values in metrics.items()}
        # a run without seeds has no axis for them
        if seeds == "runs" and axes > len(index):
            for seed in range(len(each["loss"])):
                row = {name: values[seed] for name, values in each.items()}
                yield {**labels, "seed": seed}, _by_worker(row)
        else:
            if axes > len(index):
                with np.errstate(invalid="ignore", over="ignore"):
                    each = {name: values.mean(axis=0) for name, values in each.items()}
            yield labels, _by_worker(each)


def _by_worker(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{name}[{worker}]" if np.ndim(values) else name: float(value)
        for name, values in metrics.items()
        for worker, value in enumerate(np.ravel(values))
    }


def _texts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with lists and dictionaries as text."""
    return {
        name: value if isinstance(value, str | bool | int | float | None) else json.dumps(value)
        for name, value in settings.items()
    }
