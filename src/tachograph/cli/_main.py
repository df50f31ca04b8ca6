"""The command group and its error handling."""

from __future__ import annotations

from typing import Any

import rich_click as click

from tachograph._version import __version__
from tachograph.cli._ab import ab
from tachograph.cli._annotate import archive, group, note, rename, tag, unarchive
from tachograph.cli._baseline import baseline
from tachograph.cli._check import check
from tachograph.cli._code import diff, reproduce
from tachograph.cli._compare import compare
from tachograph.cli._control import control
from tachograph.cli._demo import demo
from tachograph.cli._doctor import doctor
from tachograph.cli._du import du
from tachograph.cli._export import export
from tachograph.cli._import import import_
from tachograph.cli._installed import InstalledCommand, installed_commands
from tachograph.cli._lm_eval import lm_eval
from tachograph.cli._logs import logs
from tachograph.cli._ls import ls
from tachograph.cli._notify import notify
from tachograph.cli._plugins import plugins
from tachograph.cli._prune import prune
from tachograph.cli._run import run
from tachograph.cli._show import show
from tachograph.cli._sync import sync
from tachograph.cli._tail import tail
from tachograph.cli._train import train
from tachograph.cli._transfer import cp, mv
from tachograph.cli._trash import rm, trash
from tachograph.cli._ui import ui
from tachograph.cli._usage import usage
from tachograph.cli._whence import whence
from tachograph.exceptions import TachographError

__all__ = ["main"]


class _Commands(click.RichGroup):
    """Prints a Tachograph error as one line, without a traceback, and also has the commands of other packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the built-in commands, then those of other packages."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in installed_commands() if name not in own)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> Any:
        """Return a command, or None if there is none of that name."""
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in installed_commands():
            return InstalledCommand(cmd_name)
        return found

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


_COMMANDS = (
    *(run, train, ls, show, compare, ab, check, baseline, diff, reproduce, whence, tail, logs, export, import_, doctor),
    *(control, sync),
    *(tag, note, rename, group, archive, unarchive, mv, cp, rm, trash, du, prune),
    *(notify, plugins, lm_eval, usage, ui, demo),
)
for command in _COMMANDS:
    main.add_command(command)
