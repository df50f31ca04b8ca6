"""Read the state of a git repository; see `run_git` for the limits.

No command runs a program that the repository configures for diffs. The commands work in worktrees and submodules, and
in a repository without a commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from tachograph._base.guard import suppress
from tachograph.exceptions import CodeError
from tachograph.reader.captured_code import MAX_GIT_OUTPUT_BYTES, run_git
from tachograph.records import mask_text

__all__ = ["GitStatus", "Submodule", "diff_sections", "read_status"]

_DIFF = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=dirty")
_AS_PATCH = ("--binary", "--full-index", "--no-color", "--submodule=short", "--src-prefix=a/", "--dst-prefix=b/")


class Submodule(NamedTuple):
    """A submodule that differs from the commit recorded in the repository."""

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
        without: a folder to ignore because it holds no source of the project, such as the log folder.

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
    untracked_names: list[bytes] = []
    submodules: list[Submodule] = []
    num_changed = 0
    for entry in output.split(b"\0"):
        if entry.startswith(b"# branch."):
            name, _, value = entry[len(b"# branch.") :].decode("utf-8", "replace").partition(" ")
            head[name] = value
        elif entry.startswith(b"? "):
            untracked_names.append(entry[2:])
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
        untracked_names,
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
    with suppress(CodeError):
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
    output = run_git(*_DIFF, *_AS_PATCH, cwd=root, truncate=True)
    sections = list(_split(output))
    is_complete = len(output) < MAX_GIT_OUTPUT_BYTES
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
