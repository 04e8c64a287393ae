"""`dsgd.Pilot`: rounds to a target from recorded curves, extrapolated to other sizes; its files."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from scipy import stats

import algorithms
from dsgd import Candidate, Pilot, records
from dsgd.planning import Curve, pilots
from dsgd.planning.estimates import positive_estimate

STEPS = np.arange(0.0, 101.0, 5.0)
DILOCO = Candidate("diloco", algorithms.diloco, ("H",), {"H": (10, 30)})


def line(rounds: float) -> np.ndarray:
    """Losses that fall on a line, and are 2 after this number of rounds."""
    return 4 - 2 * STEPS / rounds


def curve(rounds: list[float], elements: int = 700, method: str = "a") -> Curve:
    seeds = [(STEPS, line(each)) for each in rounds]
    return Curve(method, {}, 0.3, elements, seeds)


def of_one(values: list[float], steps: np.ndarray = STEPS, **options) -> float:
    """Returns the rounds of one run to the target 2."""
    seeds = [(steps[: len(values)], np.array(values))]
    found = Pilot([Curve("a", {}, 0.3, 700, seeds)], **options).rounds(2.0)
    return found.rows[0].rounds.value


def write(path, rows, columns="method H elements seed step loss", title=""):
    with path.open("w", newline="") as file:
        file.write(title)
        csv.writer(file).writerows([columns.split(), *rows])
    return path


LOSSES = (4.0, 3.0, 1.5)


def rows(method="diloco", H: float | str = 10, elements: float = 700, seed=0, losses=LOSSES):
    return [[method, H, elements, seed, 20 * i, loss] for i, loss in enumerate(losses)]


def test_a_target_between_two_records():
    assert of_one([4.0, 3.0, 1.5]) == pytest.approx(5 + 5 * (3 - 2) / (3 - 1.5))
    assert of_one([4.0, 2.0, 1.5]) == pytest.approx(5)
    assert of_one([1.9, 1.5]) == 0


def test_records_that_are_not_in_order_are_pooled():
    pooled = (2.6 + 2.8) / 2  # at 7.5 rounds
    assert of_one([4.0, 2.6, 2.8, 1.5]) == pytest.approx(7.5 + 7.5 * (pooled - 2) / (pooled - 1.5))


def test_records_after_the_best_one_do_not_matter():
    """A run that overfits or diverges has reached the target before."""
    expected = of_one([4.0, 3.0, 1.5])
    assert of_one([4.0, 3.0, 1.5, 9.0, math.inf]) == expected
    with pytest.raises(ValueError, match="the best loss is 3, of a; expected"):
        of_one([4.0, 3.0, math.inf, 1.5])


def test_the_largest_value_can_be_best():
    values = [0.2, 1.0, 2.5]
    assert of_one(values, metric="test_accuracy", largest=True) == pytest.approx(
        5 + 5 * (2 - 1) / (2.5 - 1)
    )


def test_noise_does_not_make_the_arrival_early():
    """Losses of batches, with a standard deviation of a quarter of what is left to learn: the first
    record at or below the target is a third too early on average.
    """
    generator, steps = np.random.default_rng(3), np.arange(0.0, 400.0)
    exact = 4 - 2 * steps / 240  # 2 after 240 rounds
    found, first = [], []
    for _ in range(20):
        noisy = exact + 0.5 * generator.normal(size=len(steps))
        found.append(of_one(list(noisy), steps))
        first.append(steps[np.argmax(noisy <= 2)])
    assert np.mean(first) < 0.7 * 240
    assert np.mean(found) == pytest.approx(240, rel=0.03)


def test_the_mean_over_seeds_has_an_interval():
    rounds = [40.0, 50.0, 66.0]
    row = Pilot([curve(rounds)]).rounds(2.0).rows[0]
    expected = positive_estimate(np.array(rounds), np.full(3, 5.0))
    assert expected.low < 40
    assert expected.high > 66
    assert row.rounds == pytest.approx(expected)
    assert row.seeds == 3
    assert row.reached.value == 1.0
    assert math.isnan(row.predicted)


def test_one_seed_has_no_interval():
    found = Pilot([curve([40.0])], model="mine").rounds(2.0)
    value, low, high = found.rows[0].rounds
    assert value == pytest.approx(40)
    assert math.isnan(low)
    assert math.isnan(high)
    assert found.description == (
        "Rounds to loss 2 of a pilot with 700 elements (mine), recorded, one seed, so without "
        "intervals"
    )


def test_a_seed_that_never_arrives():
    found = Pilot([curve([40.0, 50.0, 300.0]), curve([30.0, 35.0], method="b")]).rounds(2.0)
    assert found.of("a").rounds.value == math.inf
    assert found.of("a").reached.value == pytest.approx(2 / 3)
    assert found.of("b").rounds.value < math.inf
    with pytest.raises(
        ValueError,
        match=r"target = 0.1 is reached by no curve with 700 elements; "
        r"the best loss is 0.2, of a",
    ):
        Pilot([curve([100 / 1.9])]).rounds(0.1)


SIZES = (1_000, 4_000, 9_000)
POWERS = {"a": (300.0, -0.25), "b": (900.0, -0.375)}


def laws(noise=(0.0, 0.0, 0.0), sizes=SIZES) -> Pilot:
    """Two methods whose rounds are powers of the size, up to deviations of their logarithms."""
    return Pilot(
        [
            curve(
                [factor * size**power * math.exp(off) * seed for seed in (0.97, 1.03)], size, name
            )
            for name, (factor, power) in POWERS.items()
            for size, off in zip(sizes, noise, strict=True)
        ]
    )


def test_rounds_of_another_size_by_power_laws():
    found = laws().rounds(2.0, 250_000)
    assert found.extrapolated
    assert found.of("a").rounds.value == pytest.approx(300 * 250_000**-0.25, rel=1e-6)
    assert found.of("b").rounds.value == pytest.approx(900 * 250_000**-0.375, rel=1e-6)
    assert found.of("a").predicted == pytest.approx(1.0)
    assert found.description == (
        "Rounds to loss 2 of a model with 250,000 elements, extrapolated from pilots of 3 sizes, "
        "1,000 to 9,000 elements (no description), largest predicted within 0 %"
    )


def test_prediction_intervals():
    """Least squares by numpy, with the residuals of both methods."""
    noise = (0.03, -0.08, 0.05)
    found = laws(noise).rounds(2.0, 250_000)
    x, at = np.log(SIZES), math.log(250_000)
    y = np.log(300 * np.array(SIZES) ** -0.25) + noise
    design = np.stack([np.ones(3), x], axis=1)
    fit, squares, *_ = np.linalg.lstsq(design, y)
    deviation = math.sqrt(2 * squares[0] / 2)  # two methods with one degree of freedom each
    new = np.array([1.0, at])
    half = stats.t.ppf(0.975, 2) * deviation
    half *= math.sqrt(1 + new @ np.linalg.inv(design.T @ design) @ new)
    value, low, high = found.of("a").rounds
    assert math.log(value) == pytest.approx(new @ fit)
    assert math.log(high) == pytest.approx(new @ fit + half)
    assert math.log(low) == pytest.approx(new @ fit - half)
    # the largest pilot from the two others
    slope = (y[1] - y[0]) / (x[1] - x[0])
    assert found.of("a").predicted == pytest.approx(math.exp(y[1] + slope * (x[2] - x[1]) - y[2]))


def test_intervals_are_at_least_those_of_the_seeds():
    """The means are on a power law, so that the fit has no residual."""
    means = [np.array(SIZES) ** power * factor for factor, power in POWERS.values()]
    deviations = np.maximum(np.sqrt(2) * 0.03 * np.array(means), 5 / np.sqrt(12))
    noise = np.mean((deviations / means) ** 2 / 2)
    offsets, at = np.log(SIZES) - np.log(SIZES).mean(), math.log(20_000) - np.log(SIZES).mean()
    leverage = 1 / 3 + at**2 / (offsets**2).sum()
    factor = math.exp(stats.t.ppf(0.975, 2) * math.sqrt(noise * (1 + leverage)))
    value, low, high = laws().rounds(2.0, 20_000).of("a").rounds
    assert high / value == pytest.approx(factor)
    assert value / low == pytest.approx(factor)


def test_a_method_that_does_not_arrive_is_not_extrapolated():
    late = [curve([150.0, 170.0], size, "c") for size in SIZES]
    found = Pilot([*laws().curves, *late]).rounds(2.0, 250_000)
    assert found.extrapolated
    assert found.of("c").rounds == (math.inf, math.inf, math.inf)
    assert found.of("a").rounds.value == pytest.approx(300 * 250_000**-0.25, rel=1e-6)


def test_a_recorded_size_is_not_extrapolated():
    found = laws((0.0, 0.05, 0.0)).rounds(2.0, 4_000)
    assert not found.extrapolated
    exact = 300 * 4_000**-0.25 * math.exp(0.05)
    assert found.of("a").rounds.value == pytest.approx(exact)
    assert "with 4,000 elements" in found.description


@pytest.mark.parametrize(
    ("pilot", "why"),
    [
        (
            laws(noise=(0.0, 0.0), sizes=(1_000, 9_000)),
            "a reaches it at 2 of 2 sizes; a power law needs 3",
        ),
        (laws(noise=(0.0, 0.0, 0.6)), "a power law from the other sizes predicts 0.55 "),
    ],
)
def test_a_poor_fit_is_not_extrapolated(pilot, why):
    found = pilot.rounds(2.0, 250_000)
    assert not found.extrapolated
    assert found.of("a").rounds == pilot.rounds(2.0).of("a").rounds
    assert "of a pilot with 9,000 elements" in found.description
    assert f"; not those of the model with 250,000 elements: {why}" in found.description


def test_a_fit_that_is_good_enough():
    assert laws((0.0, 0.0, 0.2)).rounds(2.0, 250_000).extrapolated
    assert not laws((0.0, 0.0, 0.3)).rounds(2.0, 250_000).extrapolated


def test_a_file(tmp_path):
    title = "# transformer on text,\n# 8 workers\n"
    each = [*rows(), *rows(seed=3, losses=(4.0, 1.0)), *rows(H=30), *rows("demo", "")]
    pilot = Pilot.read(write(tmp_path / "pilot.csv", each, title=title))
    assert pilot.model == "transformer on text, 8 workers"
    assert pilot.sizes == [700]
    found = pilot.rounds(2.0)
    first = [20 + 20 / 1.5, 20 * 2 / 3]
    assert found.of("diloco", {"H": 10}).rounds.value == pytest.approx(np.mean(first))
    assert found.of(DILOCO, {"H": 30.0}).seeds == 1
    assert found.of("demo").values == {}
    assert "recorded, one seed" in found.description


def test_columns_that_change_within_a_run_are_no_hyperparameters(tmp_path):
    columns = [
        "method",
        "elements",
        "seed",
        "step",
        "loss",
        "bits",
        "learning_rate",
        "device",
        "workers",
    ]
    each = [["demo", 700, s, i, 3.0 - i, 8 * i, 0.05, "cpu", 6] for s in (0, 1) for i in range(3)]
    pilot = Pilot.read(write(tmp_path / "pilot.csv", each, " ".join(columns)))
    assert pilot.curves[0].values == {"workers": 6}
    assert pilot.curves[0].learning_rate == 0.05
    assert pilot.rounds(2.0).of("demo").rounds.value == 1


def test_tokens_in_place_of_rounds(tmp_path):
    columns = "method elements tokens tokens_per_step loss"
    each = [["demo", 700, 512 * 20 * i, 512, loss] for i, loss in enumerate((4.0, 3.0, 1.5))]
    path = write(tmp_path / "pilot.csv", each, columns)
    assert Pilot.read(path).rounds(2.0).of("demo").rounds.value == pytest.approx(20 + 20 / 1.5)
    write(path, [[*row[:3], row[4]] for row in each], "method elements tokens loss")
    found = Pilot.read(path, tokens_per_step=256).rounds(2.0)
    assert found.of("demo").rounds.value == pytest.approx(2 * (20 + 20 / 1.5))


def test_histories_of_runs(tmp_path):
    """A history as commands write it, and a folder with one for each method."""
    history = {"step": STEPS, "loss": np.stack([line(40.0), line(50.0)]), "bits": np.ones((2, 21))}
    for name in ("demo", "diloco"):
        records.write_histories(tmp_path / name / "history.csv", {"mine": history})
    one = Pilot.read(tmp_path / "demo/history.csv", method="demo", elements=700)
    assert one.rounds(2.0).of("demo").rounds.value == pytest.approx(45)
    folder = Pilot.read(tmp_path, elements=700)
    assert [row.method for row in folder.rounds(2.0).rows] == ["demo", "diloco"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"columns": "method H elements seed step cost"},
            "has no column 'loss'; expected it among method, H",
        ),
        ({"columns": "name H elements seed step loss"}, "'method'.*or pass method="),
        ({"columns": "method H elements seed tokens loss"}, "'tokens_per_step'"),
        ({"rows": rows(losses=(4.0, "nan"))}, r"line 3: loss = 'nan'; expected a number \(inf"),
        ({"rows": rows(losses=(4.0, ""))}, "line 3: loss = ''; expected a number"),
        ({"rows": rows(elements=0.5)}, "line 2: elements = 0.5; expected a count"),
        (
            {"rows": [*rows(), *rows()]},
            "line 5: step = 0 of diloco, H = 10, .*, after 40; expected",
        ),
        (
            {"rows": [*rows()[:2], *rows()[1:]]},
            "line 4: step = 20 of .* seed 0, after 20; expected",
        ),
        ({"rows": [*rows(), *rows(H=30)[:1]]}, "line 5: one record of diloco, H = 30, 700 elem"),
        ({"rows": rows("dilico")}, "curves of 'dilico', which is no .* .* did you mean diloco"),
        ({"rows": [*rows(), *rows("demo", ""), *rows(elements=90)]}, None),
        ({"rows": [*rows(elements=900), *rows("demo", "")]}, "demo has no curve with 900 elements"),
        ({"rows": []}, "pilot.csv has no rows"),
        ({"rows": [["demo", 3]]}, "line 2: 2 columns; expected 6"),
    ],
)
def test_files_that_are_no_pilots(tmp_path, changed, message):
    path = write(tmp_path / "pilot.csv", **{"rows": rows(), **changed})
    candidates = [DILOCO, Candidate("demo", algorithms.demo)]
    if message is None:
        assert Pilot.read(path, candidates=candidates).sizes == [90, 700]
        return
    with pytest.raises(ValueError, match=message) as raised:
        Pilot.read(path, candidates=candidates)
    assert "\n" not in str(raised.value)


def test_other_refusals(tmp_path):
    with pytest.raises(ValueError, match=r"has no files <method>/history\.csv"):
        Pilot.read(tmp_path)
    with pytest.raises(ValueError, match="Pilot: no curves; expected at least one"):
        Pilot([])
    found = Pilot.read(write(tmp_path / "pilot.csv", [*rows(), *rows(H=30)])).rounds(2.0)
    with pytest.raises(
        ValueError, match=r"PilotRounds\.of: dilocos has 0 curves.*did you mean diloco"
    ):
        found.of("dilocos")
    with pytest.raises(ValueError, match=r"H = 20 has 0 .* one of diloco, H = 10; diloco, H = 30"):
        found.of("diloco", {"H": 20})
    with pytest.raises(ValueError, match=r"PilotRounds\.of: diloco has 2 curves"):
        found.of("diloco")


def test_the_constants_of_the_fit():
    assert pilots.FEWEST == 3
    assert pilots.POOR == 0.25
