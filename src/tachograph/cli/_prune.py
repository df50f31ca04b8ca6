"""`tacho prune`: free disk space by a policy."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.text import Text

from tachograph.cli._audit import audit_local_change
from tachograph.cli._format import add_row, json_text, new_console, new_table, plural, safe, size
from tachograph.cli._options import json_option, log_dir_option
from tachograph.cli._select import where_option
from tachograph.cli._terminal import echo
from tachograph.cli._trash import empty_old_trash
from tachograph.exceptions import ArtifactError, TachographError

if TYPE_CHECKING:
    from tachograph.catalog import PruneRule, PruneStep, RunAction

__all__ = ["prune"]

_MAX_SHOWN = 50


@click.command()
@click.option(
    "--policy", type=click.Path(dir_okay=False), help="YAML or JSON file with a list of {where: EXPR, do: [ACTION]}."
)
@where_option
@click.option(
    "--do",
    "actions",
    metavar="ACTION,...",
    help="Actions for these runs: drop_rebuildable, gzip, merge_ranks, drop_traces, pack_media, thin_media, "
    "drop_media, thin:N or trash. thin_media and drop_media take options: "
    "drop_media:kind=video+audio:older=30d:larger=10MB:all.",
)
@click.option(
    "--media",
    type=click.Choice(["pack", "thin", "drop"]),
    help="Another name of --do pack_media, thin_media or drop_media: for these runs, or all ended runs.",
)
@click.option(
    "--kind",
    "kinds",
    metavar="KIND,...",
    help="With --media: only image, video, audio, points, html, plotly, file or table. By default all but tables.",
)
@click.option("--older-than", metavar="AGE", help="With --media: only media that were logged longer ago, such as 30d.")
@click.option("--larger-than", metavar="SIZE", help="With --media: only files of at least this size, such as 10MB.")
@click.option(
    "--all-steps",
    is_flag=True,
    help="With --media: also the first and the newest step of each name, which stay otherwise.",
)
@log_dir_option
@click.option("--dry-run", is_flag=True, help="Only show what would be done; the default without --yes.")
@click.option("-y", "--yes", is_flag=True, help="Do it.")
@click.option(
    "--force",
    is_flag=True,
    help="Include runs that are pinned, tagged keep, parents of others, maybe still recording, or not sent to their "
    "server yet.",
)
@json_option
def prune(
    policy: str | None,
    where: str | None,
    actions: str | None,
    media: str | None,
    kinds: str | None,
    older_than: str | None,
    larger_than: str | None,
    all_steps: bool,
    log_dir: str,
    dry_run: bool,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Free disk space: compress, thin or remove old runs by a policy.

    Without --yes, shows what would be done and how much space that would free.
    """
    from tachograph.catalog import apply_step, plan_prune, prune_lock, tidy_trash, unknown_rule_fields

    if dry_run and yes:
        raise click.UsageError("--dry-run and --yes exclude each other")
    media_action = _media_action(media, kinds, older_than, larger_than, all_steps=all_steps)
    rules = _rules(policy, where, actions, media_action)
    for error in unknown_rule_fields(log_dir, rules):
        if policy is None:
            raise error
        echo(f"{safe(policy)}: {safe(error, 1_000)}", err=True)  # a later run may have the field
    if not yes:
        _print_plan(log_dir, plan_prune(log_dir, rules, is_forced=force), as_json=as_json)
        return
    num_failed = num_bytes = 0
    results: list[dict[str, Any]] = []
    with prune_lock(log_dir):
        tidy_trash(log_dir)
        for step in plan_prune(log_dir, rules, is_forced=force):
            result: dict[str, Any] = {"run": step.row.id, "action": str(step.action or "")}
            try:
                savings = apply_step(log_dir, step, is_forced=force)
            except TachographError as error:
                num_failed += 1
                result["error"] = str(getattr(error, "strerror", None) or error)
            else:
                result |= {"freed_bytes": savings.num_bytes, "num_files": savings.num_files, "skipped": step.skipped}
                if savings.num_files:
                    audit_local_change(log_dir, "prune", [step.row.id], new={"action": result["action"]})
                num_bytes += savings.num_bytes if step.action and not step.action.frees_later else 0
            results.append(result)
            if not as_json:
                _print_result(result)
        num_emptied = empty_old_trash(log_dir)
    if as_json:
        echo(json_text({"freed_bytes": num_bytes, "num_emptied": num_emptied, "steps": results}))
    else:
        echo(f"freed {size(num_bytes)}")
    if num_failed:
        raise SystemExit(1)


def _media_action(
    media: str | None, kinds: str | None, older_than: str | None, larger_than: str | None, *, all_steps: bool
) -> str | None:
    """Return the text of the action that `--media` and the options beside it stand for."""
    options = [
        f"kind={'+'.join(kind.strip() for kind in kinds.split(','))}" if kinds else "",
        f"older={older_than}" if older_than else "",
        f"larger={larger_than}" if larger_than else "",
        "all" if all_steps else "",
    ]
    text = ":".join(option for option in options if option)
    if text and media not in {"thin", "drop"}:
        raise click.UsageError("--kind, --older-than, --larger-than and --all-steps need --media thin or --media drop")
    if media is None:
        return None
    return f"{media}_media:{text}" if text else f"{media}_media"


def _rules(policy: str | None, where: str | None, actions: str | None, media_action: str | None) -> list[PruneRule]:
    from tachograph.catalog import make_rule, read_policy

    if media_action is not None and policy is None:
        where = "has(name)" if where is None and actions is None else where
        actions = f"{actions},{media_action}" if actions else media_action
    elif media_action is not None:
        raise click.UsageError("--media cannot be added to a policy: add its action to the rules")
    if (policy is None) == (where is None and actions is None) or (where is None) != (actions is None):
        raise click.UsageError("pass --policy FILE, or --where EXPR with --do ACTION")
    if policy is not None:
        return read_policy(policy)
    return [make_rule(where or "", [action for action in (actions or "").split(",") if action.strip()])]


def _print_plan(log_dir: str, steps: list[PruneStep], *, as_json: bool) -> None:
    if as_json:
        plan = [
            {
                "run": step.row.id,
                "action": str(step.action or ""),
                "freed_bytes": step.freed.num_bytes,
                "num_files": step.freed.num_files,
                "skipped": step.skipped,
            }
            for step in steps
        ]
        echo(json_text({"dry_run": True, "steps": plan}))
        return
    console = new_console()
    planned_steps = [step for step in steps if step.action is not None]
    table = new_table("run", "action", "files", "frees about", right={"files", "frees about"})
    for step in planned_steps[:_MAX_SHOWN]:
        add_row(table, safe(step.row.id, 60), str(step.action), _num_files(step), size(step.freed.num_bytes))
    if len(planned_steps) > _MAX_SHOWN:
        add_row(table, Text(f"… and {len(planned_steps) - _MAX_SHOWN} more", style="dim"))
    if planned_steps:
        console.print(table)
    by_action: Counter[RunAction] = Counter()
    for step in planned_steps:
        if step.action is not None:
            by_action[step.action] += step.freed.num_bytes
    for action, num_bytes in by_action.items():
        where = ", once the trash is emptied" if action.frees_later else ""
        console.print(Text(f"{action}: about {size(num_bytes)}{where}", style="bold"))
    for step in steps:
        if step.skipped:
            console.print(Text(f"{safe(step.row.id, 60)}: left alone: {safe(step.skipped, 300)}", style="dim"))
    _print_unused_artifacts(log_dir)
    if planned_steps:
        console.print(Text("Nothing was changed. To do it, add --yes"))
    else:
        console.print(Text("Nothing to do."))


def _num_files(step: PruneStep) -> str:
    """Return how many files an action would change or remove; empty for actions on a whole run."""
    return "" if step.action is None or step.action.frees_later else f"{step.freed.num_files:,}"


def _print_unused_artifacts(log_dir: str) -> None:
    """Print how much space the files of removed artifacts take; runs have no part in it."""
    from tachograph.journal.artifacts import ArtifactStore

    try:
        unused = ArtifactStore(log_dir).collect_garbage(is_dry_run=True)
    except ArtifactError:  # a run is storing one, or the folder is read-only
        return
    if unused.num_files:
        text = f"{size(unused.num_bytes)} of artifacts in no version; delete with: tacho artifact gc"
        new_console().print(Text(text, style="dim"))


def _print_result(result: dict[str, Any]) -> None:
    name, action = safe(result["run"], 200), result["action"]
    if "error" in result:
        echo(f"{name}: {action}: {safe(result['error'], 1_000)}", err=True)
    elif result["skipped"]:
        echo(f"{name}: left alone: {safe(result['skipped'], 1_000)}")
    elif not result["num_files"]:
        echo(f"{name}: {action}: nothing to gain")
    elif action == "trash":
        echo(f"{name}: moved to the trash ({size(result['freed_bytes'])})")
    else:
        echo(f"{name}: {action}: freed {size(result['freed_bytes'])} ({plural(result['num_files'], 'file')})")
