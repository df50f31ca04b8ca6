"""Capture code and environment: the content of a `code` record, and the files it refers to.

Each part of the record either has its content or says why it is missing. Whatever is left out because of a limit is
listed. Everything that is stored is masked first. A masked patch still consists of the same lines, so that the rest of
it can be applied; a file in which that is not possible is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tachograph._base.files import UnsafeFileError, read_small
from tachograph._base.guard import faults, suppress
from tachograph._base.nvml import GpuProbe
from tachograph.exceptions import CodeError
from tachograph.journal import RunFolder
from tachograph.reader.captured_code import SourceFile, find_repository_root, write_code_file
from tachograph.recorder.collectors.code.environment import interpreter, requirements
from tachograph.recorder.collectors.code.git_status import GitStatus, diff_sections, read_status
from tachograph.recorder.collectors.code.request import CaptureRequest
from tachograph.recorder.collectors.code.sources import project_files
from tachograph.records import mask_text

__all__ = ["capture", "capture_parts"]

_MAX_DIFF_BYTES = 1 << 20
_MAX_SECTION_BYTES = 100 << 10
_CODE_LIMITS = (1 << 20, 5 << 20, 2_000)
"""Bytes of a file, bytes and number of all files, for the script and its modules."""
_EXTRA_LIMITS = (100 << 10, 1 << 20, 200)
"""The same for untracked files that are not modules, which may be data."""
_MAX_LISTED = 50
_PACKAGES_S = 5.0
_NO_COMMIT = {"missing": "no commit yet"}
_SOURCE_SUFFIXES = (".py", ".yaml", ".yml", ".toml", ".json", ".sh", ".md", ".cfg", ".ini")


class _LeftOut:
    """Files that were not stored, with the reasons; only the first ones are listed."""

    def __init__(self) -> None:
        self.listed: list[dict[str, str]] = []
        self.num_files = 0

    def add(self, path: bytes | str, reason: str) -> None:
        self.num_files += 1
        if len(self.listed) < _MAX_LISTED:
            text = path if isinstance(path, str) else path.decode("utf-8", "backslashreplace")
            self.listed.append({"path": text.encode("utf-8", "backslashreplace").decode(), "reason": reason})

    def fields(self) -> dict[str, Any]:
        if not self.num_files:
            return {}
        more = self.num_files - len(self.listed)
        return {"left_out": self.listed, **({"num_more_left_out": more} if more else {})}


def capture(request: CaptureRequest) -> dict[str, Any]:
    """Store the code and return the fields of a `code` record."""
    return dict(capture_parts(request))


def capture_parts(request: CaptureRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Store the code part by part, and yield the name and the content of each field of a `code` record."""
    folder = RunFolder(request.run_folder)
    root: str | None = None
    untracked_names: list[bytes] = []
    try:
        root = _find_root(request) if request.git else None
        status = None if root is None else read_status(root, without=os.path.dirname(request.run_folder))
    except CodeError as error:
        yield "git", {"missing": str(error)}
        yield "diff", {"missing": str(error)}
    else:
        if root is None or status is None:
            yield "git", {"missing": "not in a git repository" if request.git else "the setting git is off"}
        else:
            untracked_names = status.untracked
            git = _git_fields(root, status)
            yield "git", git
            yield "diff", _part(lambda: _store_diff(folder, git["root"])) if status.commit else _NO_COMMIT
    yield "files", _part(lambda: _store_files(folder, root, request, untracked_names))
    yield "packages", _part(lambda: _store_packages(folder))
    yield "interpreter", {**interpreter(), **_driver()}


def _find_root(request: CaptureRequest) -> str | None:
    """Return the root of the repository of the working folder, else of the script."""
    root = find_repository_root(request.cwd)
    return root if root is not None or request.script is None else find_repository_root(os.path.dirname(request.script))


def _git_fields(root: str, status: GitStatus) -> dict[str, Any]:
    fields = {
        "root": root,
        "commit": status.commit,
        "branch": status.branch,
        "remote": status.remote,
        "dirty": status.num_changed > 0,
        "submodules": [each._asdict() for each in status.submodules] or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _part(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a part of the record, or why it is missing."""
    try:
        return make()
    except faults(CodeError, OSError) as error:
        return {"missing": mask_text(str(error))}


def _store_diff(folder: RunFolder, root: str) -> dict[str, Any]:
    sections, is_complete = diff_sections(root)
    left_out, masked_paths = _LeftOut(), []
    parts: list[bytes] = []
    num_bytes = 0
    for path, section in sections:
        if len(section) > _MAX_SECTION_BYTES:
            left_out.add(path, f"its diff is larger than {_MAX_SECTION_BYTES >> 10} KB")
        elif num_bytes + len(section) > _MAX_DIFF_BYTES:
            left_out.add(path, f"the diff is larger than {_MAX_DIFF_BYTES >> 20} MB")
        elif (safe := _mask_section(section)) is None:
            left_out.add(path, "a secret in it has several lines")
        else:
            parts.append(safe)
            num_bytes += len(section)
            if safe != section:
                masked_paths.append(path.decode("utf-8", "backslashreplace"))
    fields: dict[str, Any] = {"num_files": len(parts), "size_bytes": sum(map(len, parts)), **left_out.fields()}
    if parts:
        fields["file"] = write_code_file(folder, b"".join(parts), ".patch")
    if masked_paths:
        fields["masked"] = masked_paths[:_MAX_LISTED]
    if not is_complete:
        fields["incomplete"] = "the diff of all files together is too large; later files are missing"
    return fields


def _mask_section(section: bytes) -> bytes | None:
    """Mask the diff of one file; return None if it would not be a diff afterwards."""
    if b"\nGIT binary patch\n" in section:
        return section  # compressed
    text = section.decode("utf-8", "surrogateescape")
    masked_text = mask_text(text)
    if masked_text == text:
        return section
    before, after = text.split("\n"), masked_text.split("\n")
    if len(before) != len(after) or any(old[:1] != new[:1] for old, new in zip(before, after, strict=True)):
        return None
    return masked_text.encode("utf-8", "surrogateescape")


def _store_files(
    folder: RunFolder, root: str | None, request: CaptureRequest, untracked_names: list[bytes]
) -> dict[str, Any]:
    """Store the script, the modules of the project and the untracked sources."""
    base = root or request.cwd
    left_out, source_files = _LeftOut(), []
    script = [] if request.script is None else [request.script]
    untracked_sources: dict[str, bool] = {}
    for name in untracked_names:
        path = os.path.join(base, os.fsdecode(name))
        if path.endswith(_SOURCE_SUFFIXES):
            untracked_sources[path] = True
        elif b"__pycache__/" not in name:
            left_out.add(name, "not a source file")
    loaded_files = [os.path.normpath(os.path.join(request.cwd, path)) for path in request.files]
    loaded_paths = dict.fromkeys([*script, *project_files(loaded_files, [base, request.cwd])])
    # The code comes first: of two files that do not fit, it is the more important one.
    paths = {path: untracked_sources.get(path, False) for path in [*loaded_paths, *untracked_sources]}
    num_bytes = {False: 0, True: 0}
    num_files = {False: 0, True: 0}
    for path, is_untracked in paths.items():
        inside = path.startswith(os.path.join(base, ""))
        recorded_path = os.path.relpath(path, base) if inside else path
        is_extra = is_untracked and path not in loaded_paths
        max_bytes, max_total, max_files = _EXTRA_LIMITS if is_extra else _CODE_LIMITS
        try:
            recorded_path.encode()
            # Git treats a link as a file of its own; the source of a module may well be one.
            data = read_small(Path(path if is_extra else os.path.realpath(path)), max_bytes)
        except faults(OSError, ValueError) as error:
            reason = "its name is not valid UTF-8" if isinstance(error, UnicodeError) else _reason(error)
            left_out.add(os.fsencode(recorded_path), reason)
            continue
        if num_bytes[is_extra] + len(data) > max_total or num_files[is_extra] >= max_files:
            left_out.add(recorded_path, f"more than {max_total >> 20} MB or {max_files} files of this kind")
            continue
        num_bytes[is_extra] += len(data)
        num_files[is_extra] += 1
        text = data.decode("utf-8", "surrogateescape")
        safe = mask_text(text).encode("utf-8", "surrogateescape")
        source_files.append(
            SourceFile(
                path=recorded_path.replace(os.sep, "/"),
                file=write_code_file(folder, safe),
                size_bytes=len(safe),
                is_untracked=is_untracked,
                is_executable=os.access(path, os.X_OK),
                is_masked=safe != data,
            )
        )
    fields: dict[str, Any] = {
        "num_files": len(source_files),
        "num_untracked": sum(source_file.is_untracked for source_file in source_files),
        "size_bytes": sum(source_file.size_bytes for source_file in source_files),
        "num_masked": sum(source_file.is_masked for source_file in source_files),
        **left_out.fields(),
    }
    if source_files:
        fields["root"] = base
        fields["file"] = write_code_file(folder, msgspec.json.encode(source_files), ".json")
    else:
        fields["missing"] = "no source files in the project: an interactive session, or code of installed packages"
    return fields


def _reason(error: Exception) -> str:
    if isinstance(error, UnsafeFileError):
        return "not a regular file"
    return str(getattr(error, "strerror", None) or error)


def _store_packages(folder: RunFolder) -> dict[str, Any]:
    lines, is_complete = requirements(_PACKAGES_S)
    fields: dict[str, Any] = {"num_packages": len(lines)}
    fields["file"] = write_code_file(folder, "".join(f"{line}\n" for line in lines).encode(), ".txt")
    if not is_complete:
        fields["incomplete"] = f"listing the packages took longer than {_PACKAGES_S:g} s"
    return fields


def _driver() -> dict[str, str]:
    with suppress(Exception):  # no GPU, or a driver that does not answer
        if version := GpuProbe().driver_version():
            return {"gpu_driver": version}
    return {}
