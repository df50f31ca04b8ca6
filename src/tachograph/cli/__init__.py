"""The `tacho` command."""

from __future__ import annotations

import sys

from tachograph._base.importing import without_collection

__all__ = ["main"]


def main() -> None:
    """Run the command. Ctrl-C ends it without a traceback, also while its modules are still being imported."""
    try:
        with without_collection():
            from tachograph.cli._main import main as group
            from tachograph.cli._terminal import print_exception

        sys.excepthook = print_exception

        group()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
