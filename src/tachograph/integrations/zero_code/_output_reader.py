"""Reads metrics from what the script prints, in its own process: only there the current step is known.

The attribute `write` of the standard streams is replaced by a function that calls the original first. `print`, logging
and progress bars all end there. Lines that cannot contain a metric cost a few microseconds.

A progress bar writes the same line again and again: one that is to be overwritten is read only if its values changed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from tachograph._base.guard import guard
from tachograph.integrations.zero_code._printed_values import PrintedValues, parse_line

__all__ = ["OutputReader"]

_MAX_OPEN_CHARS = 2_000
_MAX_LINES = 200
"""The last lines of one write are read; a program that prints a whole file at once is not held up."""
_MAY_MEASURE = ("val", "test", "dev", "acc", "ppl", "perpl", "reward", "return", "f1", "auc", "bp", "mse", "mae", "iou")
"""Of a loop that is observed, lines with the training loss alone are not read."""


class OutputReader:
    """Calls a function with the metrics of each line that is printed.

    Args:
        add: called with the metrics and the line.
        is_loop_observed: returns whether the training loss is recorded anyway.
    """

    def __init__(self, add: Callable[[PrintedValues, str], None], is_loop_observed: Callable[[], bool]) -> None:
        self._add = add
        self._is_loop_observed = is_loop_observed
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._last_overwritten: dict[str, float] = {}
        self.is_on = True

    def install(self) -> None:
        """Observe the standard streams of this process."""
        for stream in (sys.stdout, sys.stderr):
            with guard("observing output"):
                if stream is not None:
                    stream.write = self._observed(stream.write)  # type: ignore[method-assign]

    def _observed(self, original: Callable[[str], int]) -> Callable[[str], int]:
        open_text = ""

        def write(text: str, /) -> int:
            nonlocal open_text
            written = original(text)
            # Another thread that prints at the same moment is not read: waiting for it could block a signal handler.
            if self.is_on and type(text) is str and self._lock.acquire(blocking=False):
                try:
                    with guard("reading metrics from output"):
                        *lines, open_text = (open_text + text).replace("\r\n", "\n").split("\n")
                        for line in lines[-_MAX_LINES:]:
                            self._read(line.rpartition("\r")[2], is_overwritten=False)
                        overwritten, carriage_return, rest = open_text.rpartition("\r")
                        if carriage_return:
                            self._read(rest or overwritten.rpartition("\r")[2], is_overwritten=True)
                            open_text = f"\r{rest}"
                        if len(open_text) > _MAX_OPEN_CHARS:
                            open_text = ""
                finally:
                    self._lock.release()
            return written

        return write

    def _read(self, line: str, *, is_overwritten: bool) -> None:
        if not line or (self._is_loop_observed() and not any(word in line.lower() for word in _MAY_MEASURE)):
            return
        printed = parse_line(line)
        if printed is None or os.getpid() != self._process_id:
            return
        if printed.values == self._last_overwritten:  # also the last state, which ends with a newline
            return
        self._last_overwritten = dict(printed.values) if is_overwritten else {}
        self._add(printed, line)
