"""Validate requests to a running trainer and write them to `control.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph._base.guard import faults
from tachograph.exceptions import ControlError, did_you_mean
from tachograph.journal import PROFILE_STEPS_MAX, REQUESTS, RunState, is_number_of_steps, write_requests
from tachograph.reader._digest import RunDigest

__all__ = ["accepts_requests", "request_control"]


def accepts_requests(digest: RunDigest) -> bool:
    """Return whether a process may still be recording the run and handling requests; an imported run has none."""
    return digest.state in {RunState.RUNNING, RunState.STALE} and not _is_imported(digest)


def _is_imported(digest: RunDigest) -> bool:
    return bool(digest.attempts) and "imported_from" in digest.attempts[-1].start


def request_control(digest: RunDigest, values: Mapping[str, Any], *, source: str) -> dict[str, str]:
    """Request new values, a checkpoint, a trace or a stop; return the id of each request, by name.

    The trainer acknowledges each request in a `control_ack` event with the same id.

    Raises:
        ControlError: if the run has ended, a control does not exist, a value is invalid, or the file cannot be written.
    """
    if _is_imported(digest):
        raise ControlError(f"{digest.name!r} was imported from another tool and accepts no requests")
    if not accepts_requests(digest):
        raise ControlError(f"{digest.name!r} has {digest.state} and no longer accepts requests")
    names = [*digest.controls, *REQUESTS]
    for name in values:
        if name not in names:
            raise ControlError(f"{digest.name!r} has no control {name!r}{did_you_mean(name, names)}")
    if "profile_steps" in values and not is_number_of_steps(values["profile_steps"]):
        value = values["profile_steps"]
        raise ControlError(f"profile_steps={value!r}: expected an integer from 1 to {PROFILE_STEPS_MAX}")
    try:
        return write_requests(digest.folder, values, source=source)
    except faults(OSError) as error:
        raise ControlError(f"cannot write {digest.folder.control}: {error.strerror}") from error
