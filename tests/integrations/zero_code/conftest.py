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
from tests.preloaded import preloaded

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
        env = popen.pop("env", {})
        needs_interpreter = popen.keys() - {"stdin", "stdout", "stderr"} or any(
            name.startswith("PYTHON") for name in env
        )
        start = subprocess.Popen if needs_interpreter else preloaded("command").popen
        popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": {**os.environ, **env}, **popen}
        return start([*TACHO, *options, "--", *command], cwd=self.folder, **popen)

    def run(self, *command: str, options: tuple[str, ...] = (), **popen: Any) -> subprocess.CompletedProcess[bytes]:
        process = self.start(*command, options=options, **popen)
        out, err = process.communicate(timeout=HANG_S)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def command(self, *arguments: str) -> str:
        """Return what another command of Tachograph prints about these runs."""
        command = [sys.executable, "-m", "tachograph", *arguments]
        return preloaded("commands").run(command, cwd=self.folder, text=True, timeout=HANG_S, env=os.environ).stdout

    def bare(
        self, *command: str, env: dict[str, str] | None = None, preload: str | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        options: dict[str, Any] = {"cwd": self.folder, "env": {**os.environ, **(env or {})}}
        if preload:
            return preloaded(preload).run(list(command), timeout=HANG_S, **options)
        return subprocess.run(command, capture_output=True, check=False, **options)

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
    """Return what the program wrote to standard error: everything but the last line and the address, which are ours."""
    lines = err.splitlines(keepends=True)
    assert lines[-1].startswith(b"[telemetry] "), err
    return without_leaks(b"".join(line for line in lines[:-1] if not line.startswith(b"[telemetry] recording ")))


def without_leaks(err: bytes) -> bytes:
    """Return standard error without the objects that Triton may list when a process ends: which ones is chance."""
    kinds = (b"nanobind: ", b" - leaked ", b" - ... skipped remainder", b"See https://nanobind.")
    return b"".join(line for line in err.splitlines(keepends=True) if not line.startswith(kinds))


Start = Callable[..., "subprocess.CompletedProcess[bytes]"]
