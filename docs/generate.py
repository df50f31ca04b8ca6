"""Generate the reference pages from the code: `make docs`.

Whole pages (settings, commands, rules, Python reference) are written from scratch. On the other pages only the text
between a pair of markers such as `<!-- kinds -->` and `<!-- /kinds -->` is replaced, so hand-written prose and
generated tables share a page. `tests/test_docs.py` fails if a page is out of date.
"""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rich_click as click

from tachograph._base.secret_formats import FORMATS
from tachograph._base.settings import settings_table
from tachograph.catalog import ACTIONS, AGGREGATES, FACTS, PARTS
from tachograph.cli._main import main
from tachograph.diagnostics import RULES, SIGNALS, Rule, threshold_table
from tachograph.records import KINDS
from tachograph.server import SCOPES
from tachograph.server._openapi import openapi
from tachograph.sinks.notify import EVENTS, PLACEHOLDERS, notify_table
from tachograph.train._config import GROUPS
from tachograph.train._dataset_config import CustomFormat, DatasetConfig
from tachograph.train._known_keys import IGNORED_KEYS, IGNORED_TRL_OPTIONS, PLUGIN_KEYS, UNSUPPORTED_KEYS
from tachograph.train._templates import TEMPLATES, describe_template
from tachograph.usage import UsageConfig
from tachograph.usage._describe import describe_events

DOCS = Path(__file__).parent


def settings_page() -> str:
    """Return the page on settings."""
    lines = [
        "# Settings",
        "",
        "Each setting is resolved in this order: argument of `init`, environment variable, `telemetry` section of a",
        "config file, default. `init` raises `ConfigError` for an unknown name or a value out of range.",
        "",
        "| setting | environment | type | default | meaning |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| `{row.name}` | `{row.env}` | {row.type} | `{row.default}` | {row.doc} |" for row in settings_table()]
    lines += [
        "",
        "`notify`, `rules` and `signals` are sections with settings of their own: see",
        "[notifications](notifications.md) and [diagnosis](diagnosis.md).",
    ]
    return "\n".join(lines) + "\n"


_COMPLETION = """
## Shell completion

Your shell can complete commands, options and the names of runs and views. Add one of these lines to its start-up file:

```console
$ eval "$(_TACHO_COMPLETE=bash_source tacho)"    # ~/.bashrc
$ eval "$(_TACHO_COMPLETE=zsh_source tacho)"     # ~/.zshrc
$ _TACHO_COMPLETE=fish_source tacho | source     # ~/.config/fish/config.fish
```
"""


def commands_page() -> str:
    """Return the page on commands."""
    lines = ["# Commands", "", "`tacho`, `tachograph` and `python -m tachograph` run the same command.", ""]
    lines += [inspect.cleandoc(_COMPLETION), ""]
    for name, command in _commands(main):
        parameters = [parameter for parameter in command.params if parameter.name]
        arguments = " ".join(str(parameter.human_readable_name) for parameter in parameters if _is_argument(parameter))
        lines += [
            f"## `tacho {name}{' ' + arguments if arguments else ''}`",
            "",
            inspect.cleandoc(command.help or ""),
            "",
        ]
        options = [item for item in parameters if isinstance(item, click.Option) and not item.hidden]
        if options:
            lines += ["| option | meaning |", "|---|---|"]
            for parameter in options:
                value = "" if parameter.is_flag else f" {parameter.make_metavar(click.Context(command))}"
                shown = parameter.show_default
                default = f" Default: `{shown if isinstance(shown, str) else parameter.default}`." if shown else ""
                value = value.replace("|", "\\|")  # an unescaped bar would end the table cell
                lines.append(f"| `{', '.join(parameter.opts)}{value}` | {parameter.help}{default} |")
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _commands(group: click.RichGroup, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.RichGroup):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def api_page(page: str) -> str:
    """Return the page on the API with the current routes."""
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
    """Return the page on the journal with the current record kinds."""
    rows = "".join(f"| `{kind}` | {meaning} |\n" for kind, meaning in KINDS.items())
    return re.sub(
        r"<!-- kinds -->\n.*?<!-- /kinds -->", f"<!-- kinds -->\n{rows}<!-- /kinds -->", page, flags=re.DOTALL
    )


def notifications_page(page: str) -> str:
    """Return the page on notifications with the current tables."""
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
    return _replace_tables(page, tables)


def rule_page(rule: type[Rule]) -> str:
    """Return the page of a rule, written from its docstring, meaning, advice and thresholds."""
    lines = [f"# `{rule.name}`", "", f"Severity: {rule.severity}. One of the [rules](../diagnosis.md#the-rules).", ""]
    lines += [inspect.cleandoc(rule.__doc__ or ""), "", "## What it usually means", "", rule.meaning, ""]
    lines += ["## What to do about it", "", *(f"- {line}" for line in rule.advice), "", "## Thresholds", ""]
    lines += ["| threshold | type | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{row.name}` | {row.type} | `{row.default}` | {row.doc} |" for row in threshold_table(rule)]
    lines += ["", f'`tacho.init(..., rules={{"{rule.name}": False}})` turns it off.']
    return "\n".join(lines) + "\n"


def diagnosis_page(page: str) -> str:
    """Return the page on diagnosis with the current rules and signals."""
    rules = ["| rule | severity | finds |", "|---|---|---|"]
    for name, rule in RULES.items():
        first = " ".join((rule.__doc__ or "").strip().partition("\n\n")[0].split())
        rules.append(f"| [`{name}`](rules/{name}.md) | {rule.severity} | {first} |")
    signals = ["| signal | names |", "|---|---|"]
    signals += [f"| {signal} | {', '.join(f'`{name}`' for name in names)} |" for signal, names in SIGNALS.items()]
    return _replace_tables(page, {"rules": rules, "signals": signals})


def masking_page(page: str) -> str:
    """Return the page on masking with the current formats of secrets."""
    rows = [f"| {one.name} | {', '.join(f'`{shape}`' for shape in one.shapes)} |" for one in FORMATS]
    return _replace_tables(page, {"formats": ["| secret | looks like |", "|---|---|", *rows]})


def keys_page(page: str) -> str:
    """Return the page on access keys with the current scopes."""
    rows = [f"| `{scope}` | {meaning} |" for scope, meaning in SCOPES.items()]
    return _replace_tables(page, {"scopes": ["| scope | a key with it may |", "|---|---|", *rows]})


def train_page(page: str) -> str:
    """Return the page on training with the current keys."""
    keys = []
    for group in GROUPS:
        keys += [f"**{inspect.cleandoc(group.__doc__ or '').rstrip('.')}**", "", *_key_rows(group), ""]
    return _replace_tables(
        page,
        {
            "train_keys": ["", *keys],
            "dataset_keys": _key_rows(DatasetConfig),
            "format_keys": _key_rows(CustomFormat),
            "templates": [
                "| name | format |",
                "|---|---|",
                *(f"| `{name}` | {describe_template(name)} |" for name in TEMPLATES),
            ],
            "unsupported_keys": [
                "| key | instead |",
                "|---|---|",
                *(f"| `{key}` | {reason} |" for key, reason in sorted({**UNSUPPORTED_KEYS, **PLUGIN_KEYS}.items())),
            ],
            "ignored_keys": [
                "| key | reason |",
                "|---|---|",
                *(f"| `{key}` | {reason} |" for key, reason in sorted(IGNORED_KEYS.items())),
                *(f"| `trl.{name}` | {reason} |" for name, reason in IGNORED_TRL_OPTIONS.items()),
            ],
        },
    )


def _key_rows(model: Any) -> list[str]:
    """Return the table of the keys of a pydantic model."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if field.is_required():
            shown = "required"
        elif default in (None, "", [], {}):
            shown = ""
        else:
            text = str(default).lower() if isinstance(default, bool) else str(default)
            shown = f"`{text}`".replace("\n", " ")
        rows.append(f"| `{name}` | {shown} | {field.description} |")
    return rows


def runs_page(page: str) -> str:
    """Return the page on runs with its tables of fields."""
    facts = [f"| `{name}` | {fact.meaning} |" for name, fact in FACTS.items()]
    aggregates = [f"| `{name}` | {meaning} |" for name, meaning in AGGREGATES.items()]
    parts = [f"| {name} | {meaning} |" for name, meaning in PARTS.items()]
    tables = {
        "facts": ["| field | meaning |", "|---|---|", *facts],
        "aggregates": ["| aggregate | meaning |", "|---|---|", *aggregates],
        "parts": ["| part | content |", "|---|---|", *parts],
        "actions": ["| action | does |", "|---|---|", *(f"| `{name}` | {does} |" for name, does in ACTIONS.items())],
    }
    return _replace_tables(page, tables)


def _replace_tables(page: str, tables: dict[str, list[str]]) -> str:
    """Return a page with the text between each pair of markers replaced."""
    for name, lines in tables.items():
        text = "\n".join([f"<!-- {name} -->", *lines, f"<!-- /{name} -->"])
        page = re.sub(rf"<!-- {name} -->\n.*?<!-- /{name} -->", lambda _, text=text: text, page, flags=re.DOTALL)
    return page


def pages() -> dict[Path, str]:
    """Return the path and the text of every generated page."""
    journal, api, notifications = DOCS / "journal.md", DOCS / "api.md", DOCS / "notifications.md"
    usage = DOCS / "usage.md"
    diagnosis = DOCS / "diagnosis.md"
    keys, masking, train = DOCS / "keys.md", DOCS / "masking.md", DOCS / "train.md"
    runs = DOCS / "runs.md"
    return {
        **{DOCS / "rules" / f"{name}.md": rule_page(rule) for name, rule in RULES.items()},
        diagnosis: diagnosis_page(diagnosis.read_text(encoding="utf-8")),
        keys: keys_page(keys.read_text(encoding="utf-8")),
        masking: masking_page(masking.read_text(encoding="utf-8")),
        train: train_page(train.read_text(encoding="utf-8")),
        DOCS / "settings.md": settings_page(),
        DOCS / "commands.md": commands_page(),
        DOCS / "reference.md": runpy.run_path(str(DOCS / "reference.py"))["reference_page"](),
        journal: journal_page(journal.read_text(encoding="utf-8")),
        api: api_page(api.read_text(encoding="utf-8")),
        notifications: notifications_page(notifications.read_text(encoding="utf-8")),
        runs: runs_page(runs.read_text(encoding="utf-8")),
        usage: _replace_tables(
            usage.read_text(encoding="utf-8"), {"schemas": describe_events(UsageConfig(app="greyjacket")).splitlines()}
        ),
    }


def _is_argument(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
