"""One message, and its parts as text for the channels to lay out."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from tachograph._base.text import format_duration

__all__ = [
    "Message",
    "clean_text",
    "count_messages",
    "escape_within",
    "format_advice",
    "format_number",
    "format_subject",
    "format_text",
    "message_fields",
    "run_url",
    "single_line",
    "truncate",
]

_URGENT_EVENTS = {"start", "complete", "error", "more"}
_FINAL_EVENTS = {"complete", "error"}


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a run. Its strings are masked, bounded in length and free of control characters."""

    key: str
    """Identifies the message within the run; the same however often its record is read."""
    event: str
    title: str
    time: float
    run: str
    run_id: str = ""
    project: str = ""
    state: str = "running"
    severity: str = "info"
    rule: str = ""
    reason: str = ""
    meaning: str = ""
    advice: tuple[str, ...] = ()
    step: int | None = None
    max_steps: int | None = None
    metrics: dict[str, float | str] = {}
    """Latest values; NaN and infinities as strings."""
    duration_s: float | None = None
    host: str = ""
    link: str = ""

    @property
    def is_urgent(self) -> bool:
        """Whether the rate limit does not apply to it."""
        return self.event in _URGENT_EVENTS or self.severity == "critical"

    @property
    def is_final(self) -> bool:
        """Whether it reports the end of a run."""
        return self.event in _FINAL_EVENTS

    @property
    def id(self) -> str:
        """Identifies the message for its receiver; the same for every attempt to send it."""
        return hashlib.sha256(f"{self.run_id}\n{self.run}\n{self.key}".encode()).hexdigest()[:20]

    def values(self) -> dict[str, Any]:
        """Return all values by the names that templates use."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        del values["key"]
        return {**values, "id": self.id, "text": format_text(self)}


def run_url(dashboard_url: str, run: str) -> str:
    """Return the address of a run's page, or an empty string if the dashboard's address is not configured."""
    return f"{dashboard_url}/#/run/{quote(run, safe='')}" if dashboard_url else ""


def format_subject(message: Message) -> str:
    """Return the message as one line."""
    name = f"{message.project}/{message.run}" if message.project else message.run
    return f"[{name}] {message.title}"


def message_fields(message: Message) -> list[tuple[str, str]]:
    """Return the facts of a message as names and values, the most important first."""
    step = "" if message.step is None else format_number(message.step)
    if step and message.max_steps:
        step = f"{step} of {format_number(message.max_steps)}"
    fields = [("Run", message.run), ("Project", message.project), ("State", message.state), ("Step", step)]
    fields += [(name, format_number(value)) for name, value in message.metrics.items()]
    if message.severity != "info":
        fields.append(("Severity", message.severity))
    if message.duration_s is not None:
        fields.append(("Duration", format_duration(message.duration_s)))
    fields.append(("Host", message.host))
    # A message may arrive late because its channel was down.
    fields.append(("When", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(message.time))))
    return [(name, value) for name, value in fields if value]


def format_advice(message: Message) -> str:
    """Return the meaning of an alert and the suggested actions, or an empty string."""
    lines = [message.meaning] if message.meaning else []
    if message.advice:
        lines += ["Suggested actions:", *(f"- {line}" for line in message.advice)]
    return "\n".join(lines)


def format_text(message: Message) -> str:
    """Return the whole message as plain text."""
    facts = "\n".join(f"{name}: {value}" for name, value in message_fields(message))
    parts = [message.title, message.reason, facts, format_advice(message), message.link]
    return "\n\n".join(part for part in parts if part)


def clean_text(text: Any, max_chars: int) -> str:
    """Return a string without control characters other than newlines, truncated to a length."""
    printable = "".join(char if char.isprintable() or char == "\n" else " " for char in str(text)[: 2 * max_chars])
    return truncate(printable.strip(), max_chars)


def single_line(text: Any, max_chars: int = 200) -> str:
    """Return a string as one line."""
    return truncate(" ".join(clean_text(text, max_chars).split()), max_chars)


def truncate(text: str, max_chars: int) -> str:
    """Return a string, shortened with an ellipsis if it is too long."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def escape_within(text: str, escape: Callable[[str], str], max_chars: int) -> str:
    """Escape a string character by character up to a length, so that no escape sequence is cut in half."""
    pieces: list[str] = []
    num_free_chars = max_chars - 1
    for char in text:
        piece = escape(char)
        num_free_chars -= len(piece)
        if num_free_chars < 0:
            return "".join([*pieces, "…"])
        pieces.append(piece)
    return "".join(pieces)


def format_number(value: float | str) -> str:
    """Return a number with four significant digits, and a string unchanged."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def count_messages(count: int) -> str:
    """Return "1 message", "2 messages" and so on."""
    return f"{count} message{'' if count == 1 else 's'}"
