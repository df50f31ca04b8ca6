"""`tacho train --ab`: training with and without a plugin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tachograph.cli._main import main
from tachograph.exceptions import ConfigError
from tachograph.reader import read
from tachograph.train import TrainArm, check_arms, load
from tachograph.train._without import remove_plugins
from tests.conftest import HANG_S
from tests.train.test_command import start_command, write_config

pytestmark = pytest.mark.xdist_group("transformers")

PLUGIN = """
import torch
from pydantic import BaseModel
from tachograph.plugins import BasePlugin

class Options(BaseModel):
    momentum: float = 0.9
    max_grad_norm: float = 1.0

class MomentumPlugin(BasePlugin):
    Options = Options

    def create_optimizer(self, cfg, trainer):
        torch.rand(5)
        return torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=self.options.momentum)
"""


@pytest.mark.slow
def test_plugin_is_compared_in_turns(workspace):
    """Two pairs of real trainings, of a plugin that only creates an optimizer."""
    Path("my_optimizer.py").write_text(PLUGIN)
    write_config(plugins=["my_optimizer.MomentumPlugin", "grokfast"], momentum=0.5, max_grad_norm=0.7, max_steps=12)
    options = ["--ab", "momentum", "--without", "grokfast", "--pairs", "2", "--name", "test", "--json"]
    process = start_command("config.yaml", *options)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, out + err
    order = [line.split()[1] for line in err.splitlines() if line.startswith("[") and "/4]" in line]
    assert order == ["without", "with", "with", "without"]
    report = json.loads(out)
    assert report["a"]["runs"] == ["test-without-1", "test-without-2"]
    assert report["headline"].startswith("momentum on compared with off: ")
    metrics = {metric["name"]: metric for metric in report["metrics"]}
    for name in ("loss_start", "gradient_start", "loss_later", "gradient_later"):  # the optimizer changes neither
        assert (metrics[name]["verdict"], metrics[name]["high"]) == ("identical", 0)
    assert metrics["host_memory"]["a"] > 0
    assert {"step_time", "wall_time", "train_loss"} <= metrics.keys()
    changes = {change["name"]: (change["first"], change["second"]) for change in report["config_diff"]}
    assert changes["momentum"] == ([None], [0.5])
    assert "max_grad_norm" not in changes  # it is a key of the config, too
    page = Path("logs/test.html").read_text()
    assert "momentum on compared with off" in page and "grad., same weights" in page
    runs = [read(f"logs/{run}") for run in (*report["a"]["runs"], *report["b"]["runs"])]
    assert {run.state for run in runs} == {"finished"}
    first, second = (list(run.series("train_loss").values) for run in runs[:2])
    assert first == second  # the same seed, data and weights
    assert runs[2].series("train_loss").values[0] == first[0] != runs[2].series("train_loss").values[3]
    assert not list(Path().glob("out*"))  # the models of both arms are removed


@pytest.mark.filterwarnings("ignore:optional plugin")
@pytest.mark.parametrize(
    ("changes", "plugin", "message"),
    [
        ({}, "grokfats", "plugin 'grokfats' is not in `plugins` of the config; did you mean 'grokfast'?"),
        ({"plugins": []}, "grokfast", "It lists none."),
        ({"grokfast_lamb": 0}, "grokfast", "plugin grokfast is off (grokfast_lamb is 0): there is nothing to compare"),
        ({"auto_resume_from_checkpoints": True}, "grokfast", "add --set auto_resume_from_checkpoints=null"),
        ({"resume_from_checkpoint": True}, "grokfast", "both arms must start from the same weights"),
        ({"telemetry": {"enabled": False}}, "grokfast", "telemetry is off, so nothing can be compared"),
        (
            {"plugins": ["data_plugin.DataPlugin"], "datasets": []},
            "data",
            "cannot be trained without plugin data: config.yaml: datasets is missing",
        ),
        ({"plugins": [{"name": "nope.Nope", "optional": True}]}, "nope", "plugin nope is not used: optional plugin"),
    ],
)
def test_errors_are_found_before_training(workspace, changes, plugin, message):
    Path("data_plugin.py").write_text(
        "from tachograph.plugins import BasePlugin\n"
        "class DataPlugin(BasePlugin):\n"
        "    def load_datasets(self, cfg, preprocess=False):\n"
        "        return [{'input_ids': [1, 2, 3], 'labels': [1, 2, 3]}] * 8\n"
    )
    write_config(**{"plugins": ["grokfast"], **changes})
    with pytest.raises(ConfigError) as caught:
        check_arms(TrainArm("config.yaml"), plugin)
    assert message in str(caught.value)
    assert not Path("out").exists()


def test_wrong_options_of_the_command_are_errors(workspace, monkeypatch):
    write_config(plugins=["grokfast"])

    def output(*options):
        result = CliRunner().invoke(main, ["train", "config.yaml", *options])
        assert result.exit_code != 0
        return " ".join(result.output.split())

    assert "belong to --ab PLUGIN" in output("--json")
    assert "both name the plugin 'grokfast'" in output("--ab", "grokfast", "--without", "grokfast")
    assert "is not in `plugins` of the config" in output("--without", "kd", "--dry-run")
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert "--ab trains in one process" in output("--ab", "grokfast")


def test_without_drops_a_plugin_and_its_options(workspace):
    write_config(plugins=["grokfast", {"name": "cut_cross_entropy"}], grokfast_alpha=0.5, cut_cross_entropy=True)
    with load("config.yaml", without=["grokfast"]) as job:
        assert [plugin.plugin_name() for plugin in job.session.plugins] == ["cut_cross_entropy"]
        assert "grokfast_alpha" not in job.values
        assert job.values["cut_cross_entropy"] is True
    entry = "axolotl.integrations.grokfast.GrokfastPlugin"
    for name in ("grokfast", entry):  # by its name or as it is written
        assert remove_plugins({"plugins": [entry], "grokfast_lamb": 1, "seed": 1}, [name]) == {"plugins": [], "seed": 1}
