"""Trainings with Liger kernels, for `tests.plugins.triton_interpreter`; `test_liger` checks the results."""

from __future__ import annotations

import copy
import os
import re
import tempfile
import warnings
from pathlib import Path

import liger_kernel.ops
import peft
import torch
import transformers
import yaml

from tachograph._base.patching import Patches
from tachograph.plugins import apply
from tachograph.plugins.liger._kernels import apply_kernel, scale_tokens
from tachograph.reader import read
from tests.plugins.conftest import llama, logged, rows
from tests.train.conftest import BASE, write_workspace

SIZES = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 40,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FUSED = ("rope", "rms_norm", "glu_activation", "fused_linear_cross_entropy")
PAGE = {
    "liger_rope": True,
    "liger_rms_norm": True,
    "liger_glu_activation": True,
    "liger_layer_norm": True,
    "liger_fused_linear_cross_entropy": True,
    "liger_use_token_scaling": True,
}
DOCS = Path(__file__).parents[2] / "docs" / "plugins" / "liger.md"


def make_model(kind, **options):
    config = transformers.CONFIG_MAPPING[kind](**SIZES, **options)
    model = transformers.AutoModelForCausalLM.from_config(config).float().train()
    with torch.no_grad():
        for parameter in model.parameters():  # norms would otherwise be ones or zeros
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def batch():
    ids = torch.randint(3, SIZES["vocab_size"], (2, 5))
    labels = ids.clone()
    labels[0, :2] = -100
    return {"input_ids": ids, "labels": labels, "num_items_in_batch": torch.tensor(11)}


def loss_and_gradients(model, inputs):
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    return float(loss.detach()), gradients


def difference(model, kernels):
    """Return the change of the loss and the largest relative change of a gradient, and after undoing, of the loss."""
    inputs = batch()
    loss, gradients = loss_and_gradients(model, inputs)
    with Patches() as patches:
        for kernel in kernels:
            assert any(apply_kernel(model, kernel, patches)), kernel
        new_loss, new_gradients = loss_and_gradients(model, inputs)
    assert gradients.keys() == new_gradients.keys()
    change = max(
        float((new_gradients[name] - gradients[name]).abs().max() / gradients[name].abs().max().clamp(min=1e-6))
        for name in gradients
    )
    return {
        "loss": abs(new_loss - loss),
        "gradients": change,
        "undone": abs(loss_and_gradients(model, inputs)[0] - loss),
    }


def case_models():
    """All kernels at once, for several types of models."""
    options = {"gemma2": {"final_logit_softcapping": 3.0}, "phi3": {"partial_rotary_factor": 0.5}}
    kinds = ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "mistral", "phi3")
    return {kind: difference(make_model(kind, **options.get(kind, {})), FUSED) for kind in kinds}


def case_cross_entropy():
    """The loss of given logits, also for a type whose function in the package has no effect."""
    return difference(make_model("mistral"), ["cross_entropy"])


def case_kernels_are_called():
    """How often the functions of the package run in one step of a Llama."""
    names = {
        "rope": "LigerRopeFunction",
        "rms_norm": "LigerRMSNormFunction",
        "glu_activation": "LigerSiLUMulFunction",
        "fused_linear_cross_entropy": "LigerFusedLinearCrossEntropyFunction",
    }
    calls = dict.fromkeys(names, 0)
    model, inputs = make_model("llama"), batch()
    with Patches() as patches:
        for kernel, name in names.items():

            def count(original, kernel=kernel):
                def forward(*arguments, **kwargs):
                    calls[kernel] += 1
                    return original(*arguments, **kwargs)

                return forward

            function = getattr(liger_kernel.ops, name)
            patches.replace(function, "forward", staticmethod(count(function.forward)))
            apply_kernel(model, kernel, patches)
        loss_and_gradients(model, inputs)
    return calls


def case_token_scaling():
    """The fused loss with scaled tokens, against the formula."""
    model, inputs = make_model("qwen2"), batch()
    logits = model(inputs["input_ids"]).logits[:, :-1].flatten(0, 1)
    labels = inputs["labels"][:, 1:].flatten()
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    expected = ((-losses).exp().detach() * losses).sum() / (labels != -100).sum()
    expected.backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters()}
    with Patches() as patches:
        apply_kernel(model, "fused_linear_cross_entropy", patches)
        scale_tokens(model, patches)
        del inputs["num_items_in_batch"]
        loss, new_gradients = loss_and_gradients(model, inputs)
        evaluated = float(model.eval()(**inputs).loss.detach())
    return {
        "loss": abs(loss - float(expected.detach())),
        "gradients": max(float((new_gradients[name] - gradients[name]).abs().max()) for name in gradients),
        "evaluated": abs(evaluated - float((losses.sum() / (labels != -100).sum()).detach())),
    }


def case_gated_norm():
    """The gated norm of hybrid models: values and gradients."""
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

    module = Qwen3NextRMSNormGated(8)
    module.weight.data.uniform_(0.5, 1.5)
    leaves = [torch.randn(3, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True), module.weight]
    weights = torch.randn(3, 8)

    def run():
        values = module(*leaves[:2])
        return [values.detach(), *torch.autograd.grad((values * weights).sum(), leaves)]

    expected = run()
    with Patches() as patches:
        modules = torch.nn.ModuleDict({"norm": module})
        modules.config = None
        change = apply_kernel(modules, "rms_norm_gated", patches)
        actual = run()
    return {
        "modules": change.modules,
        "differences": [float((a - b).abs().max()) for a, b in zip(actual, expected, strict=True)],
    }


def make_trainer(folder, model, **arguments):
    options = {
        "output_dir": folder,
        "per_device_train_batch_size": 2,
        "max_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "gradient_accumulation_steps": 2,
        **arguments,
    }
    return transformers.Trainer(
        model=model, args=transformers.TrainingArguments(**options), train_dataset=rows(length=4, masked=2)
    )


def case_trainers():
    """The losses of a trainer with and without the plugin: plain, and with LoRA and gradient checkpointing."""
    results = {}
    config = {f"liger_{kernel}": True for kernel in FUSED}
    adapter = peft.LoraConfig(
        r=2, target_modules=["q_proj", "up_proj"], modules_to_save=["norm"], init_lora_weights=False
    )
    for name, with_adapter in (("plain", False), ("lora", True)):
        torch.manual_seed(1)
        model = llama(hidden_size=16, intermediate_size=24, num_hidden_layers=1 if with_adapter else 2)
        model = peft.get_peft_model(model, adapter) if with_adapter else model
        arguments = {"gradient_checkpointing": with_adapter}
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            usual = make_trainer(folder, copy.deepcopy(model), **arguments)
            usual.train()
            trainer = make_trainer(folder, model, **arguments)
            with apply(trainer, ["liger"], config) as applied:
                trainer.train()
                (facts,) = applied.session.facts()
        results[name] = {
            "losses": [logged(usual, "loss"), logged(trainer, "loss")],
            "metrics": {key: value for key, value in trainer.state.log_history[0].items() if key.startswith("plugin/")},
            "changes": facts["changes"],
            "slots": facts["slots"],
            "is_restored": "forward" not in vars(trainer.model)
            and not any("forward" in vars(module) for module in trainer.model.modules()),
        }
    return results


def train(values):
    """Train with `tacho train`, and return the run."""
    from tachograph.train import load

    Path("config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = load("config.yaml")
        plan = job.plan()
        run = read(job.run().run_dir)
    event = next(dict(record) for record in run.records("event") if record.get("name") == "plugin")
    return {
        "state": run.state,
        "plan": plan.plugins,
        "active": run.series("plugin/liger/active").values[:],
        "event": event,
    }


def case_tacho_train():
    """`tacho train` with the options of Axolotl's page, and with the example of our page."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        write_workspace(Path(folder))
        os.chdir(folder)
        try:
            path = "axolotl.integrations.liger.LigerPlugin"
            small = {"max_steps": 1, "micro_batch_size": 1, "telemetry": BASE["telemetry"]}
            page = train({**BASE, **PAGE, **small, "plugins": [path], "sample_packing": True, "sequence_len": 32})
            example = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[0]
            ours = train({**yaml.safe_load(example), **small})
        finally:
            os.chdir(before)
    return {name: {**run, "active": list(map(float, run["active"]))} for name, run in (("page", page), ("ours", ours))}
