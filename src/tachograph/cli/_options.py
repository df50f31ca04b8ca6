"""Options shared by several commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import rich_click as click
from click.shell_completion import CompletionItem

from tachograph.journal import find_run_folders
from tachograph.settings import Settings

__all__ = ["complete_run", "given_log_dirs", "json_option", "log_dir_option", "log_dirs_option", "run_argument"]

Command = TypeVar("Command", bound=Callable[..., Any])


def log_dir_option(command: Command) -> Command:
    """Add `--log-dir`."""
    return click.option(
        "--log-dir",
        envvar="TACHO_LOG_DIR",
        default=Settings().log_dir,
        show_default=True,
        type=click.Path(file_okay=False),
        help="Folder that contains the runs.",
    )(command)


def log_dirs_option(command: Command) -> Command:
    """Add `--log-dir` for several folders."""
    return click.option(
        "--log-dir",
        "log_dirs",
        # Not `envvar`: it would split a path at colons.
        default=lambda: [os.environ.get("TACHO_LOG_DIR") or Settings().log_dir],
        show_default=Settings().log_dir,
        multiple=True,
        type=click.Path(file_okay=False),
        help="Folder that contains the runs, also in folders below it; repeatable.",
    )(command)


def json_option(command: Command) -> Command:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def run_argument(command: Command) -> Command:
    """Add the `RUN` argument: a name in the log folder, or a path."""
    return click.argument("run", shell_complete=complete_run)(command)


def given_log_dirs(context: click.Context) -> list[str]:
    """Return the log folders of an incomplete command line."""
    given = context.params.get("log_dirs") or context.params.get("log_dir") or os.environ.get("TACHO_LOG_DIR")
    return [given] if isinstance(given, str) else list(given or [Settings().log_dir])


def complete_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of runs that start with the text before the cursor, also nested ones; else complete a path.

    Looks at folders only, so that it is fast with thousands of runs.
    """
    given = {value for value in context.params.values() if isinstance(value, str)}
    given |= {word for value in context.params.values() if isinstance(value, tuple) for word in value}
    names = (name for log_dir in given_log_dirs(context) for name, _, _ in find_run_folders(log_dir))
    found = [CompletionItem(name) for name in names if name.startswith(incomplete) and name not in given]
    return found or [CompletionItem(incomplete, type="file")]
