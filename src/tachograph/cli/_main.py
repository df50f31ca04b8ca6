"""The command group and its error handling."""

from __future__ import annotations

from typing import Any

import rich_click as click

from tachograph._version import __version__
from tachograph.cli._control import control
from tachograph.cli._demo import demo
from tachograph.cli._doctor import doctor
from tachograph.cli._export import export
from tachograph.cli._import import import_
from tachograph.cli._ls import ls
from tachograph.cli._notify import notify
from tachograph.cli._run import run
from tachograph.cli._show import show
from tachograph.cli._sync import sync
from tachograph.cli._tail import tail
from tachograph.cli._ui import ui
from tachograph.cli._usage import usage
from tachograph.exceptions import TachographError

__all__ = ["main"]


class _Commands(click.RichGroup):
    """Print a Tachograph error as one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; exit with 130 on Ctrl-C."""
        try:
            return super().invoke(ctx)
        except TachographError as error:
            # OSError subclasses would print their errno.
            raise click.ClickException(str(getattr(error, "strerror", None) or error)) from error
        except KeyboardInterrupt:
            raise SystemExit(130) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tacho")
def main() -> None:
    """Record, inspect and control training runs."""


for command in (run, ls, show, tail, export, import_, doctor, control, sync, notify, usage, ui, demo):
    main.add_command(command)
