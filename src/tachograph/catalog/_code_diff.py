"""Compare two runs: config, git, packages, environment and code; only what differs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from tachograph.exceptions import CodeError
from tachograph.journal import RunFolder
from tachograph.reader import RunDigest
from tachograph.reader.captured_code import (
    code_missing_reason,
    code_section,
    last_code,
    read_code_file,
    read_packages,
    read_patch,
    read_sources,
)

__all__ = ["CodeChange", "ComparedRun", "Difference", "RunComparison", "compare_runs", "environment_of", "git_of"]

_FACTS = ("command", "cwd", "host", "platform", "python", "torch", "tachograph", "num_cpus", "gpus", "world_size")
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


class RunComparison(msgspec.Struct):
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


class ComparedRun(NamedTuple):
    """What is compared of a run, by its last attempt."""

    name: str
    folder: RunFolder
    config: dict[str, Any]
    start: dict[str, Any]
    code: Mapping[str, Any]

    @classmethod
    def of(cls, run: RunDigest) -> ComparedRun:
        """Take it from a run that may grow in the meantime."""
        return cls(run.name, run.folder, run.config, run.attempts[-1].start if run.attempts else {}, last_code(run))


def compare_runs(first: ComparedRun, second: ComparedRun) -> RunComparison:
    """Return how two runs differ, by their last attempts."""
    runs = (first, second)
    notes: list[str] = []
    return RunComparison(
        runs=[first.name, second.name],
        config=_differences(_dotted(first.config), _dotted(second.config)),
        git=_differences(*map(git_of, runs)),
        packages=_compare_packages(runs, notes),
        environment=_differences(*map(environment_of, runs)),
        code=_compare_code(runs, notes),
        notes=notes,
    )


def _compare_packages(runs: tuple[ComparedRun, ComparedRun], notes: list[str]) -> list[Difference]:
    """Compare packages; a run without them is noted instead of reported as different in everything."""
    found = []
    for run in runs:
        try:
            if packages := read_packages(run.folder, run.code):
                found.append(packages)
            else:
                notes.append(f"{run.name}: no packages: {code_missing_reason(run.code, 'packages')}")
        except CodeError as error:
            notes.append(f"{run.name}: no packages: {error}")
    return _differences(*found) if len(found) == 2 else []


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    names = [*first, *(name for name in second if name not in first)]
    return [
        Difference(name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)
    ]


def _dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with names joined by dots, as in the table of runs."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def git_of(run: ComparedRun) -> dict[str, Any]:
    """Return the state of the repository of a run."""
    known = {**code_section(run.start, "git"), **code_section(run.code, "git")}
    diff = code_section(run.code, "diff")
    found = {name: known.get(name) for name in ("commit", "branch", "remote", "dirty", "submodules")}
    return {**found, "patch": str(diff["file"])[:12] if diff.get("file") else None}


def environment_of(run: ComparedRun) -> dict[str, Any]:
    """Return environment variables, interpreter, seeds and switches of a run, and facts about its machine."""
    found = {name: run.start.get(name) for name in _FACTS}
    found.update(code_section(run.code, "environment"))
    for part in ("interpreter", "torch_build", "determinism"):
        found.update({f"{part}.{name}": value for name, value in code_section(run.code, part).items()})
    return found


def _compare_code(runs: tuple[ComparedRun, ComparedRun], notes: list[str]) -> list[CodeChange]:
    sources: list[dict[str, str]] = []
    patches: list[dict[str, str]] = []
    for run in runs:
        try:
            if not (files := read_sources(run.folder, run.code)):
                notes.append(f"{run.name}: no code: {code_missing_reason(run.code, 'files')}")
            sources.append({source.path: source.file for source in files})
            patches.append(_split_patch(read_patch(run.folder, run.code)))
        except CodeError as error:
            notes.append(f"{run.name}: no code: {error}")
    if len(patches) < 2 or not all(sources):
        return []

    def text(index: int, path: str) -> str:
        name = sources[index].get(path)
        return "" if name is None else read_code_file(runs[index].folder, name).decode("utf-8", "replace")

    changes: list[CodeChange] = []
    paths = [*sources[0], *(path for path in sources[1] if path not in sources[0])]
    for path in paths:
        if sources[0].get(path) != sources[1].get(path):
            try:
                old, new = text(0, path), text(1, path)
            except CodeError as error:
                notes.append(str(error))
                continue
            kind = "added" if path not in sources[0] else "removed" if path not in sources[1] else "changed"
            changes.append(CodeChange(path, kind, _diff(path, old, new, len(changes))))  # type: ignore[arg-type]
    for path in [*patches[0], *(path for path in patches[1] if path not in patches[0])]:
        old, new = patches[0].get(path, ""), patches[1].get(path, "")
        if path not in paths and old != new:
            changes.append(CodeChange(path, "changed", _diff(path, old, new, len(changes)), is_patch=True))
    return changes


def _split_patch(patch: bytes) -> dict[str, str]:
    """Return the diff of each file, by its path."""
    found = {}
    for part in patch.decode("utf-8", "replace").split("\ndiff --git ") if patch else ():
        text = part.removeprefix("diff --git ")
        name, _, _ = text.partition("\n")
        path = name[: len(name) // 2].strip().strip('"').removeprefix("a/")  # the same path twice: "a/x b/x"
        found[path] = text
    return found


def _diff(path: str, old: str, new: str, num_before: int) -> str:
    before, after = old.splitlines(), new.splitlines()
    is_large = max(len(before), len(after)) > _MAX_DIFF_LINES or max(len(old), len(new)) > _MAX_DIFF_BYTES
    if is_large or num_before >= _MAX_DIFFS:
        return ""
    return "\n".join(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", lineterm=""))
