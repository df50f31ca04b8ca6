"""`tacho plugins check`: what plugins would do, and what is wrong, without training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tachograph.cli._main import main
from tests.train.conftest import BASE


def check(*arguments, **changes):
    Path("config.yaml").write_text(yaml.safe_dump({**BASE, **changes}), encoding="utf-8")
    return CliRunner().invoke(main, ["plugins", "check", "config.yaml", *arguments])


def test_check_prints_what_would_change(workspace):
    result = check("--json", plugins=["grokfast", "spectrum", "cut_cross_entropy"])
    found = json.loads(result.output)
    assert found["model"] == "LlamaForCausalLM"
    grokfast, spectrum, loss = found["plugins"]
    assert "filters the gradients of 21 parameters" in grokfast["changes"][0]
    assert "mlp.down_proj: trains 1 of 2" in spectrum["changes"]
    assert loss["slots"] == ["loss"]
    text = check(plugins=["grokfast"]).output
    assert "replaces: gradient filter" in text
    assert "Nothing was trained" in text
    assert not Path("out").exists()


def test_model_that_is_not_here_leaves_the_config_to_check(workspace):
    result = check(plugins=["grokfast"], base_model="someone/else")
    assert result.exit_code == 0
    assert "not on this machine" in result.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plugins": ["kd", "diffusion"], "kd_teacher": "./teacher"}, "kd and diffusion cannot be combined"),
        ({"plugins": ["cut_cross_entropy", "kd"], "kd_teacher": "./teacher"}, "both replace the loss"),
        ({"plugins": ["spectrum"], "adapter": "lora", "lora_r": 4, "lora_target_linear": True}, "remove the adapter"),
        ({"plugins": ["grokfast"], "base_model": "./modle"}, "base_model='./modle': no such folder"),
        ({"plugins": ["grokfast"], "grokfast_lamb": -1}, "grokfast_lamb=-1"),
        ({"plugins": ["axolotl.integrations.liger.LigerPlugin"]}, "is not available"),
    ],
)
def test_check_finds_what_is_wrong(workspace, changes, message):
    result = check(**changes)
    assert result.exit_code == 1
    assert message in " ".join(result.output.replace("│", " ").split())


def test_plugin_that_is_off_is_left_out(make_job):
    plain = make_job().run().metrics["train_loss"]
    for plugin, options in (
        ("cut_cross_entropy", {"cut_cross_entropy": False}),
        ("kd", {"kd_trainer": False, "kd_teacher": "./teacher"}),
        ("grokfast", {"grokfast_lamb": 0}),
    ):
        job = make_job(plugins=[plugin], **options)
        reason = next(iter(options)) + (" is 0" if plugin == "grokfast" else " is false")
        assert job.plan().plugins == {plugin: [f"off: {reason}"]}
        assert job.session.plugins == []
        assert job.run().metrics["train_loss"] == plain
    found = json.loads(check("--json", plugins=["kd"], kd_trainer=False).output)
    assert found["plugins"] == [{"name": "kd", "slots": [], "changes": ["off: kd_trainer is false"], "measured": []}]


OWN_PLUGIN = """
from pydantic import BaseModel
from tachograph.plugins import BasePlugin

class DebugOptions(BaseModel):
    debug: int = 0  # Axolotl has a key of this name, which has no effect here

class DebugPlugin(BasePlugin):
    Options = DebugOptions
    def get_training_args(self, cfg):
        return {"weight_decay": cfg.debug / 10}
"""


def test_options_of_a_plugin_take_precedence_over_keys_of_axolotl(make_job):
    Path("debugging.py").write_text(OWN_PLUGIN)
    job = make_job(plugins=["debugging.DebugPlugin"], debug=3, s2_attention=False)
    assert job.check().arguments.weight_decay == 0.3
    assert job.warnings == []
    assert make_job(debug=3).warnings == ["debug has no effect: it is not needed"]
