"""A note about a request that changes something, which the handler completes for the audit log of a team's server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.types import Scope as RequestScope

from tachograph.server._table_models import AnnotationChange, BulkRequest, BulkResult

__all__ = ["CHANGE_NOTE", "ChangeNote", "change_note_of", "summarize_changes"]

CHANGE_NOTE = "tachograph.change_note"
"""The key in the state of a request."""


class ChangeNote(msgspec.Struct):
    """What a request changes, in short."""

    action: str = ""
    runs: list[str] = []
    old: Any = None
    new: Any = None
    failures: dict[str, str] = {}
    """The runs that could not be changed, and why."""

    def add_bulk_result(self, request: BulkRequest, result: BulkResult) -> None:
        """Complete the note after an action on several runs."""
        self.runs = [each.run for each in result.results]
        self.failures = {each.run: each.error for each in result.results if each.error is not None}
        if request.action == "annotate":
            self.old = {each.run: summarize_changes(each.undo, only_values=True) for each in result.results}


def change_note_of(scope: RequestScope) -> ChangeNote:
    """Return the note of a request; on a private dashboard, one that nobody reads."""
    note = scope.get("state", {}).get(CHANGE_NOTE)
    return note if isinstance(note, ChangeNote) else ChangeNote()


def summarize_changes(changes: Iterable[AnnotationChange], *, only_values: bool = False) -> dict[str, Any]:
    """Return changes of annotations as a mapping from the field to its value, `+tag`, `-tag` or the remark.

    Args:
        changes: the changes.
        only_values: leave out tags and remarks.
    """
    summary: dict[str, Any] = {}
    for change in changes:
        if change.op == "set":
            summary[change.field] = change.value
        elif only_values:
            continue
        elif change.op in {"add", "remove"}:
            sign = "+" if change.op == "add" else "-"
            summary.setdefault(change.field or "tags", []).append(f"{sign}{change.value}")
        elif change.op == "mark":
            summary[f"remark at step {change.global_step or 0:.0f}"] = change.text
        else:
            summary["removed remark"] = change.value
    return summary
