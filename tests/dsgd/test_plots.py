"""Figures show the numbers of histories: lines are means over seeds, bands standard errors, in the
axes' units.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scripts
from matplotlib.collections import LineCollection, PolyCollection

import algorithms
import dsgd
from dsgd import clusters, plots, problems

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
    sheet = plots.curves({"one": each}, ["step", "bits", "clock"], ["loss", "consensus"], logy=True)
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


def test_local_steps_and_columns_of_users_have_labels():
    each = history() | {"rmse_of_test": RNG.uniform(size=(3, 5))}
    each["communications"] = np.arange(5) * np.full((3, 1), 10.0)
    labels = {"rmse_of_test": "test error, °C", "bits": "Mbit"}
    names = ["step", "bits", "communications"]
    sheet = plots.curves({"one": history(), "two": each}, "step", "loss")
    assert sheet.axes[0].get_xlabel() == "rounds"
    sheet = plots.curves(each, names, "rmse_of_test", labels=labels)
    assert [axes.get_xlabel() for axes in sheet.axes] == ["rounds", "Mbit", "communications"]
    assert sheet.axes[0].get_ylabel() == "test error, °C"
    assert plots.curves(each, y="rmse_of_test").axes[0].get_ylabel() == "rmse of test"
    each["communications"] = np.arange(5) * np.array([[10.0], [9.9], [10.0]])
    sheet = plots.curves({"one": history(), "two": each}, "step", "loss")
    assert sheet.axes[0].get_xlabel() == "rounds (local steps)"


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 15_000), (12_345, 12_390), (0.002, 0.0155), (11, 34), (3, 1e5), (1e-9, 1), (2e-7, 3e-7)],
)
def test_tick_labels_have_room_and_name_at_least_two_numbers(low, high):
    each = history() | {"bits": np.linspace(low, high, 5) * np.full((3, 1), 1e6)}
    each["loss"] = np.linspace(low, high, 5)[::-1] * np.ones((3, 1))
    for log in (False, True):
        sheet = plots.curves(each, ["bits"] * 3, "loss", logx=log, logy=log)
        assert not scripts.overlapping_labels(sheet)
        for axis in (sheet.axes[0].xaxis, sheet.axes[0].yaxis):
            ends, ticks = axis.get_view_interval(), axis.get_majorticklocs()
            assert 2 <= ((min(ends) <= ticks) & (ticks <= max(ends))).sum() <= 12


def test_zeros_are_omitted_on_logarithmic_axes():
    each = history()
    each["consensus"][:, 0] = 0
    (axes,) = plots.curves(each, y="consensus", logy=True).axes
    np.testing.assert_array_equal(np.isnan(axes.lines[0].get_ydata()), [True] + 4 * [False])
    assert band(axes)[0].min() > 0.5
    assert len(plots.curves(each, y="consensus").axes[0].lines[0].get_ydata()) == 5
    (axes,) = plots.curves(each, "bits", logx=True).axes
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [1, 2, 3, 4])


def test_zeros_are_drawn_at_the_floor_of_logarithmic_axes():
    each = history()
    each["consensus"][:, 3:] = [[0.0, 1e-9], [0.0, -2.0], [0.0, 0.5]]
    (axes,) = plots.curves(
        {"one": each}, y="consensus", logy=True, band="quartiles", floor=1e-6
    ).axes
    shown = np.maximum(each["consensus"], 1e-6)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), np.median(shown, axis=0))
    np.testing.assert_allclose(band(axes)[:, 3], 1e-6)
    (linear,) = plots.curves({"one": each}, y="consensus", floor=1e-6).axes
    assert linear.lines[0].get_ydata()[4] == pytest.approx(each["consensus"][:, 4].mean())


def test_lines_have_markers_every_few_records():
    runs = {str(i): history(records=21) for i in range(3)}
    (axes,) = plots.curves(runs, markers=6).axes
    assert [line.get_markevery() for line in axes.lines] == [(0, 6), (2, 6), (4, 6)]
    assert len({line.get_marker() for line in axes.lines} - {"", "None"}) == 3


def test_bands_can_be_quartiles():
    each = history(seeds=5)
    sheet = plots.curves({"one": each}, band="quartiles")
    low, middle, high = np.quantile(each["loss"], [0.25, 0.5, 0.75], axis=0)
    np.testing.assert_allclose(sheet.axes[0].lines[0].get_ydata(), middle)
    np.testing.assert_allclose(band(sheet.axes[0]), [low, high])
    assert sheet.legends[0].get_title().get_text() == "bands: quartiles over 5 seeds"


def test_figures_are_saved_in_the_format_of_the_suffix(tmp_path):
    for suffix, begin in ((".pdf", b"%PDF"), (".PNG", b"\x89PNG"), (".svg", b"<?xml")):
        sheet = plots.curves(history(), save=tmp_path / "new" / f"one{suffix}")
        assert (tmp_path / "new" / f"one{suffix}").read_bytes().startswith(begin)
    with pytest.raises(ValueError, match=r"curves: save = 'one.csv'; expected a file .pdf, .png"):
        plots.curves(history(), save="one.csv")
    with pytest.raises(ValueError, match=r"save: path = 'one'; expected a file"):
        plots.save(sheet, "one")
    assert len(list((tmp_path / "new").iterdir())) == 3


def test_a_figure_is_saved_in_several_formats(tmp_path):
    paths = [tmp_path / "a.pdf", tmp_path / "b.png"]
    plots.curves({"one": history()}, save=[paths[0], str(paths[1])])
    assert [path.read_bytes()[:4] for path in paths] == [b"%PDF", b"\x89PNG"]


def test_areas_of_a_partition_are_numbers_of_samples():
    labels = [[5, 5, 7], [7, 7], [5, 7, 7, 9]]
    (axes,) = plots.partition(labels).axes
    counts = np.array([[2, 1, 0], [0, 2, 0], [1, 2, 1]])
    for row, patch in enumerate(axes.patches):
        tops, edges, base = patch.get_data()
        np.testing.assert_allclose((edges[::2] + edges[1::2]) / 2, [0, 1, 2], atol=1e-12)
        np.testing.assert_allclose((tops - base)[::2], 0.45 * counts[:, row], atol=1e-12)
        np.testing.assert_allclose((tops - base)[1::2], 0, atol=1e-12)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["5", "7", "9"]
    mean = problems.class_counts(labels).distances.mean()
    assert (
        axes.get_title() == f"2 to 4 samples per worker; mean total variation distance {mean:.2f}"
    )


def test_of_many_workers_some_are_drawn_from_the_smallest_to_the_largest():
    sizes = RNG.permutation(991) + 5
    labels = [RNG.permutation(np.arange(size) % 12) for size in sizes]
    many = plots.partition(labels)
    assert not scripts.overlapping_labels(many)
    (axes,) = many.axes
    assert len({tuple(patch.get_facecolor()) for patch in axes.patches}) == 12
    assert axes.get_xlabel().endswith("(100 of 991 are drawn)")
    heights = 0
    for patch in axes.patches:
        tops, edges, base = patch.get_data()
        heights = heights + (tops - base)[::2]
    np.testing.assert_allclose((edges[::2] + edges[1::2]) / 2, 10 * np.arange(100), atol=1e-9)
    largest = np.ceil(995 / 12)
    np.testing.assert_allclose(heights * largest / 0.9, 5 + 10 * np.arange(100))
    assert axes.get_title().startswith("5 to 995 samples per worker; mean total variation distance")


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
    (axes,) = plots.curves(history(), "bits", logx=True).axes  # methods without cost are omitted
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [1, 2, 3, 4])


def spans(sheet) -> dict[str, list[tuple[int, float, float]]]:
    """Returns (worker, from, to) of the bars of a timeline, by label, sorted."""
    (axes,) = sheet.axes
    found = {}
    for bars in axes.collections:
        if isinstance(bars, PolyCollection):
            boxes = [path.get_extents() for path in bars.get_paths()]
            each = [(round((box.y0 + box.y1) / 2), box.x0, box.x1) for box in boxes]
            found[bars.get_label()] = sorted(each)
    return found


def marks(sheet) -> list[float]:
    (axes,) = sheet.axes
    (lines,) = [one for one in axes.collections if isinstance(one, LineCollection)]
    return [segment[0][0] for segment in lines.get_segments()]


def test_a_timeline_shows_what_workers_do():
    nan = np.nan
    each = {
        "step": np.arange(7),
        "loss": np.ones(7),
        "bits_up": np.array([0, 2, 4, 6, 8, 8, 10.0]),
        #        worker 1 goes on, 0 waits, 1 is stopped and gets another model, 2 is cut, 0
        "worker": np.array([nan, 1, 0, 1, 1, 2, 0]),
        "lost": np.array([nan, 0, 0, 0, 0, 1, 0]),
        "began": np.array([nan, 0.0, 0.0, 1.7, 4.6, 0.0, 3.5]),
        "ended": np.array([nan, 1.0, 2.0, 2.4, 5.0, 5.2, 5.6]),
        "clock": np.array([0, 1.3, 2.2, 2.9, 5.1, 5.3, 6.0]),
        "resumed": np.array([nan, 1.7, nan, 3.1, nan, 5.5, 6.3]),
        "server_steps": np.array([nan, 0, 0, 1, 1, 1, 2]),
    }
    expected = {
        "computes": [(0, 0, 2.0), (0, 3.5, 5.6), (1, 0, 1.0), (1, 1.7, 2.4), (1, 4.6, 5.0)],
        "computes, end not recorded": [(2, 5.5, 6.0)],
        "computation stopped or lost": [(1, 3.1, 4.6), (2, 0, 5.2)],
        "sends to the server": [
            (0, 2.0, 2.2),
            (0, 5.6, 6),
            (1, 1, 1.3),
            (1, 2.4, 2.9),
            (1, 5, 5.1),
        ],
        "receives the model": [(1, 1.3, 1.7), (1, 2.9, 3.1), (2, 5.3, 5.5)],
        "waits": [(0, 2.2, 3.5), (1, 5.1, 6.0), (2, 5.2, 5.3)],
    }
    found = spans(plots.timeline(each, until=7))
    assert found.keys() == expected.keys()
    for kind, bars in expected.items():
        np.testing.assert_allclose(found[kind], bars, atol=1e-9, err_msg=kind)
    assert marks(plots.timeline(each, until=7)) == [2.9, 6.0]
    assert marks(plots.timeline(each, until=4)) == [2.9]
    assert plots.timeline(each).axes[0].get_xlim() == (0, 5)
    del each["server_steps"]  # each message is a step
    assert marks(plots.timeline(each, until=7)) == [1.3, 2.2, 2.9, 5.1, 6.0]


def test_a_job_that_another_worker_is_given_was_not_stopped():
    each = {
        "step": np.arange(5),
        "loss": np.ones(5),
        "bits_up": np.arange(5.0),
        "worker": np.array([np.nan, 0, 1, 1, 0]),
        "began": np.array([np.nan, 0.0, 0.0, 1.5, 3.0]),
        "ended": np.array([np.nan, 1.0, 1.2, 2.0, 4.0]),
        "clock": np.array([0, 1.0, 1.2, 2.0, 4.0]),
        "resumed": np.array([np.nan, 1.5, np.nan, 3.0, np.nan]),
    }
    found = spans(plots.timeline(each))
    np.testing.assert_allclose(found["waits"], [(0, 1.0, 3.0), (1, 1.2, 1.5), (1, 2.0, 4.0)])
    assert found.keys() == {"waits", "computes"}


def asynchronous(order, timeouts=None):
    """Returns asynchronous SGD in which the server says who begins."""
    optimizer = optax.sgd(0.1)

    def step(model, gradient, arrival, read):
        return algorithms.optimizers.step(optimizer, model, gradient)

    return algorithms.asynchronous_server("custom", optimizer, step, order=order, timeouts=timeouts)


def test_rows_of_runs_have_no_gaps():
    problem = problems.random_quadratic(
        5, 2, strong_convexity=0.5, heterogeneity=0.0, seed=0, noise=0.1
    )
    seconds = clusters.constant([0.3, 0.4, 0.5, 0.7, 3.1]) + clusters.exponential(0.1)
    cluster = clusters.Cluster(seconds, latency=0.03)

    def wait_for_two(model, arrival, jobs, key):
        both = jnp.sum(jobs.waiting) >= 2
        return jnp.where(both & jobs.waiting, jobs.worker, -1)

    def stop_one(model, arrival, jobs, key):
        begin = (jobs.worker == arrival.worker) | (jobs.worker == (arrival.worker + 1) % 5)
        return jnp.where(begin, jobs.worker, -1)

    some = {"waits", "computation stopped or lost"}
    for method, kinds in (
        (algorithms.rennala_sgd(optax.sgd(0.1), 3), set()),
        (algorithms.fed_buff(optax.sgd(0.1), 3, 2), set()),
        (asynchronous(wait_for_two), {"waits"}),
        (asynchronous(stop_one), {"computation stopped or lost"}),
        (asynchronous(None, timeouts=0.6), some),
        (algorithms.with_diagnostics(algorithms.minibatch_sgd(optax.sgd(0.1))), {"waits"}),
    ):
        result = dsgd.run(method, problem, steps=40, key=jax.random.key(0), cluster=cluster)
        found = spans(plots.timeline(result, until=100))
        assert found.keys() & some == kinds, method.name
        end = max(bar[2] for bars in found.values() for bar in bars)
        for worker in range(5):
            row = sorted(bar[1:] for bars in found.values() for bar in bars if bar[0] == worker)
            ends = np.array([0, *(bar[1] for bar in row[:-1])])
            np.testing.assert_allclose([bar[0] for bar in row], ends, atol=1e-4)
            np.testing.assert_allclose(row[-1][1], end, rtol=1e-6)


def test_a_timeline_needs_a_clock_and_every_round():
    whole = {"step": np.arange(3), "loss": np.ones(3), "clock": np.arange(3.0)}
    sparse = whole | {"step": 2 * np.arange(3)}
    for runs, until, words in (
        ({}, 1.0, "run has 0 histories"),
        ({"step": np.arange(3), "loss": np.ones(3)}, 1.0, "run has no clock"),
        (sparse, 1.0, "run is not recorded in every round; pass record_every=1"),
        (whole, 1.0, "run does not record when workers compute"),
        (whole, 0.0, "until = 0.0"),
        ({"one": whole, "two": whole}, 1.0, "run has 2 histories"),
    ):
        with pytest.raises(ValueError, match=f"timeline: {words}"):
            plots.timeline(runs, until=until)


def test_invalid_arguments_are_refused():
    short = {name: history()[name] for name in ("step", "loss")}
    for runs, arguments, words in (
        (history(), {"x": "seconds"}, "x = 'seconds'"),
        (history(), {"y": "samples"}, "y = 'samples'"),
        (history(), {"y": []}, r"y = \[\]"),
        (history(), {"labels": {"clock": "s"}}, "labels of clock; expected names of x or y: step"),
        ({"one": history(), "two": short}, {"x": "clock"}, "two, x = 'clock' is not"),
        (history(), {"floor": 0.0}, "floor = 0.0; expected a positive"),
        (history(), {"markers": -1}, "markers = -1"),
    ):
        with pytest.raises(ValueError, match=f"curves: {words}"):
            plots.curves(runs, **arguments)
    with pytest.raises(ValueError, match=r"draw_lines: lines\['a'\] has x \[2\] and y \[1, 3\]"):
        plots.draw_lines(plots.figure(1)[1][0], {"a": (np.ones(2), np.ones((1, 3)))})
