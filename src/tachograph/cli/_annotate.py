"""`tacho tag`, `note`, `rename`, `group`, `archive` and `unarchive`: what people say about runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.text import Text

from tachograph.cli._audit import audit_local_change
from tachograph.cli._format import new_console, safe
from tachograph.cli._options import complete_run, log_dir_option, run_argument
from tachograph.cli._select import for_each_run, select_runs, where_option
from tachograph.cli._terminal import echo

if TYPE_CHECKING:
    from tachograph.catalog import RunRow

__all__ = ["archive", "group", "note", "rename", "tag", "unarchive"]

_runs_argument = click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=complete_run)


def _annotate(row: RunRow, changes: list[dict[str, Any]]) -> None:
    from tachograph.catalog import annotate

    old = {change["field"]: row.get(change["field"]) for change in changes if change["op"] == "set"}
    annotate(row.folder, changes)
    audit_local_change(row.log_dir, "annotate", [row.name], old=old, new=changes)


def _annotate_each(
    log_dir: str, runs: Sequence[str], where: str | None, changes: list[dict[str, Any]], message: str
) -> None:
    def act(row: RunRow) -> str:
        _annotate(row, changes)
        return message

    for_each_run(select_runs(log_dir, runs, where), act)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument(
    "words", metavar="[RUN]... [+TAG|-TAG]...", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_run
)
@log_dir_option
@where_option
def tag(words: tuple[str, ...], log_dir: str, where: str | None) -> None:
    """Add tags to runs with +TAG, and remove them with -TAG.

    Without +TAG or -TAG, print the tags. Example: tacho tag run-3 run-7 +paper -draft
    """
    runs = [word for word in words if word[:1] not in {"+", "-"}]
    operations = {"+": "add", "-": "remove"}
    changes = [
        {"op": operations[word[0]], "field": "tags", "value": word[1:]} for word in words if word[:1] in operations
    ]

    def act(row: RunRow) -> str:
        tags = row.get("tags")
        if changes:
            _annotate(row, changes)
            from tachograph.catalog import read_annotations

            tags = read_annotations(row.folder).merge_tags(row.summary.overview.tags)
        return safe(", ".join(tags)) or "no tags"

    for_each_run(select_runs(log_dir, runs, where), act)


@click.command()
@run_argument
@click.argument("text", required=False)
@log_dir_option
@click.option(
    "--at-step", type=click.IntRange(min=0), metavar="N", help="Attach TEXT to step N instead of the whole run."
)
@click.option("--clear", is_flag=True, help="Remove the note.")
def note(run: str, text: str | None, log_dir: str, at_step: int | None, clear: bool) -> None:
    """Write a note about a run, in Markdown. Without TEXT, print the note and all remarks about steps."""
    if at_step is not None and text is None:
        raise click.UsageError("--at-step needs a TEXT")
    (row,) = select_runs(log_dir, [run], None)
    if at_step is not None:
        _annotate(row, [{"op": "mark", "global_step": at_step, "text": text}])
    elif text is not None or clear:
        _annotate(row, [{"op": "set", "field": "note", "value": None if clear else text}])
    else:
        lines = [safe(line, 100_000) for line in (row.get("note") or "").splitlines()]
        lines += [f"step {mark.global_step}: {safe(mark.text, 10_000)}" for mark in row.annotations.marks]
        new_console().print(Text("\n".join(lines) or f'No note. Write one: tacho note {safe(row.id)} "…"'))


@click.command()
@run_argument
@click.argument("name", required=False)
@log_dir_option
@click.option("--clear", is_flag=True, help="Remove the display name.")
def rename(run: str, name: str | None, log_dir: str, clear: bool) -> None:
    """Set the display name of a run. Its folder keeps its name, which commands still expect."""
    if (name is None) != clear:
        raise click.UsageError("give the run a NAME, or use --clear")
    (row,) = select_runs(log_dir, [run], None)
    _annotate(row, [{"op": "set", "field": "display_name", "value": None if clear else name}])
    echo(f"{safe(row.id)}: {'shown by its folder' if clear else f'shown as {safe(name)!r}'}")


@click.command()
@click.argument("words", metavar="[RUN]... NAME", nargs=-1, required=True, shell_complete=complete_run)
@log_dir_option
@where_option
def group(words: tuple[str, ...], log_dir: str, where: str | None) -> None:
    """Put runs into the group NAME; "" removes them from their group. Use a group to filter runs."""
    *runs, name = words
    change = {"op": "set", "field": "group", "value": name}
    _annotate_each(log_dir, runs, where, [change], f"in group {safe(name)!r}" if name else "in no group")


@click.command()
@_runs_argument
@log_dir_option
@where_option
def archive(runs: tuple[str, ...], log_dir: str, where: str | None) -> None:
    """Hide runs from lists. Show them with: tacho ls --archived"""
    change = {"op": "set", "field": "archived", "value": True}
    _annotate_each(log_dir, runs, where, [change], "archived")


@click.command()
@_runs_argument
@log_dir_option
@where_option
def unarchive(runs: tuple[str, ...], log_dir: str, where: str | None) -> None:
    """Show archived runs in lists again."""
    change = {"op": "set", "field": "archived", "value": False}
    _annotate_each(log_dir, runs, where, [change], "not archived")
