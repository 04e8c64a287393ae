"""Figures show the numbers of histories: lines are means over seeds, bands standard errors, in the
axes' units.
"""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

import dsgd
from dsgd import plots

RNG = np.random.default_rng(0)


def history(seeds: int = 3, records: int = 5) -> dict[str, np.ndarray]:
    return {
        "step": 10 * np.arange(records),
        "loss": RNG.uniform(1, 2, (seeds, records)),
        "consensus": RNG.uniform(1, 2, (seeds, records)),
        "bits": np.linspace(0, 4e6, records) * np.ones((seeds, 1)),
        "clock": np.arange(records) + RNG.uniform(size=(seeds, records)),
        "samples": np.ones((seeds, records, 4)),
    }


def band(axes, line: int = 0) -> np.ndarray:
    """Returns the lower and upper edge, `[2, records]`."""
    (path,) = [one for one in axes.collections if isinstance(one, PolyCollection)][line].get_paths()
    x = np.unique(path.vertices[:, 0])
    edges = [path.vertices[path.vertices[:, 0] == at, 1] for at in x]
    return np.array([[each.min() for each in edges], [each.max() for each in edges]])


def test_lines_are_means_and_bands_are_standard_errors():
    runs = {"one": history(), "other": history(seeds=4)}
    (axes,) = plots.curves(runs).axes
    for i, (name, each) in enumerate(runs.items()):
        line, loss = axes.lines[i], each["loss"]
        assert line.get_label() == name
        np.testing.assert_array_equal(line.get_xdata(), each["step"])
        np.testing.assert_allclose(line.get_ydata(), loss.mean(axis=0))
        error = np.sqrt(((loss - loss.mean(axis=0)) ** 2).sum(axis=0) / (len(loss) - 1) / len(loss))
        np.testing.assert_allclose(dsgd.history.mean_and_error(loss), [loss.mean(axis=0), error])
        np.testing.assert_allclose(
            band(axes, i), [loss.mean(axis=0) - error, loss.mean(axis=0) + error]
        )
    assert (
        len({line.get_color() for line in axes.lines})
        == len({line.get_linestyle() for line in axes.lines})
        == 2
    )


def test_axes_have_names_and_units():
    each = history()
    sheet = plots.curves(
        {"one": each}, ["step", "bits", "clock"], ["loss", "consensus"], yscale="log"
    )
    panels = np.array(sheet.axes).reshape(2, 3)
    assert [axes.get_xlabel() for axes in panels[1]] == [
        "rounds",
        "megabits sent and received per worker",
        "simulated seconds",
    ]
    assert [axes.get_ylabel() for axes in panels[:, 0]] == ["loss f(x)", "consensus distance"]
    assert {(axes.get_xscale(), axes.get_yscale()) for axes in sheet.axes} == {("linear", "log")}
    np.testing.assert_allclose(panels[0, 1].lines[0].get_xdata(), [0, 1, 2, 3, 4])
    np.testing.assert_allclose(panels[1, 2].lines[0].get_xdata(), each["clock"].mean(axis=0))
    np.testing.assert_allclose(panels[1, 2].lines[0].get_ydata(), each["consensus"].mean(axis=0))
    (legend,) = sheet.legends
    assert legend.get_title().get_text() == "bands: standard error over 3 seeds"
    sheet.canvas.draw()


def test_each_point_of_a_sweep_is_a_line():
    grid = {"learning_rate": np.array([0.1, 0.25]), "period": np.array([1, 4])}
    records = {"step": np.arange(5), "loss": RNG.uniform(size=(2, 2, 3, 5))}
    (axes,) = plots.curves(dsgd.Sweep(grid, records, dsgd.State(), ())).axes
    assert [line.get_label() for line in axes.lines] == [
        f"learning_rate = {a}, period = {b}" for a in (0.1, 0.25) for b in (1, 4)
    ]
    np.testing.assert_allclose(axes.lines[2].get_ydata(), records["loss"][1, 0].mean(axis=0))


def test_only_evaluated_records_are_drawn_and_diverged_curves_end():
    each = history(seeds=1, records=5)
    each["evaluated"] = np.array([[True, False, True, False, True]])
    each["loss"][0, [1, 3]], each["loss"][0, 4] = np.nan, np.inf
    (axes,) = plots.curves(each).axes
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [0, 20, 40])
    np.testing.assert_array_equal(np.isnan(axes.lines[0].get_ydata()), [False, False, True])
    (axes,) = plots.curves(history(), "bits", xscale="log").axes  # methods without cost are omitted
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [1, 2, 3, 4])


def test_invalid_arguments_are_refused():
    short = {name: history()[name] for name in ("step", "loss")}
    for runs, arguments, words in (
        (history(), {"x": "seconds"}, "x = 'seconds'"),
        (history(), {"y": "samples"}, "y = 'samples'"),
        (history(), {"y": []}, r"y = \[\]"),
        ({"one": history(), "two": short}, {"x": "clock"}, "x = 'clock' .*two|x = 'clock': .*two"),
    ):
        with pytest.raises(ValueError, match=f"curves: {words}"):
            plots.curves(runs, **arguments)
    with pytest.raises(ValueError, match=r"draw_lines: lines\['a'\] has x \[2\] and y \[1, 3\]"):
        plots.draw_lines(plots.figure(1)[1][0], {"a": (np.ones(2), np.ones((1, 3)))})
