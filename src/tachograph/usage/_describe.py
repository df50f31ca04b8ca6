"""The schemas as Markdown, for the documentation of Tachograph and of frameworks."""

from __future__ import annotations

from typing import Any

from tachograph.usage._config import UsageConfig
from tachograph.usage._consent import policy_text
from tachograph.usage._fields import USUAL_NUMBERS, describe_kinds

__all__ = ["describe", "describe_events"]


def describe(config: UsageConfig) -> str:
    """Return the events of an app and the choices of its users, as Markdown for the documentation of a framework."""
    app, off = config.app, f"{config.env_prefix}_DO_NOT_TRACK=1"
    policy = policy_text(app, config.consent)
    owners = ", ".join(config.organizations)
    naming_rule = f"are named if their owner is one of: {owners}" if owners else "are not named"
    return (
        f"{policy[0].upper()}{policy[1:]}. Run `tacho usage off {app}` or set `{off}` to turn it off. "
        f"`tacho usage preview {app}` shows the events that would be sent, `tacho usage log {app}` the recorded "
        "ones.\n\nEvery event also contains its time, a random id, the id of the run, the name and version of "
        f"{app}, and the version of Tachograph. Models and datasets on the Hub {naming_rule}.\n\n"
        f"{describe_events(config)}"
    )


def describe_events(config: UsageConfig) -> str:
    """Return every event of an app with every field, as Markdown."""
    lines = ["| kind of field | sent value |", "|---|---|"]
    lines += [f"| {kind} | {doc} |" for kind, doc in describe_kinds().items()]
    lines += ["", USUAL_NUMBERS]
    fields_by_event: dict[str, Any] = {}
    for name, event in config.facts()["events"].items():
        lines += ["", f"### `{name}`", "", event["doc"], ""]
        # The two config events have the same long table.
        same = next((other for other, fields in fields_by_event.items() if fields == event["fields"]), None)
        if same is not None:
            lines.append(f"Same fields as `{same}`.")
            continue
        fields_by_event[name] = event["fields"]
        lines += ["| field | kind | meaning |", "|---|---|---|"]
        lines += [f"| `{field}` | {info['kind']} | {info['doc']} |" for field, info in event["fields"].items()]
    return "\n".join(lines)
