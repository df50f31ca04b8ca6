"""A progress bar on the standard error stream: one line that is updated in a terminal, a few lines in a log file."""

from __future__ import annotations

import sys
from time import monotonic

__all__ = ["ProgressBar"]

_WIDTH = 24
_TERMINAL_S = 0.1
_FILE_S = 15.0
"""Seconds between two updates, in a terminal and elsewhere."""


class ProgressBar:
    """Shows how many of the layers are done, and an estimate of the remaining time."""

    def __init__(self, title: str, num_layers: int) -> None:
        self._title = title
        self._num_layers = num_layers
        self._stream = sys.stderr
        self._is_terminal = self._stream.isatty()
        self._start_s = self._shown_s = monotonic()

    def update(self, num_done: int, fraction: float) -> None:
        """Show the progress, if the last update is long enough ago.

        Args:
            num_done: number of layers done.
            fraction: the fraction of the work, which the remaining time is estimated from.
        """
        now_s = monotonic()
        if now_s - self._shown_s < (_TERMINAL_S if self._is_terminal else _FILE_S):
            return
        self._shown_s = now_s
        left_s = (now_s - self._start_s) * (1 - fraction) / max(fraction, 1e-9)
        num_filled = round(_WIDTH * fraction)
        bar = "#" * num_filled + "-" * (_WIDTH - num_filled)
        self._write(f"{self._title} [{bar}] {num_done}/{self._num_layers}, about {_duration(left_s)} left")

    def finish(self) -> None:
        """Show the total time."""
        self._write(f"{self._title}: {self._num_layers} layers in {_duration(monotonic() - self._start_s)}")
        if self._is_terminal:
            print(file=self._stream)

    def _write(self, line: str) -> None:
        if self._is_terminal:
            print(f"\r{line:<79}", end="", file=self._stream, flush=True)
        else:
            print(line, file=self._stream, flush=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)}:{int(seconds % 60):02d} min"
