"""Options shared by several commands."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click
from click.shell_completion import CompletionItem

from tachograph._base.settings import Settings
from tachograph.exceptions import RunNotFoundError, did_you_mean
from tachograph.journal import LogFolders, find_run, find_run_folders

__all__ = [
    "complete_run",
    "data_option",
    "log_dirs_of",
    "json_option",
    "log_dir_option",
    "log_dirs_option",
    "parse_duration",
    "resolve_run",
    "run_argument",
]

Command = TypeVar("Command", bound=Callable[..., Any])


_LOG_DIRS = "tachograph.log_dirs"
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def data_option(text: str) -> Callable[[Command], Command]:
    """Add `--data`, the data folder of a server that exists, with a help text."""
    return click.option(
        "--data",
        required=True,
        envvar="TACHO_DATA",
        type=click.Path(file_okay=False, exists=True, path_type=Path),
        metavar="DIR",
        help=text,
    )


def log_dir_option(command: Command) -> Command:
    """Add `--log-dir`. A command with a `resolve_run` argument accepts several, and gets the one of its run."""
    return click.option(
        "--log-dir",
        default=_default_log_dirs,
        show_default=Settings().log_dir,
        multiple=True,
        is_eager=True,  # runs are looked for in these folders
        callback=_choose_log_dir,
        type=click.Path(file_okay=False),
        help="Folder with the runs.",
    )(command)


def _default_log_dirs() -> list[str]:
    # Not `envvar` of the option: it would split a path at colons.
    return [os.environ.get("TACHO_LOG_DIR") or Settings().log_dir]


def _choose_log_dir(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> str | None:
    if len(value) > 1:
        if not any(each.callback is resolve_run for each in context.command.params):
            raise click.UsageError(
                f"--log-dir is given {len(value)} times, but this command works in one log folder: pass one"
            )
        context.meta[_LOG_DIRS] = list(value)
    return value[0] if value else None


def resolve_run(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Turn display names into names, and the names or ids of runs into paths if there are several log folders.

    Raises:
        RunNotFoundError: if there is no such run, or several folders have one of this name, or several runs have this
            display name.
    """
    log_dirs = context.meta.get(_LOG_DIRS, [])
    if context.resilient_parsing:
        return value
    if len(log_dirs) < 2:
        log_dir = context.params.get("log_dir")
        if not isinstance(log_dir, str) or not value:
            return value
        if isinstance(value, str):
            return _name_of(value, log_dir)
        return tuple(_name_of(name, log_dir) for name in value)
    names = [value] if isinstance(value, str) else list(value or ())
    if not names and isinstance(parameter, click.Option):
        return value
    if not names:
        raise click.UsageError("name a RUN, or pass only one --log-dir")
    folders = LogFolders(*log_dirs)
    paths = []
    for name in names:
        match = folders.resolve(name)
        if match is None:
            if os.sep in name and os.path.isdir(name):
                paths.append(name)
                continue
            hint = did_you_mean(name[:200], [run.id for run in folders.find()])
            raise RunNotFoundError(f"no run {name[:200]!r} in {', '.join(map(repr, log_dirs))}{hint}")
        context.params["log_dir"] = match[0]
        paths.append(os.fspath(match[2].path))
    return paths[0] if isinstance(value, str) else tuple(paths)


def _name_of(name: str, log_dir: str) -> str:
    """Return the name of the run with this display name, unless there is a run or a file of that name."""
    try:
        if os.path.exists(name) or find_run(name, log_dir):
            return name
    except RunNotFoundError:
        from tachograph.catalog import Catalog

        rows = [row for row in Catalog(log_dir).select(archived=None) if row.get("display_name") == name]
        if len(rows) > 1:
            ids = ", ".join(repr(row.id) for row in rows[:5]) + (" …" if len(rows) > 5 else "")
            raise RunNotFoundError(f"{len(rows)} runs are called {name!r}: pass the name of one of {ids}") from None
        return rows[0].id if rows else name
    return name


def log_dirs_option(command: Command) -> Command:
    """Add `--log-dir` for several folders."""
    return click.option(
        "--log-dir",
        "log_dirs",
        default=_default_log_dirs,
        show_default=Settings().log_dir,
        multiple=True,
        type=click.Path(file_okay=False),
        help="Folder with the runs, which may be in subfolders. Can be repeated.",
    )(command)


def json_option(command: Command) -> Command:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def run_argument(command: Command) -> Command:
    """Add the `RUN` argument: a name in the log folder, or a path."""
    return click.argument("run", shell_complete=complete_run, callback=resolve_run)(command)


def log_dirs_of(context: click.Context) -> list[str]:
    """Return the log folders of an incomplete command line."""
    value = (
        context.meta.get(_LOG_DIRS)
        or context.params.get("log_dirs")
        or context.params.get("log_dir")
        or os.environ.get("TACHO_LOG_DIR")
    )
    return [value] if isinstance(value, str) else list(value or [Settings().log_dir])


def complete_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of runs that start with the text before the cursor, also nested ones; else complete a path.

    Looks at folders only, so that it is fast with thousands of runs.
    """
    used_words = {value for value in context.params.values() if isinstance(value, str)}
    used_words |= {word for value in context.params.values() if isinstance(value, tuple) for word in value}
    names = (name for log_dir in log_dirs_of(context) for name, _, _ in find_run_folders(log_dir))
    # A shell would print control characters, and take a line break for the end of a name.
    names = (name for name in names if name.isprintable() and name not in used_words)
    items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="file")]


def parse_duration(option: str, text: str) -> float:
    """Return the seconds of a duration such as 30d.

    Raises:
        click.UsageError: if it is not one; the message names the option.
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text, re.ASCII)
    if parts is None:
        raise click.UsageError(f"{option} {text[:100]!r}: expected a number with s, m, h, d or w, such as 30d")
    return float(parts[1]) * _UNITS_S[parts[2]]
