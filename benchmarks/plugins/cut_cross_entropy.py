"""Memory and time of the loss of a language model: the usual one, the chunked one, and the package's kernel.

    python -m benchmarks.plugins.cut_cross_entropy                      # small, on the CPU: time only
    python -m benchmarks.plugins.cut_cross_entropy --device cuda        # 8,192 tokens, vocabulary of 128,256, bfloat16
    python -m benchmarks.plugins.cut_cross_entropy --device cuda --step # also whole training steps

The package is measured if it can be imported, or with `--package PATH`, its wheel or a folder. The errors compare with
the usual computation in 32 bits. See `_compare.py` for the numbers.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import zipfile
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from benchmarks.plugins._compare import (
    Loss,
    Measurement,
    add_arguments,
    compare,
    complete,
    describe_ratios,
    time_step,
)
from tachograph.plugins.cut_cross_entropy._chunked import linear_cross_entropy, plan_chunks

_SLICE = 512
"""Tokens per slice of the reference."""

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def usual(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss as Transformers computes it."""
    return cross_entropy((hidden @ weight.t()).float(), labels)


def chunked(inputs: Inputs, chunk_size: int | None = None) -> torch.Tensor:
    """Return the loss as the plugin computes it."""
    total, count = linear_cross_entropy(*inputs, chunk_size=chunk_size)
    return total / count


def losses(inputs: Inputs, chunk_sizes: list[int]) -> dict[str, Loss]:
    """Return the losses by name; the usual one first."""
    found: dict[str, Loss] = {"usual": partial(usual, *inputs), "chunked": partial(chunked, inputs)}
    found.update({f"chunked, {size} tokens": partial(chunked, inputs, size) for size in chunk_sizes})
    if importlib.util.find_spec("cut_cross_entropy") is not None:
        from cut_cross_entropy import linear_cross_entropy as package_loss

        found["package, cce"] = partial(package_loss, *inputs, impl="cce")
    else:
        print("package cut-cross-entropy: not installed")
    return found


def reference(inputs: Inputs) -> list[torch.Tensor]:
    """Return the loss and its gradients in 32 bits, computed slice by slice."""
    hidden, weight, labels = (entry.detach() for entry in inputs)
    wide = weight.float().requires_grad_()
    slices = []
    total = torch.zeros((), device=hidden.device)
    for first in range(0, len(hidden), _SLICE):
        part = hidden[first : first + _SLICE].float().requires_grad_()
        loss = cross_entropy(part @ wide.t(), labels[first : first + _SLICE], reduction="sum") / len(labels)
        loss.backward()
        total += loss.detach()
        slices.append(part.grad)
    return [total, torch.cat(slices), wide.grad]


def measure_step(arguments: argparse.Namespace) -> None:
    """Measure whole training steps of a Llama with 1.2 billion parameters, with and without the plugin."""
    import warnings

    import transformers

    from tachograph.plugins import apply

    config = transformers.LlamaConfig(
        vocab_size=arguments.vocabulary,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=arguments.layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=arguments.tokens,
        tie_word_embeddings=True,
    )
    with torch.device(arguments.device):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    ids = torch.randint(0, arguments.vocabulary, (1, arguments.tokens), device=arguments.device)
    batch = {"input_ids": ids, "labels": ids.clone()}
    results: dict[str, list[Measurement]] = {"usual": [], "auto": [], "chunked": []}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = transformers.TrainingArguments(output_dir=folder, bf16=True, report_to="none")
        trainer = transformers.Trainer(model=model, args=args, train_dataset=[{}])
        trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(arguments.rounds + 1):
            for name, measurements in results.items():
                options = {"cut_cross_entropy_impl": name}
                applied = apply(trainer, ["cut_cross_entropy"], options) if name != "usual" else None
                measurements.append(time_step(trainer, model, batch))
                model.zero_grad(set_to_none=True)
                if applied is not None:
                    applied.undo()
    parameters = sum(value.numel() for value in model.parameters()) / 1e9
    print(f"\ntraining step of a Llama with {parameters:.1f} billion parameters, {arguments.tokens} tokens, bfloat16")
    print(f"{'':28}{'ms':>8} {'quartiles':>17} {'ratio':>7} {'MiB':>8} {'ratio':>7}   memory above the weights")
    for name, measurements in results.items():
        print(f"{name:28}{describe_ratios(measurements, results['usual'])}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--package", help="the wheel of cut-cross-entropy, or a folder that it was unpacked to")
    parser.add_argument("--step", action="store_true", help="also measure whole training steps, on a GPU")
    parser.add_argument("--layers", type=int, default=16, help="layers of the model of --step")
    arguments = parser.parse_args()
    complete(arguments)
    if arguments.package is not None:
        path = Path(arguments.package)
        if path.suffix == ".whl":
            folder = tempfile.mkdtemp()
            zipfile.ZipFile(path).extractall(folder)
            path = Path(folder)
        sys.path.insert(0, str(path))
    tokens, vocabulary, device, dtype = arguments.tokens, arguments.vocabulary, arguments.device, arguments.dtype
    for size in arguments.hidden:
        torch.manual_seed(0)
        inputs = (
            torch.randn(tokens, size, device=device).to(dtype).requires_grad_(),
            (torch.randn(vocabulary, size, device=device) * size**-0.5).to(dtype).requires_grad_(),
            torch.randint(0, vocabulary, (tokens,), device=device),
        )
        plan = plan_chunks(tokens, vocabulary, size, dtype, is_fused=device != "cpu")
        print(f"\n{tokens} tokens, vocabulary {vocabulary}, hidden size {size}, {dtype}, {device}\n{plan}")
        compare(losses(inputs, arguments.chunk_size), inputs[:2], partial(reference, inputs), arguments.rounds)
    if arguments.step:
        measure_step(arguments)


if __name__ == "__main__":
    main()
