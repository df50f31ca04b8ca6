"""When lines appear in a chart, seen from outside: the frames of a browser, compared with the last one.

This works for any page, however it draws. Chromium sends each frame that differs from the one before, with its time.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from benchmarks.child import ChildError

__all__ = ["FrameRecorder", "Painted"]

_MAX_DIFFERENT = 10
"""Pixels of the chart that may differ from the last frame."""
_MIN_COLOURED = 50
"""Pixels of a chart with a line; axes and texts are grey."""

# The number of pixels of the chart in a frame that have a colour, and of those that differ from the first frame given.
_COMPARE = """async ([data, box, isFirst]) => {
  const image = await createImageBitmap(await (await fetch("data:image/png;base64," + data)).blob());
  const canvas = new OffscreenCanvas(box.width, box.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, -box.x, -box.y);
  const pixels = context.getImageData(0, 0, box.width, box.height).data;
  const last = isFirst ? (window.lastPixels = pixels) : window.lastPixels;
  let [numColoured, numDifferent] = [0, 0];
  for (let i = 0; i < pixels.length; i += 4) {
    const [r, g, b] = [pixels[i], pixels[i + 1], pixels[i + 2]];
    if (Math.max(r, g, b) - Math.min(r, g, b) > 40) numColoured++;
    if (Math.max(Math.abs(r - last[i]), Math.abs(g - last[i + 1]), Math.abs(b - last[i + 2])) > 8) numDifferent++;
  }
  return [numColoured, numDifferent];
}"""


class Painted(NamedTuple):
    """Seconds until lines were on the screen."""

    first_s: float
    all_s: float


class FrameRecorder:
    """Records the frames of a page. Nothing else may move in the chart."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._frames: list[tuple[float, str]] = []
        self._session = page.context.new_cdp_session(page)
        self._session.on("Page.screencastFrame", self._add)
        self._viewer = page.context.browser.new_page()
        self._began_s = 0.0
        self._checked: tuple[float, str] | None = None
        self._has_lines = False
        self._is_recording = False

    def start(self) -> None:
        """Start to record, and the clock."""
        self._is_recording = True
        self._session.send("Page.startScreencast", {"format": "png"})
        self._frames.clear()
        self._began_s = time.time()

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        return time.time() - self._began_s

    def _add(self, frame: dict[str, Any]) -> None:
        self._frames.append((frame["metadata"]["timestamp"], frame["data"]))
        if self._is_recording:
            self._session.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})

    def has_lines(self, selector: str) -> bool:
        """Return whether there are lines in an element in the latest frame."""
        if not self._frames or self._page.locator(selector).count() == 0:
            return False
        if self._frames[-1] != self._checked:
            self._checked = self._frames[-1]
            self._has_lines = self._compare(self._checked[1], self._box(selector), is_first=True)[0] >= _MIN_COLOURED
        return self._has_lines

    def stop(self, selector: str) -> Painted:
        """Stop; return when the first lines and the last ones were painted in an element.

        Raises:
            ChildError: if there are no lines.
        """
        self._is_recording = False
        self._session.send("Page.stopScreencast")
        box = self._box(selector)
        first_s = all_s = 0.0
        is_same = True
        for index, (time_s, data) in enumerate(reversed(self._frames)):
            num_coloured, num_different = self._compare(data, box, is_first=index == 0)
            is_same = is_same and num_different <= _MAX_DIFFERENT
            if is_same:
                all_s = time_s - self._began_s
            if num_coloured < _MIN_COLOURED:
                break
            first_s = time_s - self._began_s
        if first_s == 0:
            raise ChildError("the chart has no lines")
        return Painted(first_s, all_s)

    def _box(self, selector: str) -> dict[str, int]:
        box = self._page.locator(selector).first.bounding_box()
        return {name: round(value) for name, value in box.items()}

    def _compare(self, data: str, box: dict[str, int], *, is_first: bool) -> tuple[int, int]:
        num_coloured, num_different = self._viewer.evaluate(_COMPARE, [data, box, is_first])
        return num_coloured, num_different
