"""Options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import rich_click as click

from tachograph.settings import Settings

__all__ = ["json_option", "log_dir_option", "run_argument"]

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


def json_option(command: Command) -> Command:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def run_argument(command: Command) -> Command:
    """Add the `RUN` argument: a name in the log folder, or a path."""
    return click.argument("run")(command)
