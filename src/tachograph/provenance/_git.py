"""Read the state of a git repository, within limits of time and size and without side effects.

No command takes a lock, opens a pager, asks for a password, fetches anything or runs a program that the repository
configures for diffs. The commands work in worktrees and submodules, and in a repository without a commit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import NamedTuple

from tachograph.exceptions import CodeError
from tachograph.records import mask_text

__all__ = ["GitStatus", "Submodule", "diff_sections", "find_root", "kill_running_git", "read_status", "run_git"]

_TIMEOUT_S = 5.0
_MAX_OUTPUT_BYTES = 16 << 20
_MAX_ERROR_CHARS = 300

_SAFE_CONFIG = (
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.quotePath=true"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "diff.noprefix=false"),
    *("-c", "diff.mnemonicPrefix=false"),
)
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",  # the user may work in the repository
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
_running: set[subprocess.Popen[bytes]] = set()
_DIFF = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=dirty")
_AS_PATCH = ("--binary", "--full-index", "--no-color", "--submodule=short", "--src-prefix=a/", "--dst-prefix=b/")


def run_git(
    *arguments: str, cwd: str, timeout_s: float = _TIMEOUT_S, max_bytes: int = _MAX_OUTPUT_BYTES, cut: bool = False
) -> bytes:
    """Run a git command and return its output.

    Args:
        arguments: the command and its arguments.
        cwd: the folder to run it in.
        timeout_s: how long it may take.
        max_bytes: how much it may print.
        cut: return the first `max_bytes` of a larger output instead of raising.

    Raises:
        CodeError: if git is not installed, fails, or exceeds a limit; the message says which.
    """
    what = f"git {arguments[0]}"
    try:
        process = subprocess.Popen(  # noqa: S603
            ["git", "--no-pager", *_SAFE_CONFIG, *arguments],  # noqa: S607
            cwd=cwd,
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        missing = "git is not installed" if os.path.isdir(cwd) else f"there is no folder {cwd}"
        raise CodeError(missing) from None
    except (OSError, ValueError) as error:
        raise CodeError(f"{what} cannot be started: {error}") from error
    assert process.stdout is not None and process.stderr is not None  # noqa: S101 - pipes, as requested above
    _running.add(process)
    is_late = threading.Event()

    def stop() -> None:
        is_late.set()
        _kill(process)

    errors = bytearray()
    error_reader = threading.Thread(target=_drain, args=(process.stderr, errors), daemon=True)
    timer = threading.Timer(timeout_s, stop)
    timer.daemon = True
    with process.stdout, process.stderr:
        timer.start()
        error_reader.start()
        output = process.stdout.read(max_bytes + 1)
        is_large = len(output) > max_bytes
        if is_large:
            _kill(process)
        process.wait()
        _running.discard(process)
        timer.cancel()
        error_reader.join(1.0)
    if is_late.is_set():
        raise CodeError(f"{what} took longer than {timeout_s:g} s")
    if is_large:
        if cut:
            return output[:max_bytes]
        raise CodeError(f"{what} printed more than {max_bytes >> 20} MB")
    if process.returncode:
        lines = mask_text(bytes(errors).decode("utf-8", "replace")).strip().splitlines()
        raise CodeError(f"{what}: {lines[0][:_MAX_ERROR_CHARS] if lines else f'exit code {process.returncode}'}")
    return output


def kill_running_git() -> None:
    """End every git command that is running, before this process exits."""
    for process in list(_running):
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End git and the programs that it started, which may keep the pipe open."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _drain(stream: object, into: bytearray) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed
        while block := os.read(stream.fileno(), 4096):  # type: ignore[attr-defined]
            into += block[: max(0, 65_536 - len(into))]


def find_root(folder: str) -> str | None:
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


class Submodule(NamedTuple):
    """A submodule that differs from what the commit of the repository names."""

    path: str
    commit: str
    """The commit that is checked out."""
    is_dirty: bool


class GitStatus(NamedTuple):
    """The state of a working tree."""

    commit: str | None
    """None if there is no commit yet."""
    branch: str | None
    """None if no branch is checked out."""
    remote: str | None
    """The address of the remote repository, secrets masked."""
    num_changed: int
    untracked: list[bytes]
    submodules: list[Submodule]


def read_status(root: str, *, without: str | None = None) -> GitStatus:
    """Return the state of a working tree, given its root.

    Args:
        root: the root.
        without: a folder whose files are none of the project, such as the log folder.

    Raises:
        CodeError: if git fails or exceeds a limit.
    """
    output = run_git(
        *("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--ignore-submodules=none"),
        "--no-renames",
        *_exclude(root, without),
        cwd=root,
    )
    head: dict[str, str] = {}
    untracked: list[bytes] = []
    submodules: list[Submodule] = []
    num_changed = 0
    for entry in output.split(b"\0"):
        if entry.startswith(b"# branch."):
            name, _, value = entry[len(b"# branch.") :].decode("utf-8", "replace").partition(" ")
            head[name] = value
        elif entry.startswith(b"? "):
            untracked.append(entry[2:])
        elif entry[:2] in (b"1 ", b"2 ", b"u "):
            num_changed += 1
            fields = entry.split(b" ", 8)
            if fields[0] == b"1" and fields[2].startswith(b"S"):
                submodules.append(_submodule(root, fields))
    commit = head.get("oid", "")
    branch = head.get("head", "")
    return GitStatus(
        commit if commit != "(initial)" else None,
        branch if branch != "(detached)" else None,
        _remote(root),
        num_changed,
        untracked,
        submodules,
    )


def _exclude(root: str, folder: str | None) -> list[str]:
    """Return the arguments that leave a folder out, if it lies inside the working tree."""
    inside = os.path.relpath(os.path.realpath(folder), os.path.realpath(root)) if folder else os.pardir
    if inside == os.curdir or inside.startswith(os.pardir):
        return []
    return ["--", ":(top)", f":(top,exclude,literal){inside.replace(os.sep, '/')}"]


def _submodule(root: str, fields: list[bytes]) -> Submodule:
    path = os.fsdecode(fields[8])
    with contextlib.suppress(CodeError):
        commit = run_git("rev-parse", "HEAD", cwd=os.path.join(root, path)).decode("ascii", "replace").strip()
        return Submodule(path, commit, is_dirty=fields[2][2:] != b"..")
    return Submodule(path, "", is_dirty=fields[2][2:] != b"..")


def _remote(root: str) -> str | None:
    try:
        address = run_git("config", "--get", "remote.origin.url", cwd=root)
    except CodeError:
        return None  # there is none
    return mask_text(address.decode("utf-8", "replace").strip()) or None


def diff_sections(root: str) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Return the path and the diff of each file that differs from the last commit, and whether the list is complete.

    Raises:
        CodeError: if git fails or exceeds a limit of time.
    """
    names = run_git(*_DIFF, "--name-only", "-z", cwd=root).split(b"\0")[:-1]
    output = run_git(*_DIFF, *_AS_PATCH, cwd=root, cut=True)
    sections = list(_split(output))
    is_complete = len(output) < _MAX_OUTPUT_BYTES
    if not is_complete:
        sections.pop()
    elif len(sections) != len(names):
        raise CodeError("git diff did not print every file that differs; a merge may be in progress")
    return list(zip(names, sections, strict=False)), is_complete


def _split(patch: bytes) -> Iterator[bytes]:
    """Yield the part of each file. Inside a part, no line starts like its first one."""
    start = 0
    while start < len(patch):
        end = patch.find(b"\ndiff --git ", start)
        end = len(patch) if end < 0 else end + 1
        yield patch[start:end]
        start = end
