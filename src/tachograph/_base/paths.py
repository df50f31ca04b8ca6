"""Paths of the training program and of its user."""

from __future__ import annotations

import os
from pathlib import Path

from tachograph._base.guard import faults

__all__ = ["absolute_path", "config_folder", "state_folder"]


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute form of a path, or the path itself if the working directory was deleted."""
    try:
        return os.path.abspath(path)
    except faults(OSError):
        return os.fspath(path)


def config_folder() -> Path:
    """Return the configuration folder of this user: ``$XDG_CONFIG_HOME/tachograph`` or its default."""
    # The XDG specification says to ignore a relative path.
    config = os.environ.get("XDG_CONFIG_HOME")
    home = Path(config) if config and os.path.isabs(config) else Path(os.path.expanduser("~")) / ".config"
    return home / "tachograph"


def state_folder() -> Path:
    """Return the folder of the user's own files: ``$XDG_STATE_HOME/tachograph`` or its default."""
    state = os.environ.get("XDG_STATE_HOME")
    home = Path(state) if state and os.path.isabs(state) else Path(os.path.expanduser("~")) / ".local" / "state"
    return home / "tachograph"
