"""Records in, messages out: what a journal says that somebody wants to be told. No files, no threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tachograph.records import (
    METRIC_KINDS,
    SEVERITIES,
    finite_or_none,
    is_number,
    mark_non_finite,
    mask_text,
    severity_rank,
    step_of,
)
from tachograph.sinks.notify._message import Message, link_to, number_text, one_line, tidy
from tachograph.sinks.notify._milestone import Milestone
from tachograph.sinks.notify._settings import NotifySettings

__all__ = ["Story", "StoryState"]

_MOST_REMEMBERED = 2_000
_PROJECT_NAMES = ("project", "project_name", "wandb_project", "swanlab_project")
_MEASURED = frozenset({*METRIC_KINDS, "event", "checkpoint"})


class StoryState(msgspec.Struct, kw_only=True):
    """What must be known of the journal so far to understand how it goes on."""

    run_id: str = ""
    project: str = ""
    host: str = ""
    started_s: float | None = None
    max_steps: int | None = None
    step: int | None = None
    metrics: dict[str, float | str] = {}
    error: str = ""
    """The exception that is ending the run."""
    is_open: bool = False
    """Whether an attempt began and has not ended."""
    seen: dict[str, float] = {}
    """Messages there were, by their keys; the oldest are forgotten."""
    severities: dict[str, str] = {}
    """The worst each alert came to; the oldest are forgotten."""
    reached: list[str] = []
    """Milestones that were reached."""


class Story:
    """Follows the records of one run in order and tells what is worth telling."""

    def __init__(self, run: str, settings: NotifySettings, state: StoryState) -> None:
        self.run = run
        self.state = state
        self._settings = settings
        self._link = link_to(settings.dashboard_url, run)
        self._milestones = [Milestone(text) for text in settings.milestones]
        self._least = severity_rank(settings.min_severity)
        self._kinds: dict[str, Callable[[dict[str, Any]], Message | None]] = {
            "start": self._start,
            "alert": self._alert,
            "error": self._error,
            "end": self._end,
        }

    def take(self, record: dict[str, Any]) -> list[Message]:
        """Take a record and return the messages it gives rise to: each message once, however often it is read."""
        kind = record["event"]
        if kind in _MEASURED:
            return self._measured(record)
        handle = self._kinds.get(kind)
        message = handle(record) if handle is not None else None
        if message is None or message.key in self.state.seen:
            return []
        self.state.seen[message.key] = message.time
        if len(self.state.seen) > _MOST_REMEMBERED:
            del self.state.seen[next(iter(self.state.seen))]
        return [message] if message.event in self._settings.on else []

    def _measured(self, record: dict[str, Any]) -> list[Message]:
        state = self.state
        if record["event"] == "step" and (step := step_of(record)) is not None:
            state.step = step
        for name in self._settings.metrics:
            value = record.get(name)
            if is_number(value):
                state.metrics[name] = mark_non_finite(value)
        if not self._milestones:
            return []
        told = (self._milestone(milestone, record) for milestone in self._milestones)
        return [message for message in told if message is not None]

    def _milestone(self, milestone: Milestone, record: dict[str, Any]) -> Message | None:
        value = None if milestone.text in self.state.reached else milestone.value_if_met(record)
        if value is None:
            return None
        self.state.reached.append(milestone.text)
        if "milestone" not in self._settings.on:
            return None
        step = step_of(record)
        at = "" if step is None or milestone.metric == "step" else f" at step {step}"
        reason = f"{milestone.metric} is {number_text(value)}{at}."
        return self._message(
            record, "milestone", f"milestone:{milestone.text}", f"Reached {milestone.text}", reason=reason
        )

    def _start(self, record: dict[str, Any]) -> Message:
        state = self.state
        was_open, state.is_open = state.is_open, True
        state.run_id = str(record.get("run_id", ""))
        state.host = one_line(record.get("host") or "")
        state.project = one_line(self._settings.project or _project(record.get("config")))
        state.started_s = finite_or_none(record.get("time"))
        max_steps = finite_or_none(record.get("max_steps"))
        state.max_steps = int(max_steps) if max_steps else None
        state.error = ""
        reason = "The attempt before it ended without a word: it was killed, or the machine was." if was_open else ""
        title = "Training resumed" if record.get("resumed") else "Training started"
        return self._message(record, "start", f"start:{record.get('time')}", title, reason=reason)

    def _error(self, record: dict[str, Any]) -> None:
        if record.get("fatal"):
            self.state.error = _joined(": ", record.get("error_type"), record.get("error_message"))

    def _end(self, record: dict[str, Any]) -> Message:
        state = self.state
        state.is_open = False
        reason, key = str(record.get("reason") or ""), f"end:{record.get('time')}"
        if record.get("status") == "failed":
            why = state.error or reason
            return self._message(
                record, "error", key, "Training failed", reason=why, state="failed", severity="critical"
            )
        reason = "" if reason == "exit" else reason  # it ended with the program, as it should
        return self._message(record, "complete", key, "Training complete", reason=reason, state="finished")

    def _alert(self, record: dict[str, Any]) -> Message | None:
        alert, status = str(record.get("id", record.get("rule")))[:200], record.get("status", "opened")
        severity = str(record.get("severity", "warning"))
        before = self._worst(alert, severity)
        worst = self.state.severities[alert]
        if severity_rank(worst) < self._least:
            return None
        title = one_line(record.get("title") or record.get("rule") or "alert")
        if record.get("absorbed_by"):
            return None  # it is not over: another alert tells of it
        if status == "resolved":
            reason = str(record.get("outcome") or record.get("message") or "")
            return self._message(
                record, "resolved", f"alert:{alert}:resolved", f"Resolved: {title}", reason=reason, rule=_rule(record)
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
            rule=_rule(record),
            reason=str(record.get("message") or ""),
            meaning=tidy(record.get("meaning") or "", 500),
            advice=tuple(one_line(line, 300) for line in advice[:5]) if isinstance(advice, list) else (),
        )

    def _worst(self, alert: str, severity: str) -> str | None:
        """Note an alert's severity if it is the worst so far; return the worst before."""
        severities = self.state.severities
        before = severities.get(alert)
        severity = severity if severity in SEVERITIES else "warning"
        if before is None or severity_rank(severity) > severity_rank(before):
            severities[alert] = severity
        if len(severities) > _MOST_REMEMBERED:
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
            title=one_line(title),
            reason=tidy(mask_text(reason), 2_000),
            time=time_s,
            run=self.run,
            run_id=state.run_id,
            project=state.project,
            step=state.step if step is None else step,
            max_steps=state.max_steps,
            metrics={name: state.metrics[name] for name in self._settings.metrics if name in state.metrics},
            duration_s=None if state.started_s is None else max(0.0, time_s - state.started_s),
            host=state.host,
            link=self._link,
            **more,
        )


def _project(config: Any) -> str:
    names = _PROJECT_NAMES if isinstance(config, dict) else ()
    return next((config[name] for name in names if isinstance(config.get(name), str)), "")


def _rule(record: dict[str, Any]) -> str:
    return one_line(record.get("rule") or "")


def _joined(glue: str, *parts: Any) -> str:
    return glue.join(str(part) for part in parts if part)
