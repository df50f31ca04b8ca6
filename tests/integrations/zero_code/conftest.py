"""Run programs with and without `tacho run`, as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_S, lines_of

TACHO = [sys.executable, "-m", "tachograph", "run"]


class Tacho:
    """Starts programs in their own folder, with and without `tacho run`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, source: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return name

    def start(self, *command: str, options: tuple[str, ...] = (), **popen: Any) -> subprocess.Popen[bytes]:
        popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        popen["env"] = {**os.environ, **popen.get("env", {})}
        return subprocess.Popen([*TACHO, *options, "--", *command], cwd=self.folder, **popen)

    def run(self, *command: str, options: tuple[str, ...] = (), **popen: Any) -> subprocess.CompletedProcess[bytes]:
        process = self.start(*command, options=options, **popen)
        out, err = process.communicate(timeout=HANG_S)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def bare(self, *command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, check=False, env={**os.environ, **(env or {})}
        )

    def runs(self) -> list[str]:
        logs = self.folder / "logs"
        return sorted(path.name for path in logs.iterdir()) if logs.is_dir() else []

    def records(self, name: str, event: str | None = None) -> list[dict[str, Any]]:
        return [record for record in lines_of(self.folder / "logs" / name) if event in (None, record["event"])]


@pytest.fixture
def tacho(tmp_path: Path) -> Tacho:
    return Tacho(tmp_path)


@pytest.fixture
def python() -> str:
    return sys.executable


def program_stderr(err: bytes) -> bytes:
    """Return what the program wrote to standard error: everything but the last line, which is ours."""
    lines = err.splitlines(keepends=True)
    assert lines[-1].startswith(b"[telemetry] "), err
    return b"".join(lines[:-1])


Start = Callable[..., "subprocess.CompletedProcess[bytes]"]
