"""`tacho plugins`, and commands of other packages."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from tachograph.cli._main import main
from tachograph.plugins import PLUGINS, built_in_facts, facts_of_class, find_class


def tacho(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_list_names_every_plugin_without_importing_it():
    rows = json.loads(tacho("plugins", "list", "--json").output)
    assert all(row["summary"] for row in rows)
    assert [row["name"] for row in rows if row["built_in"]] == list(PLUGINS.built_in)
    assert "tachograph[swanlab]" in tacho("plugins", "list").output


def test_facts_from_source_are_those_of_the_class():
    for name in PLUGINS.built_in:
        assert built_in_facts(name) == facts_of_class(find_class(name))


def test_show_describes_options():
    found = json.loads(tacho("plugins", "show", "grokfast", "--json").output)
    assert found["slots"] == ["gradient filter"]
    assert found["packages"]["torch"]
    (alpha,) = [option for option in found["options"] if option["name"] == "grokfast_alpha"]
    assert (alpha["type"], alpha["default"]) == ("float", "0.98")
    assert "grokfast_alpha" in tacho("plugins", "show", "axolotl.integrations.grokfast.GrokfastPlugin").output


def test_every_option_has_a_description():
    for row in json.loads(tacho("plugins", "list", "--json").output):
        found = json.loads(tacho("plugins", "show", row["name"], "--json").output)
        assert [option["name"] for option in found["options"] if not option["description"]] == []


def test_unknown_plugin_is_an_error_with_near_name():
    result = tacho("plugins", "show", "grokfats")
    assert result.exit_code == 1
    assert "did you mean 'grokfast'" in " ".join(result.output.split())


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package with three commands, of which one works."""
    info = tmp_path / "site" / "shearing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: shearing\nVersion: 1.0\n")
    points = ["shear = shearing:shear", "broken = no_such_module:run", "text = shearing:TEXT", "ls = shearing:shear"]
    (info / "entry_points.txt").write_text("[tachograph.commands]\n" + "\n".join(points) + "\n")
    code = "import click\nTEXT = ''\n@click.command()\n@click.argument('n')\n"
    code += "def shear(n):\n    click.echo('sheared ' + n)\n"
    (tmp_path / "site" / "shearing.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("shearing", None)


def test_command_of_other_package_runs(package):
    assert tacho("shear", "3").output == "sheared 3\n"
    assert "shear" in tacho("--help").output


def test_broken_command_breaks_only_itself(package):
    assert tacho("--help").exit_code == 0
    assert "cannot be loaded" in tacho("broken").output
    assert "expected a click command, got str" in " ".join(tacho("text").output.split())
    assert "sheared" not in tacho("ls", "--help").output
