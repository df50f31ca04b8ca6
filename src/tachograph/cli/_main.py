"""The command group and its error handling."""

from __future__ import annotations

import logging
from importlib import import_module
from keyword import iskeyword
from typing import Any

import rich_click as click

from tachograph._base.importing import without_collection
from tachograph._base.version import __version__
from tachograph.cli._installed import InstalledCommand, installed_commands
from tachograph.cli._terminal import SafeFormatter, echo, safe_lines
from tachograph.exceptions import TachographError

__all__ = ["main"]


_COMMANDS = {
    "_run": "run",
    "_train": "train",
    "_ls": "ls",
    "_show": "show",
    "_compare": "compare",
    "_ab": "ab",
    "_check": "check",
    "_baseline": "baseline",
    "_diff": "diff",
    "_reproduce": "reproduce",
    "_origin": "origin",
    "_artifact": "artifact",
    "_tail": "tail",
    "_logs": "logs",
    "_export": "export",
    "_import": "import",
    "_doctor": "doctor",
    "_dump": "dump",
    "_replay": "replay",
    "_control": "control",
    "_sync": "sync",
    "_store": "store",
    "_grafana": "grafana",
    "_annotate": "tag note rename group archive unarchive",
    "_transfer": "mv cp",
    "_trash": "rm trash",
    "_du": "du",
    "_prune": "prune",
    "_compact": "compact",
    "_media": "media",
    "_notify": "notify",
    "_login": "login logout whoami",
    "_keys": "keys",
    "_audit": "audit",
    "_backup": "backup restore",
    "_plugins": "plugins",
    "_lm_eval": "lm-eval",
    "_usage": "usage",
    "_ui": "ui",
    "_serve": "serve",
    "_demo": "demo",
}
"""The commands of each module, in the order of the reference. A module is imported when one of its commands is used."""
_MODULES = {name: module for module, names in _COMMANDS.items() for name in names.split()}
_RENAMED_COMMANDS = {"whence": "origin"}
"""Old names of commands, which still work in this version but are not listed."""


class _Commands(click.RichGroup):
    """Prints a Tachograph error as one line, without a traceback, and also has the commands of other packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the built-in commands, then of commands from other packages."""
        return [*_MODULES, *(name for name in installed_commands() if name not in _MODULES)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> Any:
        """Return a command, also by its old name, or None if there is no such command."""
        cmd_name = _RENAMED_COMMANDS.get(cmd_name, cmd_name)
        if cmd_name in _MODULES:
            with without_collection():
                module = import_module(f"tachograph.cli.{_MODULES[cmd_name]}")
            attribute = cmd_name.replace("-", "_")
            return getattr(module, f"{attribute}_" if iskeyword(attribute) else attribute)
        return InstalledCommand(cmd_name) if cmd_name in installed_commands() else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the name, the command and its arguments; warn if the command is called by its old name."""
        name, command, arguments = super().resolve_command(ctx, args)
        if name not in _RENAMED_COMMANDS:
            return name, command, arguments
        new_name = _RENAMED_COMMANDS[name]
        if not ctx.resilient_parsing:
            echo(f"`tacho {name}` is deprecated and will be removed: use `tacho {new_name}`", err=True)
        return new_name, command, arguments

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; exit with 130 on Ctrl-C."""
        if isinstance(logging.lastResort, logging.Handler):
            logging.lastResort.setFormatter(SafeFormatter())
        try:
            return super().invoke(ctx)
        except TachographError as error:
            # OSError subclasses would print their errno.
            message = str(getattr(error, "strerror", None) or error)
            raise click.ClickException(safe_lines(message)) from error
        except OSError as error:
            if error.filename is None:
                raise
            raise click.ClickException(safe_lines(f"{error.filename}: {error.strerror}")) from error
        except click.ClickException as error:
            message = safe_lines(error.format_message())
            error.format_message = lambda: message  # type: ignore[method-assign]
            raise
        except KeyboardInterrupt:
            raise SystemExit(130) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tacho")
def main() -> None:
    """Record, inspect and control training runs."""
