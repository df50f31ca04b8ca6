"""Find the trainer in the call stack, because the trainer does not pass itself to its callbacks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["find_trainer", "is_called_by", "resume_arguments"]

_MAX_FRAMES = 20


def find_trainer(callback: Any) -> Any:
    """Return the trainer that is calling a callback; None if it is not in the call stack."""
    for frame in _callers():
        owner = frame.f_locals.get("self")
        handler = getattr(owner, "callback_handler", None) if owner is not callback else None
        if handler is not None and any(one is callback for one in getattr(handler, "callbacks", ())):
            return owner
    return None


def is_called_by(method: str) -> bool:
    """Return whether a trainer's method of that name is in the call stack."""
    return any(
        frame.f_code.co_name == method and hasattr(frame.f_locals.get("self"), "callback_handler")
        for frame in _callers()
    )


def resume_arguments(trainer: Any) -> list[str]:
    """Return the values of `resume_from_checkpoint` in the trainer's methods, the outermost call first."""
    paths: list[str] = []
    for frame in _callers():
        argument = frame.f_locals.get("resume_from_checkpoint") if frame.f_locals.get("self") is trainer else None
        if isinstance(argument, str):
            paths.insert(0, argument)
    return paths


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back
