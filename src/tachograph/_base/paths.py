"""Paths of the training program."""

from __future__ import annotations

import os

__all__ = ["absolute_path"]


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute form of a path, or the path itself if the working directory was deleted."""
    try:
        return os.path.abspath(path)
    except OSError:
        return os.fspath(path)
