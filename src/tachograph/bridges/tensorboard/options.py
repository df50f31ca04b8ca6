"""Checks the options of the sink without importing TensorBoard, which takes seconds."""

from __future__ import annotations

import os

from tachograph.bridges.exported_media import check_media_option
from tachograph.exceptions import ConfigError

__all__ = ["check_options"]


def check_options(log_dir: str | os.PathLike[str] | None = None, media: bool = False) -> None:
    """Raise `ConfigError` for an invalid option of `TensorBoardSink`."""
    if log_dir is not None and (not isinstance(log_dir, (str, os.PathLike)) or not os.fspath(log_dir)):
        raise ConfigError(f"log_dir must be a path, got {log_dir!r}")
    check_media_option(media)
