"""Liger kernels: errors against 32 bits, and time and memory of training steps, with and without them.

    python -m benchmarks.plugins.liger --device cuda                    # correctness, then steps of two models
    python -m benchmarks.plugins.liger --device cuda --package PATH     # a wheel of liger-kernel, or its folder

Correctness: small models of several types, one of them with experts, in bfloat16. The errors of loss and gradients
against the same model in 32 bits are printed for the usual computation and for each kernel; those of a kernel should
be about as large. Gradients are compared as one vector: the norm of the difference over the norm.

Steps: a Llama with 1.2 billion parameters and a Qwen3-MoE. The variants run in turn, and a ratio is the median over
rounds of a variant to the usual step of the same round.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import torch
import transformers

from benchmarks.plugins._compare import Measurement, describe_ratios, time_step

_TYPES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "mistral", "phi3", "qwen3_moe")
_SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 4096,
    "pad_token_id": 0,
}
_EXPERTS = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128}
_KERNELS = ("rope", "rms_norm", "glu_activation", "cross_entropy", "fused_linear_cross_entropy")
_LAYERS = {"liger_rope": True, "liger_rms_norm": True, "liger_glu_activation": True}
_VARIANTS = {
    "usual": None,
    "rope, norms, gated layers": _LAYERS,
    "fused loss": {"liger_fused_linear_cross_entropy": True},
    "all": {**_LAYERS, "liger_fused_linear_cross_entropy": True},
}


def _gradients(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    loss = model(**batch).loss
    loss.backward()
    gradients = [value.grad.float().flatten() for value in model.parameters() if value.grad is not None]
    return float(loss.detach()), torch.cat(gradients)


def check_types(device: str, dtype: torch.dtype) -> None:
    """Print the errors of each kernel, for several types of models."""
    from tachograph._base.patching import Patches
    from tachograph.plugins.liger._kernels import apply_kernel

    print(f"\nerrors against 32 bits in {dtype}: loss (absolute), gradients (relative)")
    for kind in _TYPES:
        torch.manual_seed(0)
        options = {**_SIZES, **(_EXPERTS if "moe" in kind else {})}
        model = transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[kind](**options))
        model = model.to(device).train()
        ids = torch.randint(1, _SIZES["vocab_size"], (2, 257), device=device)
        batch = {"input_ids": ids, "labels": ids.clone()}
        loss, gradients = _gradients(copy.deepcopy(model).float(), batch)
        model = model.to(dtype)
        line = [f"{kind:12}"]
        for name, kernels in {
            "usual": (),
            **{name: (name,) for name in _KERNELS},
            "all": _KERNELS[:3] + _KERNELS[4:],
        }.items():
            try:
                with Patches() as patches:
                    for kernel in kernels:
                        apply_kernel(model, kernel, patches)
                    value, entries = _gradients(model, batch)
                error = float((entries - gradients).norm() / gradients.norm())
                line.append(f"{name} {abs(value - loss):.1e} {error:.1e}")
            except Exception as failure:  # another kernel may work
                line.append(f"{name}: {type(failure).__name__}: {str(failure)[:80]}")
        print("  ".join(line), flush=True)


def _models(arguments: argparse.Namespace) -> dict[str, transformers.PreTrainedConfig]:
    common = {"vocab_size": arguments.vocabulary, "max_position_embeddings": arguments.tokens}
    return {
        "Llama": transformers.LlamaConfig(
            **common,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=arguments.layers,
            num_attention_heads=32,
            num_key_value_heads=8,
            tie_word_embeddings=True,
        ),
        "Qwen3-MoE": transformers.Qwen3MoeConfig(
            **common,
            hidden_size=2048,
            moe_intermediate_size=768,
            num_experts=64,
            num_experts_per_tok=8,
            num_hidden_layers=max(1, arguments.layers // 4),
            num_attention_heads=32,
            num_key_value_heads=4,
            head_dim=128,
        ),
    }


def measure_steps(arguments: argparse.Namespace, label: str, config: transformers.PreTrainedConfig) -> None:
    """Measure training steps of a model, with and without kernels."""
    from tachograph.plugins import apply

    with torch.device(arguments.device):
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    ids = torch.randint(0, arguments.vocabulary, (1, arguments.tokens), device=arguments.device)
    batch = {"input_ids": ids, "labels": ids.clone()}
    results: dict[str, list[Measurement]] = {name: [] for name in _VARIANTS}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = transformers.TrainingArguments(output_dir=folder, bf16=True, report_to="none")
        trainer = transformers.Trainer(model=model, args=args, train_dataset=[{}])
        trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(arguments.rounds + 1):
            for name, options in _VARIANTS.items():
                if name in failures:
                    continue
                try:
                    with apply(trainer, ["liger"], options) if options else contextlib.nullcontext():
                        results[name].append(time_step(trainer, model, batch))
                except Exception as failure:  # another variant may work
                    failures[name] = f"{type(failure).__name__}: {str(failure)[:200]}"
                model.zero_grad(set_to_none=True)
    num_parameters = sum(value.numel() for value in model.parameters()) / 1e9
    print(
        f"\ntraining step of a {label} with {num_parameters:.1f} billion parameters, "
        f"{arguments.tokens} tokens, bfloat16"
    )
    print(f"{'':28}{'ms':>8} {'quartiles':>17} {'ratio':>7} {'MiB':>8} {'ratio':>7}   memory above the weights")
    for name, measurements in results.items():
        if name in failures or len(measurements) < 3:
            print(f"{name}: failed: {failures.get(name, 'too few rounds')}")
            continue
        print(f"{name:28}{describe_ratios(measurements, results['usual'])}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--package", help="the wheel of liger-kernel, or a folder that it was unpacked to")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--skip-steps", action="store_true", help="only compare losses and gradients")
    arguments = parser.parse_args()
    if arguments.package is not None:
        path = Path(arguments.package)
        if path.suffix == ".whl":
            folder = tempfile.mkdtemp()
            zipfile.ZipFile(path).extractall(folder)
            path = Path(folder)
        sys.path.insert(0, str(path))
    is_cuda = arguments.device.startswith("cuda")
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}",
        torch.cuda.get_device_name() if is_cuda else "",
    )
    check_types(arguments.device, torch.bfloat16 if is_cuda else torch.float32)
    if is_cuda and not arguments.skip_steps:
        for label, config in _models(arguments).items():
            measure_steps(arguments, label, config)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
