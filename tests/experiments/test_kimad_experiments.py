"""The commands on Kimad with quadratics, with a tiny budget: their files, their tables, invalid
arguments, and their measurements.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scripts
from scipy import stats

from dsgd import clusters, compressors
from dsgd.wire import codecs
from experiments import kimad_quadratic
from experiments.kimad import quadratics
from experiments.kimad.quadratics import DIMENSION, ELEMENT

TINY = {
    "problems": 2,
    "seconds": 20.0,
    "learning_rates": (0.5, 1.0),
    "round_times": (1.5, 2.5),
    "progress": False,
}


def test_a_quadratics_losses_fall_and_messages_follow_the_bandwidth(tmp_path, monkeypatch, long):
    """Two of the regimes, started from the gradient."""
    monkeypatch.setattr(kimad_quadratic, "REGIMES", {"small": "faster", "high": "no gain"})
    scripts.ran(
        kimad_quadratic.main, kimad_quadratic.Args(warm_ups=(1,), noise=0.0, out=tmp_path, **TINY)
    )
    curves = scripts.rows(tmp_path / "curves.csv")
    assert len(curves) == 2 * 4 * 2 * quadratics.TIMES
    ends = {
        (row["regime"], row["method"], row["problem"]): float(row["log10_loss"]) for row in curves
    }
    assert max(ends.values()) < -0.5
    sent: dict[tuple[str, str], list[float]] = {}
    for row in scripts.rows(tmp_path / "messages.csv"):
        sent.setdefault((row["regime"], row["method"]), []).append(float(row["bits"]))
    whole, header = ELEMENT * DIMENSION, codecs.packed_bits(8, 1)
    assert {bits[0] for bits in sent.values()} == {whole}, "all begin from the gradient"
    assert set(sent["small", "GD"]) == {whole}
    assert len(set(sent["small", "best EF21"][1:])) == 1
    assert len(set(sent["small", "Kimad"])) > 3
    assert set(sent["high", "Kimad"]) == {whole, whole + header}, "all, and then which K that is"
    for row in scripts.rows(tmp_path / "gains.csv")[1:]:
        middle, low, _ = (
            float(number)
            for number in row["Kimad"].replace("(", " ").replace("–", " ").rstrip(")").split()
        )
        assert row["holds"] == (
            "yes" if (low > 1 and middle >= 1.05) == (row["paper"] == "faster") else "no"
        )


def test_gradient_descent_is_a_fixed_compressor_and_losses_follow_its_seconds():
    """f(x_k) = sum a x_0^2 (1 - g a)^2k / 2, a round of 1 s and d 32-bit elements over the
    bandwidth.
    """
    bandwidth, rate = 2 * ELEMENT * DIMENSION, 0.7
    (task,) = quadratics.quadratics(1, 10.0, 3)
    cluster = quadratics.make_cluster(1.0, clusters.constant(bandwidth))
    options = {"seconds": 9.0, "compute": 1.0, "seed": 5}
    build = quadratics.fix_choice(quadratics.top_k("sent"), 0)
    race = quadratics.race(
        build, [task], cluster, **options, learning_rate=(rate, 0.1), choice=(2, DIMENSION - 1)
    )
    best = race.best(choice=DIMENSION - 1, learning_rate=rate)
    a = np.asarray(task.data.A[0], float)
    assert (a.max(), a.min()) == (1, pytest.approx(0.1))
    (run,) = jax.random.split(jax.random.fold_in(jax.random.key(5), 0), 1)
    x = np.asarray(task.init(jax.random.split(run)[0]), float)
    assert best is not None
    rounds = np.floor(quadratics.times(9.0) / 1.5 + 1e-4)
    assert rounds.max() == 6
    sums = [0.5 * (a * x**2 * (1 - rate * a) ** (2 * k)).sum() for k in (0, *rounds)]
    assert race.history["loss"][..., 0] == pytest.approx(sums[0])
    np.testing.assert_allclose(best.losses[0], np.log10(np.array(sums[1:]) / sums[0]), atol=1e-4)
    three = race.best(choice=2)
    assert three is not None
    assert set(three.history["message_up"][1:].tolist()) == {
        compressors.mean_bits(compressors.top_k(0.1), DIMENSION)
    }


def best_of(losses) -> quadratics.Best:
    return quadratics.Best({}, np.array(losses, float), {})


def test_speedups_compare_seconds_to_a_loss_that_both_reach():
    falling = -np.arange(1, 101) / 10  # each takes a hundredth of the seconds
    slow, fast = best_of([falling, falling]), best_of([2 * falling, falling / 2])
    target = falling[-10:].mean()  # of the slow run; half of it for the run at half the speed
    at = np.argmax(falling <= target) + 1
    at_twice, at_half = np.argmax(2 * falling <= target) + 1, np.argmax(falling <= target / 2) + 1
    np.testing.assert_allclose(quadratics.speedups(slow, fast), [at / at_twice, at_half / at])
    np.testing.assert_allclose(quadratics.speedups(slow, fast), [2, 0.5], rtol=0.03)


def test_intervals_are_of_students_t_of_logarithms():
    ratios = np.array([0.9, 1.4, 1.2, 1.7])
    middle, low, high = quadratics.interval(ratios)
    expected = stats.ttest_1samp(np.log(ratios), 0).confidence_interval(0.95)
    np.testing.assert_allclose(
        np.log([middle, low, high]), [np.log(ratios).mean(), expected.low, expected.high]
    )
    assert quadratics.format_interval(ratios) == f"{middle:.2f} ({low:.2f}–{high:.2f})"
    assert quadratics.format_interval(ratios[:1]) == "0.90"


@pytest.mark.parametrize(
    ("ratios", "faster"),
    [
        ((1.3, 1.4, 1.5), True),
        ((1 / 1.3, 1 / 1.4, 1 / 1.5), False),
        ((0.5, 1.0, 2.5), False),
        ((1.02, 1.03, 1.04), False),
        ((3.0,), False),
    ],
)
def test_faster_means_beyond_the_interval_and_beyond_5_percent(ratios, faster):
    assert quadratics.is_faster(np.array(ratios)) == faster


def test_the_best_point_has_the_smallest_finite_mean_of_logarithms():
    losses = np.full((2, 2, 3, 10), -1.0)
    losses[0, 1] = np.array([-9, -1, np.inf])[:, None]
    losses[1, 0] = np.array([-2, -3, -1])[:, None]
    losses[1, 1] = np.array([-4, -1, -0.5])[:, None]
    race = quadratics.Race(
        {"rate": np.array([0.1, 0.2]), "choice": np.array([3, 4])},
        losses,
        {"clock": np.arange(8).reshape(2, 2, 2)},
    )
    best, fourth = race.best(), race.best(choice=4)
    assert best is not None
    assert fourth is not None
    assert (best.point, best.history["clock"].tolist()) == ({"rate": 0.2, "choice": 3}, [4, 5])
    assert fourth.point == {"rate": 0.2, "choice": 4}
    assert race.best(choice=4, rate=0.1) is None
