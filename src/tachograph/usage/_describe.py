"""The schemas in words: the page that tells users what may be sent, made from what decides it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.usage._config import UsageConfig

__all__ = ["describe", "event_lines"]


def describe(config: UsageConfig) -> str:
    """Return, as Markdown, every event of an app with every field: for a framework's own documentation."""
    return "\n".join(event_lines(config.facts()["events"]))


def event_lines(events: Mapping[str, Any]) -> list[str]:
    """Return a table of fields for each event."""
    lines: list[str] = []
    for name, event in events.items():
        lines += [f"### `{name}`", "", event["doc"], "", "| field | what is sent | meaning |", "|---|---|---|"]
        lines += [f"| `{field}` | {about['kind']} | {about['doc']} |" for field, about in event["fields"].items()]
        lines.append("")
    return lines[:-1]
