"""List what differs between two runs: config, git, packages, environment, and the changed lines of their code."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tachograph.catalog._captured_diff import CapturedRun, Variation, diff_captured, diff_values
from tachograph.exceptions import CodeError
from tachograph.reader.captured_code import read_code_file, read_patch, read_sources

__all__ = ["CodeChange", "Difference", "RunPairDiff", "diff_pair"]

_MAX_DIFF_BYTES = 200 << 10
_MAX_DIFF_LINES = 4_000
_MAX_DIFFS = 50


class Difference(msgspec.Struct):
    """A value that differs; null where a run lacks it."""

    name: str
    first: Any
    second: Any


class CodeChange(msgspec.Struct):
    """A file that differs."""

    path: str
    kind: Literal["added", "removed", "changed"]
    diff: str
    """A unified diff; empty if the file is too large to compare."""
    is_patch: bool = False
    """Whether the uncommitted changes of the file are compared, because the file itself was not stored."""


class RunPairDiff(msgspec.Struct):
    """The differences between two runs."""

    runs: list[str]
    config: list[Difference]
    git: list[Difference]
    packages: list[Difference]
    environment: list[Difference]
    """Environment variables, the interpreter, seeds and switches, and facts about the machine."""
    code: list[CodeChange]
    notes: list[str]
    """What could not be compared, and why."""


def diff_pair(first: CapturedRun, second: CapturedRun) -> RunPairDiff:
    """Return how two runs differ, by their last attempts."""
    runs = (first, second)
    captured_diff = diff_captured(runs)
    notes = [f"{each.run}: no {each.title}: {each.reason}" for each in captured_diff.missing]
    has_code = not any(each.title == "code" for each in captured_diff.missing)
    return RunPairDiff(
        runs=[run.name for run in runs],
        config=_differences(diff_values([_flatten_config(run.config) for run in runs])),
        git=_differences(captured_diff.git),
        packages=_differences(captured_diff.packages),
        environment=_differences(captured_diff.environment),
        code=_code_changes(runs, captured_diff.files, notes) if has_code else [],
        notes=notes,
    )


def _differences(variations: Sequence[Variation]) -> list[Difference]:
    return [Difference(each.name, *each.values) for each in variations]


def _flatten_config(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with names joined by dots, as in the table of runs."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flatten_config(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _code_changes(runs: Sequence[CapturedRun], files: Sequence[Variation], notes: list[str]) -> list[CodeChange]:
    """Return the changed lines of source files, then of uncommitted changes to files that were not captured."""
    patches: list[dict[str, str]] = []
    for run in runs:
        try:
            patches.append(_split_patch(read_patch(run.folder, run.code)))
        except CodeError as error:
            notes.append(f"{run.name}: no code: {error}")
    if len(patches) < len(runs):
        return []
    changes: list[CodeChange] = []
    for file in files:
        try:
            old, new = (
                "" if name is None else read_code_file(run.folder, name).decode("utf-8", "replace")
                for run, name in zip(runs, file.values, strict=True)
            )
        except CodeError as error:
            notes.append(str(error))
            continue
        kind: Literal["added", "removed", "changed"]
        kind = "added" if file.values[0] is None else "removed" if file.values[1] is None else "changed"
        changes.append(CodeChange(file.name, kind, _unified_diff(file.name, old, new, len(changes))))
    captured_paths = {source.path for run in runs for source in read_sources(run.folder, run.code)}
    for patch in diff_values(patches):
        if patch.name not in captured_paths:
            old, new = (text or "" for text in patch.values)
            text = _unified_diff(patch.name, old, new, len(changes))
            changes.append(CodeChange(patch.name, "changed", text, is_patch=True))
    return changes


def _split_patch(patch: bytes) -> dict[str, str]:
    """Return the diff of each file, by its path."""
    diff_of_path = {}
    for part in patch.decode("utf-8", "replace").split("\ndiff --git ") if patch else ():
        text = part.removeprefix("diff --git ")
        name, _, _ = text.partition("\n")
        path = name[: len(name) // 2].strip().strip('"').removeprefix("a/")  # the same path twice: "a/x b/x"
        diff_of_path[path] = text
    return diff_of_path


def _unified_diff(path: str, old: str, new: str, num_before: int) -> str:
    before, after = old.splitlines(), new.splitlines()
    is_large = max(len(before), len(after)) > _MAX_DIFF_LINES or max(len(old), len(new)) > _MAX_DIFF_BYTES
    if is_large or num_before >= _MAX_DIFFS:
        return ""
    return "\n".join(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", lineterm=""))
