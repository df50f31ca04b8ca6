"""Shows the rules what is about to be written, and puts their alerts among it. Runs in the writer's thread."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tachograph._base.guard import guard
from tachograph.diagnostics import RuleEngine, RuleSettings
from tachograph.recorder._record_builder import Encodable
from tachograph.records import StepTable

__all__ = ["LiveDiagnostics"]

_MOST_LINES = 20
_MOST_DUMPS = 10


class LiveDiagnostics:
    """A doctor for a run that is being recorded."""

    def __init__(self, rules: Mapping[str, RuleSettings], say: Callable[[str], None]) -> None:
        """Get ready.

        Args:
            rules: the rules with their thresholds.
            say: prints a line for the person who watches the run.
        """
        self._doctor: RuleEngine | None = RuleEngine(rules, prefix=f"{os.urandom(3).hex()}-")
        self._say = say
        self._num_lines = 0
        self._num_dumps = 0
        self.fault = ""
        """Why it has given up, if it has."""

    def examine(self, pieces: list[Encodable], folder: Path) -> list[Encodable]:
        """Return the pieces with the alerts that they give rise to, each behind what caused it."""
        result: list[Encodable] = []
        for piece in pieces:
            result.append(piece)
            if isinstance(piece, StepTable):
                result += self._alerts(folder, "take_steps", piece.names, piece.values)
            else:
                result += self._alerts(folder, "take", piece)
        return result

    def tick(self, time_s: float, folder: Path) -> list[Encodable]:
        """Return the alerts that the time that has passed gives rise to."""
        return self._alerts(folder, "tick", time_s)

    def see_progress(self) -> None:
        """Hear that the loop has logged something, though it may wait in a window of steps."""
        if self._doctor is not None:
            self._doctor.see_progress()

    @property
    def num_open(self) -> tuple[int, int]:
        """How many alerts are open, and how many of these are critical."""
        return self._doctor.num_open if self._doctor is not None else (0, 0)

    def _alerts(self, folder: Path, method: str, *arguments: Any) -> list[Encodable]:
        if self._doctor is None:
            return []
        try:
            alerts: list[dict[str, Any]] = getattr(self._doctor, method)(*arguments)
            for alert in alerts:
                if alert["status"] == "opened":
                    self._announce(alert, folder)
            return list(alerts)
        except Exception as fault:
            self._doctor = None  # it would come again with every step
            self.fault = f"{type(fault).__name__}: {fault}"
            guard.report("diagnosing the run", fault)
            if guard.strict:
                raise
            return []

    def _announce(self, alert: dict[str, Any], folder: Path) -> None:
        if alert["rule"] == "hang" and self._num_dumps < _MOST_DUMPS:
            self._num_dumps += 1
            name = dump_stacks(folder)
            if name is not None:
                alert["evidence"] = {**alert.get("evidence", {}), "stacks": name}
        if alert["severity"] != "info" and self._num_lines < _MOST_LINES:
            self._num_lines += 1
            self._say(f"{alert['severity']}: {alert['title']} (tacho doctor --explain {alert['rule']})")


def dump_stacks(folder: Path) -> str | None:
    """Write the Python stacks of all threads into a file of the folder; return its name, or None if that fails."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = [f"pid {os.getpid()}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n"]
    main = threading.main_thread().ident
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        lines.append(f"\nThread {names.get(ident, '?')} ({ident}), innermost call last:\n")
        lines += traceback.format_stack(frame)
    path = folder / f"stacks-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    with contextlib.suppress(OSError):
        path.write_text("".join(lines), encoding="utf-8", errors="backslashreplace")
        return path.name
    return None
