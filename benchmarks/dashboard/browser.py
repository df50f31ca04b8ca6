"""In a real browser: latency from the journal to the screen, panning the timeline, and page weight."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.child import ChildError, run_as_child
from benchmarks.dashboard.data import make_journal
from benchmarks.dashboard.server import Process, serve
from benchmarks.dashboard.trainer import FIRST_LOSS
from benchmarks.measure import Spread

__all__ = ["NUM_SPANS", "UPDATES_PER_SEC", "open_page"]

UPDATES_PER_SEC = 10
NUM_SPANS = 20_000
_WATCHED_S = 12.0
_PAN_S = 3.0
_VALUE = '[data-metric="train_loss"] .values'
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_NAMES = ("chromium", "chromium-browser", "google-chrome")

# The first frame after a change paints it, so the change is visible when the second frame starts.
_OBSERVE = """(selector) => {
  const seen = (window.seen = []);
  const values = document.querySelector(selector);
  const note = () => {
    const text = values.textContent;
    requestAnimationFrame(() => requestAnimationFrame(() => seen.push([Date.now(), text])));
  };
  new MutationObserver(note).observe(values, { childList: true, subtree: true, characterData: true });
}"""

_COUNT_FRAMES = """() => {
  const frames = (window.frameTimes = []);
  const tick = (time) => (frames.push(time), requestAnimationFrame(tick));
  requestAnimationFrame(tick);
}"""

_WHEEL = """([x, y]) => {
  const canvas = document.querySelector("canvas");
  const box = canvas.getBoundingClientRect();
  const middle = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 };
  canvas.dispatchEvent(new WheelEvent("wheel", { deltaX: x, deltaY: y, ...middle, cancelable: true }));
  const drawn = (resolve) => () => resolve(canvas.toDataURL());
  return new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(drawn(resolve))));
}"""

# Every frame moves the view back or forth, so every frame redraws everything.
_PAN = """(pan_ms) => new Promise((resolve) => {
  const canvas = document.querySelector("canvas");
  const frames = [];
  const tick = (time) => {
    frames.push(time);
    if (time - frames[0] > pan_ms) return resolve(frames);
    const deltaX = Math.floor(frames.length / 8) % 2 ? 12 : -12;
    canvas.dispatchEvent(new WheelEvent("wheel", { deltaX, cancelable: true }));
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
})"""


@contextlib.contextmanager
def open_page() -> Iterator[Any]:
    """Yield a page of a new browser.

    Raises:
        ChildError: if there is no browser.
    """
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if not path:
        raise ChildError("no Chromium: `make browser` installs it, or set CHROMIUM to its path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(30_000)
        yield page
        browser.close()


def _pixel(folder: Path, mode: str) -> dict[str, Any]:
    """Watch the value of a panel while a trainer logs; compare the times of logging and painting."""
    logs = folder / "logs"
    options = (str(logs), "live", str(1 / UPDATES_PER_SEC), "0.05")
    trainer = Process(folder, "-m", "benchmarks.dashboard.trainer", mode, *options)
    try:
        while not (logs / "live" / "metrics.jsonl").exists():
            trainer.check()
            time.sleep(0.05)
        with serve(logs) as server, open_page() as page:
            page.goto(f"{server.url}#/run/live/charts?smooth=0")
            page.locator(_VALUE).get_by_text(f"{FIRST_LOSS // 1000}").first.wait_for()
            page.evaluate(_OBSERVE, _VALUE)
            page.wait_for_timeout(1000 * _WATCHED_S)
            seen = page.evaluate("() => window.seen")
            memory = server.memory()
    finally:
        trainer.stop(at_once=True)
    shown = [(time_ms, int("".join(filter(str.isdecimal, text)))) for time_ms, text in seen]
    if len(shown) < 10:
        raise ChildError(f"the value changed {len(shown)} times in {_WATCHED_S:.0f} s")
    latencies = sorted(_latencies_ms(logs / "live" / "metrics.jsonl", shown))
    return {
        "p50_ms": Spread.of(latencies).median,
        "p95_ms": latencies[round(0.95 * (len(latencies) - 1))],
        "max_ms": latencies[-1],
        "num_updates": len(latencies),
        "num_changes": len(shown),
        "memory": msgspec.to_builtins(memory),
    }


def _latencies_ms(journal: Path, shown: list[tuple[float, int]]) -> Iterator[float]:
    """Yield, for each logged value, the time until it or a later value was painted."""
    for line in journal.read_bytes().splitlines():
        record = msgspec.json.decode(line)
        if record["event"] != "step" or not shown[0][1] < record["train_loss"] <= shown[-1][1]:
            continue
        yield next(time_ms for time_ms, value in shown if value >= record["train_loss"]) - 1000 * record["time"]


def _timeline(folder: Path) -> dict[str, Any]:
    """Pan a timeline with nearly all of its spans in view, and after zooming in."""
    logs = folder / "logs"
    make_journal(logs / "spans", "spans", NUM_SPANS)
    with serve(logs) as server, open_page() as page:
        weight = _weight(page, server.url)
        with page.expect_response(lambda response: "/spans?" in response.url) as answered:
            page.goto(f"{server.url}#/run/spans/timeline")
        num_spans = len(answered.value.json()["id"])
        page.locator("canvas").wait_for()
        page.wait_for_timeout(1000)
        result: dict[str, Any] = {"num_spans": num_spans, "weight_bytes": weight}
        before = page.evaluate(_WHEEL, [0, -100])
        if page.evaluate(_WHEEL, [24, 0]) == before:
            raise ChildError("the view does not move")
        result["most"] = _pan_stats(page.evaluate(_PAN, 1000 * _PAN_S))
        result["dragged"] = _pan_stats(_drag(page))
        for _ in range(10):
            page.evaluate(_WHEEL, [0, -100])
        result["zoomed"] = _pan_stats(page.evaluate(_PAN, 1000 * _PAN_S))
        return {**result, "memory": msgspec.to_builtins(server.memory())}


def _drag(page: Any) -> list[float]:
    box = page.locator("canvas").bounding_box()
    middle, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(middle, y)
    page.mouse.down()
    page.evaluate(_COUNT_FRAMES)
    until_s, index = time.monotonic() + _PAN_S, 0
    while time.monotonic() < until_s:
        index += 1
        page.mouse.move(middle + 60 - abs(index % 40 - 20) * 6, y)
    frames: list[float] = page.evaluate("() => window.frameTimes.slice()")
    page.mouse.up()
    return frames


def _pan_stats(frames: list[float]) -> dict[str, float]:
    gaps = [after - before for before, after in itertools.pairwise(frames)]
    return {"fps": 1000 * len(gaps) / (frames[-1] - frames[0]), "worst_ms": max(gaps)}


def _weight(page: Any, url: str) -> int:
    """Return the bytes sent on first load: HTML, scripts and styles, without headers."""
    finished: list[Any] = []
    page.on(
        "requestfinished", lambda request: finished.extend([request])
    )  # playwright rejects a built-in method as handler
    page.goto(url, wait_until="load")
    page.wait_for_timeout(500)
    kinds = ("document", "script", "stylesheet")
    return sum(request.sizes()["responseBodySize"] for request in finished if request.resource_type in kinds)


def _measure(folder: Path, what: str, *arguments: str) -> dict[str, Any]:
    return _pixel(folder, *arguments) if what == "pixel" else _timeline(folder)


if __name__ == "__main__":
    run_as_child(_measure)
