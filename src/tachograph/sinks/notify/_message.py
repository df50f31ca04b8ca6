"""What is told: one message, and its parts as any channel may lay them out."""

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
    "advice_of",
    "cut",
    "fields_of",
    "fitted",
    "number_text",
    "one_line",
    "subject_of",
    "text_of",
    "tidy",
]

_URGENT = {"start", "complete", "error", "more"}
_FINAL = {"complete", "error"}


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a run. Its texts are masked, without control characters, and not too long."""

    key: str
    """The same however often it is read in the journal."""
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
    """Latest values; NaN and infinities as the texts that stand for them."""
    duration_s: float | None = None
    host: str = ""
    link: str = ""

    @property
    def is_urgent(self) -> bool:
        """Whether it is never held back."""
        return self.event in _URGENT or self.severity == "critical"

    @property
    def is_final(self) -> bool:
        """Whether it is a run's last word."""
        return self.event in _FINAL

    @property
    def id(self) -> str:
        """The same for every attempt to send it, and different for every other message."""
        return hashlib.sha256(f"{self.run_id}\n{self.run}\n{self.key}".encode()).hexdigest()[:20]

    def values(self) -> dict[str, Any]:
        """Return all that is known, by the names that templates use."""
        known: dict[str, Any] = msgspec.to_builtins(self)
        del known["key"]
        return {**known, "id": self.id, "text": text_of(self)}


def link_to(dashboard_url: str, run: str) -> str:
    """Return the address of a run's page, or nothing where the dashboard's address is not known."""
    return f"{dashboard_url}/#/run/{quote(run, safe='')}" if dashboard_url else ""


def subject_of(message: Message) -> str:
    """Return the message in one line."""
    name = f"{message.project}/{message.run}" if message.project else message.run
    return f"[{name}] {message.title}"


def fields_of(message: Message) -> list[tuple[str, str]]:
    """Return the facts as names and values, in the order people look for them."""
    step = "" if message.step is None else number_text(message.step)
    if step and message.max_steps:
        step = f"{step} of {number_text(message.max_steps)}"
    fields = [("Run", message.run), ("Project", message.project), ("State", message.state), ("Step", step)]
    fields += [(name, number_text(value)) for name, value in message.metrics.items()]
    if message.severity != "info":
        fields.append(("Severity", message.severity))
    if message.duration_s is not None:
        fields.append(("Duration", format_duration(message.duration_s)))
    fields.append(("Host", message.host))
    # A message that comes late, because a channel was down, must say so.
    fields.append(("When", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(message.time))))
    return [(name, value) for name, value in fields if value]


def advice_of(message: Message) -> str:
    """Return what an alert means and what to do, or nothing."""
    lines = [message.meaning] if message.meaning else []
    if message.advice:
        lines += ["What people do about it:", *(f"- {line}" for line in message.advice)]
    return "\n".join(lines)


def text_of(message: Message) -> str:
    """Return the whole message as a plain text."""
    facts = "\n".join(f"{name}: {value}" for name, value in fields_of(message))
    parts = [message.title, message.reason, facts, advice_of(message), message.link]
    return "\n\n".join(part for part in parts if part)


def tidy(text: Any, most_chars: int) -> str:
    """Return a text without control characters, except the ends of its lines, and cut to a length."""
    lines = "".join(mark if mark.isprintable() or mark == "\n" else " " for mark in str(text)[: 2 * most_chars])
    return cut(lines.strip(), most_chars)


def one_line(text: Any, most_chars: int = 200) -> str:
    """Return a text in one line."""
    return cut(" ".join(tidy(text, most_chars).split()), most_chars)


def cut(text: str, most_chars: int) -> str:
    """Return a text, and an ellipsis where there was more."""
    return text if len(text) <= most_chars else text[: most_chars - 1] + "…"


def fitted(text: str, escape: Callable[[str], str], most_chars: int) -> str:
    """Escape a text character by character, and stop before it is too long: half an escape is none."""
    pieces: list[str] = []
    left = most_chars - 1
    for mark in text:
        piece = escape(mark)
        left -= len(piece)
        if left < 0:
            return "".join([*pieces, "…"])
        pieces.append(piece)
    return "".join(pieces)


def number_text(value: float | str) -> str:
    """Return a number as people read it."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) else f"{value:.4g}"
