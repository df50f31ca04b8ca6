"""The `tacho` command."""

from __future__ import annotations

from tachograph._base.importing import without_collection

__all__ = ["main"]


def main() -> None:
    """Run the command. Ctrl-C ends it without a traceback, also while its modules are still being imported."""
    try:
        with without_collection():
            from tachograph.cli._main import main as group

        group()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
