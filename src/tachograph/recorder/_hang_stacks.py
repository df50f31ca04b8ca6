"""The Python stacks of a process that hangs, each process for itself.

The writer thread writes the stacks of its rank once, when no iteration has completed for as long as the rule
`rank_hang` allows. If the training thread holds the interpreter lock, the writer thread cannot run; for that, a timer
of `faulthandler`, which needs no interpreter, is set again with each heartbeat.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, Any

from tachograph._base.files import make_folder, replace_file
from tachograph._base.guard import guard, suppress
from tachograph.diagnostics import HangLimits
from tachograph.journal import RunFolder
from tachograph.recorder._activity import Activity

__all__ = ["HangStacks", "dump_stacks"]


class HangStacks:
    """Writes the stacks of this rank when it hangs. Used by the writer thread only.

    Args:
        rank: the rank of this process.
        limits: how long an iteration may take.
    """

    def __init__(self, rank: int, limits: HangLimits) -> None:
        self._rank = rank
        self._limits = limits
        self._is_dumped = False
        self._timer_file: IO[bytes] | None = None
        # There is one timer per process. If the program has loaded the module, it may use the timer itself.
        self._may_set_timer = "faulthandler" not in sys.modules

    def check(self, activity: Activity, folder: RunFolder, now_s: float) -> None:
        """Write the stacks if the rank hangs, and set the timer."""
        self._limits.observe(activity.iteration, activity.phase, now_s)
        if not self._limits.is_exceeded(now_s):
            self._is_dumped = False
            self._set_timer(folder, self._limits.remaining_s(now_s))
        elif not self._is_dumped:
            self._is_dumped = True
            with suppress(OSError):
                make_folder(folder.ranks, below=folder.path)
            dump_stacks(folder.rank_stacks(self._rank), folder.path)

    def _set_timer(self, folder: RunFolder, timeout_s: float) -> None:
        if not self._may_set_timer:
            return
        with guard("setting a timer for stacks"), suppress(OSError):
            import faulthandler

            if self._timer_file is None:
                path = folder.native_stacks(self._rank)
                make_folder(path.parent, below=folder.path)
                self._timer_file = path.open("wb")
            faulthandler.dump_traceback_later(timeout_s, file=self._timer_file)

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer_file is not None:
            faulthandler: Any = sys.modules["faulthandler"]
            faulthandler.cancel_dump_traceback_later()
            self._timer_file.close()


def dump_stacks(path: Path, below: Path) -> str | None:
    """Write the Python stacks of all threads to a file; return its name, or None if that fails."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = [f"pid {os.getpid()}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n"]
    main = threading.main_thread().ident
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        lines.append(f"\nThread {names.get(ident, '?')} ({ident}), innermost call last:\n")
        lines += traceback.format_stack(frame)
    with suppress(OSError):
        replace_file(path, "".join(lines).encode("utf-8", "backslashreplace"), below=below)
        return path.name
    return None
