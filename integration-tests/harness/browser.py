"""A headless Chromium: the system's own, or the one that ONEFOLD_TEST_CHROMIUM names. Nothing is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

__all__ = ["chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skips the test where there is none."""
    found = os.environ.get("ONEFOLD_TEST_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium: install the package chromium, or name one as ONEFOLD_TEST_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--disable-dev-shm-usage"])
        yield browser
        browser.close()
