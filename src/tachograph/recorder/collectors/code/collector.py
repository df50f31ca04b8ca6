"""Captures the code of a run in a process of its own, and records the result as a `code` record.

Reading a repository, hashing and masking take up to seconds of work that would compete with the training for the
interpreter lock. So a detached process does it. Here a thread starts it, waits for its replies without holding the
lock, and adds the record.

The end of a short run waits for the process, within limits, and then stops it: after `finish`, nothing may write to the
folder of the run. The record then has the parts that were captured, and says that the others were cut short.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from tachograph._base.guard import faults, guard, suppress
from tachograph._base.threads import TelemetryThread
from tachograph.recorder._run import Run

if TYPE_CHECKING:
    from tachograph._base.detached import DetachedProcess

__all__ = ["CodeCollector"]

_MAX_WAIT_S = 2.0
_MAX_WAIT_SHARE = 0.4
"""How long the end of a short run waits for the process, in seconds and as a share of `exit_timeout_s`."""
_TERMINATE_SHARE = 0.1
"""How long the process may take to end by itself. It needs a few milliseconds."""
_KILL_SHARE = 0.2
"""How long a killed process may take to be gone. Only one that hangs in the kernel needs so long."""
_PARTS = ("git", "diff", "files", "packages")
_CUT_SHORT = "the run ended before this was captured"


class CodeCollector:
    """Captures the code of one attempt, once."""

    def __init__(self, run: Run, cwd: str) -> None:
        self._run = run
        self._cwd = cwd
        self._claims = [self]  # emptied by the thread that adds the record
        self._is_complete = False
        self._is_cut_short = False
        self._process: DetachedProcess | None = None
        self._fields: dict[str, Any] = {}
        """The fields of the record that have arrived."""
        self._thread = TelemetryThread(self._capture, name="tachograph-code")
        self._thread.start()

    def collect(self) -> None:
        """Do nothing: the thread records the result."""

    def close(self) -> None:
        """Wait a moment for the result, then stop the process and record the parts that it has captured."""
        exit_timeout_s = self._run.settings.exit_timeout_s
        self._thread.join(min(_MAX_WAIT_S, _MAX_WAIT_SHARE * exit_timeout_s))
        if self._thread.is_alive():
            self._is_cut_short = True  # before the next line: the thread stops a process that it is just starting
            if self._process is not None:
                self._process.terminate()
                self._thread.join(_TERMINATE_SHARE * exit_timeout_s)
                self._process.kill()
                self._thread.join(_KILL_SHARE * exit_timeout_s)
            self._record()

    def forget(self) -> None:
        """In a forked child: the parent records the result."""
        self._claims.clear()

    def _capture(self) -> None:
        with guard("capturing the code"):
            try:
                self._ask()
            except faults(OSError) as error:
                self._fields = {"missing": f"the process that captures the code cannot be started: {error}"}
            self._record()

    def _ask(self) -> None:
        from tachograph._base.detached import DetachedProcess
        from tachograph._base.typed import decode_json
        from tachograph.recorder.collectors.code.request import CaptureRequest
        from tachograph.recorder.collectors.code.sources import loaded_files, script_file

        assert self._run.folder is not None  # noqa: S101 - only recorded runs have a collector
        request = CaptureRequest(
            run_folder=os.path.abspath(self._run.folder.path),
            cwd=self._cwd,
            script=script_file(),
            files=loaded_files(),
            git=self._run.settings.git,
        )
        if self._has_to_stop():
            return
        process = self._process = DetachedProcess(
            "tachograph.recorder.collectors.code.capture_main", "code", self._run.name
        )
        if self._has_to_stop():
            process.kill()
        process.send(request)
        for line in process.replies():
            self._fields |= decode_json(line, dict[str, Any]) if line else {}
            self._is_complete = not line
        process.close_requests()

    def _has_to_stop(self) -> bool:
        """Return whether the run has ended, on another thread."""
        return self._is_cut_short

    def _all_fields(self) -> dict[str, Any]:
        """Return the fields of the record; a part that did not arrive says why."""
        if self._is_complete or "missing" in self._fields:
            return self._fields
        reason = _CUT_SHORT if self._is_cut_short else "the process that captures the code has ended"
        if not self._fields:
            return {"missing": reason}
        return {**{part: {"missing": reason} for part in _PARTS}, **self._fields}

    def _record(self) -> None:
        from tachograph.recorder.collectors.code.environment import determinism, environment, torch_build
        from tachograph.records import mask_arguments

        # Read now: a program often sets its seeds after it has started the run.
        more = {
            "environment": environment(),
            "determinism": determinism(),
            "torch_build": torch_build(),
            "command": mask_arguments(getattr(sys, "orig_argv", [])),
        }
        fields = self._all_fields() | {name: value for name, value in more.items() if value}
        if self._run.status == "running":
            with suppress(IndexError):  # it was added already
                self._claims.pop()
                self._run.add_record("code", fields)
