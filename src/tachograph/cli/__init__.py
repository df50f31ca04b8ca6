"""The `tacho` command."""

from tachograph.cli._main import main

__all__ = ["main"]
