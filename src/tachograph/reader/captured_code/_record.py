"""Read the captured code of a run: its last `code` record and the files that the record refers to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tachograph._base.typed import decode_json
from tachograph.exceptions import CodeError
from tachograph.journal import RunFolder
from tachograph.reader import RunDigest
from tachograph.reader.captured_code._files import read_code_file
from tachograph.reader.captured_code._late_result import read_capture_result
from tachograph.records import finite_or_none

__all__ = [
    "SourceFile",
    "last_code",
    "code_missing_reason",
    "read_packages",
    "read_patch",
    "read_sources",
    "code_section",
]

_NO_LATE_RESULT = "the run ended before its code was captured, and the process that captures it has not finished"


class SourceFile(msgspec.Struct, omit_defaults=True):
    """A stored source file."""

    path: str
    """Relative to the root of the project, or absolute if it lies elsewhere."""
    file: str
    """The name of the stored file in the folder `code`."""
    size_bytes: int
    is_untracked: bool = False
    """Whether git does not know the file."""
    is_executable: bool = False
    is_masked: bool = False
    """Whether secrets were masked in it."""


def last_code(run: RunDigest) -> Mapping[str, Any]:
    """Return the `code` record of the last attempt of a run; empty if there is none.

    If the run ended before its code was captured, the rest of the record is in a file that it names.
    """
    started_at = finite_or_none(run.attempts[-1].start.get("time")) if run.attempts else None
    last: dict[str, Any] = next(reversed(run.latest("code")), {})
    if started_at is not None and (finite_or_none(last.get("time")) or 0.0) < started_at:
        return {}
    if "result" not in last:
        return last
    late_fields = read_capture_result(run.folder, last["result"])
    return {**last, **({"missing": _NO_LATE_RESULT} if late_fields is None else late_fields)}


def code_section(code: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of a `code` record; empty if there is none."""
    section = code.get(name)
    return section if isinstance(section, Mapping) else {}


def code_missing_reason(code: Mapping[str, Any], name: str) -> str:
    """Return why a part of a `code` record is missing."""
    whole = code.get("missing") or ("it was not captured" if code else "the run has no captured code")
    return str(code_section(code, name).get("missing") or whole)


def read_sources(folder: RunFolder, code: Mapping[str, Any]) -> list[SourceFile]:
    """Return the stored source files of a run.

    Raises:
        CodeError: if the list was changed or is missing.
    """
    name = code_section(code, "files").get("file")
    if name is None:
        return []
    try:
        return decode_json(read_code_file(folder, name), list[SourceFile])
    except msgspec.MsgspecError as error:
        raise CodeError(f"the list of source files {name} is invalid: {error}") from error


def read_patch(folder: RunFolder, code: Mapping[str, Any]) -> bytes:
    """Return the uncommitted changes of a run as a patch; empty if there were none.

    Raises:
        CodeError: if the patch was changed or is missing.
    """
    name = code_section(code, "diff").get("file")
    return b"" if name is None else read_code_file(folder, name)


def read_packages(folder: RunFolder, code: Mapping[str, Any]) -> dict[str, str]:
    """Return the version, or the line of a requirements file, of each installed package.

    Raises:
        CodeError: if the list was changed or is missing.
    """
    name = code_section(code, "packages").get("file")
    lines = read_code_file(folder, name).decode("utf-8", "replace").splitlines() if name is not None else []
    version_of_package: dict[str, str] = {}
    for line in lines:
        package, separator, version = line.removeprefix("# editable: ").partition("==")
        if separator and " @ " not in package:
            version_of_package[package.lower()] = version
        else:
            version_of_package[line.partition(" @ ")[0].lower()] = line.partition(" @ ")[2]
    return version_of_package
