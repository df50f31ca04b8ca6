"""Writes the pages of the documentation that are made from the code: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path

import rich_click as click

from tachograph.cli import main
from tachograph.records import KINDS
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


def journal_page(page: str) -> str:
    """Return the page on the journal with its list of kinds renewed."""
    rows = "".join(f"| `{kind}` | {meaning} |\n" for kind, meaning in KINDS.items())
    return re.sub(
        r"<!-- kinds -->\n.*?<!-- /kinds -->", f"<!-- kinds -->\n{rows}<!-- /kinds -->", page, flags=re.DOTALL
    )


def pages() -> dict[Path, str]:
    """Return every generated page."""
    journal = DOCS / "journal.md"
    return {
        DOCS / "settings.md": settings_page(),
        DOCS / "commands.md": commands_page(),
        journal: journal_page(journal.read_text(encoding="utf-8")),
    }


def _is_argument(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
