"""Run git commands within limits of time and size, without side effects.

No command takes a lock, opens a pager, asks for a password, fetches anything or runs a hook of the repository. In which
repository a command may run: see `tachograph._base.git`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading

from tachograph._base.git import git_command, git_environment
from tachograph._base.guard import faults, suppress
from tachograph._base.threads import TelemetryThread
from tachograph.exceptions import CodeError
from tachograph.records import mask_text

__all__ = ["MAX_GIT_OUTPUT_BYTES", "find_object_folder", "find_repository_root", "kill_running_git", "run_git"]

MAX_GIT_OUTPUT_BYTES = 16 << 20
_TIMEOUT_S = 5.0
_MAX_ERROR_CHARS = 300


def run_git(
    *arguments: str,
    cwd: str,
    git_dir: str | None = None,
    timeout_s: float = _TIMEOUT_S,
    max_bytes: int = MAX_GIT_OUTPUT_BYTES,
    truncate: bool = False,
) -> bytes:
    """Run a git command and return its output.

    Args:
        arguments: the command and its arguments.
        cwd: the folder to run it in.
        git_dir: the folder `.git` of a repository that Tachograph created, where files of a run are restored; without
            it, git looks for the repository that contains `cwd`, which must be the user's choice.
        timeout_s: how long it may take.
        max_bytes: how much it may print.
        truncate: return the first `max_bytes` of a larger output instead of raising.

    Raises:
        CodeError: if git is not installed, fails, or exceeds a limit; the message says which.
    """
    what = f"git {arguments[0]}"
    try:
        process = subprocess.Popen(  # noqa: S603
            git_command(*arguments, git_dir=git_dir),
            cwd=cwd,
            env=git_environment(git_dir),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except faults(FileNotFoundError):
        missing = "git is not installed" if os.path.isdir(cwd) else f"there is no folder {cwd}"
        raise CodeError(missing) from None
    except faults(OSError, ValueError) as error:
        raise CodeError(f"{what} cannot be started: {error}") from error
    assert process.stdout is not None and process.stderr is not None  # noqa: S101 - pipes, as requested above
    is_late = threading.Event()

    def stop() -> None:
        is_late.set()
        _kill(process.pid)

    errors = bytearray()
    error_reader = TelemetryThread(_drain, name="tachograph-git", args=(process.stderr, errors))
    timer = threading.Timer(timeout_s, stop)
    timer.daemon = True
    with process.stdout, process.stderr:
        timer.start()
        error_reader.start()
        output = process.stdout.read(max_bytes + 1)
        is_large = len(output) > max_bytes
        if is_large:
            _kill(process.pid)
        process.wait()
        timer.cancel()
        error_reader.join(1.0)
    if is_late.is_set():
        raise CodeError(f"{what} took longer than {timeout_s:g} s")
    if is_large:
        if truncate:
            return output[:max_bytes]
        raise CodeError(f"{what} printed more than {max_bytes >> 20} MB")
    if process.returncode:
        lines = mask_text(bytes(errors).decode("utf-8", "replace")).strip().splitlines()
        raise CodeError(f"{what}: {lines[0][:_MAX_ERROR_CHARS] if lines else f'exit code {process.returncode}'}")
    return output


def kill_running_git() -> None:
    """End every git command of this process, also one that it is just starting; a signal handler may call this."""
    import psutil

    for child in psutil.Process().children():
        _kill(child.pid)


def _kill(pid: int) -> None:
    """End git and the programs that it started, which may keep the pipe open."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(pid, signal.SIGKILL)
    with suppress(OSError):  # it may not lead a group yet, and some systems have none
        os.kill(pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)


def _drain(stream: object, into: bytearray) -> None:
    with suppress(OSError, ValueError):  # closed
        while block := os.read(stream.fileno(), 4096):  # type: ignore[attr-defined]
            into += block[: max(0, 65_536 - len(into))]


def find_repository_root(folder: str) -> str | None:
    """Return the root of the working tree that contains a folder; None if there is none.

    Raises:
        CodeError: if git is missing or does not answer.
    """
    try:
        root = run_git("rev-parse", "--show-toplevel", cwd=folder)
    except CodeError as error:
        if "not a git repository" in str(error) or "must be run in a work tree" in str(error):
            return None
        raise
    return os.fsdecode(root.rstrip(b"\n")) or None


def find_object_folder(folder: str) -> str | None:
    """Return the folder with the objects of the repository that contains a folder; None if there is none.

    Only `git rev-parse` runs there, which starts no program that the repository configures.

    Raises:
        CodeError: if git is missing or does not answer.
    """
    try:
        objects = run_git("rev-parse", "--git-path", "objects", cwd=folder)
    except CodeError as error:
        if "not a git repository" in str(error):
            return None
        raise
    return os.path.realpath(os.path.join(folder, os.fsdecode(objects[:-1])))
