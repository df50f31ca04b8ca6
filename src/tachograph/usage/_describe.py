"""The schemas in words: the page that tells users what may be sent, made from what decides it."""

from __future__ import annotations

from typing import Any

from tachograph.usage._config import UsageConfig
from tachograph.usage._fields import kinds

__all__ = ["describe"]


def describe(config: UsageConfig) -> str:
    """Return, as Markdown, every event of an app with every field: for a framework's own documentation."""
    lines = ["| kind of field | what is sent |", "|---|---|"]
    lines += [f"| {kind} | {doc} |" for kind, doc in kinds().items()]
    told: dict[str, Any] = {}
    for name, event in config.facts()["events"].items():
        lines += ["", f"### `{name}`", "", event["doc"], ""]
        same = next((other for other, fields in told.items() if fields == event["fields"]), None)
        if same is not None:
            lines.append(f"Its fields are those of `{same}`.")
            continue
        told[name] = event["fields"]
        lines += ["| field | kind | meaning |", "|---|---|---|"]
        lines += [f"| `{field}` | {about['kind']} | {about['doc']} |" for field, about in event["fields"].items()]
    return "\n".join(lines)
