"""`tacho plugins new`: a package that is built, installed, tested and trained with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tachograph.cli._main import main
from tachograph.exceptions import PluginError
from tachograph.plugins import write_package
from tachograph.reader import read
from tests.conftest import HANG_S
from tests.preloaded import preloaded
from tests.train.test_command import start_command, stderr_of, write_config

pytestmark = pytest.mark.xdist_group("transformers")

ROOT = Path(__file__).parents[2]


def run(*command: object, **options: object) -> str:
    result = subprocess.run(
        [str(word) for word in command], check=False, capture_output=True, text=True, timeout=HANG_S, **options
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "option", "options"),
    [("gradient_noise", "gradient_noise_noise", []), ("fast_descent", "fast_descent_momentum", ["--optimizer"])],
)
def test_new_plugin_is_installed_and_trains(workspace, monkeypatch, name, option, options):
    result = CliRunner().invoke(main, ["plugins", "new", name, *options])
    assert result.exit_code == 0, result.output
    assert f"{name}/src/{name}/__init__.py" in result.output
    text = "".join(path.read_text() for path in Path(name).rglob("*") if path.is_file())
    assert "my_" not in text and "My" not in text and "my-" not in text

    ruff = Path(sys.executable).with_name("ruff")
    if ruff.exists():
        rules = ["--config", ROOT / "pyproject.toml", "--config", "lint.extend-ignore=['D1', 'S101', 'INP001']"]
        run(ruff, "check", *rules, "--no-cache", ".", cwd=name)
        run(ruff, "format", "--check", "--config", ROOT / "pyproject.toml", "--no-cache", ".", cwd=name)

    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    run(*pip, "--disable-pip-version-check", "--target", "site", f"./{name}")
    paths = [str(workspace / "site"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    tests = preloaded("frameworks").run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=name,
        env=environment,
        text=True,
        timeout=HANG_S,
    )
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "2 passed" in tests.stdout

    monkeypatch.syspath_prepend(str(workspace / "site"))
    rows = json.loads(CliRunner().invoke(main, ["plugins", "list", "--json"]).output)
    assert {"name": name, "package": name.replace("_", "-"), "built_in": False} in rows
    write_config(plugins=[name], **{option: 0.5}, name="new")
    assert "[train] 2 steps" in stderr_of(start_command("config.yaml", env=environment.items()))
    (event,) = [record for record in read("logs/new").records("event") if record.get("name") == "plugin"]
    assert (event["plugin"], event["options"]) == (name, {option: 0.5})


def test_names_and_folders_that_cannot_be_used_are_errors(tmp_path):
    for name, message in (
        (
            "gradient-noise",
            "use 2 to 30 lower-case letters, digits and underscores, and a letter first, such as 'gradient_n",
        ),
        ("GradientNoise", "such as 'gradientnoise'"),
        ("class", "cannot be the name of a plugin"),
        ("../outside", "cannot be the name of a plugin"),
        ("2fast", "cannot be the name of a plugin"),
        ("x" * 31, "cannot be the name of a plugin"),
        ("", "cannot be the name of a plugin"),
        ("grokfast", "there is a plugin 'grokfast' already"),
        ("json", "there is a module 'json' already"),
    ):
        with pytest.raises(PluginError) as caught:
            write_package(name, tmp_path / "new")
        assert message in str(caught.value)
        assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    with pytest.raises(PluginError, match="exists: choose another name, or remove it"):
        write_package("gradient_noise", tmp_path / "new")
