"""One chart with hundreds of long runs, in a real browser: ``python -m benchmarks.dashboard.overlay [--runs N]``.

Each tool starts a server and opens its own page with the same curves, in turn. Times are those of the frames in which
the first lines, and the last ones, appear on the screen. Then the pointer moves over the chart, and frames are counted.
Ours is the first page, with the list of runs beside the charts; `--listed` adds short runs to that list.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.child import ChildError, temporary_folder
from benchmarks.dashboard.browser import open_page
from benchmarks.dashboard.frames import FrameRecorder, Painted
from benchmarks.dashboard.overlay_data import METRIC, make_runs, make_short_runs, run_names
from benchmarks.dashboard.peers import PEERS, free_port
from benchmarks.dashboard.server import Client, Dashboard, Process
from benchmarks.measure import Spread
from benchmarks.report import Report, seconds_text, time_text

__all__: list[str] = []

_LIMIT_S = 60.0
"""trackio gets as many points as it shows in this time …"""
_MAX_S = 180.0
"""… and a measurement is given up after this."""
_SETTLE_MS = 2_000
"""A new browser is busy with itself for a while."""
_HOVER_S = 3.0
_FIRST_LINES_S = 1.0
"""The budget of a page that is opened again."""
_MAX_ON_FIRST_PAGE = 200
"""More runs are only drawn on the compare page."""
_QUIET_S = 3.0
"""A page is complete when it has not requested data for this long."""


class _Opened(NamedTuple):
    """Seconds from the start of the server, or from opening the page if the server had been used before."""

    first_s: float
    all_s: float
    cpu_s: float
    """CPU time of server and browser."""


class _Tool(NamedTuple):
    title: str
    start: Callable[[Path], tuple[Process, str]]
    """Start a server in a folder; return it and its address."""
    wait: Callable[[Process, str, int, int], None]
    """Wait until the page shows everything, given the number of runs and of points."""
    fragment: Callable[[int], str]
    """Return the rest of the address of the chart."""
    chart: str
    """The selector of the chart."""
    data: str
    """Part of the address of requests for points."""


def _start_ours(folder: Path) -> tuple[Process, str]:
    server = Dashboard(folder / "logs")
    server.client.close()
    return server, server.url


def _start_peer(name: str) -> Callable[[Path], tuple[Process, str]]:
    def start(folder: Path) -> tuple[Process, str]:
        port = free_port()
        return PEERS[name].start(folder, port), f"http://127.0.0.1:{port}/"

    return start


def _wait_for_tensorboard(process: Process, url: str, num_runs: int, num_points: int) -> None:
    """Wait until all events are read: its page does not load them later by itself."""
    client = Client(url)
    names = run_names(num_runs)
    while names:
        points: list[Any] = []
        with contextlib.suppress(ChildError):
            points = client.json(f"/data/plugin/scalars/scalars?run={names[-1]}&tag={METRIC}")
        if points and points[-1][1] == num_points - 1:
            names.pop()
            continue
        if process.process.poll() is not None or process.age_s > _MAX_S:
            raise ChildError(f"has not read all runs after {process.age_s:.0f} s")
        time.sleep(0.05)
    client.close()


def _wait_for_answer(process: Process, url: str, _num_runs: int, _num_points: int) -> None:
    client = Client(url)
    while True:
        try:
            client.get("/")
            break
        except ChildError:
            process.check()
            time.sleep(0.02)
    client.close()


_OURS = _Tool(
    "Tachograph",
    _start_ours,
    _wait_for_answer,
    lambda num_runs: (
        "#/"
        if num_runs <= _MAX_ON_FIRST_PAGE
        else "#/compare/charts?" + "&".join(f"run={name}" for name in run_names(num_runs))
    ),
    f'[data-metric="{METRIC}"] .plot',
    "/series",
)
_PEERS = {
    "tensorboard": _Tool(
        "TensorBoard",
        _start_peer("tensorboard"),
        _wait_for_tensorboard,
        lambda _: f"?tagFilter={METRIC}#timeseries",
        "line-chart .series-view",
        "/timeSeries",
    ),
    "trackio": _Tool(
        "trackio", _start_peer("trackio"), _wait_for_answer, lambda _: "?project=bench", "canvas", "/get_logs_batch"
    ),
}


class _Size(NamedTuple):
    num_runs: int
    num_points: int

    def __str__(self) -> str:
        return f"{self.num_runs} × {self.num_points:,}"


class _Browser:
    """A page of a new browser, started before anything is timed."""

    def __init__(self, page: Any, tool: _Tool) -> None:
        self.page = page
        self._tool = tool
        self._system = page.context.browser.new_browser_cdp_session()
        self._pending: set[Any] = set()
        self._has_data = False
        self.limit_s = _MAX_S
        self._recorder = FrameRecorder(page)
        page.on("request", lambda request: self._pending.add(request) if tool.data in request.url else None)
        page.on("requestfinished", self._end)
        page.on("requestfailed", self._end)

    def _end(self, request: Any) -> None:
        if request in self._pending:
            self._pending.discard(request)
            self._has_data = True

    def cpu_s(self) -> float:
        processes: list[dict[str, Any]] = self._system.send("SystemInfo.getProcessInfo")["processInfo"]
        return sum(process["cpuTime"] for process in processes)

    def open(self, url: str) -> None:
        self._recorder.start()
        self.page.goto(url, wait_until="commit")

    def wait(self) -> None:
        """Wait until the page has all data, and has drawn it.

        Raises:
            ChildError: if that takes too long.
        """
        draws_at_once = self._tool.title == "trackio"  # but requests data for ever
        complete_s: float | None = None
        while complete_s is None or time.monotonic() - complete_s < _QUIET_S:
            self.page.wait_for_timeout(100)
            if self._pending and not draws_at_once:
                complete_s = None
            elif complete_s is None and self._has_data and self._recorder.has_lines(self._tool.chart):
                complete_s = time.monotonic()
            if self._recorder.age_s > self.limit_s + _QUIET_S:
                raise ChildError(f"not all lines after {self.limit_s:.0f} s")

    def painted(self) -> Painted:
        return self._recorder.stop(self._tool.chart)

    def hover(self) -> float:
        """Move the pointer over the chart for a while; return the frames per second of the page."""
        box = self.page.locator(self._tool.chart).first.bounding_box()
        self.page.evaluate(
            """() => {
              window.numFrames = 0;
              const count = () => { window.numFrames++; requestAnimationFrame(count); };
              requestAnimationFrame(count);
            }"""
        )
        before, began_s, num_moves = self.page.evaluate("window.numFrames"), time.monotonic(), 0
        while time.monotonic() - began_s < _HOVER_S:
            share = num_moves % 97 / 97
            self.page.mouse.move(
                box["x"] + box["width"] * (0.1 + 0.8 * share), box["y"] + box["height"] * (0.2 + 0.6 * share)
            )
            num_moves += 1
        return float(self.page.evaluate("window.numFrames") - before) / (time.monotonic() - began_s)


@contextlib.contextmanager
def _browser(tool: _Tool) -> Iterator[_Browser]:
    with open_page() as page:
        browser = _Browser(page, tool)
        page.wait_for_timeout(_SETTLE_MS)
        yield browser


def _open(tool: _Tool, browser: _Browser, process: Process, url: str, size: _Size, *, is_first: bool) -> _Opened:
    """Open the page of a tool until it is complete; the first one has to wait for the server.

    Raises:
        ChildError: if that takes too long, or there are no lines.
    """
    browser_s, server_s = browser.cpu_s(), 0.0 if is_first else process.group_cpu_s()
    opened_s = 0.0
    if is_first:
        tool.wait(process, url, *size)
        opened_s = process.age_s
    browser.open(url + tool.fragment(size.num_runs))
    browser.wait()
    browser_s, server_s = browser.cpu_s() - browser_s, process.group_cpu_s() - server_s
    painted = browser.painted()
    opened = _Opened(opened_s + painted.first_s, opened_s + painted.all_s, server_s + browser_s)
    since = "started" if is_first else "opened"
    times = f"first lines {opened.first_s:.2f} s, all lines {opened.all_s:.2f} s"
    cpu = f"CPU of the server {server_s:.2f} s, of the browser {browser_s:.2f} s"
    print(f"{tool.title}, {size}, {since}: {times}, {cpu}", file=sys.stderr, flush=True)
    return opened


_STATES = {
    "new": "from the start of a new server that has read nothing before",
    "cached": "from the start of a new server, after another one",
    "again": "from opening the page again, in a new browser",
}


def _round(tool: _Tool, folder: Path, size: _Size, found: dict[str, list[_Opened]], hovered: list[float]) -> None:
    if tool is _OURS:
        for path in (folder / "logs").glob("*/.tacho"):
            shutil.rmtree(path)
    # Only ours has a cache.
    for state in ("new", "cached") if tool is _OURS else ("new",):
        with contextlib.ExitStack() as stack:
            with _browser(tool) as browser:
                process, url = tool.start(folder)
                stack.callback(process.stop)
                found.setdefault(state, []).append(_open(tool, browser, process, url, size, is_first=True))
            if state == "new":
                with _browser(tool) as browser:
                    found.setdefault("again", []).append(_open(tool, browser, process, url, size, is_first=False))
                    hovered.append(browser.hover())
                    print(f"{tool.title}, {size}, hovering: {hovered[-1]:.0f} fps", file=sys.stderr, flush=True)


def _measure(report: Report, folder: Path, size: _Size, peers: Iterable[str], num_rounds: int) -> None:
    """Add the rows of our dashboard and of some peers, in alternating rounds."""
    tools = {"ours": _OURS, **{name: _PEERS[name] for name in peers}}
    found: dict[str, dict[str, list[_Opened]]] = {name: {} for name in tools}
    hovered: dict[str, list[float]] = {name: [] for name in tools}
    for _ in range(num_rounds):
        for name, tool in list(tools.items()):
            try:
                _round(tool, folder, size, found[name], hovered[name])
            except ChildError as error:
                report.add_failure(f"{tool.title}, {size}", error)
                del tools[name]
    if "ours" not in tools:
        return
    for state, title in _STATES.items():
        report.add_section(f"{size} points in one chart, {title}")
        for index, column in enumerate(("to the first lines", "to all lines", "CPU of server and browser")):
            ours = [opened[index] for opened in found["ours"][state]]
            is_first_warm = (state, index) == ("again", 0) and size.num_runs <= _MAX_ON_FIRST_PAGE
            budget = (
                report.check_budget("first lines", Spread.of(ours).median, _FIRST_LINES_S, " s")
                if is_first_warm
                else ""
            )
            report.add_row(column, seconds_text(ours), budget=budget)
            for name, tool in tools.items():
                if name == "ours":
                    continue
                theirs = [opened[index] for opened in found[name].get(state) or found[name]["new"]]
                ratio = Spread.of(its / own for its, own in zip(theirs, ours, strict=True))
                verdict = "we lose" if ratio.high < 1 else "within the noise" if ratio.low < 1 else ""
                report.add_row(f"  {tool.title}", seconds_text(theirs), ratio, "ours", budget=verdict)
    report.add_section(f"{size} points in one chart, while the pointer moves over it")
    for name, tool in tools.items():
        fps = Spread.of(hovered[name])
        budget = report.check_budget("hovering", fps.median, 30, " fps", at_least=True) if name == "ours" else ""
        report.add_row(tool.title, f"{fps.median:.0f} ({fps.low:.0f}–{fps.high:.0f}) fps", budget=budget)


def _largest_for_trackio(report: Report, folder: Path, size: _Size) -> _Size | None:
    """Return the largest size, in powers of ten, that it shows in time."""
    best = None
    tool = _PEERS["trackio"]
    num_points = min(100, size.num_points)
    while num_points <= size.num_points:
        tried = _Size(size.num_runs, num_points)
        try:
            make_runs("trackio", folder, *tried)
            with contextlib.ExitStack() as stack, _browser(tool) as browser:
                process, url = tool.start(folder)
                stack.callback(process.stop)
                browser.limit_s = _LIMIT_S
                _open(tool, browser, process, url, tried, is_first=True)
        except ChildError as error:
            report.add_failure(f"trackio, {tried}", error)
            break
        best = tried
        num_points *= 10
    return best


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard.overlay")
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="number of runs")
    parser.add_argument("--points", type=int, default=100_000, metavar="N", help="number of points of each run")
    parser.add_argument("--listed", type=int, default=0, metavar="N", help="number of short runs in our list besides")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each tool is measured")
    parser.add_argument("--peers", nargs="*", choices=_PEERS, default=list(_PEERS), help="other tools to measure")
    given = parser.parse_args()
    size = _Size(given.runs, given.points)
    report = Report()
    with temporary_folder() as name:
        folder = Path(name)
        report.add_section("Generated data")
        for tool in ("tachograph", *(peer for peer in given.peers if peer != "trackio")):
            report.add_row(tool, time_text(1e9 * make_runs(tool, folder, *size)))
        make_short_runs(folder / "logs", given.listed)
        _measure(report, folder, size, [peer for peer in given.peers if peer != "trackio"], given.rounds)
        if "trackio" in given.peers:
            smaller = _largest_for_trackio(report, folder, size)
            if smaller is not None:
                shutil.rmtree(folder / "logs")
                make_runs("trackio", folder, *smaller)
                make_runs("tachograph", folder, *smaller)
                _measure(report, folder, smaller, ["trackio"], given.rounds)
    report.print(Console())


if __name__ == "__main__":
    _main()
