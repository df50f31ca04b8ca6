"""List what differs between the captured code, packages, environments and git states of any number of runs.

Captured files are named by their content. Runs that share the name of a file share its content, so hundreds of runs of
one sweep cost little more than one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from tachograph.exceptions import CodeError
from tachograph.journal import RunFolder
from tachograph.reader import RunDigest
from tachograph.reader.captured_code import (
    code_missing_reason,
    code_section,
    last_code,
    read_packages,
    read_sources,
)
from tachograph.records import to_json

__all__ = ["CapturedDiff", "CapturedRun", "Variation", "diff_captured", "diff_values", "group_notes"]

_START_FACTS = ("command", "cwd", "host", "platform", "python", "torch", "tachograph", "num_cpus", "gpus", "world_size")
Content = TypeVar("Content")


class Variation(msgspec.Struct):
    """A name and its value in each of several runs, in their order; null where a run lacks it."""

    name: str
    values: list[Any]


class CapturedRun(NamedTuple):
    """The parts of a run that a diff reads, from its last attempt."""

    name: str
    folder: RunFolder
    config: dict[str, Any]
    start: dict[str, Any]
    code: Mapping[str, Any]

    @classmethod
    def of(cls, run: RunDigest) -> CapturedRun:
        """Copy the parts of a run that may grow in the meantime."""
        return cls(run.name, run.folder, run.config, run.attempts[-1].start if run.attempts else {}, last_code(run))


class MissingPart(NamedTuple):
    """A part of a run that was not captured or cannot be read."""

    run: str
    title: str
    reason: str


class CapturedDiff(NamedTuple):
    """The differences between the captured parts of runs."""

    git: list[Variation]
    packages: list[Variation]
    environment: list[Variation]
    """Environment variables, the interpreter, seeds and switches, and facts about the machine."""
    files: list[Variation]
    """Source files by their paths; the values are the names of the captured files."""
    missing: list[MissingPart]


def diff_captured(runs: Sequence[CapturedRun]) -> CapturedDiff:
    """Return how the captured parts of runs differ. A run without a part differs in nothing there."""
    missing: list[MissingPart] = []
    has_records = [bool(run.start or run.code) for run in runs]
    return CapturedDiff(
        git=diff_values([_git_state(run) if has_any else None for run, has_any in zip(runs, has_records, strict=True)]),
        packages=diff_values(_read_part(runs, "packages", read_packages, missing)),
        environment=diff_values(
            [_environment(run) if has_any else None for run, has_any in zip(runs, has_records, strict=True)]
        ),
        files=diff_values(_read_part(runs, "files", _source_names, missing)),
        missing=missing,
    )


def diff_values(runs: Sequence[Mapping[str, Any] | None]) -> list[Variation]:
    """Return the names whose values differ between runs; a missing value differs from any other.

    Args:
        runs: the values of each run. None stands for a run whose values are unknown: it differs in nothing.
    """
    mappings = [values for values in runs if values is not None]
    names = dict.fromkeys(name for values in mappings for name in values)
    return [
        Variation(name, [None if values is None else values.get(name) for values in runs])
        for name in names
        if len({_hashable(values.get(name)) for values in mappings}) > 1
    ]


def _hashable(value: Any) -> Any:
    """Return a value that can be hashed; NaN equals itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value if value is None or isinstance(value, (str, int, float)) else (to_json(value),)


def _git_state(run: CapturedRun) -> dict[str, Any]:
    git = {**code_section(run.start, "git"), **code_section(run.code, "git")}
    patch = code_section(run.code, "diff").get("file")
    state = {name: git.get(name) for name in ("commit", "branch", "remote", "dirty", "submodules")}
    return {**state, "patch": str(patch)[:12] if patch else None}


def _environment(run: CapturedRun) -> dict[str, Any]:
    """Return environment variables, interpreter, seeds and switches of a run, and facts about its machine."""
    values = {name: run.start.get(name) for name in _START_FACTS}
    values.update(code_section(run.code, "environment"))
    for part in ("interpreter", "torch_build", "determinism"):
        values.update({f"{part}.{name}": value for name, value in code_section(run.code, part).items()})
    return values


def _source_names(folder: RunFolder, code: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of the captured file for the path of each source file."""
    return {source.path: source.file for source in read_sources(folder, code)}


def _read_part(
    runs: Sequence[CapturedRun],
    part: str,
    read_content: Callable[[RunFolder, Mapping[str, Any]], Content],
    missing: list[MissingPart],
) -> list[Content | None]:
    """Return a captured part of each run; None for runs without it, which are added to `missing`."""
    title = "code" if part == "files" else part
    content_of_file: dict[str, Content] = {}
    contents: list[Content | None] = []
    for run in runs:
        content = None
        name = str(code_section(run.code, part).get("file"))
        try:
            content = content_of_file.get(name) or read_content(run.folder, run.code) or None
            if content is None:
                missing.append(MissingPart(run.name, title, code_missing_reason(run.code, part)))
            else:
                content_of_file[name] = content
        except CodeError as error:
            missing.append(MissingPart(run.name, title, str(error)))
        contents.append(content)
    return contents


def group_notes(missing: Iterable[MissingPart]) -> list[str]:
    """Return a note for each part and reason, with the runs that lack the part."""
    names: dict[tuple[str, str], list[str]] = {}
    for each in missing:
        names.setdefault((each.title, each.reason), []).append(each.run)
    return [f"{_some_names(runs)}: no {title}: {reason}" for (title, reason), runs in names.items()]


def _some_names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} runs"
