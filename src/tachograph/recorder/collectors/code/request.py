"""The request to the process that captures code: importing this loads nothing else into the training process."""

from __future__ import annotations

import msgspec

__all__ = ["CaptureRequest"]


class CaptureRequest(msgspec.Struct, frozen=True):
    """Facts that only the training process knows."""

    run_folder: str
    cwd: str
    script: str | None
    """The file that the process was started with; None in an interactive session."""
    files: list[str]
    """The files of loaded modules, as the modules name them: relative ones are relative to `cwd`."""
    git: bool = True
    """Whether to read the repository."""
