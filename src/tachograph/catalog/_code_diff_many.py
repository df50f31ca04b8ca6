"""Compare any number of runs: git, packages, environment and code; only what differs.

Captured files are named by their content. Runs that share the name of a file share its content, so hundreds of runs of
one sweep cost little more than one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from tachograph.catalog._code_diff import ComparedRun, environment_of, git_of
from tachograph.exceptions import CodeError
from tachograph.reader.captured_code import code_missing_reason, code_section, read_packages, read_sources
from tachograph.records import to_json

__all__ = ["FileVersions", "ManyComparison", "Variation", "compare_many", "variations"]

_MAX_NAMES = 500
_MAX_VALUE_CHARS = 500
Content = TypeVar("Content")


class Variation(msgspec.Struct):
    """A name and its value in each of several runs, in their order; null where a run lacks it."""

    name: str
    values: list[Any]


class FileVersions(msgspec.Struct):
    """A source file that differs between runs."""

    path: str
    versions: list[int | None]
    """For each run the number of its version, in the order of appearance from 1; null where a run lacks the file."""


class ManyComparison(msgspec.Struct):
    """The differences between several runs."""

    git: list[Variation]
    packages: list[Variation]
    environment: list[Variation]
    """Environment variables, the interpreter, seeds and switches, and facts about the machine."""
    files: list[FileVersions]
    notes: list[str]
    """What could not be compared, and why."""


def compare_many(runs: Sequence[ComparedRun]) -> ManyComparison:
    """Return how runs differ, by their last attempts."""
    notes: list[str] = []
    packages = _contents(runs, "packages", read_packages, notes)
    sources = _contents(
        runs, "files", lambda folder, code: {each.path: each.file for each in read_sources(folder, code)}, notes
    )
    environments = [environment_of(run) if run.start or run.code else None for run in runs]
    files = [
        FileVersions(each.name, _versions(each.values)) for each in _limited(variations(sources), "source files", notes)
    ]
    return ManyComparison(
        git=_shortened(variations([git_of(run) if run.start or run.code else None for run in runs])),
        packages=_shortened(_limited(variations(packages), "packages", notes)),
        environment=_shortened(_limited(variations(environments), "variables", notes)),
        files=files,
        notes=notes,
    )


def variations(runs: Sequence[Mapping[str, Any] | None]) -> list[Variation]:
    """Return the names whose values differ between runs; a missing value differs from any other.

    Args:
        runs: the values of each run. None stands for a run of which they are unknown: it differs in nothing.
    """
    known = [values for values in runs if values is not None]
    names = dict.fromkeys(name for values in known for name in values)
    return [
        Variation(name, [None if values is None else values.get(name) for values in runs])
        for name in names
        if len({_key(values.get(name)) for values in known}) > 1
    ]


def _key(value: Any) -> Any:
    """Return a value that can be hashed; NaN equals itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value if value is None or isinstance(value, (str, int, float)) else (to_json(value),)


def _contents(
    runs: Sequence[ComparedRun], part: str, read: Callable[..., Content], notes: list[str]
) -> list[Content | None]:
    """Return a captured part of each run; None for runs without it, which are noted."""
    known: dict[str, Content] = {}
    reasons: dict[str, list[str]] = {}
    found: list[Content | None] = []
    for run in runs:
        content = None
        name = code_section(run.code, part).get("file")
        try:
            content = known.get(str(name)) or read(run.folder, run.code) or None
            if content is None:
                reasons.setdefault(code_missing_reason(run.code, part), []).append(run.name)
            else:
                known[str(name)] = content
        except CodeError as error:
            reasons.setdefault(str(error), []).append(run.name)
        found.append(content)
    title = "code" if part == "files" else part
    for reason, names in reasons.items():
        notes.append(f"{_some(names)}: no {title}: {reason}")
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} runs"


def _versions(values: Iterable[Any]) -> list[int | None]:
    numbers: dict[Any, int] = {}
    return [None if value is None else numbers.setdefault(value, len(numbers) + 1) for value in values]


def _limited(found: list[Variation], title: str, notes: list[str]) -> list[Variation]:
    if len(found) > _MAX_NAMES:
        notes.append(f"{len(found) - _MAX_NAMES} more {title} differ")
    return found[:_MAX_NAMES]


def _shortened(found: list[Variation]) -> list[Variation]:
    return [Variation(each.name, [_short(value) for value in each.values]) for each in found]


def _short(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        value = " ".join(map(str, value)) if isinstance(value, list) else to_json(value)
    if isinstance(value, str) and len(value) > _MAX_VALUE_CHARS:
        return value[: _MAX_VALUE_CHARS - 1] + "…"
    return value
