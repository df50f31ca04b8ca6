"""`tacho du`: the space that runs take on disk."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.text import Text

from tachograph.cli._format import add_row, json_text, new_console, new_table, plural, safe, size
from tachograph.cli._options import json_option, log_dir_option
from tachograph.cli._terminal import echo

if TYPE_CHECKING:
    from tachograph.catalog import RunRow

__all__ = ["du"]

_MAX_SHOWN = 20


@click.command()
@click.argument("words", metavar="[EXPR]", nargs=-1)
@log_dir_option
@json_option
@click.option(
    "--limit", type=click.IntRange(min=1), default=_MAX_SHOWN, show_default=True, help="Show the N largest runs."
)
def du(words: tuple[str, ...], log_dir: str, as_json: bool, limit: int) -> None:
    """Show the disk usage of runs by part, project, tag and month. EXPR selects runs, as in tacho ls."""
    from tachograph.catalog import Catalog, disk_usage, list_trash, trash_folder
    from tachograph.catalog import parse_query as parse
    from tachograph.journal.artifacts import ArtifactStore, ClearedSpace, find_artifact_folders

    rows = Catalog(log_dir).select(parse(" ".join(words)), columns=["project"], archived=None)
    sizes = {row.id: disk_usage(row.folder) for row in rows}
    totals = {row.id: sum(sizes[row.id].values()) for row in rows}
    sums = _sums(rows, sizes, totals)
    trash_runs = list_trash(log_dir)
    trash_bytes = sum(sum(disk_usage(trash_folder(log_dir, run)).values()) for run in trash_runs)
    usages = [ArtifactStore(folder).disk_usage() for folder in find_artifact_folders(log_dir)]
    artifacts = ClearedSpace(sum(each.num_files for each in usages), sum(each.num_bytes for each in usages))
    if as_json:
        runs = [{"name": name, "total": totals[name], **parts} for name, parts in sizes.items()]
        trash = {"num_runs": len(trash_runs), "total": trash_bytes}
        echo(
            json_text(
                {"total": sum(totals.values()), **sums, "trash": trash, "artifacts": artifacts._asdict(), "runs": runs}
            )
        )
        return
    console = new_console()
    if not rows:
        console.print(Text(f"No runs in {log_dir!r}."))
        return
    table = new_table("run", "size", "mostly", right={"size"})
    for name in sorted(totals, key=lambda name: -totals[name])[:limit]:
        largest = max(sizes[name], key=lambda part: sizes[name][part])
        add_row(table, safe(name, 60), size(totals[name]), largest)
    if len(totals) > limit:
        rest_bytes = sum(sorted(totals.values())[: len(totals) - limit])
        add_row(table, Text(f"… and {len(totals) - limit} more", style="dim"), size(rest_bytes))
    console.print(table)
    for title, counts in sums.items():
        largest_counts = [(key, count) for key, count in sorted(counts.items(), key=lambda item: -item[1]) if count]
        if len(largest_counts) > (0 if title == "parts" else 1):
            table = new_table(title.rstrip("s"), "size", right={"size"})
            for key, count in largest_counts[:limit]:
                add_row(table, safe(key, 60), size(count))
            console.print(Text(), table)
    console.print(Text(f"\n{size(sum(totals.values()))} in total", style="bold"))
    if artifacts.num_files:
        text = f"{size(artifacts.num_bytes)} more of artifacts, in {plural(artifacts.num_files, 'file')}"
        console.print(Text(f"{text}; delete unused files with: tacho artifact gc", style="dim"))
    if trash_runs:
        console.print(Text(f"{size(trash_bytes)} more in the trash; delete with: tacho trash empty", style="dim"))


def _sums(rows: list[RunRow], sizes: dict[str, dict[str, int]], totals: dict[str, int]) -> dict[str, dict[str, int]]:
    """Return the bytes of each part, project, tag and month."""
    parts: Counter[str] = Counter()
    sizes_by_label: dict[str, Counter[str]] = {"projects": Counter(), "tags": Counter(), "months": Counter()}
    for row in rows:
        parts.update(sizes[row.id])
        started_at: Any = row.get("started")
        labels = {
            "projects": [row.get("project") or "no project"],
            "tags": row.get("tags") or ["no tag"],
            "months": [time.strftime("%Y-%m", time.localtime(started_at)) if started_at else "unknown"],
        }
        for title, names in labels.items():
            sizes_by_label[title].update(dict.fromkeys(names, totals[row.id]))
    return {"parts": dict(parts), **{title: dict(counts) for title, counts in sizes_by_label.items()}}
