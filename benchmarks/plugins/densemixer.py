"""DenseMixer: time and memory of training steps of a mixture of experts, with and without it.

    python -m benchmarks.plugins.densemixer                     # small, on the CPU: time only
    python -m benchmarks.plugins.densemixer --device cuda       # 64 experts, 8 per token, 4,096 tokens, bfloat16

The steps run in turn; a ratio is the median over rounds of a step with the plugin to the usual one of the same round.
Before, the gradient of the routers is compared with a formula that mixes all experts, in the type of the model and in
32 bits, and the gradients of the experts with the usual ones.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import warnings

import torch
import transformers

from benchmarks.plugins._compare import Measurement, describe_ratios, time_step
from tachograph.plugins import PluginSession, apply


def _make_model(arguments: argparse.Namespace, layers: int) -> transformers.PreTrainedModel:
    config = transformers.Qwen3MoeConfig(
        vocab_size=4096,
        hidden_size=arguments.hidden,
        moe_intermediate_size=arguments.inner,
        num_experts=arguments.experts,
        num_experts_per_tok=arguments.top_k,
        num_hidden_layers=layers,
        num_attention_heads=max(1, arguments.hidden // 64),
        num_key_value_heads=max(1, arguments.hidden // 256),
        head_dim=64,
        norm_topk_prob=True,
    )
    torch.manual_seed(0)
    with torch.device(arguments.device):
        return transformers.Qwen3MoeForCausalLM(config)


def _formula(block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the output of a block whose router gets the gradient of all experts; keeps every output."""
    experts, gate = block.experts, block.gate
    probabilities = torch.softmax(torch.nn.functional.linear(x, gate.weight).float(), dim=-1)
    chosen = probabilities.topk(gate.top_k, dim=-1).indices
    mask = torch.zeros_like(probabilities).scatter(1, chosen, 1.0)
    total = (probabilities * mask).sum(dim=-1, keepdim=True)
    weights = (probabilities * (1 - mask) / total.detach() + probabilities * mask / total).to(x.dtype)
    mask = mask.to(x.dtype)
    dense, sparse = torch.zeros_like(x), torch.zeros_like(x)
    for expert in range(gate.num_experts):
        first, second = torch.nn.functional.linear(x, experts.gate_up_proj[expert]).chunk(2, dim=-1)
        output = torch.nn.functional.linear(experts.act_fn(first) * second, experts.down_proj[expert])
        output = output * mask[:, [expert]] + (output * (1 - mask[:, [expert]])).detach()
        dense = dense + output * weights[:, [expert]]
        sparse = sparse + output * (weights * mask)[:, [expert]]
    return sparse.detach() + dense - dense.detach()


def check(arguments: argparse.Namespace) -> None:
    """Print the errors of the gradients of one block."""
    model = _make_model(arguments, 1).train()
    block = model.model.layers[0].mlp
    x = torch.randn(512, arguments.hidden, device=arguments.device)
    cotangent = torch.randn_like(x)
    names = ("router", "experts: first projection", "experts: second projection")

    def gradients(function, dtype: torch.dtype) -> list[torch.Tensor]:
        block.to(dtype)
        parameters = [block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj]
        output = function(x.to(dtype).unsqueeze(0)).squeeze(0)
        return [value.float() for value in torch.autograd.grad((output * cotangent.to(dtype)).sum(), parameters)]

    def formula(values: torch.Tensor) -> torch.Tensor:
        return _formula(block, values.squeeze(0)).unsqueeze(0)

    narrow = arguments.dtype
    with torch.no_grad():
        block.to(narrow).float()  # the same rounded weights in both types
    expected, usual = gradients(formula, torch.float32), gradients(block, torch.float32)
    usual_narrow, formula_narrow = gradients(block, narrow), gradients(formula, narrow)
    session = PluginSession.open(["densemixer"], {})
    session.model_hook("post_model_load", model)
    plugin_wide, plugin_narrow = gradients(block, torch.float32), gradients(block, narrow)
    session.close()
    print(f"relative errors of the gradients of one block against the formula in 32 bits; {narrow}")
    for index, name in enumerate(names):
        reference = expected[index]
        errors = {
            "plugin, 32 bits": plugin_wide,
            "plugin": plugin_narrow,
            "formula": formula_narrow,
            "usual gradient": usual_narrow,
        }
        line = ", ".join(
            f"{label} {float((values[index] - reference).norm() / reference.norm()):.1e}"
            for label, values in errors.items()
        )
        same = torch.equal(plugin_wide[index], usual[index])
        print(f"  {name}: {line}; equal to the usual one in 32 bits: {same}")


def measure_steps(arguments: argparse.Namespace) -> None:
    """Measure training steps."""
    model = _make_model(arguments, arguments.layers).to(arguments.dtype)
    is_cuda = arguments.device.startswith("cuda")
    ids = torch.randint(0, 4096, (1, arguments.tokens), device=arguments.device)
    batch = {"input_ids": ids, "labels": ids.clone()}
    results: dict[str, list[Measurement]] = {
        name: [] for name in ("usual", "densemixer", "usual, checkpointed", "densemixer, checkpointed")
    }
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = transformers.TrainingArguments(output_dir=folder, report_to="none", use_cpu=not is_cuda)
        trainer = transformers.Trainer(model=model, args=args, train_dataset=[{}])
        trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(arguments.rounds + 1):
            for name, measurements in results.items():
                if name.endswith("checkpointed"):
                    model.gradient_checkpointing_enable({"use_reentrant": False})
                has_plugin = name.startswith("densemixer")
                with apply(trainer, ["densemixer"]) if has_plugin else contextlib.nullcontext():
                    measurements.append(time_step(trainer, model, batch))
                model.zero_grad(set_to_none=True)
                model.gradient_checkpointing_disable()
    num_parameters = sum(value.numel() for value in model.parameters()) / 1e9
    print(
        f"\ntraining step of a Qwen3-MoE with {num_parameters:.2f} billion parameters, {arguments.experts} experts, "
        f"{arguments.top_k} per token, {arguments.layers} layers, {arguments.tokens} tokens, {arguments.dtype}"
    )
    print(f"{'':28}{'ms':>8} {'quartiles':>17} {'ratio':>7} {'MiB':>8} {'ratio':>7}   memory above the weights")
    for name, measurements in results.items():
        base = results["usual, checkpointed" if "checkpointed" in name else "usual"]
        print(f"{name:28}{describe_ratios(measurements, base)}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    for name in ("hidden", "inner", "experts", "top-k", "layers", "tokens"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    is_cuda = arguments.device.startswith("cuda")
    defaults = (2048, 768, 64, 8, 8, 4096) if is_cuda else (64, 32, 8, 2, 2, 128)
    for name, value in zip(("hidden", "inner", "experts", "top_k", "layers", "tokens"), defaults, strict=True):
        setattr(arguments, name, getattr(arguments, name) or value)
    arguments.dtype = torch.bfloat16 if is_cuda else torch.float32
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    check(arguments)
    measure_steps(arguments)


if __name__ == "__main__":
    main()
