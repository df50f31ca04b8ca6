"""`MessageBuilder`: turns the records of a run into messages. Pure state, without files or threads.

Records may be read twice: after a crash, after a failed write, or when the journal was replaced. Every message has a
key that depends only on its record, and the state remembers the keys of the messages built so far. The state is saved
with the outbox, so a resumed run repeats neither a message nor a milestone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tachograph.records import (
    FATAL_DUMPS,
    METRIC_KINDS,
    SEVERITIES,
    clock_jump_s,
    finite_or_none,
    is_number,
    mark_non_finite,
    mask_text,
    severity_rank,
    step_of,
)
from tachograph.sinks.notify._message import Message, clean_text, format_number, run_url, single_line
from tachograph.sinks.notify._milestone import Milestone
from tachograph.sinks.notify._settings import NotifySettings

__all__ = ["BuilderState", "MessageBuilder"]

_MAX_REMEMBERED = 2_000
_PROJECT_KEYS = ("project", "project_name", "wandb_project", "swanlab_project")
_KINDS_WITH_METRICS = frozenset({*METRIC_KINDS, "event", "checkpoint"})
_NO_EXIT_RECORD = "The previous attempt ended without an exit record: the process or the machine was killed."


class BuilderState(msgspec.Struct, kw_only=True):
    """The state of the builder after the records so far. Saved in the outbox file: field names must not change."""

    run_id: str = ""
    project: str = ""
    host: str = ""
    started_s: float | None = None
    max_steps: int | None = None
    step: int | None = None
    metrics: dict[str, float | str] = {}
    error: str = ""
    """The fatal exception, which the `end` record does not repeat."""
    cause: str = ""
    """What caused it, as a dump shows it."""
    is_open: bool = False
    """Whether an attempt has started and not ended."""
    seen: dict[str, float] = {}
    """The time of each message by its key; the oldest are removed."""
    severities: dict[str, str] = {}
    """The highest severity of each alert; the oldest are removed."""
    reached: list[str] = []
    """The milestones that were reached."""


class MessageBuilder:
    """Builds messages from the records of one run, which it must receive in order."""

    def __init__(self, run: str, settings: NotifySettings, state: BuilderState) -> None:
        self._run = run
        self.state = state
        self._settings = settings
        self._link = run_url(settings.dashboard_url, run)
        self._milestones = [Milestone(text) for text in settings.milestones]
        self._min_rank = severity_rank(settings.min_severity)
        self._handlers: dict[str, Callable[[dict[str, Any]], Message | None]] = {
            "start": self._handle_start,
            "alert": self._handle_alert,
            "error": self._handle_error,
            "dump": self._handle_dump,
            "end": self._handle_end,
        }

    def rename_run(self, run: str) -> None:
        """Use another name for the run from now on."""
        self._run = run
        self._link = run_url(self._settings.dashboard_url, run)

    def handle(self, record: dict[str, Any]) -> list[Message]:
        """Return the messages for a record: each message once, however often the record is read."""
        kind = record["event"]
        if self.state.started_s is not None:
            self.state.started_s += clock_jump_s(record)
        if kind in _KINDS_WITH_METRICS:
            return self._handle_metrics(record)
        handle = self._handlers.get(kind)
        message = handle(record) if handle is not None else None
        if message is None or message.key in self.state.seen:
            return []
        self.state.seen[message.key] = message.time
        if len(self.state.seen) > _MAX_REMEMBERED:
            del self.state.seen[next(iter(self.state.seen))]
        return [message] if message.event in self._settings.on else []

    def _handle_metrics(self, record: dict[str, Any]) -> list[Message]:
        state = self.state
        if record["event"] == "step" and (step := step_of(record)) is not None:
            state.step = step
        for name in self._settings.metrics:
            value = record.get(name)
            if is_number(value):
                state.metrics[name] = mark_non_finite(value)
        if not self._milestones:
            return []
        messages = (self._check_milestone(milestone, record) for milestone in self._milestones)
        return [message for message in messages if message is not None]

    def _check_milestone(self, milestone: Milestone, record: dict[str, Any]) -> Message | None:
        value = None if milestone.text in self.state.reached else milestone.value_if_met(record)
        if value is None:
            return None
        self.state.reached.append(milestone.text)
        if "milestone" not in self._settings.on:
            return None
        step = step_of(record)
        at = "" if step is None or milestone.metric == "step" else f" at step {step}"
        reason = f"{milestone.metric} is {format_number(value)}{at}."
        return self._message(
            record, "milestone", f"milestone:{milestone.text}", f"Reached {milestone.text}", reason=reason
        )

    def _handle_start(self, record: dict[str, Any]) -> Message:
        state = self.state
        was_open, state.is_open = state.is_open, True
        state.run_id = str(record.get("run_id", ""))
        state.host = single_line(record.get("host") or "")
        project = self._settings.project or record.get("project") or _config_project(record.get("config"))
        state.project = single_line(project)
        state.started_s = finite_or_none(record.get("time"))
        max_steps = finite_or_none(record.get("max_steps"))
        state.max_steps = int(max_steps) if max_steps else None
        state.error = state.cause = ""
        reason = _NO_EXIT_RECORD if was_open else ""
        title = "Training resumed" if record.get("resumed") else "Training started"
        return self._message(record, "start", f"start:{record.get('time')}", title, reason=reason)

    def _handle_error(self, record: dict[str, Any]) -> None:
        if record.get("fatal"):
            self.state.error = ": ".join(
                str(part) for part in (record.get("error_type"), record.get("error_message")) if part
            )

    def _handle_dump(self, record: dict[str, Any]) -> None:
        verdict = record.get("verdict")
        if record.get("reason") in FATAL_DUMPS and isinstance(verdict, dict) and verdict.get("text"):
            self.state.cause = _format_cause({**verdict, "dump": record.get("dump")}, self._run)

    def _handle_end(self, record: dict[str, Any]) -> Message:
        state = self.state
        state.is_open = False
        reason, key = str(record.get("reason") or ""), f"end:{record.get('time')}"
        if record.get("status") == "failed":
            # If another rank ended first, the error of rank 0 only follows from that.
            cause = reason if record.get("first_failed_rank") else state.error or reason
            if state.cause and state.cause not in cause:
                cause += f"\nCause: {state.cause}"
            return self._message(
                record, "error", key, "Training failed", reason=cause, state="failed", severity="critical"
            )
        reason = "" if reason == "exit" else reason  # the program simply ended, which needs no explanation
        return self._message(record, "complete", key, "Training complete", reason=reason, state="finished")

    def _handle_alert(self, record: dict[str, Any]) -> Message | None:
        alert, status = str(record.get("id", record.get("rule")))[:200], record.get("status", "opened")
        severity = str(record.get("severity", "warning"))
        before = self._raise_severity(alert, severity)
        worst = self.state.severities[alert]
        if severity_rank(worst) < self._min_rank:
            return None
        title = single_line(record.get("title") or record.get("rule") or "alert")
        cause = record.get("cause")
        if isinstance(cause, dict) and cause.get("text"):
            return self._message(
                record,
                "alert",
                f"alert:{alert}:cause",
                f"Cause: {title}",
                severity=worst,
                rule=_rule_name(record),
                reason=_format_cause(cause, self._run),
                link=self._link and f"{self._link}/health",
            )
        if record.get("absorbed_by"):
            return None  # the problem persists, and the alert that absorbed this one reports it
        if status == "resolved":
            reason = str(record.get("outcome") or record.get("message") or "")
            return self._message(
                record,
                "resolved",
                f"alert:{alert}:resolved",
                f"Resolved: {title}",
                reason=reason,
                rule=_rule_name(record),
            )
        has_risen = worst == "critical" and before is not None and before != "critical"
        if status != "opened" and not has_risen:
            return None
        advice = record.get("advice")
        return self._message(
            record,
            "alert",
            f"alert:{alert}:critical" if has_risen else f"alert:{alert}:opened",
            title,
            severity=worst,
            rule=_rule_name(record),
            reason=str(record.get("message") or ""),
            meaning=clean_text(record.get("meaning") or "", 500),
            advice=tuple(single_line(line, 300) for line in advice[:5]) if isinstance(advice, list) else (),
        )

    def _raise_severity(self, alert: str, severity: str) -> str | None:
        """Remember an alert's severity if it is the highest so far; return the highest before."""
        severities = self.state.severities
        before = severities.get(alert)
        severity = severity if severity in SEVERITIES else "warning"
        if before is None or severity_rank(severity) > severity_rank(before):
            severities[alert] = severity
        if len(severities) > _MAX_REMEMBERED:
            del severities[next(iter(severities))]
        return before

    def _message(
        self, record: dict[str, Any], event: str, key: str, title: str, *, reason: str, **more: Any
    ) -> Message:
        state = self.state
        time_s = finite_or_none(record.get("time")) or 0.0
        step = step_of(record) if event in {"alert", "milestone"} else None
        return Message(
            key=key,
            event=event,
            title=single_line(title),
            reason=clean_text(mask_text(reason), 2_000),
            time=time_s,
            run=self._run,
            run_id=state.run_id,
            project=state.project,
            step=state.step if step is None else step,
            max_steps=state.max_steps,
            metrics={name: state.metrics[name] for name in self._settings.metrics if name in state.metrics},
            duration_s=None if state.started_s is None else max(0.0, time_s - state.started_s),
            host=state.host,
            **{"link": self._link, **more},
        )


def _format_cause(cause: dict[str, Any], run: str) -> str:
    """Return a cause, its confidence, and where the evidence is."""
    confidence = single_line(cause.get("confidence") or "")
    text = f"{cause['text']} ({confidence})" if confidence else str(cause["text"])
    return f"{text}\nEvidence: tacho dump show {run} {single_line(cause['dump'])}" if cause.get("dump") else text


def _config_project(config: Any) -> str:
    names = _PROJECT_KEYS if isinstance(config, dict) else ()
    return next((config[name] for name in names if isinstance(config.get(name), str)), "")


def _rule_name(record: dict[str, Any]) -> str:
    return single_line(record.get("rule") or "")
