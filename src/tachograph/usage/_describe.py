"""The schemas in words: the page that tells users what may be sent, made from what decides it."""

from __future__ import annotations

from typing import Any

from tachograph.usage._config import UsageConfig
from tachograph.usage._consent import policy_text
from tachograph.usage._fields import kinds

__all__ = ["describe", "describe_events"]


def describe(config: UsageConfig) -> str:
    """Return, as Markdown, what an app may send and who decides it: for a framework's own documentation."""
    app, off = config.app, f"{config.env_prefix}_DO_NOT_TRACK=1"
    policy = policy_text(app, config.consent)
    owners = ", ".join(config.organizations)
    named = f"are named if they are of: {owners}" if owners else "are not named"
    return (
        f"{policy[0].upper()}{policy[1:]}. `tacho usage off {app}` or `{off}` turns it off; "
        f"`tacho usage preview {app}` shows what would be sent, `tacho usage log {app}` what was.\n\n"
        "With each event go its time, a random id of its own, the id of the run, the name and version of "
        f"{app}, and the version of Tachograph. Models and datasets on the Hub {named}.\n\n"
        f"{describe_events(config)}"
    )


def describe_events(config: UsageConfig) -> str:
    """Return, as Markdown, every event of an app with every field."""
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
