"""`python -m experiments.dropcompute_training` with a tiny budget: its files, its tables, and its
results.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import scripts

from dsgd.problems import models
from experiments import dropcompute_training
from experiments.dropcompute import convergence, local_sgd
from experiments.dropcompute.training import LAMB, SGD, dropping

N, M, STEPS, EXTRA, MEASURED, COMMUNICATION = 6, 3, 18, 2, 4, 1.5
ARGS = dropcompute_training.Args(
    workers=N,
    micro_batches=M,
    steps=STEPS,
    rounds=MEASURED,
    communications=(COMMUNICATION,),
    drop_rates=(0.0, 0.1, 0.4),
    corrected_workers=N,
    corrected_rates=(0.0, 0.5),
    local_workers=N,
    local_steps=60,
    periods=(1, 4),
    straggling=0.2,
    server=3,
    local_drop_rate=0.25,
    seeds=2,
    progress=False,
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    """A linear model, with one optimizer for each part, one way to stop, and the same stragglers
    twice, which halves the number of programs; its histories, and the printed lines.
    """
    out = tmp_path_factory.mktemp("dropcompute_training")
    args = dataclasses.replace(ARGS, out=out)
    found = {}
    train = dropcompute_training.train

    def watch(args, setting):
        for name, history in train(args, setting):
            found[name] = history
            yield name, history

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.MODELS, "mlp", partial(models.MLP, hidden=()))
        for function, optimizer in (("setting_of", LAMB), ("corrected_setting", SGD)):
            patch.setattr(
                dropcompute_training,
                function,
                partial(only, getattr(dropcompute_training, function), optimizer),
            )
        patch.setattr(dropcompute_training, "stragglers", alike)
        patch.setattr(convergence, "ways", preempting)
        patch.setattr(dropcompute_training, "train", watch)
        lines = scripts.ran(dropcompute_training.main, args)
        setting = dropcompute_training.setting_of(args)
    return args, setting, found, lines


def only(function, optimizer, args):
    setting = function(args)
    return setting._replace(learning_rates={optimizer: setting.learning_rates[optimizer]})


def preempting(setting, communications):
    return [convergence.Way(LAMB, seconds, "preempt") for seconds in communications]


def alike(args):
    _, single = local_sgd.scenarios(
        args.local_workers, args.server, args.straggling, args.local_step
    )
    return single._replace(name="uniform"), single


def test_it_writes_figures_histories_and_tables_with_the_papers_numbers(ran):
    args, _, found, lines = ran
    assert scripts.figures(args.out) == {"training", "corrections", "local_sgd"}
    assert {row["method"] for row in scripts.rows(args.out / "history.csv")} == set(found)
    assert len(found) == (3 + 3) + 2 + 2 * 3 + 2 * 2 * 2
    cells = scripts.cells(lines)
    assert [row[3] for row in cells if row[0] == "paper"] == ["0.845"]
    papers = {row[0]: row[5:] for row in cells if len(row) == 7}
    assert papers["10%"] == papers["drawn again"] == ["91.19", "-0.13"]
    assert papers[f"+{EXTRA} steps"] == ["91.40", "+0.08"]
    assert papers["larger batch"] == ["91.38", "+0.06"]


def test_local_sgd_takes_the_expected_seconds_and_less_with_a_threshold(ran):
    args, _, found, _ = ran
    for stragglers in alike(args):
        for period in args.periods:
            each = {
                drops: found[local_sgd.name_history(stragglers, period, drops)]
                for drops in (False, True)
            }
            seconds = each[False]["clock"][:, -1].mean() / args.local_steps
            assert seconds == pytest.approx(stragglers.expected_step(period), rel=0.2)
            assert (each[False]["dropped"][:, 1:] == 0).all()
            assert (each[True]["clock"][:, -1] < each[False]["clock"][:, -1]).all()
            assert 0 < each[True]["dropped"][:, 1:].mean() < args.local_drop_rate + 0.05


def test_a_threshold_drops_at_most_its_share():
    times = np.array([[[1.0, 1.0], [1.0, 2.0]]])  # micro-batches end at 1, 2 and 1, 3
    assert dropping(times, 0.0) == math.inf
    for rate, until in ((0.2, 3.0), (0.25, 2.0), (0.4, 2.0), (0.5, 1.0), (0.7, 1.0)):
        assert dropping(times, rate) == pytest.approx(until, rel=1e-3)
        assert dropping(times, rate) > until


def test_steps_to_a_loss_are_found_between_rounds():
    """A loss that decreases 1.03 times as slowly, in rounds of 0.8 seconds instead of 1."""
    rounds = np.arange(301)
    curves = {factor: np.exp(-rounds / (100 * factor))[None] for factor in (1.0, 1.03)}
    first, second = (
        {"step": rounds, "train_loss": losses, "clock": seconds * rounds[None].astype(float)}
        for losses, seconds in zip(curves.values(), (1.0, 0.8), strict=True)
    )
    gain = convergence.gain(first, second, 0.15)
    # the mean of a window belongs to its middle, half a window before its end
    middle = (convergence.WINDOW - 1) / 2
    exact = (100 * 1.03 * math.log(1 / 0.15) + middle) / (100 * math.log(1 / 0.15) + middle)
    assert gain.steps[0] == pytest.approx(exact, rel=1e-3)
    assert gain.seconds[0] == pytest.approx(0.8 * gain.steps[0], rel=1e-6)
    assert np.isnan(convergence.rounds_to_goal(first, 0.01)).all()
