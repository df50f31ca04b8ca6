"""`tacho plugins` where only the dependencies of Tachograph are installed: no torch, transformers or pydantic."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import tachograph
from tests.conftest import HANG_S


def link_packages(folder: Path, *names: str) -> None:
    """Link packages and their dependencies into a folder."""
    folder.mkdir(exist_ok=True)
    remaining, linked = list(names), set()
    while remaining:
        distribution = importlib.metadata.distribution(remaining.pop())
        if distribution.name in linked:
            continue
        linked.add(distribution.name)
        for top in {file.parts[0] for file in distribution.files or [] if not file.parts[0].startswith(("..", "_"))}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
        requirements = map(Requirement, distribution.requires or [])
        remaining += [each.name for each in requirements if not each.marker or each.marker.evaluate({"extra": ""})]


@pytest.fixture
def tacho(tmp_path):
    """Return a function that runs `tacho` without site-packages, with the given packages and those of Tachograph."""
    own_requirements = map(Requirement, importlib.metadata.requires("tachograph") or [])
    link_packages(tmp_path / "site", *(each.name for each in own_requirements if not each.marker))

    def run(*arguments: str, packages: tuple[str, ...] = (), status: int = 0) -> str:
        link_packages(tmp_path / "site", *packages)
        paths = [str(Path(tachograph.__file__).parents[1]), str(tmp_path / "site")]
        result = subprocess.run(
            [sys.executable, "-S", "-m", "tachograph", *arguments],
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        assert result.returncode == status, result.stdout + result.stderr
        return " ".join((result.stdout + result.stderr).split())

    return run


def test_plugins_are_described_without_torch_and_pydantic(tacho, tmp_path):
    listing = tacho("plugins", "list")
    for text in ("grokfast", "lm_eval (not installed): tachograph[lm-eval]", "pip install 'tachograph[plugins]'"):
        assert text in listing
    assert "pydantic, torch, transformers are not installed" in listing
    shown = tacho("plugins", "show", "axolotl.integrations.grokfast.GrokfastPlugin")
    assert "grokfast_alpha float 0.98 How much of the average" in shown
    assert "Needs torch: not installed: pip install 'tachograph[plugins]'" in shown
    (tmp_path / "config.yaml").write_text("base_model: ./model\nplugins: [grokfast]\n")
    assert "plugins need pydantic: pip install 'tachograph[train]'" in tacho(
        "plugins", "check", "config.yaml", status=1
    )


def test_keys_are_checked_without_torch(tacho, tmp_path):
    config = tmp_path / "config.yaml"
    base = "base_model: ./model\ndatasets: [{path: data.jsonl, type: alpaca}]\n"
    config.write_text(base + "plugins: [grokfast, lm_eval]\ngrokfast_lamb: 1\nlm_eval_tasks: [arc]\n")
    checked = tacho("plugins", "check", "config.yaml", packages=("pydantic",))
    assert "lm_eval needs: lm_eval (not installed): tachograph[lm-eval]" in checked
    assert "Options, data and model were not checked: torch, transformers, accelerate, datasets are not" in checked
    assert json.loads(tacho("plugins", "check", "config.yaml", "--json"))["missing"][0] == "torch"
    for text, message in (
        ("plugins: [grokfats]\n", "unknown plugin 'grokfats'; did you mean 'grokfast'?"),
        ("plugins: [grokfast]\ngrokfast_alfa: 1\n", "unknown key 'grokfast_alfa'"),
        ("plugins: [grokfast]\nlearning_rate: fast\n", "learning_rate='fast'"),
    ):
        config.write_text(base + text)
        assert message in tacho("plugins", "check", "config.yaml", status=1)
    config.write_text(base + "plugins: [my_package.MyPlugin]\nmy_option: 1\n")
    assert "my not checked: it is not a plugin of Tachograph" in tacho("plugins", "check", "config.yaml")
