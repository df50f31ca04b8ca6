"""Print texts of others in a terminal. Every command prints with `echo`, or with the console of `_format.new_console`.

A journal, a folder, a commit or a server may contain any characters: escape sequences that clear the screen, write to
the clipboard or hide a link, and characters that reorder or hide others. So everything that is not printable is escaped
at the place where it is printed, and no command has to think of it. Only line breaks and tabs remain in a text of
several lines.
"""

from __future__ import annotations

import logging
import sys
import traceback
from types import TracebackType

import click

from tachograph._base.printable import safe, safe_lines

__all__ = ["SafeFormatter", "echo", "echo_data", "print_exception", "safe", "safe_lines"]


def echo(text: str = "", *, err: bool = False, nl: bool = True, fg: str | None = None) -> None:
    """Print a text, in a color if the output is a terminal.

    Args:
        text: the text.
        err: print to the standard error.
        nl: end the line.
        fg: the color.
    """
    text = safe_lines(text)
    click.echo(click.style(text, fg=fg) if fg is not None else text, err=err, nl=nl)


def echo_data(text: str) -> None:
    """Print data for another program: unchanged, unless the output is a terminal."""
    click.echo(safe_lines(text) if sys.stdout.isatty() else text, nl=False)


def print_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception that no command expects, like `sys.excepthook`."""
    click.echo(safe_lines("".join(traceback.format_exception(kind, error, trace))), err=True, nl=False)


class SafeFormatter(logging.Formatter):
    """Formats log messages for the standard error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a message."""
        return safe_lines(super().format(record))
