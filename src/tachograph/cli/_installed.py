"""Commands of other packages, from the entry-point group `tachograph.commands`.

    [project.entry-points."tachograph.commands"]
    shear = "shearing.cli:shear"

A command is imported when it is run, so a broken package breaks its own command only. Built-in commands win.
"""

from __future__ import annotations

from typing import Any

import rich_click as click

from tachograph._base.registry import Registry
from tachograph.exceptions import ConfigError

__all__ = ["InstalledCommand", "installed_commands"]

_COMMANDS = Registry("command", "tachograph.commands", {})


def installed_commands() -> list[str]:
    """Return the names of the commands that other packages add."""
    return _COMMANDS.names()


class InstalledCommand(click.RichCommand):
    """Stands for a command of another package until it is run."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, help="A command of another package.")

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the command and let it parse its arguments."""
        command = _COMMANDS.load(str(self.name))
        if not hasattr(command, "make_context"):
            raise ConfigError(f"command {self.name!r}: expected a click command, got {type(command).__name__}")
        return command.make_context(info_name, args, parent, **extra)
