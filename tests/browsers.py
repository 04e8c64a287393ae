"""Chromium for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def chromium(folder: Path) -> Iterator[Any]:
    """Starts Chromium without a window and yields its driver; skips the test if there is none.

    Args:
        folder: of its profile.
    """
    webdriver = pytest.importorskip("selenium.webdriver")
    service = pytest.importorskip("selenium.webdriver.chrome.service")
    paths = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if not all(paths):
        pytest.skip("chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = paths[0]
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "window-size=1200,900",
        f"user-data-dir={folder}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=service.Service(paths[1]))
    yield driver
    driver.quit()
