"""Fixtures: a real browser and a real server. Any error or warning in the browser console fails the test."""

from __future__ import annotations

import contextlib
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
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from tests.conftest import HANG_S, wait_for
from tests.preloaded import preloaded

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_VIEWPORT: ViewportSize = {"width": 1280, "height": 800}
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


@contextlib.contextmanager
def _open_context(browser: Browser) -> Iterator[BrowserContext]:
    # Without the pulse of a running run, which draws sixty times a second.
    context = browser.new_context(viewport=_VIEWPORT, reduced_motion="reduce", accept_downloads=True)
    context.set_default_timeout(HANG_S * 1000)
    yield context
    context.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A context of its own, for tests with several pages, and with scripts, routes, clocks or permissions that stay."""
    with _open_context(browser) as context:
        yield context


@pytest.fixture(scope="package")
def shared_context(browser: Browser) -> Iterator[BrowserContext]:
    with _open_context(browser) as context:
        yield context


@pytest.fixture
def page(shared_context: BrowserContext, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page that tests share, because a new one is a new process; a new page if the test has its own `context`."""
    if "context" in request.fixturenames:
        page = request.getfixturevalue("context").new_page()
    else:
        page = shared_context.pages[0] if shared_context.pages else shared_context.new_page()
        page.set_viewport_size(_VIEWPORT)
        page.mouse.move(0, 0)
    complaints: list[Any] = []
    listeners = {
        "console": lambda message: complaints.append(message.text) if message.type in {"error", "warning"} else None,
        "pageerror": lambda error: complaints.append(str(error)),
        "dialog": lambda dialog: complaints.append(f"dialog: {dialog.message}"),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    yield page
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    if page.context is shared_context:
        _forget(page)
    if request.node.get_closest_marker("complains") is None:
        assert not complaints


def _forget(page: Page) -> None:
    """Leave a page as a new one. Servers have ports of their own, so the next one has no stored data yet."""
    try:
        page.evaluate("localStorage.clear(), sessionStorage.clear()")
        page.context.clear_cookies()
        page.goto("about:blank")
    except PlaywrightError:  # it crashed, or shows an error: the next test opens another one
        page.close()
