"""Whether a run may be moved or changed by others: only if nothing records it any more."""

from __future__ import annotations

from tachograph.journal import RunFolder, RunState, current_state

__all__ = ["why_not_ended"]


def why_not_ended(folder: RunFolder, name: str, *, is_forced: bool = False) -> str | None:
    """Return why a run must be left alone, with the remedy, or None.

    Args:
        folder: the run.
        name: its name in messages.
        is_forced: also accept a run that may still be recorded on another machine.
    """
    state = current_state(folder)
    if state is RunState.RUNNING:
        return f"{name!r} is still being recorded; stop it first, for example: tacho control {name} --stop"
    if state is RunState.STALE and not is_forced:
        return f"{name!r} may still be recorded on another machine; if it is not, repeat with --force"
    return None
