"""`tacho plugins`: list training plugins, show one, and check the plugins of a config."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.text import Text

from tachograph.cli._format import add_row, json_text, new_console, new_table, safe
from tachograph.cli._options import json_option
from tachograph.cli._terminal import echo
from tachograph.exceptions import PluginError

if TYPE_CHECKING:
    from tachograph.plugins import BasePlugin

__all__ = ["plugins"]


@click.group()
def plugins() -> None:
    """List training plugins, show one, and check the plugins of a config."""


@plugins.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the plugins that a config can load by name in `plugins:`; others need their dotted path."""
    loading = _import_loading()
    built_in = loading.PLUGINS.built_in
    rows = [
        {"name": name, "summary": loading.summary_of(name) if name in built_in else "", "built_in": name in built_in}
        for name in loading.PLUGINS.names()
    ]
    if as_json:
        echo(json_text(rows))
        return
    table = new_table("plugin", "", wraps={""})
    for row in rows:
        add_row(table, str(row["name"]), str(row["summary"]) or Text("installed by another package", style="dim"))
    new_console().print(table)


@plugins.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the purpose, options, replaced parts and measured cost of a plugin.

    NAME is a name from `tacho plugins list`, or a dotted path.
    """
    loading = _import_loading()
    plugin = loading.find_class(name)
    facts = _describe(plugin, loading.missing_packages(plugin))
    if as_json:
        echo(json_text(facts))
        return
    console = new_console()
    console.print(Text(facts["name"], style="bold"), Text(safe(facts["summary"], 2_000)))
    if facts["slots"]:
        console.print(Text(f"Replaces: {', '.join(facts['slots'])}. Only one plugin can."))
    for package, installed_version in facts["packages"].items():
        state = installed_version or f"not installed: pip install 'tachograph[{plugin.extra}]'"
        console.print(Text(f"Needs {package}: {state}", style="" if installed_version else "bold red"))
    for line in facts["measured"]:
        console.print(Text(f"Measured: {line}"))
    if facts["options"]:
        table = new_table("option", "type", "default", "", wraps={"", "type"})
        for option in facts["options"]:
            add_row(table, option["name"], option["type"], option["default"], safe(option["description"], 500))
        console.print()
        console.print(table)


@plugins.command()
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key of the config, as in train.")
@json_option
def check(config: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print the changes that the plugins of a training config would make, without training.

    Exits with status 1 if a plugin cannot be loaded, conflicts with another one, or does not fit the config or model.
    """
    try:
        from tachograph.train import load
    except ModuleNotFoundError as error:
        raise PluginError(f"plugins need {error.name}: pip install 'tachograph[train]'") from error
    with load(config, overrides) as job:
        plans, model = job.plan_plugins()
    rows = [
        {
            "name": plugin.plugin_name(),
            "slots": sorted(job.session.slots_of(plugin)),
            "changes": plans[plugin.plugin_name()],
            "measured": list(plugin.measured),
        }
        for plugin in job.session.plugins
    ]
    rows += [{"name": name, "slots": [], "changes": plans[name], "measured": []} for name in job.session.off]
    if as_json:
        echo(json_text({"model": model or None, "plugins": rows, "warnings": job.warnings}))
        return
    _print_check(rows, model, job.warnings)


def _print_check(rows: list[dict[str, Any]], model: str, warnings: list[str]) -> None:
    console = new_console()
    if not rows:
        echo("The config has no plugins.")
    if not model:
        echo("The model is not on this machine: only the config was checked.")
    for row in rows:
        console.print(
            Text.assemble((row["name"], "bold"), f"  replaces: {', '.join(row['slots'])}" if row["slots"] else "")
        )
        for line in row["changes"]:
            console.print(Text(f"  {safe(line, 1_000)}"))
        for line in row["measured"]:
            console.print(Text(f"  measured: {safe(line, 1_000)}", style="dim"))
    for warning in warnings:
        console.print(Text(f"note: {safe(warning, 1_000)}", style="yellow"))
    if rows:
        echo("No conflicts. Nothing was trained.")


def _import_loading() -> Any:
    try:
        from tachograph.plugins import _loading
    except ModuleNotFoundError as error:
        raise PluginError(f"plugins need {error.name}: pip install 'tachograph[plugins]'") from error
    return _loading


def _describe(plugin: type[BasePlugin], missing: list[str]) -> dict[str, Any]:
    return {
        "name": plugin.plugin_name(),
        "class": f"{plugin.__module__}.{plugin.__qualname__}",
        "summary": " ".join((plugin.__doc__ or "").split()),
        "slots": list(plugin.slots),
        "packages": {name: "" if name in missing else _version(name) for name in plugin.requires},
        "measured": list(plugin.measured),
        "options": _options(plugin),
    }


def _version(package: str) -> str:
    try:
        return version(package.replace("_", "-"))
    except PackageNotFoundError:
        return "installed"


def _options(plugin: type[BasePlugin]) -> list[dict[str, str]]:
    from tachograph.plugins import options_of

    model = options_of(plugin())
    return _fields(model) if model is not None else []


def _fields(model: Any, prefix: str = "") -> list[dict[str, str]]:
    """Return the fields of a pydantic model; fields of a section are named `section.field`."""
    rows = []
    for name, field in model.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            rows += _fields(field.annotation, f"{prefix}{name}.")
            continue
        default = "required" if field.is_required() else str(field.get_default(call_default_factory=True))
        row = {"name": prefix + name, "type": _type_name(field.annotation), "default": default}
        rows.append({**row, "description": field.description or ""})
    return rows


def _type_name(annotation: Any) -> str:
    return (
        getattr(annotation, "__name__", "") if isinstance(annotation, type) else str(annotation).replace("typing.", "")
    )
