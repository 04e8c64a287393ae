"""Rounds to a target from recorded curves of pilots: runs of the model, or of smaller ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsgd import checks, records, spelling
from dsgd.planning import curves as recorded
from dsgd.planning.candidates import Candidate
from dsgd.planning.curves import Curve, label
from dsgd.planning.estimates import LEVEL, Estimate, positive_estimate, share_estimate
from dsgd.runs.sweeps import largest_is_best

FEWEST = 3  # sizes of pilots to which a power law is fitted
POOR = 0.25  # relative error of the largest pilot's prediction above which none is extrapolated
Setting = tuple[str, tuple[tuple[str, float], ...]]  # a method with its hyperparameters
NONE = Estimate(math.inf, math.inf, math.inf)  # rounds that are never enough


class PilotRow(NamedTuple):
    """The number of rounds of a method with one setting.

    Args:
        method: the candidate's name.
        values: its hyperparameters by name, besides the step size.
        learning_rate: the step size of the curve; NaN if it is not recorded.
        rounds: number of rounds until the target; infinite if a seed does not reach it. Without an
            interval (NaN) if there is one seed.
        reached: share of the recorded seeds that reach the target.
        seeds: number of recorded seeds.
        predicted: rounds of the largest pilot, as predicted from the others, relative to the
            recorded ones; NaN if the target is reached at fewer than three sizes.
    """

    method: str
    values: dict[str, float]
    learning_rate: float
    rounds: Estimate
    reached: Estimate
    seeds: int
    predicted: float


class PilotRounds(NamedTuple):
    """The numbers of rounds of all methods of a pilot.

    Args:
        description: one sentence that states what the numbers are from.
        rows: one for each method and setting, in the order of the file.
        extrapolated: whether they are extrapolated to another size.
    """

    description: str
    rows: list[PilotRow]
    extrapolated: bool

    @checks.arguments
    def of(self, method: str | Candidate, values: Mapping[str, float] | None = None) -> PilotRow:
        """Returns the row of a method.

        Args:
            method: a candidate, or its name as `str(candidate)` returns it.
            values: its hyperparameters; None: it has none. Columns of the file that are not among
                them do not matter.

        Raises:
            ValueError: if the pilot has no curve with this name and these values, or several.
        """
        name, given = str(method), dict(values or {})
        named = [row for row in self.rows if row.method == name]
        found = [
            row
            for row in named
            if all(np.isclose(row.values.get(key, np.nan), value) for key, value in given.items())
        ]
        if len(found) != 1:
            meant = spelling.suggest(name, [row.method for row in self.rows]) if not named else ""
            has = "; ".join(label(row.method, row.values) for row in named or self.rows)
            raise ValueError(
                f"PilotRounds.of: {label(name, given)} has {len(found)} curves in the "
                f"pilot; expected one of {has}{meant}"
            )
        return found[0]


@checks.arguments
@dataclass(frozen=True, eq=False)
class Pilot:
    r"""Recorded curves of methods, from which the number of rounds to a target is read.

        pilot = dsgd.Pilot.read("pilot.csv")
        rounds = pilot.rounds(3.2, 124_000_000)
        print(rounds.description)
        print(rounds.of("diloco", {"H": 30}).rounds)

    A seed reaches the target if one of its records does. The round is that of the closest monotone
    curve (least squares, by pool adjacent violators) of its records until the best one: records
    that are in order stay as they are, and noise does not make the arrival early. Between two
    records, or the centres of two groups of pooled ones, the curve is linear.

    Rounds R of models of D elements are extrapolated, if at least three sizes are recorded, with a
    power law for each method,

    $$ \log R = a + b \log D + \epsilon, $$

    by least squares on the means over the seeds. The variance of $\epsilon$ is pooled over all
    methods, and at least that of the means over the seeds. The intervals are prediction intervals,
    by Student's t.

    Args:
        curves: the curves; `Pilot.read` reads them from files.
        metric: name of the recorded metric.
        largest: whether its largest value is best.
        model: what was trained, for the description.

    Raises:
        ValueError: if there are no curves, or a method has none at the largest size.
    """

    curves: Sequence[Curve]
    metric: str = "loss"
    largest: bool = False
    model: str = "no description"

    def __post_init__(self) -> None:
        if not self.curves:
            raise ValueError("Pilot: no curves; expected at least one")
        for (method, values), own in self._by_setting().items():
            if self.sizes[-1] not in own:
                raise ValueError(
                    f"Pilot: {label(method, dict(values))} has no curve with "
                    f"{self.sizes[-1]:,} elements, only {', '.join(f'{each:,}' for each in own)}; "
                    "expected the same increasing sizes of all methods"
                )

    @classmethod
    @checks.arguments
    def read(
        cls,
        path: str | Path,
        *,
        candidates: Sequence[Candidate] | None = None,
        metric: str = "loss",
        largest: bool | None = None,
        method: str | None = None,
        elements: int | None = None,
        tokens_per_step: float | None = None,
    ) -> Pilot:
        """Reads curves from a CSV file with one row for each record, or from a folder of such
        files, for example what a training loop has logged.

        The columns are `method`, the name of a candidate as `str(candidate)` returns it;
        `elements`, the size of the model; `seed`, if there are several; `step`, the number of
        rounds, or `tokens` and `tokens_per_step`; and the metric. The rows of a run follow each
        other. Other columns with numbers that do not change within any run are hyperparameters,
        such as `H`; they are empty for methods without them. `learning_rate` is the step size. All
        other columns are ignored. Lines at the beginning with a `#` describe the model.

        Args:
            path: the file; or a folder that has a file `<method>/history.csv` for each method.
            candidates: the methods that may be in the file; None: any.
            metric: name of its column.
            largest: whether the largest value of the metric is best; None: as in `Sweep.best`.
            method: name of the method; None: that of the column, or of the folder.
            elements: number of elements of the model; None: that of the column.
            tokens_per_step: tokens of all workers in a round; None: that of the column.

        Raises:
            ValueError: if a column is missing, a method is not among the candidates, a number is
                missing or NaN, rounds do not increase within a run, a run has one record, and as
                for `Pilot`.
            OSError: if the file cannot be read.
        """
        place = records.user_path("Pilot.read: path", path)
        is_largest = largest_is_best(metric, largest, "Pilot.read")
        given = {"method": method, "elements": elements, "tokens_per_step": tokens_per_step}
        title, curves = recorded.read(place, metric, given)
        known = [str(each) for each in candidates or ()]
        for curve in curves:
            if known and curve.method not in known:
                raise ValueError(
                    f"Pilot.read: {place.name} has curves of {curve.method!r}, which is no "
                    f"candidate; expected some of {', '.join(known)}"
                    f"{spelling.suggest(curve.method, known)}"
                )
        return cls(curves, metric, is_largest, title or place.name)

    @property
    def sizes(self) -> list[int]:
        """The numbers of elements of the recorded models, increasing."""
        return sorted({curve.elements for curve in self.curves})

    @checks.arguments
    def rounds(self, target: float, elements: int | None = None) -> PilotRounds:
        """Returns the number of rounds of all methods until the target.

        Those of a model with `elements` elements are recorded if the pilot has this size, and
        extrapolated otherwise. If a method reaches the target at fewer than three sizes, or the
        largest pilot is predicted from the others with an error of more than 25 % for any method,
        those of the largest pilot are returned, and the description states so.

        Args:
            target: value of the metric.
            elements: number of elements of the model; None: that of the largest pilot.

        Raises:
            ValueError: if no seed reaches the target, or `elements` is less than 1.
        """
        if elements is not None:
            checks.positive_int("Pilot.rounds: elements", elements, most=None)
        base = elements if elements in self.sizes else self.sizes[-1]
        to_other = elements not in (None, base)
        settings = {setting: own for setting, own in self._by_setting().items() if base in own}
        arrivals = {
            setting: {size: self._arrival(curve, target) for size, curve in own.items()}
            for setting, own in settings.items()
        }
        self._require_reached(target, base, [own[base] for own in arrivals.values()])
        laws = {setting: _law(own, self.sizes[-1]) for setting, own in arrivals.items()}
        why = self._why_not(laws) if to_other else ""
        if is_extrapolated := to_other and not why:
            assert elements is not None
            estimates = _extrapolate(laws, elements)
        else:
            estimates = {setting: own[base].estimate for setting, own in arrivals.items()}
        rows = [
            PilotRow(
                setting[0],
                dict(setting[1]),
                own[base].learning_rate,
                estimates[setting],
                share_estimate(np.isfinite(arrivals[setting][base].rounds)),
                len(own[base].seeds),
                laws[setting].ratio,
            )
            for setting, own in settings.items()
        ]
        found = f"{self.metric} {target:g}"
        if is_extrapolated:
            text = self._describe_extrapolated(found, elements or 0, laws)
        else:
            text = self._describe_recorded(found, base, min(row.seeds for row in rows))
            text += f"; not those of the model with {elements:,} elements: {why}" if why else ""
        return PilotRounds(text, rows, is_extrapolated)

    def _by_setting(self) -> dict[Setting, dict[int, Curve]]:
        """Returns the curves of each method with its hyperparameters by the size of the model."""
        found = dict[Setting, dict[int, Curve]]()
        for curve in self.curves:
            setting = (curve.method, tuple(curve.values.items()))
            found.setdefault(setting, {})[curve.elements] = curve
        return found

    def _arrival(self, curve: Curve, target: float) -> _Arrival:
        sign = -1 if self.largest else 1
        each = [_first(steps, sign * values, sign * target) for steps, values in curve.seeds]
        rounds, spacing = np.array(each).T
        return _Arrival(rounds, spacing)

    def _require_reached(self, target: float, size: int, each: Sequence[_Arrival]) -> None:
        if any(np.isfinite(arrival.rounds).any() for arrival in each):
            return
        sign = -1 if self.largest else 1
        best, name = min(
            (_best(sign * values for _, values in curve.seeds), curve.label)
            for curve in self.curves
            if curve.elements == size
        )
        raise ValueError(
            f"Pilot.rounds: target = {target:g} is reached by no curve with {size:,} elements; "
            f"the best {self.metric} is {sign * best:.4g}, of {name}; expected a target that "
            "is reached"
        )

    def _why_not(self, laws: Mapping[Setting, _Law]) -> str:
        """Returns why rounds are not extrapolated; "" if they are."""
        reaching = {setting: law for setting, law in laws.items() if law.reaches}
        for setting, law in reaching.items():
            if len(law.x) < FEWEST:
                return (
                    f"{label(setting[0], dict(setting[1]))} reaches it at {len(law.x)} of "
                    f"{len(self.sizes)} sizes; a power law needs {FEWEST}"
                )
        if not reaching:
            return "no method reaches it with all seeds"
        setting, law = max(reaching.items(), key=lambda each: abs(each[1].ratio - 1))
        if abs(law.ratio - 1) > POOR:
            return (
                f"a power law from the other sizes predicts {law.ratio:.2f} times the rounds of "
                f"{label(setting[0], dict(setting[1]))}"
            )
        return ""

    def _describe_recorded(self, found: str, size: int, seeds: int) -> str:
        of = f"{seeds} seeds" if seeds > 1 else "one seed, so without intervals"
        return f"Rounds to {found} of a pilot with {size:,} elements ({self.model}), recorded, {of}"

    def _describe_extrapolated(self, found: str, size: int, laws: Mapping[Setting, _Law]) -> str:
        worst = max(abs(law.ratio - 1) for law in laws.values() if law.reaches)
        low, high = self.sizes[0], self.sizes[-1]
        return (
            f"Rounds to {found} of a model with {size:,} elements, extrapolated from pilots of "
            f"{len(self.sizes)} sizes, {low:,} to {high:,} elements ({self.model}), largest "
            f"predicted within {100 * worst:.0f} %"
        )


class _Arrival(NamedTuple):
    """The rounds until the target and their resolution, `[seeds]`."""

    rounds: np.ndarray
    spacing: np.ndarray

    @property
    def estimate(self) -> Estimate:
        if not np.isfinite(self.rounds).all():
            return NONE
        found = positive_estimate(self.rounds, self.spacing)
        return found if len(self.rounds) > 1 else found._replace(low=math.nan, high=math.nan)

    @property
    def variance(self) -> float:
        """The variance of the logarithm of the mean over the seeds."""
        mean, seeds = self.rounds.mean(), len(self.rounds)
        deviation = self.rounds.std(ddof=1) if seeds > 1 else 0.0
        # rounds between two records are as uncertain as a uniform distribution
        return float(max(deviation, self.spacing.mean() / np.sqrt(12)) ** 2 / seeds / mean**2)


class _Law(NamedTuple):
    """The sizes at which all seeds reach the target: the logarithms of the numbers of elements and
    of the mean rounds, and the variances of the latter, `[sizes]`; and whether the largest pilot is
    among them.
    """

    x: np.ndarray
    y: np.ndarray
    variances: np.ndarray
    reaches: bool

    @property
    def ratio(self) -> float:
        """Rounds of the largest pilot, predicted from the others, relative to the recorded ones."""
        if not self.reaches or len(self.x) < FEWEST:
            return math.nan
        predicted, _ = _line(self.x[:-1], self.y[:-1], self.x[-1])
        return float(np.exp(predicted - self.y[-1]))


def _first(steps: np.ndarray, values: np.ndarray, target: float) -> tuple[float, float]:
    """Returns the round in which a run reaches the target, infinite if never, and the distance of
    the two points of the monotone curve next to it.
    """
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 (takes a second to import)

    finite = _before_divergence(values)
    if not finite.size or finite.min() > target:
        return math.inf, 0.0
    # later records, also those of a run that overfits, do not change when the target is reached
    fit = isotonic_regression(finite[: finite.argmin() + 1], increasing=False)
    ends = zip(fit.blocks[:-1], fit.blocks[1:], strict=True)
    at = np.array([steps[low:high].mean() for low, high in ends])
    curve = fit.x[fit.blocks[:-1]]
    after = int(np.argmax(curve <= target))
    if after == 0:
        return float(at[0]), 0.0
    low, high = at[after - 1], at[after]
    share = (curve[after - 1] - target) / (curve[after - 1] - curve[after])
    return float(low + share * (high - low)), float(high - low)


def _before_divergence(values: np.ndarray) -> np.ndarray:
    """Returns the records before the first infinite one."""
    diverged = np.flatnonzero(np.isinf(values))
    return values[: diverged[0]] if diverged.size else values


def _best(seeds: Iterable[np.ndarray]) -> float:
    return min(float(_before_divergence(values).min(initial=math.inf)) for values in seeds)


def _law(arrivals: Mapping[int, _Arrival], largest: int) -> _Law:
    found = {
        size: each
        for size, each in sorted(arrivals.items())
        if np.isfinite(each.rounds).all() and each.rounds.mean() > 0
    }
    return _Law(
        np.log(np.array([*found], float)),
        np.log(np.array([each.rounds.mean() for each in found.values()])),
        np.array([each.variance for each in found.values()]),
        largest in found,
    )


def _extrapolate(laws: Mapping[Setting, _Law], elements: int) -> dict[Setting, Estimate]:
    """Returns the rounds for a model of this size, at least 1, with prediction intervals."""
    from scipy.stats import t  # noqa: PLC0415 (takes a second to import)

    fitted = {setting: law for setting, law in laws.items() if law.reaches}
    squares, freedom = 0.0, 0
    for law in fitted.values():
        squares += float(((law.y - _line(law.x, law.y, law.x)[0]) ** 2).sum())
        freedom += len(law.x) - 2
    noise = float(np.mean(np.concatenate([law.variances for law in fitted.values()])))
    deviation = math.sqrt(max(squares / freedom, noise))
    quantile = float(t.ppf((1 + LEVEL) / 2, freedom))
    estimates = dict.fromkeys(laws, NONE)
    for setting, law in fitted.items():
        value, leverage = _line(law.x, law.y, math.log(elements))
        half = quantile * deviation * math.sqrt(1 + leverage)
        ends = np.exp([value, value - half, value + half])
        estimates[setting] = Estimate(*(max(1.0, float(each)) for each in ends))
    return estimates


def _line(x: np.ndarray, y: np.ndarray, at: Any) -> tuple[Any, Any]:
    """Returns the line through points by least squares at other ones, and the variance of its value
    there, relative to that of the points.
    """
    offsets, distance = x - x.mean(), at - x.mean()
    spread = (offsets**2).sum()
    value = y.mean() + distance * (offsets * y).sum() / spread
    return value, 1 / len(x) + distance**2 / spread
