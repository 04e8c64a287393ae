"""Reports, in a browser: they show the numbers of the runs, and their controls work."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browsers
import numpy as np
import pytest

import dsgd
from dsgd import plots, records
from dsgd.runs.results import Settings
from experiments import compare
from experiments.shared import commands, tables

NAME = 'ring <b>DSGD</b> "x" & </script><script>document.title = "changed"</script>'
pytestmark = pytest.mark.filterwarnings("ignore")


def history(seed: int, seeds: int = 3, records: int = 4) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {
        "step": 5 * np.arange(records),
        "loss": draw.uniform(0.5, 2, (seeds, records)) * 10.0 ** -np.arange(records),
        "bits": np.arange(records) * 2e6 * np.ones((seeds, 1)),
        "samples": np.ones((seeds, records, 2)),
    }


def result(seed: int, **settings: Any) -> dsgd.Result:
    return dsgd.Result(dsgd.State(), history(seed), (), None, Settings(settings))


RUNS = {
    "first": result(0, method="a", problem="p <q>", steps=15),
    NAME: result(1, method="b", problem="p <q>", steps=15),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    with browsers.chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


FIGURES = """return Bokeh.documents[0].roots().filter((figure) => figure.visible)
  .map((figure) => ({
    scales: [figure.x_scale.type, figure.y_scale.type],
    labels: [figure.below[0].axis_label, figure.left[0].axis_label],
    x: [figure.x_range.start, figure.x_range.end],
    lines: figure.renderers.filter((one) => one.glyph.type == "Line").map((one) => ({
      visible: one.visible,
      x: [...one.data_source.data[one.glyph.x.field]],
      y: [...one.data_source.data[one.glyph.y.field]]})),
    bands: figure.renderers.filter((one) => one.glyph.type == "VArea").map((one) => (
      [...one.data_source.data[one.glyph.y1.field]]))}))"""


def open_page(browser, path: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(path.as_uri())
    drawn = "return document.querySelectorAll('.bk-Figure').length && Bokeh.documents[0].is_idle"
    WebDriverWait(browser, 20).until(lambda driver: driver.execute_script(drawn))


def test_curves_are_the_numbers_of_the_runs(browser, tmp_path):
    pytest.importorskip("bokeh")
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    path = tmp_path / "new" / "report.html"
    dsgd.report(RUNS, path)
    open_page(browser, path)
    (figure,) = browser.execute_script(FIGURES)
    assert figure["scales"] == ["LinearScale", "LogScale"]
    assert figure["labels"] == ["rounds", "loss f(x)"]
    for line, band, run in zip(figure["lines"], figure["bands"], RUNS.values(), strict=True):
        loss = run.history["loss"]
        middle, error = dsgd.history.mean_and_error(loss)
        np.testing.assert_allclose(line["x"], run.history["step"])
        np.testing.assert_allclose(line["y"], middle, rtol=1e-6)
        np.testing.assert_allclose(band, middle - error, rtol=1e-6)

    Select(browser.find_element(By.NAME, "x")).select_by_visible_text(
        "megabits sent and received per worker"
    )
    browser.find_element(By.NAME, "logy").click()
    browser.find_elements(By.NAME, "line")[1].click()
    (figure,) = browser.execute_script(FIGURES)
    assert figure["scales"] == ["LinearScale", "LinearScale"]
    assert figure["labels"][0] == "megabits sent and received per worker"
    assert [line["visible"] for line in figure["lines"]] == [True, False]
    np.testing.assert_allclose(figure["lines"][0]["x"], [0, 2, 4, 6])

    text = browser.find_element(By.TAG_NAME, "body").text
    assert browser.title == "p <q>, a, b"  # names are text, and no script of theirs ran
    assert text.count(NAME) == 3  # legend, last records, settings
    assert f"{RUNS['first'].history['loss'][:, -1].mean():.4g} ± " in text
    assert "problem p <q>" in text


def test_the_page_loads_nothing_and_can_be_zoomed(browser, tmp_path):
    pytest.importorskip("bokeh")
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    RUNS["first"].report(tmp_path / "report.html", title="mine")
    browser.get_log("browser")
    open_page(browser, tmp_path / "report.html")
    requests = browser.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    assert [name for name in requests if not name.startswith(("data:", "blob:"))] == []
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []
    assert browser.title == "mine"
    before = browser.execute_script(FIGURES)[0]["x"]
    figures = browser.find_elements(By.CSS_SELECTOR, ".bk-Figure")
    (canvas,) = [each for each in figures if each.is_displayed()]
    drag = ActionChains(browser).move_to_element_with_offset(canvas, -100, -80)
    drag.click_and_hold().move_by_offset(200, 160).release().perform()
    after = browser.execute_script(FIGURES)[0]["x"]
    assert before[0] < after[0] < after[1] < before[1]
    assert (after[1] - after[0]) / (before[1] - before[0]) < 0.5


@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_fits_its_window(browser, width, tmp_path):
    pytest.importorskip("bokeh")
    dsgd.report(RUNS, tmp_path / "report.html")
    browser.set_window_size(width, 900)
    open_page(browser, tmp_path / "report.html")
    inner, page = browser.execute_script(
        "return [window.innerWidth, document.documentElement.scrollWidth]"
    )
    assert page <= inner


def test_the_page_on_logs_and_reports_runs(tmp_path, monkeypatch, capsys):
    for package in ("bokeh", "tensorboardX"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs/how_to/log.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": "log"})
    assert len(list(tmp_path.glob("logs/*/events*"))) == 5
    assert len((tmp_path / "records.csv").read_text().splitlines()) == 1 + 201 * 5 * 4
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert "tuned" in (tmp_path / "comparison.html").read_text()


def test_a_sweep_and_long_histories(tmp_path):
    pytest.importorskip("bokeh")
    records = 4_500
    grid = {"learning_rate": np.array([0.1, 0.25])}
    long = {
        "step": np.arange(records),
        "loss": np.random.default_rng(0).uniform(size=(2, 3, records)),
    }
    sweep = dsgd.Sweep(grid, long, dsgd.State(), (), None, Settings(method="a"))
    sweep.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "learning_rate = 0.25" in text
    assert "2,000 records are drawn" in text
    assert len(text) < 1_800_000


def test_commands_write_their_histories_tables_and_settings(browser, tmp_path, capfd):
    pytest.importorskip("bokeh")
    args = compare.Args(html=True, out=tmp_path, seed=17)
    commands.begin(args)
    histories = {name: run.history for name, run in RUNS.items()}
    records.write_histories(tmp_path / "history.csv", histories)
    table = tables.table("title of the table", ("method", "megabits"))
    table.add_row("x|y", "1.25")
    commands.finish(args, {"figure": plots.figure(1)[0]}, {"costs": table})
    assert "report.html" in capfd.readouterr().out
    open_page(browser, tmp_path / "report.html")
    (figure,) = browser.execute_script(FIGURES)
    for line, history in zip(figure["lines"], histories.values(), strict=True):
        np.testing.assert_allclose(line["y"], history["loss"].mean(axis=0), rtol=1e-6)
    text = browser.find_element("tag name", "body").text
    for words in ("title of the table", "x|y 1.25", "seed 17", f"dsgd {dsgd.__version__}", NAME):
        assert words in text
    assert browser.title == "compare"
    assert browser.execute_script("return document.images[0].naturalWidth") > 0


def test_a_missing_package_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh", None)
    monkeypatch.setitem(sys.modules, "bokeh.embed", None)
    with pytest.raises(ImportError, match=r"pip install 'dsgd\[report\]'"):
        dsgd.report(RUNS, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
