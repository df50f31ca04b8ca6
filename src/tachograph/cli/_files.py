"""Files that a user names in an option."""

from __future__ import annotations

import os
from pathlib import Path

import rich_click as click

from tachograph._base.files import replace_file
from tachograph.cli._format import safe

__all__ = ["write_file"]


def write_file(path: str, text: str | bytes) -> None:
    """Write a file that the user named; print an error that names it if that fails."""
    try:
        real_path = Path(os.path.realpath(path))
        replace_file(real_path, text if isinstance(text, bytes) else text.encode(), below=real_path.parent)
    except OSError as error:
        raise click.ClickException(f"cannot write {safe(path)}: {error.strerror or error}") from error
