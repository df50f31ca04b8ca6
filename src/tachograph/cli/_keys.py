"""`tacho keys`: the access keys of a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import rich_click as click
from rich.text import Text

from tachograph.cli._format import add_row, ago, format_time, json_text, new_console, new_table, plural, safe, size
from tachograph.cli._options import json_option, parse_duration
from tachograph.cli._terminal import echo
from tachograph.server import SCOPES
from tachograph.server.team import AccessKey, KeyRing, count_kept_bytes, count_project_usage, keys_path

__all__ = ["keys"]

Command = TypeVar("Command", bound=Callable[..., Any])


def _data_option(command: Command) -> Command:
    return click.option(
        "--data",
        required=True,
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Data folder of the server.",
    )(command)


@click.group()
def keys() -> None:
    """Create, list, rotate and revoke the access keys of a server.

    Run these commands as the user that runs the server. It notices changes at once.
    """


@keys.command()
@click.option("--name", required=True, help="Name of the user of the key, such as ci or anna@laptop.")
@click.option(
    "--scope",
    "scopes",
    required=True,
    multiple=True,
    metavar="SCOPE[,SCOPE]...",
    help=f"Rights of the key: {', '.join(f'{scope} ({meaning})' for scope, meaning in SCOPES.items())}.",
)
@click.option("--project", help="Only runs of this project. Default: all.")
@click.option("--expires", metavar="AGE", help="When the key expires, such as 90d. Default: never.")
@click.option(
    "--max-bytes-per-s", type=click.IntRange(1), metavar="N", help="Maximum bytes that the key may send per second."
)
@click.option(
    "--max-bytes", type=click.IntRange(1), metavar="N", help="Maximum bytes that the server stores for this key."
)
@click.option(
    "--max-open-runs",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of runs that the key may send at the same time.",
)
@_data_option
def create(
    name: str,
    scopes: tuple[str, ...],
    project: str | None,
    expires: str | None,
    max_bytes_per_s: int | None,
    max_bytes: int | None,
    max_open_runs: int | None,
    data: Path,
) -> None:
    """Create a key and print it.

    The key is printed once, alone on the standard output, and cannot be shown again: only its hash is stored.
    """
    words = [word.strip() for scope in scopes for word in scope.split(",")]
    key, token = KeyRing(keys_path(data)).create(
        name,
        [word for word in words if word],
        project=project,
        lifetime_s=None if expires is None else parse_duration("--expires", expires),
        max_bytes_per_s=max_bytes_per_s,
        max_bytes=max_bytes,
        max_open_runs=max_open_runs,
    )
    echo(f"created the key {_describe(key)}", err=True)
    _print_token(token)


@keys.command("list")
@_data_option
@json_option
def list_(data: Path, as_json: bool) -> None:
    """List the keys, including keys that expired or were revoked in the last 90 days. Secrets are never shown."""
    ring, now_s = KeyRing(keys_path(data)), time.time()
    access_keys, stored_bytes = ring.list(), count_kept_bytes(data)
    if as_json:
        echo(json_text([{**_values(key, now_s), "kept_bytes": stored_bytes.get(key.name, 0)} for key in access_keys]))
        return
    if not access_keys:
        echo(f"There are no access keys in {safe(ring.path)}. Create one with: tacho keys create")
        return
    columns = ("name", "id", "scopes", "project", "state", "last used", "created", "kept", "limits")
    table = new_table(*columns, wraps=("limits",))
    for key in access_keys:
        state = Text(_state(key, now_s), style="dim" if key.ended(now_s) is not None else "")
        last_used = ago(key.last_used) if key.last_used is not None else "never"
        project = safe(key.project, 40) if key.project is not None else "all"
        limits = ", ".join(_limits(key)) or "–"
        stored_size = size(stored_bytes[key.name]) if key.name in stored_bytes else "–"
        add_row(
            table,
            safe(key.name),
            key.id,
            _scopes(key),
            project,
            state,
            last_used,
            _day(key.created),
            stored_size,
            limits,
        )
    new_console().print(table)


@keys.command()
@_data_option
@json_option
def usage(data: Path, as_json: bool) -> None:
    """Show how many runs and bytes each key has stored in each project, and when a client was last heard."""
    usages = count_project_usage(data)
    if as_json:
        echo(json_text(msgspec.to_builtins(usages)))
        return
    table = new_table("project", "key", "runs", "kept", "last seen", right={"runs", "kept"})
    for entry in usages:
        last_seen = ago(entry.last_seen) if entry.last_seen is not None else "–"
        project = safe(entry.project, 40) if entry.project is not None else "–"
        add_row(table, project, safe(entry.key), str(entry.num_runs), size(entry.num_bytes), last_seen)
    new_console().print(table)


@keys.command()
@click.argument("key")
@_data_option
def revoke(key: str, data: Path) -> None:
    """Revoke a key by its id, or all keys with a name. The server rejects them at once."""
    for revoked_key in KeyRing(keys_path(data)).revoke(key):
        echo(f"revoked the key {safe(revoked_key.name)} (id {revoked_key.id})")


@keys.command()
@click.argument("key")
@click.option("--overlap", default="1d", show_default=True, metavar="AGE", help="How long the old key stays valid.")
@_data_option
def rotate(key: str, overlap: str, data: Path) -> None:
    """Create a key with the same rights as an old one, print it, and let the old key expire.

    KEY is the id or the name of the old key.
    """
    new, token = KeyRing(keys_path(data)).rotate(key, overlap_s=parse_duration("--overlap", overlap))
    echo(f"created the key {_describe(new)}", err=True)
    echo(f"the old key (id {new.rotated_from}) is valid for another {overlap} at most", err=True)
    _print_token(token)


def _print_token(token: str) -> None:
    echo(
        "it is not shown again: store it now, with tacho login URL on the machine that uses it, or as TACHO_API_KEY",
        err=True,
    )
    echo(token)


def _describe(key: AccessKey) -> str:
    project = "all projects" if key.project is None else f"project {safe(key.project)}"
    expiry = "does not expire" if key.expires is None else f"expires {_day(key.expires)}"
    parts = [f"id {key.id}", _scopes(key), project, expiry, *_limits(key)]
    return f"{safe(key.name)} ({'; '.join(parts)})"


def _scopes(key: AccessKey) -> str:
    return ", ".join(scope for scope in SCOPES if scope in key.scopes)


def _state(key: AccessKey, now_s: float) -> str:
    if key.ended(now_s) is None:
        return "valid" if key.expires is None else f"until {_day(key.expires)}"
    return f"revoked {_day(key.revoked)}" if key.revoked is not None else f"expired {_day(key.expires)}"


def _limits(key: AccessKey) -> list[str]:
    limits = []
    if key.max_bytes_per_s is not None:
        limits.append(f"{size(key.max_bytes_per_s)}/s")
    if key.max_bytes is not None:
        limits.append(size(key.max_bytes))
    if key.max_open_runs is not None:
        limits.append(plural(key.max_open_runs, "open run"))
    return limits


def _day(time_s: float | None) -> str:
    return format_time(time_s, "%Y-%m-%d %H:%M")


def _values(key: AccessKey, now_s: float) -> dict[str, Any]:
    """Return all fields of a key, also those without a value."""
    values = {name: getattr(key, name) for name in key.__struct_fields__}
    return {**values, "scopes": _scopes(key).split(", "), "is_valid": key.ended(now_s) is None}
