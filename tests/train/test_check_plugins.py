"""`tacho plugins check`: what plugins would do, and what is wrong, without training."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tachograph.cli._main import main
from tachograph.exceptions import ConfigError
from tachograph.reader import read
from tests.conftest import reserve_port
from tests.train.conftest import BASE, write_rows
from tests.train.test_kd import write_scored_rows


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
        ({"plugins": ["axolotl.integrations.densemixer.DenseMixerPlugin"]}, "no block of experts that is supported"),
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


def test_densemixer_trains_with_packed_samples(make_job):
    options = {"base_model": "./moe-model", "sample_packing": True}
    plain = make_job(**options).run()
    job = make_job(plugins=["axolotl.integrations.densemixer.DenseMixerPlugin"], **options)
    assert "gets the gradient of all 4 experts, not only of 2" in job.plan().plugins["densemixer"][0]
    run = read(job.run().run_dir)
    losses = run.series("train_loss").values
    assert list(run.series("plugin/densemixer/active").values) == [1.0, 1.0]
    usual = read(plain.run_dir).series("train_loss").values
    assert losses[0] == pytest.approx(usual[0], abs=1e-6)
    assert losses[1] != usual[1]
    event = next(record for record in run.records("event") if record.get("name") == "plugin")
    assert event["slots"] == ["experts"]
    assert event["changes"]["routers with the gradient of all experts"]["names"] == ["model.layers.0.mlp"]


RECIPE = {
    "finetuning_stage": {
        "finetuning_modifiers": {"ConstantPruningModifier": {"targets": ["re:.*q_proj.weight"], "start": 9}}
    }
}
LORA = {"adapter": "lora", "lora_r": 4, "lora_target_modules": ["v_proj"]}
SCORED = {"path": "./scored.jsonl", "type": "chat_template", "logprobs_field": "scores"}
PAIRS = [{"prompt": f"add {number}", "chosen": "yes", "rejected": "no"} for number in range(8)]


def test_errors_are_found_before_the_model_is_loaded(make_job, monkeypatch):
    monkeypatch.setattr("tachograph.plugins.kd._server.time.sleep", lambda seconds: None)
    write_rows("pairs.jsonl", PAIRS)
    write_scored_rows("scored.jsonl")
    pairs = {"rl": "dpo", "datasets": [{"path": "pairs.jsonl", "type": "chat_template.default"}]}
    url = f"http://127.0.0.1:{reserve_port()}"
    sparse = {"base_model": "./sparse-model", "llmcompressor": {"recipe": RECIPE}}
    cases = [
        ("cut_cross_entropy", {"label_smoothing_factor": 0.1}, "label_smoothing_factor needs logits"),
        ("cut_cross_entropy", pairs, "not of rl: dpo"),
        ("cut_cross_entropy", {"cut_cross_entropy_impl": "torch_compile"}, "needs the package cut-cross-entropy"),
        ("kd", {}, "no log-probabilities of a teacher"),
        ("kd", {"datasets": [SCORED, BASE["datasets"][0]]}, "datasets[1] has no log-probabilities"),
        ("kd", {"kd_teacher": "./nothing"}, "cannot load kd_teacher"),
        ("kd", {"kd_online_server_base_url": url}, "/v1/models failed"),
        ("kd", {"kd_online_server_base_url": url, "kd_online_model": "x"}, "/v1/models failed"),
        ("kd", {"kd_online_server_base_url": url, "sample_packing": True}, "remove sample_packing"),
        ("kd", {"kd_teacher": "./teacher", **pairs}, "not of rl: dpo"),
        ("llm_compressor", sparse, "start=9, end=None contains none of the 2 steps"),
        ("llm_compressor", {**sparse, **LORA, "max_steps": 10}, "matched matrices is trained"),
        ("diffusion", {"diffusion": {"mask_token_id": 900}}, "mask_token_id=900 is not a token"),
        ("diffusion", {"diffusion": {"mask_token_id": 2}}, "also begins, ends or pads texts"),
        ("grokfast", {"grokfast_filter": "ma"}, "grokfast_window=100 is longer than the training of 2 steps"),
        ("spectrum", LORA, "remove the adapter"),
        ("liger", {"liger_rms_norm": True}, "its kernels need a GPU, but the training runs on cpu"),
        ("densemixer", {}, "no block of experts that is supported"),
    ]
    if importlib.util.find_spec("cut_cross_entropy"):
        cases = [case for case in cases if "impl" not in str(case)]
    for plugin, changes, message in cases:
        with pytest.raises(ConfigError) as caught:
            make_job(plugins=[plugin], **changes).plan()
        assert f"config.yaml: plugin {plugin}: " in str(caught.value), (plugin, changes)
        assert message in str(caught.value)
    assert not Path("out").exists()


def test_optional_plugin_that_does_not_fit_is_dropped_by_the_check(make_job):
    with pytest.warns(UserWarning, match="optional plugin grokfast is not used: grokfast_window=100 is longer"):
        plan = make_job(plugins=[{"name": "grokfast", "optional": True}], grokfast_filter="ma").plan()
    assert plan.notes[0].startswith("optional plugin grokfast is not used")


def test_every_row_of_logprobs_is_checked(make_job):
    write_scored_rows("scored.jsonl", count=80)
    lines = Path("scored.jsonl").read_text().splitlines()
    for number, change in ((70, lambda row: row.update(scores=3)), (75, lambda row: row["scores"].insert(0, "x"))):
        row = json.loads(lines[number - 1])
        change(row)
        lines[number - 1] = json.dumps(row)
    row = json.loads(lines[77])
    row["scores"][0][0]["token"] = "token_id:5000"
    Path("scored.jsonl").write_text("\n".join([*lines[:77], json.dumps(row), *lines[78:]]))
    with pytest.raises(ConfigError) as caught:
        make_job(plugins=["kd"], datasets=[SCORED]).check()
    message = str(caught.value)
    assert "scored.jsonl, line 70: column 'scores': log-probabilities: expected a list with an entry per tok" in message
    assert "scored.jsonl, line 75: column 'scores': log-probabilities of a token: expected a list" in message
    assert "scored.jsonl, line 78: column 'scores': token 5000 is beyond the vocabulary" in message


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


FAILING_PLUGIN = """
from tachograph.plugins import BasePlugin

class FailingPlugin(BasePlugin):
    def get_training_args(self, cfg):
        return {"weight_decay": 0.3}
    def post_model_load(self, cfg, model):
        raise RuntimeError("broken")
"""


def test_arguments_of_a_dropped_plugin_have_no_effect(make_job):
    import torch

    Path("failing.py").write_text(FAILING_PLUGIN)
    job = make_job(plugins=[{"name": "failing.FailingPlugin", "optional": True}], weight_decay=0.1, max_steps=1)
    with pytest.warns(UserWarning, match="optional plugin failing is not used: post_model_load failed"):
        job.run()
    assert torch.load("out/training_args.bin", weights_only=False).weight_decay == 0.1
