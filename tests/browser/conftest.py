"""Fixtures: a real browser and a real server. Any error or warning in the browser console fails the test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.conftest import HANG_S, wait_for
from tests.preloaded import preloaded

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_NAMES = ("chromium", "chromium-browser", "google-chrome")

expect.set_options(timeout=HANG_S * 1000)


@pytest.fixture(scope="package")  # while it is open, no other test can run an event loop
def browser() -> Iterator[Browser]:
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    assert path, "Chromium not found: install it with `make tools`, or set CHROMIUM to its path"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield browser
        browser.close()


def wait_for_run(folder: Path) -> None:
    """Wait until a program has started its run: the page of a run that does not exist yet shows an error."""
    journal = folder / "metrics.jsonl"
    wait_for(lambda: journal.exists() and journal.stat().st_size > 0, f"run {folder.name}")


def wait_for_fit(page: Page) -> None:
    """Wait until the page needs no horizontal scrolling: charts follow a new size of the window one frame later."""
    wait_for(lambda: page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page fits its window")


class Dashboard:
    """`tacho ui` as a process."""

    def __init__(self, log_dir: Path, *options: str, token: str = "") -> None:
        self.log_dir = log_dir
        log_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tachograph", "ui", "--log-dir", str(log_dir), "--port", "0", *options]
        self.process = preloaded("dashboard").popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TACHO_TOKEN": token},
        )
        assert self.process.stdout
        found = re.search(r"http://\S+", self.process.stdout.readline())
        assert found, self.process.communicate()
        self.address = found[0]
        self.url = self.address.partition("#")[0]

    def stop(self) -> str:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=HANG_S)
        return err


@pytest.fixture
def dashboard(logs: Path) -> Iterator[Callable[..., Dashboard]]:
    """Start a dashboard for the test's log folder. Any output on stderr fails the test."""
    started: list[Dashboard] = []

    def start(*options: str, **keywords: Any) -> Dashboard:
        started.append(Dashboard(logs, *options, **keywords))
        return started[-1]

    yield start
    complaints = [each.stop() for each in started]
    assert not any(complaints), complaints


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    # Without the pulse of a running run, which draws sixty times a second.
    options = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}
    context = browser.new_context(**options, accept_downloads=True)
    context.set_default_timeout(HANG_S * 1000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, request: pytest.FixtureRequest) -> Iterator[Page]:
    page = context.new_page()
    complaints: list[Any] = []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in {"error", "warning"} else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    yield page
    expected = request.node.get_closest_marker("complains")
    if expected is None:
        assert not complaints
