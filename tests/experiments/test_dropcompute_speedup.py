"""Speedups of DropCompute: a small run of the command, exact sums compared with closed forms and
quadratures, and runs compared with the plan.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scripts
from scipy import stats

from algorithms import dropcompute
from experiments import dropcompute_speedup as script
from experiments.dropcompute import exact, noises, simulated
from experiments.dropcompute.exact import CELL
from experiments.dropcompute.simulated import Setting

SMALL = {
    "worker_counts": (4, 8),
    "run_workers": 8,
    "iterations": 10,
    "seeds": 3,
    "progress": False,
    "cache": "off",
}
SETTING = Setting(12, 0.0, "preempt", SMALL["iterations"], range(SMALL["seeds"]))
# never near 0
NORMAL = noises.normal()._replace(below=stats.norm(0.675, 0.1).cdf, mean=0.675, std=0.1)
LIKE = (NORMAL.mean, math.hypot(NORMAL.std, CELL / math.sqrt(12)), 12)  # of times rounded to cells
PRINTED = dict(script.PRINTED)


def test_tables_have_the_papers_figures_and_the_clock_of_runs_agrees_with_the_plan(
    tmp_path, monkeypatch, long
):
    """All noises of C.3 are drawn like one of them, so that few programs are compiled; exact
    results do not change. The runs compared at the end have the same programs, and independent
    draws.
    """
    seconds = noises.bernoulli().seconds
    monkeypatch.setattr(
        script,
        "PRINTED",
        {
            panel: (noise._replace(seconds=seconds), ratio)
            for panel, (noise, ratio) in PRINTED.items()
        },
    )
    monkeypatch.setattr(script, "DRAWN", (2, 64))
    monkeypatch.setattr(exact, "BETWEEN", 20)
    monkeypatch.setattr(script, "BY_WORKERS", (16, (8, 32)))
    monkeypatch.setattr(script, "BY_MICRO_BATCHES", (32, (4, 16)))
    lines = scripts.ran(script.main, script.Args(out=tmp_path, **SMALL))
    rows = {row[0]: row[1:] for row in scripts.cells(lines)}
    assert rows["seconds of a micro-batch / 0.45, mean"] == ["1.5", "1.496 *"]
    assert rows["N of E[T] / E[T_i]"] == ["-", "747 (within 1.7 %)"]
    assert rows["time saved for the same samples, preempting"] == ["13 %", "23.6 % *"]
    for panel, (noise, paper) in PRINTED.items():
        epsilon, printed, found, off, *_ = rows[panel]
        assert (epsilon, float(printed)) == (noise.name, paper)
        assert float(off) == pytest.approx(100 * (float(found) / paper - 1), abs=0.1)
    assert len(scripts.figures(tmp_path)) == 6
    written = scripts.rows(tmp_path / "scale.csv")
    assert len(written) == (2 + 10 * 3) * 3, "numbers of workers of B.1 and of C.3, seeds"
    for row in written:
        step, without, speedup = (float(row[name]) for name in ("step_time", "without", "speedup"))
        # a mean of ratios
        assert speedup == pytest.approx((1 - float(row["drop_rate"])) * without / step, rel=0.05)
    noise, tau = noises.delays(), 7.5
    draw = noises.drawing(noise.seconds, 2 * SETTING.iterations, 8, 12)
    for setting in (SETTING, Setting(12, 1.5, "between", SETTING.iterations, SETTING.seeds)):
        plan = simulated.stack_seeds(
            [simulated.apply(setting, draw(100 + seed), tau) for seed in range(20)]
        )
        found = simulated.measure_runs(setting, noise.seconds, 8, tau)
        for name in ("speedup", "drop_rate", "step_time", "without"):
            mine, theirs = getattr(found, name), getattr(plan, name)
            # A run has half as many rounds as a plan has iterations.
            error = theirs.std(ddof=1) * math.sqrt(2 / len(mine) + 1 / len(theirs))
            assert abs(mine.mean() - theirs.mean()) < 4 * error + 1e-5, name


@pytest.fixture(scope="module")
def sums():
    return {panel: exact.sums(noise, 12, 10_000) for panel, (noise, _) in PRINTED.items()}


@pytest.fixture(scope="module")
def normal():
    return exact.sums(NORMAL, 12, 10_000)


def test_thresholds_are_evaluated_on_other_iterations():
    """In the first half everything is cut at 1 s, at which nothing is computed in the second
    half.
    """
    early, late = np.full((2, 3, 2), 0.5), np.full((2, 3, 2), 2.0)
    early[:, 0] = 5.0  # without this worker it is five times as fast
    setting = Setting(2, 0.0, "preempt", 2, range(1))
    found = simulated.choose_and_apply(setting, lambda seed: np.concatenate([early, late]), [3, 2])
    assert list(found) == [3, 2]
    assert found[3].threshold == pytest.approx(1, abs=1e-5)
    assert found[3].drop_rate == 1
    assert found[3].without == 4
    assert found[2].step_time == pytest.approx(1, abs=1e-5)


def test_one_n_fits_all_ratios_of_the_papers_tables(sums):
    """Within 2 %, and no other N is better."""
    found = [(sums[panel], ratio) for panel, (_, ratio) in PRINTED.items()]
    one = exact.common_workers(found)

    def off(N):
        return max(abs(each.ratio(N) / ratio - 1) for each, ratio in found)

    assert one.workers == 747
    assert one.off == off(747) < 0.02
    assert off(746) > one.off < off(748)
    assert min(off(200), off(400), off(1_500)) > 0.1
    for each, ratio in found:
        assert 500 < (N := exact.matching_workers(each, ratio)) < 900
        assert each.ratio(N) == pytest.approx(ratio, rel=1e-9)


def test_exact_speedups_of_normal_times_are_those_of_quadrature(normal):
    """With preemption and between micro-batches, with and without communication."""
    for N in (1, 64, 5_000):
        assert normal.slowest_time(N) == pytest.approx(
            dropcompute.expected_effect(*LIKE, N, np.inf).without, rel=1e-5
        )
        for stop, rel in (("preempt", 2e-4), ("between", 1e-3)):
            for T_c in (0.0, 1.0):
                best = normal.best(N, T_c, stop)
                tau = best.threshold if math.isfinite(best.threshold) else 100.0
                taus = np.append(tau, np.linspace(4.05, 11, 300))
                effect = dropcompute.expected_effect(*LIKE, N, taus, T_c, stop)
                assert best.speedup == pytest.approx(effect.speedup[0], rel=rel)
                assert best.step_time == pytest.approx(effect.step_time[0], rel=rel)
                assert best.without == pytest.approx(effect.without[0], rel=1e-5)
                assert best.drop_rate == pytest.approx(
                    effect.drop_rate[0] if tau < 100 else 0, abs=1e-3
                )
                assert best.speedup > effect.speedup.max() * (1 - rel)


def test_noises_are_drawn_from_their_distributions():
    """One program for all."""
    those = {noise.name: noise for noise, _ in PRINTED.values()} | {
        each.name: each for each in (noises.delays(), noises.delays_unbounded())
    }

    @jax.jit
    def draw(key):
        return [
            jax.vmap(lambda i, each=each: each.seconds.sample(key, 0.0, i))(jnp.arange(4_000))
            for each in those.values()
        ]

    for drawn, noise in zip(draw(jax.random.key(0)), those.values(), strict=True):
        values = np.asarray(drawn, float)
        error = 0.5 / math.sqrt(len(values))
        for x in np.quantile(values, (0.1, 0.5, 0.9)) + 1e-3:
            assert abs(np.mean(values <= x) - noise.below(np.array(x))) < 5 * error, noise.name
        assert abs(values.mean() - noise.mean) < 6 * noise.std / math.sqrt(len(values)), noise.name
        assert values.max() <= noise.longest * (1 + 1e-6)
    spread = {name: exact.sums(noise, 1, 1e9) for name, noise in those.items()}
    for name, noise in those.items():
        seconds = CELL * (np.arange(len(spread[name].after)) + 0.5)
        assert spread[name].mean == pytest.approx(noise.mean, rel=1e-3), name
        # E t^2 is the integral of 2 x P(t > x)
        square = 2 * CELL * (seconds * spread[name].after).sum()
        assert math.sqrt(square - spread[name].mean ** 2) == pytest.approx(noise.std, rel=2e-3), (
            name
        )


def test_speedups_over_drop_rates_are_those_of_thresholds():
    latencies = np.random.default_rng(0).gamma(400.0, size=(10, 6, 4)) / 900
    shares = np.array([0.0, 0.05, 0.1])
    (gains,) = simulated.sweep_drop_rates(
        Setting(4, 0.5, "preempt", 10, range(1)), lambda seed: latencies, 6, 4, shares
    )
    assert gains[0] == 1
    ends = np.sort(np.cumsum(latencies, axis=-1).ravel())
    for share, gain in zip(shares[1:], gains[1:], strict=True):
        tau = ends[round((1 - share) * ends.size)]  # this share of the ends is not before it
        effect = dropcompute.measured_effect(latencies, tau, 0.5)
        assert gain == pytest.approx(effect.speedup, rel=5e-3)
