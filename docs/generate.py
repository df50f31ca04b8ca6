"""Writes the pages of the documentation that are made from the code: `make docs`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rich_click as click

from tachograph.cli import main
from tachograph.diagnostics import RULES, SIGNALS, Rule, threshold_table
from tachograph.records import KINDS
from tachograph.server._openapi import openapi
from tachograph.settings import settings_table
from tachograph.sinks.notify import EVENTS, PLACEHOLDERS, notify_table
from tachograph.usage import UsageConfig
from tachograph.usage._describe import describe_events

DOCS = Path(__file__).parent


def settings_page() -> str:
    """Return the table of settings."""
    lines = [
        "# Settings",
        "",
        "A value is taken from the argument of `init`, else the environment variable, else the `telemetry` section of",
        "a config file, else the default. An unknown name or a value out of range is an error at once.",
        "",
        "| setting | environment | type | default | meaning |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| `{row.name}` | `{row.env}` | {row.type} | `{row.default}` | {row.doc} |" for row in settings_table()]
    lines += [
        "",
        "`notify`, who is told of what, is a section with settings of its own: see [notifications](notifications.md).",
        "So is `rules`, which faults are looked for: see [diagnosis](diagnosis.md).",
    ]
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Return the reference of the command."""
    lines = ["# Commands", "", "`tacho` and `tachograph` are the same command; so is `python -m tachograph`.", ""]
    for name, command in _commands(main):
        parameters = [parameter for parameter in command.params if parameter.name]
        arguments = " ".join(str(parameter.human_readable_name) for parameter in parameters if _is_argument(parameter))
        lines += [f"## `tacho {name}{' ' + arguments if arguments else ''}`", "", command.help or "", ""]
        lines += ["| option | meaning |", "|---|---|"]
        for parameter in parameters:
            if isinstance(parameter, click.Option):
                value = "" if parameter.is_flag else f" {parameter.make_metavar(click.Context(command))}"
                default = f" Default: `{parameter.default}`." if parameter.show_default else ""
                value = value.replace("|", "\\|")  # or it would end the table's cell
                lines.append(f"| `{', '.join(parameter.opts)}{value}` | {parameter.help}{default} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _commands(group: click.RichGroup, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.RichGroup):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def api_page(page: str) -> str:
    """Return the page on the API with its list of routes renewed."""
    document = openapi()
    lines = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines += [f"### `{method.upper()} {path}`", "", operation["summary"], ""]
            options = [item for item in operation.get("parameters", []) if item["in"] == "query"]
            if options:
                lines += ["| parameter | meaning |", "|---|---|"]
                lines += [f"| `{item['name']}` | {item.get('description', '')}{_default(item)} |" for item in options]
                lines.append("")
    text = "\n".join(lines).rstrip()
    return re.sub(
        r"<!-- routes -->\n.*?<!-- /routes -->",
        lambda _: f"<!-- routes -->\n{text}\n<!-- /routes -->",
        page,
        flags=re.DOTALL,
    )


def _default(parameter: dict[str, Any]) -> str:
    default = parameter["schema"].get("default")
    return "" if default in (None, []) else f" Default: `{default}`."


def journal_page(page: str) -> str:
    """Return the page on the journal with its list of kinds renewed."""
    rows = "".join(f"| `{kind}` | {meaning} |\n" for kind, meaning in KINDS.items())
    return re.sub(
        r"<!-- kinds -->\n.*?<!-- /kinds -->", f"<!-- kinds -->\n{rows}<!-- /kinds -->", page, flags=re.DOTALL
    )


def notifications_page(page: str) -> str:
    """Return the page on notifications with its tables renewed."""
    tables = {
        "events": ["| event | when |", "|---|---|", *(f"| `{name}` | {doc} |" for name, doc in EVENTS.items())],
        "placeholders": [
            "| name | meaning |",
            "|---|---|",
            *(f"| `{name}` | {doc} |" for name, doc in PLACEHOLDERS.items()),
        ],
        "settings": ["| setting | environment | type | default | meaning |", "|---|---|---|---|---|"],
    }
    for row in notify_table():
        default = f"`{row.default}`" if row.default else ""
        tables["settings"].append(f"| `{row.name}` | `{row.env}` | {row.type} | {default} | {row.doc} |")
    return _with_tables(page, tables)


def rule_page(rule: type[Rule]) -> str:
    """Return the page of a rule, from its own words."""
    lines = [f"# `{rule.name}`", "", f"Severity: {rule.severity}. One of the [rules](../diagnosis.md#the-rules).", ""]
    lines += [inspect.cleandoc(rule.__doc__ or ""), "", "## What it usually means", "", rule.meaning, ""]
    lines += ["## What people do about it", "", *(f"- {line}" for line in rule.advice), "", "## Thresholds", ""]
    lines += ["| threshold | type | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{row.name}` | {row.type} | `{row.default}` | {row.doc} |" for row in threshold_table(rule)]
    lines += ["", f'`tacho.init(..., rules={{"{rule.name}": False}})` turns it off.']
    return "\n".join(lines) + "\n"


def diagnosis_page(page: str) -> str:
    """Return the page on diagnosis with its lists of rules and signals renewed."""
    rules = ["| rule | severity | finds |", "|---|---|---|"]
    for name, rule in RULES.items():
        first = " ".join((rule.__doc__ or "").strip().partition("\n\n")[0].split())
        rules.append(f"| [`{name}`](rules/{name}.md) | {rule.severity} | {first} |")
    signals = ["| signal | names |", "|---|---|"]
    signals += [f"| {signal} | {', '.join(f'`{name}`' for name in names)} |" for signal, names in SIGNALS.items()]
    return _with_tables(page, {"rules": rules, "signals": signals})


def _with_tables(page: str, tables: dict[str, list[str]]) -> str:
    """Return a page with what stands between its marks renewed."""
    for name, lines in tables.items():
        text = "\n".join([f"<!-- {name} -->", *lines, f"<!-- /{name} -->"])
        page = re.sub(rf"<!-- {name} -->\n.*?<!-- /{name} -->", lambda _, text=text: text, page, flags=re.DOTALL)
    return page


def pages() -> dict[Path, str]:
    """Return every generated page."""
    journal, api, notifications = DOCS / "journal.md", DOCS / "api.md", DOCS / "notifications.md"
    usage = DOCS / "usage.md"
    diagnosis = DOCS / "diagnosis.md"
    return {
        **{DOCS / "rules" / f"{name}.md": rule_page(rule) for name, rule in RULES.items()},
        diagnosis: diagnosis_page(diagnosis.read_text(encoding="utf-8")),
        DOCS / "settings.md": settings_page(),
        DOCS / "commands.md": commands_page(),
        journal: journal_page(journal.read_text(encoding="utf-8")),
        api: api_page(api.read_text(encoding="utf-8")),
        notifications: notifications_page(notifications.read_text(encoding="utf-8")),
        usage: _with_tables(
            usage.read_text(encoding="utf-8"), {"schemas": describe_events(UsageConfig(app="greyjacket")).splitlines()}
        ),
    }


def _is_argument(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
