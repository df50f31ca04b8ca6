"""Writes the pages of the documentation that are made from the code: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import rich_click as click

from tachograph.cli import main
from tachograph.records import KINDS
from tachograph.server._openapi import openapi
from tachograph.settings import settings_table

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
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Return the reference of the command."""
    lines = ["# Commands", "", "`tacho` and `tachograph` are the same command; so is `python -m tachograph`.", ""]
    for name, command in main.commands.items():
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


def pages() -> dict[Path, str]:
    """Return every generated page."""
    journal, api = DOCS / "journal.md", DOCS / "api.md"
    return {
        DOCS / "settings.md": settings_page(),
        DOCS / "commands.md": commands_page(),
        journal: journal_page(journal.read_text(encoding="utf-8")),
        api: api_page(api.read_text(encoding="utf-8")),
    }


def _is_argument(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
