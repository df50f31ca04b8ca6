"""Why a run failed: the exception that ended it, and the last output of its process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tachograph.black_box import find_kill
from tachograph.journal import RunFolder
from tachograph.records import FATAL_DUMPS, step_of

__all__ = ["Failure", "crash_reason", "failure_of"]

_STREAMS = ("stderr", "output", "stdout")
"""The streams of output, the most likely to contain the cause first."""


class Failure(msgspec.Struct, kw_only=True):
    """Why the last attempt of a run failed, as far as it was recorded."""

    error_type: str | None = None
    message: str = ""
    traceback: str = ""
    step: int | None = None
    """The last step before the failure."""
    time: float | None = None
    exit_code: int | None = None
    cause: str = ""
    """What caused it, as far as a dump of this attempt shows it."""
    confidence: str = ""
    """How sure that is: `certain`, `likely` or `possible`."""
    output: dict[str, str] = {}
    """The last lines that the process printed to each stream, if `tacho run` recorded them."""


def failure_of(
    end: Mapping[str, Any] | None,
    errors: Sequence[Mapping[str, Any]],
    logs: Sequence[Mapping[str, Any]],
    last_step: int | None,
    dumps: Sequence[Mapping[str, Any]] = (),
) -> Failure:
    """Return the failure of an attempt.

    Args:
        end: its `end` record, if it has one.
        errors: its `error` records, oldest first.
        logs: its `log` records.
        last_step: the last step that it recorded.
        dumps: its `dump` records, oldest first.
    """
    fatal = [error for error in errors if error.get("fatal")]
    error = (fatal or [*errors] or [{}])[-1]
    texts = {str(record.get("stream")): str(record.get("text") or "") for record in logs}
    end = end or {}
    exit_code = end.get("exit_code")
    reason = str(end.get("reason") or "")
    # If another rank ended first, the error of rank 0 only follows from that.
    is_consequence = bool(end.get("first_failed_rank"))
    error_type = "" if is_consequence else error.get("error_type")
    message = reason if is_consequence else error.get("error_message") or ("" if error else reason)
    verdicts = [dump.get("verdict") for dump in dumps if dump.get("reason") in FATAL_DUMPS]
    verdict = next((one for one in reversed(verdicts) if isinstance(one, Mapping) and one.get("text")), {})
    has_news = str(verdict.get("text")) not in str(message)
    return Failure(
        error_type=str(error_type) if error_type else None,
        message=str(message),
        traceback=str(error.get("traceback") or ""),
        step=last_step if (step := step_of(error)) is None else step,
        time=error.get("time", end.get("time")),
        exit_code=exit_code if isinstance(exit_code, int) else None,
        cause=str(verdict.get("text") or "") if has_news else "",
        confidence=str(verdict.get("confidence") or "") if has_news else "",
        output={stream: texts[stream] for stream in _STREAMS if texts.get(stream)},
    )


def crash_reason(folder: RunFolder, start: Mapping[str, Any] | None = None) -> str:
    """Return why the process of a run without an `end` record ended, if the kernel still knows; else empty.

    Args:
        folder: the run.
        start: its last `start` record, if the caller has it.
    """
    verdict = find_kill(folder, start)
    return "" if verdict is None else verdict.text
