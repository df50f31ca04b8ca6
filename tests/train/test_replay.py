"""`tacho replay`: the steps before a NaN are repeated, and the operation with which it began is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import tachograph
from tachograph.black_box import trace_operations
from tachograph.cli._main import main

PLUGIN = """
import torch
from tachograph.plugins import BasePlugin

class Faulty(BasePlugin):
    def post_model_load(self, cfg, model):
        def hook(module, arguments, output):
            noise = torch.rand(())
            with open("noise.txt", "a") as file:
                file.write(noise.item().hex() + chr(10))
            scale = torch.exp(200.0 * (abs(noise - 0.7936) < 0.01).float())
            return output * scale / scale
        model.model.layers[1].mlp.register_forward_hook(hook)
"""


def test_nan_is_repeated_bit_for_bit(make_job):
    Path("faulty_plugin.py").write_text(PLUGIN)
    saving = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 8, "max_steps": 8, "logging_steps": 1}
    make_job(plugins=["faulty_plugin.Faulty"], name="faulty", **saving).run()
    noise = Path("noise.txt").read_text().split()
    records = tachograph.read("logs/faulty").records("step")
    losses = {record["global_step"]: record["train_loss"] for record in records if "train_loss" in record}
    assert losses[6] != losses[6]  # NaN
    assert losses[5] == losses[5]
    files = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
    Path("noise.txt").unlink()
    arguments = ["replay", "faulty", "--config", "config.yaml", "--log-dir", "logs"]
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    replayed = json.loads(result.stdout)
    assert replayed["checkpoint"] == "out/checkpoint-4"
    assert Path("noise.txt").read_text().split() == noise[4:6]
    assert next((step["step"], step["loss"]) for step in replayed["steps"]) == (5, losses[5])
    assert replayed["fault_step"] == 6
    operation = replayed["operation"]
    assert (operation["operation"], operation["result"]) == ("aten.exp.default", "infinity")
    assert operation["module"] == "model.layers.1.mlp"
    assert operation["lines"][0].startswith("faulty_plugin.py:")
    assert replayed["first_nan"]["operation"].startswith("aten.div")
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")} == files  # nothing was saved
    assert [path.name for path in Path("logs").iterdir() if path.is_dir() and not path.name.startswith(".")] == [
        "faulty"
    ]
    text = CliRunner().invoke(main, arguments).output
    assert "Losses   1 of 1 are equal to the recorded ones" in text
    assert "Fault    step 6: aten.exp.default in the forward pass of `model.layers.1.mlp` returned an infinity" in text


def backward_of_sqrt(x):
    (x * 0).sqrt().sum().backward()


def masked_softmax(x):
    torch.softmax(x.masked_fill(torch.arange(4) > 1, float("-inf")), 0).sum().backward()


def softmax_of_nothing(x):
    torch.softmax(x.masked_fill(torch.arange(4) > -1, float("-inf")), 0).sum().backward()


def half_overflow(x):
    y = (x * 1e5).half()
    (y - y).sum().backward()


def update(x):
    x.sum().backward()
    torch.optim.SGD([x], lr=float("nan")).step()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: (x.detach() * 0).log().sub(x.detach().mul(0).log()), ("aten.log.default", "infinity", "forward")),
        (lambda x: (x.detach() * 0) / 0, ("aten.div.Tensor", "nan", "forward")),
        (backward_of_sqrt, ("aten.div.Tensor", "infinity", "backward")),
        (masked_softmax, None),
        (softmax_of_nothing, ("aten._softmax.default", "nan", "forward")),
        (half_overflow, ("aten._to_copy.default", "infinity", "forward")),
        (update, ("aten.add_.Tensor", "nan", "backward")),
    ],
)
def test_first_operation_that_fails_is_found(function, expected):
    x = torch.ones(4, requires_grad=True)
    with trace_operations() as trace:
        function(x)
    first = trace.first
    assert (first and (first.operation, first.result, first.phase)) == expected
    if first is not None:
        assert first.lines[0].startswith("test_replay.py:") or first.phase == "backward"
        assert first.describe().endswith(").")
