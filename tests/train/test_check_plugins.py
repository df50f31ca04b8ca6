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
