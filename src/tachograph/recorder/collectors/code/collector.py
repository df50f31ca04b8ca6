"""Captures the code of a run in a process of its own, and records the result as a `code` record.

Reading a repository, hashing and masking take up to seconds of work that would compete with the training for the
interpreter lock. So a detached process does it. Here a thread starts it, waits for its reply without holding the lock,
and adds the record. If the run ends first, it does not wait: the record names the file that the process will write.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from tachograph._base.guard import guard
from tachograph.recorder._run import Run

__all__ = ["CodeCollector"]

_MAX_START_S = 2.0
_MAX_START_SHARE = 0.2
"""How long the end of a short run waits for the start of the process, in seconds and as a share of `exit_timeout_s`."""
_MAX_WAIT_S = 0.05
"""How long it waits for the reply."""


class CodeCollector:
    """Captures the code of one attempt, once."""

    def __init__(self, run: Run, cwd: str) -> None:
        self._run = run
        self._cwd = cwd
        self._lock = threading.Lock()
        self._is_recorded = False
        self._result = ""
        self._is_started = threading.Event()
        """Set once the process does its work, or cannot be started."""
        self._thread = threading.Thread(target=self._capture, name="tachograph-code", daemon=True)
        self._thread.start()

    def collect(self) -> None:
        """Do nothing: the thread records the result."""

    def close(self) -> None:
        """Wait a moment for the result; without one, record where it will be."""
        is_started = self._is_started.wait(min(_MAX_START_S, _MAX_START_SHARE * self._run.settings.exit_timeout_s))
        self._thread.join(_MAX_WAIT_S)
        if self._thread.is_alive():
            has_result = is_started and self._result
            missing = {"missing": "the run ended before the process that captures its code was started"}
            self._record({"result": self._result} if has_result else missing)

    def forget(self) -> None:
        """In a forked child: the parent records the result."""
        self._is_recorded = True

    def _capture(self) -> None:
        with guard("capturing the code"):
            fields: dict[str, Any] = {"missing": "the process that captures the code has ended"}
            try:
                fields = self._ask() or fields
            except OSError as error:
                fields = {"missing": f"the process that captures the code cannot be started: {error}"}
            finally:
                self._is_started.set()
            self._record(fields)

    def _ask(self) -> dict[str, Any] | None:
        from tachograph._base.detached import DetachedProcess
        from tachograph._base.typed import decode_json
        from tachograph.provenance import CaptureRequest, loaded_files, new_result_name, script_file

        assert self._run.folder is not None  # noqa: S101 - only recorded runs have a collector
        request = CaptureRequest(
            run_folder=os.path.abspath(self._run.folder.path),
            cwd=self._cwd,
            script=script_file(),
            files=loaded_files(),
            git=self._run.settings.git,
            result=new_result_name(),
        )
        process = DetachedProcess("tachograph.provenance._capture_main", "code", self._run.name)
        process.send(request)
        process.close_requests()
        self._result = request.result
        self._is_started.set()
        replies = list(process.replies())
        return decode_json(replies[0], dict[str, Any]) if replies else None

    def _record(self, fields: dict[str, Any]) -> None:
        from tachograph.provenance import determinism, environment, remove_result, torch_build
        from tachograph.records import mask_arguments

        # Read now: a program often sets its seeds after it has started the run.
        more = {
            "environment": environment(),
            "determinism": determinism(),
            "torch_build": torch_build(),
            "command": mask_arguments(getattr(sys, "orig_argv", [])),
        }
        with self._lock:
            if not self._is_recorded and self._run.status == "running":
                self._is_recorded = True
                self._run.add_record("code", {**fields, **{name: value for name, value in more.items() if value}})
                if self._result and "result" not in fields and self._run.folder is not None:
                    remove_result(self._run.folder, self._result)
