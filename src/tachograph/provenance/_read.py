"""Read what was captured: the last `code` record of a run and the files that it refers to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tachograph._base.typed import decode_json
from tachograph.exceptions import CodeError
from tachograph.journal import RunFolder
from tachograph.provenance._blobs import read_blob
from tachograph.provenance._capture import SourceFile
from tachograph.provenance._result import read_result
from tachograph.reader import RunDigest
from tachograph.records import finite_or_none

__all__ = ["last_code", "missing_reason", "read_packages", "read_patch", "read_sources", "section_of"]

_UNFINISHED = "the run ended before its code was captured, and the process that captures it has not finished"


def last_code(run: RunDigest) -> Mapping[str, Any]:
    """Return the `code` record of the last attempt of a run; empty if there is none.

    If the run ended before its code was captured, the rest of the record is in a file that it names.
    """
    started = finite_or_none(run.attempts[-1].start.get("time")) if run.attempts else None
    last: dict[str, Any] = next(reversed(run.latest("code")), {})
    if started is not None and (finite_or_none(last.get("time")) or 0.0) < started:
        return {}
    if "result" not in last:
        return last
    found = read_result(run.folder, last["result"])
    return {**last, **({"missing": _UNFINISHED} if found is None else found)}


def section_of(code: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of a `code` record; empty if there is none."""
    found = code.get(name)
    return found if isinstance(found, Mapping) else {}


def missing_reason(code: Mapping[str, Any], name: str) -> str:
    """Return why a part of a `code` record is missing."""
    whole = code.get("missing") or ("it was not captured" if code else "the run has no captured code")
    return str(section_of(code, name).get("missing") or whole)


def read_sources(folder: RunFolder, code: Mapping[str, Any]) -> list[SourceFile]:
    """Return the stored source files of a run.

    Raises:
        CodeError: if the list was changed or is missing.
    """
    name = section_of(code, "files").get("file")
    if name is None:
        return []
    try:
        return decode_json(read_blob(folder, name), list[SourceFile])
    except msgspec.MsgspecError as error:
        raise CodeError(f"the list of source files {name} is invalid: {error}") from error


def read_patch(folder: RunFolder, code: Mapping[str, Any]) -> bytes:
    """Return the uncommitted changes of a run as a patch; empty if there were none.

    Raises:
        CodeError: if the patch was changed or is missing.
    """
    name = section_of(code, "diff").get("file")
    return b"" if name is None else read_blob(folder, name)


def read_packages(folder: RunFolder, code: Mapping[str, Any]) -> dict[str, str]:
    """Return the version, or the line of a requirements file, of each installed package.

    Raises:
        CodeError: if the list was changed or is missing.
    """
    name = section_of(code, "packages").get("file")
    lines = read_blob(folder, name).decode("utf-8", "replace").splitlines() if name is not None else []
    found: dict[str, str] = {}
    for line in lines:
        package, separator, version = line.removeprefix("# editable: ").partition("==")
        if separator and " @ " not in package:
            found[package.lower()] = version
        else:
            found[line.partition(" @ ")[0].lower()] = line.partition(" @ ")[2]
    return found
