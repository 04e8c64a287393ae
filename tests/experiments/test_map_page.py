"""The page of `python -m experiments.map --html`, in a browser: its seconds are those of replays,
and its controls work.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import browsers
import numpy as np
import pytest

import dsgd
from dsgd import clusters
from dsgd.planning.training import select
from experiments import map as the_map
from experiments.planning import map_page, plane
from experiments.shared import tuning

ARGS = the_map.Args(workers=4, steps=24, seeds=2, learning_rates=(0.3, 1.0), progress=False)
METHODS = ["minibatch_sgd", "local_sgd", "choco_sgd"]
TARGET = 1.4
POINTS = 400, 200  # networks, for two methods with all workers, and one with 2 of 4


@pytest.fixture(scope="module")
def recorded():
    """The runs of the methods, and those of some with 2 of 4 workers, by the share of workers."""
    problem = tuning.logistic_regression(ARGS, 4, "by-label")
    candidates = [
        replace(each, grids={"H": (4, 8)} if each.swept else None)
        for name in METHODS
        for each in the_map.SYNCHRONOUS
        if each.name == name
    ]
    shares = {
        share: {each: plane.train(ARGS, problem, each, participants) for each in some}
        for share, participants, some in ((1, None, candidates[1:]), (0.5, 2, candidates[::2]))
    }
    return problem, shares


@pytest.fixture(scope="module")
def written(recorded, tmp_path_factory):
    problem, shares = recorded
    args = replace(ARGS, out=tmp_path_factory.mktemp("map"))
    panels = [
        the_map.page_of(args, "by-label", share, runs, TARGET) for share, runs in shares.items()
    ]
    the_map.write_page(args, problem, panels, METHODS)
    return args.out / "map.html", panels


@pytest.fixture(scope="module")
def page(written, tmp_path_factory):
    with browsers.chromium(tmp_path_factory.mktemp("profile")) as driver:
        driver.get(written[0].as_uri())
        yield driver


RANKINGS = """const [panel, target, clusters] = arguments;
return clusters.map((at) => rank(data.panels[panel], target, at).map((each) => [each.method,
  each.seconds, each.error, data.panels[panel].settings[each.setting].words, each.rate,
  tied(data.panels[panel], target, at, each)]))"""


@pytest.mark.parametrize(("panel", "target"), [(0, TARGET), (1, 1.5)], ids=["all", "2 of 4"])
def test_its_seconds_are_those_of_replays(recorded, written, page, panel, target):
    """At random networks, sizes, seconds of a gradient and delays."""
    (problem, shares), (_, panels) = recorded, written
    losses = [each["loss"] for each in panels[panel]["targets"]]
    runs = list(shares.values())[panel]
    draw = np.random.default_rng(panel + losses.index(target))
    names = ("bandwidth", "latency", "compute", "spread", "size")
    ends = ((1e6, 1e10), (1e-5, 1e-1), (1e-4, 10.0), (1e-2, 4.0), (1e4, 1e11))
    low, high = np.log(ends).T
    numbers = np.exp(draw.uniform(low, high, (POINTS[panel], 5)))
    at = [dict(zip(names, each, strict=True)) for each in numbers.tolist()]
    found = page.execute_script(RANKINGS, panel, losses.index(target), at)

    every = plane.replayed(each for some in runs.values() for each in some)
    chosen = [each for some in every for each in plane.choose(some, target)]
    columns = numbers.T.astype(np.float32)
    columns[0] = numbers[:, 0] * tuning.elements(problem) / numbers[:, 4]

    def cluster(number, participation):
        bandwidth, latency, compute, spread, _ = (select(column, number) for column in columns)
        delays = (compute * spread) * clusters.exponential(1.0)
        up = clusters.constant(bandwidth)
        return clusters.Cluster(
            clusters.constant(compute) + delays, up=up, latency=latency, **participation
        )

    seconds = [
        dsgd.replay(
            each.result,
            partial(cluster, participation=each.participation),
            rounds=each.rounds,
            number=range(POINTS[panel]),
        )
        for each in chosen
    ]
    best = plane.best_of_each(METHODS, chosen, seconds)
    reached = np.isfinite(best.mean[:, 0])
    assert reached.sum() == (1 if panel else 2)
    counts = list[int]()
    for i, ranking in enumerate(found):
        assert [each[0] for each in ranking] == [
            METHODS[k] for k in np.argsort(best.mean[:, i]) if reached[k]
        ]
        for method, mean, error, words, rate, others in ranking:
            k = METHODS.index(method)
            here = chosen[int(best.choice[k, i])]
            assert (words, rate) == (the_map.settings(here), here.settings["learning_rate"])
            assert others == [the_map.settings(x) for x in plane.tied(best, chosen, (k, i))]
            counts.append(len(others))
            np.testing.assert_allclose(mean, best.mean[k, i], rtol=map_page.ACCURACY)
            # The error is a difference of numbers of the size of the mean.
            np.testing.assert_allclose(error, best.error[k, i], atol=map_page.ACCURACY * mean)
    assert max(counts) == (0 if panel else 1)


def test_delays_are_those_of_the_map(recorded):
    """The map's random delays are multiples of the page's draws."""
    _, shares = recorded
    (some,) = plane.replayed(shares[1][next(iter(shares[1]))])
    cluster = clusters.Cluster(clusters.constant(0.02) + clusters.exponential(0.03))
    found = map_page.counts(some)
    assert found is not None
    gradients, delays, *_ = found
    expected = dsgd.replay(some.trained.sweep, cluster)
    np.testing.assert_allclose(0.02 * gradients + 0.03 * delays, expected, rtol=map_page.ACCURACY)


def test_methods_that_the_sum_does_not_describe_are_left_out(recorded, monkeypatch):
    """Replays on one further cluster that differ by ten times the accuracy suffice."""
    _, shares = recorded
    candidate, runs = next(iter(shares[1].items()))
    factors = np.ones(len(map_page._CLUSTERS))
    factors[5] += 10 * map_page.ACCURACY
    replay = dsgd.replay

    def differs(*given, **more):
        return replay(*given, **more) * factors[:, None, None, None]

    monkeypatch.setattr(dsgd, "replay", differs)
    panel = map_page.panel({candidate: runs}, TARGET, 4, 1.0, 4, "iid")
    assert panel["left_out"] == {str(candidate): "its seconds are not the sum of its counts"}
    assert not panel["targets"]


def test_a_reader_changes_chooses_and_pins(page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def text(name):
        return page.find_element(By.ID, name).text

    def state(name):
        return page.execute_script(f"draw(); return state.{name}")

    assert "logistic regression on digits" in page.title
    assert "requires all workers" not in text("left")
    legend = page.find_elements(By.CSS_SELECTOR, "#legend li")
    won = {name for name in METHODS for each in legend if each.text.endswith(name)}
    assert 1 <= len(won) <= len(legend) <= len(won) + 1  # and "undecided"
    assert text("expression").startswith("algorithms.")
    assert "RATE" not in text("expression")

    canvas, chosen = page.find_element(By.ID, "map"), text("chosen")
    canvas.send_keys(Keys.ARROW_LEFT, Keys.ARROW_UP, "p")
    x, y = state("point")
    assert (x, y) == (pytest.approx(0.5 - 1 / 48), pytest.approx(0.5 + 1 / 48))
    assert state("mine") == [x, y]
    assert text("chosen") != chosen
    before = text("mine")
    page.find_element(By.ID, "size").send_keys(Keys.HOME)
    assert state("size") == 1e4
    assert text("mine") != before
    canvas.click()  # in the middle of the element
    assert state("point") != [x, y]

    page.find_element(By.ID, "share").send_keys(Keys.HOME)
    assert state("share") == 0.5
    assert "2 of 4 workers" in text("about")
    assert "choco_sgd, ring, sign (requires all workers)" in text("left")
    assert len(page.find_elements(By.CSS_SELECTOR, "#ranking tr")) == 1
    kept = {name: state(name) for name in ("point", "mine", "size", "share")}
    page.refresh()
    assert {name: state(name) for name in kept} == kept
    assert not [each for each in page.get_log("browser") if each["level"] == "SEVERE"]
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_fits_its_window(page, width):
    page.set_window_size(width, 900)
    inner, content = page.execute_script(
        "return [window.innerWidth, document.documentElement.scrollWidth]"
    )
    assert content <= inner


def test_colours_of_choco_sgd_and_scaffold_differ():
    one, other = (
        np.array([int(the_map.colour(name)[i : i + 2], 16) for i in (1, 3, 5)])
        for name in ("choco_sgd", "scaffold")
    )
    assert np.abs(one - other).max() > 64
