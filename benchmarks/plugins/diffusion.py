"""The cost of masked diffusion compared with next-token prediction, and the speed of the sampler.

python -m benchmarks.plugins.diffusion [--device cuda] [--rounds N]

A step is forward and backward of the same model on the same batch, without the optimizer. Both objectives alternate in
one process, and the ratio is that of their medians. The difference is the attention (all pairs instead of half of them,
and a mask that keeps the causal kernels from being used), the noise, and the loss on masked tokens only.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import transformers

from tachograph.plugins.diffusion import attention_mask_for, diffusion_loss, find_segments, forward_process, unmask


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    on_gpu = options.device != "cpu"
    size = (2048, 5632, 12, 16, 32000, 8, 2048) if on_gpu else (128, 344, 4, 4, 4000, 4, 256)
    hidden, inner, num_layers, num_heads, vocabulary, num_rows, length = size
    dtype = torch.bfloat16 if on_gpu else torch.float32
    where = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    print(f"Llama, {num_layers} layers, hidden size {hidden}, {num_rows} x {length} tokens, {dtype}, {where}")
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=length,
        attn_implementation="sdpa",
    )
    model = transformers.LlamaForCausalLM(config).to(options.device, dtype)
    ids = torch.randint(3, vocabulary - 1, (num_rows, length), device=options.device)
    mask_token = vocabulary - 1
    generator = torch.Generator().manual_seed(0)

    def causal() -> None:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()

    def diffusion() -> None:
        noisy = forward_process(ids, mask_token_id=mask_token, generator=generator)
        segments = find_segments(ids)
        attention = attention_mask_for(segments, "sdpa", dtype)
        logits = model(input_ids=noisy.input_ids, attention_mask=attention, use_cache=False).logits
        loss = diffusion_loss(logits, ids, noisy.mask, noisy.probability, segments)
        (loss.total / loss.num_items).backward()

    def noise_alone() -> None:
        noisy = forward_process(ids, mask_token_id=mask_token, generator=generator)
        attention_mask_for(find_segments(noisy.input_ids), "sdpa", dtype)

    times: dict[str, list[float]] = {"next token": [], "diffusion": [], "noise and mask alone": []}
    peaks: dict[str, float] = {}
    for _ in range(options.rounds + 1):  # the first round warms up
        for name, step in zip(times, (causal, diffusion, noise_alone), strict=True):
            model.zero_grad(set_to_none=True)
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            times[name].append(_time_s(step, on_gpu))
            if on_gpu:
                peaks[name] = torch.cuda.max_memory_allocated() / 2**30
    baseline = statistics.median(times["next token"][1:])
    for name, found in times.items():
        median = statistics.median(found[1:])
        peak = f", peak {peaks[name]:.1f} GiB" if on_gpu else ""
        print(f"{name:>20}: {median * 1e3:9.2f} ms, {median / baseline:.3f} of next token{peak}")
    masked = torch.zeros_like(ids[:1, :128], dtype=torch.bool)
    masked[:, 64:] = True
    for steps in (16, 64):
        took_s = min(_time_s(lambda: _generate(model, ids, masked, mask_token, steps), on_gpu) for _ in range(3))  # noqa: B023
        print(f"sampler, 64 of 128 tokens in {steps} steps: {64 / took_s:.0f} tokens per second")


def _generate(model: torch.nn.Module, ids: torch.Tensor, masked: torch.Tensor, mask_token: int, steps: int) -> None:
    unmask(model, ids[:1, :128], masked, mask_token_id=mask_token, steps=steps)


def _time_s(step: Callable[[], None], on_gpu: bool) -> float:
    if on_gpu:
        torch.cuda.synchronize()
    start_s = time.perf_counter()
    step()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start_s


if __name__ == "__main__":
    main()
