"""`tacho plugins`: list training plugins, show one, check the plugins of a config, and write a new one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.text import Text

from tachograph.cli._format import add_row, json_text, new_console, new_table, safe
from tachograph.cli._options import json_option
from tachograph.cli._terminal import echo
from tachograph.exceptions import PluginError
from tachograph.plugins import (
    BASE_PACKAGES,
    PLUGINS,
    PluginFacts,
    built_in_facts,
    built_in_name,
    facts_of_class,
    find_class,
    is_installed,
    write_package,
)

if TYPE_CHECKING:
    from tachograph.train import CheckedPlugin

__all__ = ["plugins"]


@click.group()
def plugins() -> None:
    """List training plugins, show one, check the plugins of a config, and write a new one."""


@plugins.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the plugins that a config can load by name in `plugins:`, and what they need.

    Others need their dotted path. Works without torch.
    """
    rows = [_describe(facts) for facts in map(built_in_facts, PLUGINS.built_in)]
    others = [{"name": name, "package": package} for name, package in PLUGINS.packages().items()]
    if as_json:
        echo(json_text([{**row, "built_in": True} for row in rows] + [{**row, "built_in": False} for row in others]))
        return
    table = new_table("plugin", "does", "needs", wraps={"does", "needs"})
    for row in rows:
        add_row(
            table,
            row["name"],
            row["summary"],
            Text("; ".join(row["needs"]) or "–", style="" if row["needs"] else "dim"),
        )
    for row in others:
        add_row(table, safe(row["name"]), Text(f"installed by the package {safe(row['package'])}", style="dim"), "")
    new_console().print(table)
    _print_base_packages()


@plugins.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the purpose, options, replaced parts, requirements and measured cost of a plugin.

    NAME is a name from `tacho plugins list`, or a dotted path. Works without torch for the plugins of Tachograph.
    """
    own_name = built_in_name(name)
    with _naming_missing_package():
        facts = built_in_facts(own_name) if own_name is not None else facts_of_class(find_class(name))
    if as_json:
        echo(json_text({**_describe(facts), "options": [option._asdict() for option in facts.options]}))
        return
    console = new_console()
    console.print(Text(safe(facts.name), style="bold"), Text(safe(facts.summary, 2_000)))
    if facts.slots:
        console.print(Text(f"Replaces: {', '.join(facts.slots)}. Only one plugin can."))
    for package in (*BASE_PACKAGES, *facts.requires):
        state = _version(package) or f"not installed: pip install '{facts.install}'"
        console.print(Text(f"Needs {package}: {state}", style="bold red" if package in facts.missing else ""))
    for need in facts.needs:
        console.print(Text(f"Needs {safe(need, 500)}"))
    for line in facts.measured:
        console.print(Text(f"Measured: {safe(line, 1_000)}"))
    if facts.options:
        table = new_table("option", "type", "default", "", wraps={"", "type"})
        for option in facts.options:
            add_row(table, option.name, option.type, option.default, safe(option.description, 500))
        console.print()
        console.print(table)


@plugins.command()
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key of the config, as in train.")
@json_option
def check(config: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print the changes that the plugins of a training config would make, without training.

    Exits with status 1 if a plugin cannot be loaded, conflicts with another one, or does not fit the config or model.
    Without torch, only names of plugins and keys of the config are checked.
    """
    with _naming_missing_package("train"):
        from tachograph.train import check_keys, load, missing_packages
    missing = missing_packages()
    if missing:
        _print_keys_check(check_keys(config, overrides), missing, as_json=as_json)
        return
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


@plugins.command()
@click.argument("name")
@click.option("--optimizer", "is_optimizer", is_flag=True, help="Write a plugin that only creates an optimizer.")
def new(name: str, is_optimizer: bool) -> None:
    """Write the package of a plugin of your own into the new folder NAME.

    It has config options, a metric, tests and an entry point, and works at once: it adds noise to gradients, or trains
    with another optimizer. Replace that.
    """
    for path in write_package(name, Path(name), is_optimizer=is_optimizer):
        echo(str(path))
    echo(f"Install and test it: cd {name} && pip install -e . && pytest")


def _print_keys_check(plugins: Sequence[CheckedPlugin], missing: list[str], *, as_json: bool) -> None:
    """Print the result of a check without torch."""
    descriptions = {entry.name: _describe(entry.facts) if entry.facts is not None else None for entry in plugins}
    if as_json:
        rows = [{"name": name, "facts": facts} for name, facts in descriptions.items()]
        echo(json_text({"model": None, "plugins": rows, "missing": missing}))
        return
    for name, facts in descriptions.items():
        state = (
            f"needs: {'; '.join(facts['needs']) or '–'}" if facts else "not checked: it is not a plugin of Tachograph"
        )
        new_console().print(Text.assemble((safe(name), "bold"), f"  {state}"))
    echo(
        "Plugin names and keys are valid. Options, data and model were not checked: "
        f"{_join(missing)} not installed: pip install 'tachograph[train]'"
    )


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


@contextlib.contextmanager
def _naming_missing_package(extra: str = "plugins") -> Iterator[None]:
    """Turn a missing package into an error that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise PluginError(f"plugins need {error.name}: pip install 'tachograph[{extra}]'") from error


def _describe(facts: PluginFacts) -> dict[str, Any]:
    missing = facts.missing
    packages = [f"{package} (not installed)" if package in missing else package for package in facts.requires]
    if packages and facts.extra:
        packages[-1] += f": tachograph[{facts.extra}]"
    needs = [*packages, *facts.needs]
    return {
        "name": facts.name,
        "class": facts.class_path,
        "summary": facts.summary,
        "slots": list(facts.slots),
        "packages": {name: _version(name) for name in (*BASE_PACKAGES, *facts.requires)},
        "extra": facts.extra,
        "install": f"pip install '{facts.install}'",
        "needs": needs,
        "measured": list(facts.measured),
    }


def _print_base_packages() -> None:
    missing = [package for package in BASE_PACKAGES if not is_installed(package)]
    if missing:
        all_names = ", ".join(BASE_PACKAGES)
        echo(f"All of them need {all_names}. {_join(missing)} not installed: pip install 'tachograph[plugins]'")
    else:
        echo(f"All of them need {', '.join(BASE_PACKAGES)}, which are installed.")


def _join(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _version(package: str) -> str:
    """Return the version of a package; an empty text if it is not installed."""
    if not is_installed(package):
        return ""
    try:
        return version(package.replace("_", "-"))
    except PackageNotFoundError:
        return "installed"
