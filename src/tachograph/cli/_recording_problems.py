"""Problems of recording and exporting a run, for `tacho show` and `tacho doctor`."""

from __future__ import annotations

from rich.text import Text

from tachograph.cli._format import plural, safe
from tachograph.journal import RunState, is_csv_current
from tachograph.reader import RunHistory
from tachograph.sinks import read_lags, read_rejections

__all__ = ["media_loss", "recording_problems"]

_MAX_ERRORS = 10


def media_loss(history: RunHistory) -> Text | None:
    """Return a line about media that a process did not store before it was killed; None if there is none."""
    count = history.num_media_lost
    were = "was" if count == 1 else "were"
    text = f"about {plural(count, 'media record')} {were} not stored when the process ended"
    return Text(text, style="bold yellow") if count else None


def recording_problems(history: RunHistory) -> list[Text]:
    """Return lines about lost records, faults of telemetry, and sinks that lack records."""
    lines = []
    if history.num_lost_records:
        lines.append(Text(f"{plural(history.num_lost_records, 'record')} lost:", style="bold yellow"))
    if lost_media := media_loss(history):
        lines.append(lost_media)
    if history.num_bad_lines:
        lines.append(Text(f"skipped {plural(history.num_bad_lines, 'unreadable line')} in the journal", style="yellow"))
    errors = history.latest("telemetry_error")
    for record in errors[-_MAX_ERRORS:]:
        field = f" {safe(record['field'])}:" if record.get("field") else ""
        num_lost = record.get("num_records")
        lost_text = f" {plural(num_lost, 'record')}:" if isinstance(num_lost, int) and num_lost else ""
        reason = safe(record.get("reason", ""), 300)
        lines.append(Text(f"telemetry: {safe(record.get('kind', '?'))}{field}{lost_text} {reason}", style="yellow"))
    if history.state is RunState.RUNNING:
        return lines
    if history.folder.csv.exists() and not is_csv_current(history.folder):
        hint = f"tacho show {safe(history.name)} --rebuild-csv"
        lines.append(Text(f"metrics.csv is incomplete; rebuild it with: {hint}", style="yellow"))
    # A sink may still deliver after the run has ended; only its cursor file has the errors of that time.
    reported = {(str(record.get("field")), str(record.get("reason"))) for record in errors}
    for sink, reason in read_rejections(history.folder):
        if (sink, reason) not in reported:
            lines.append(Text(f"telemetry: sink_rejected {safe(sink)}: {safe(reason, 300)}", style="yellow"))
    for lag in read_lags(history.folder):
        cause = f": {safe(lag.error, 300)}" if lag.error else ""
        lag_text = f"{safe(lag.sink)} has not received {plural(lag.num_records, 'record')}{cause}"
        lines.append(Text(f"{lag_text}; a resumed run exports them", style="yellow"))
    return lines
