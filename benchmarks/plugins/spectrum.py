"""The time to compute the SNR of a 7B model, extrapolated from the matrices of one layer.

python -m benchmarks.plugins.spectrum [--device cuda] [--model llama-7b|llama-8b|small] [--exact] [--layers N]

The shapes of one layer are decomposed one after the other with both methods (`--exact` adds the slow one on a CPU), and
the time of a layer is multiplied by the number of layers: all layers have the same shapes, and the embeddings are not
scored. `--layers N` measures N layers instead of one. The hash of the weights, which the cache needs, is measured on
one layer as well. The methods are compared by the SNR that they give.
"""

from __future__ import annotations

import argparse
import time

import torch

from tachograph.plugins.spectrum import signal_to_noise
from tachograph.plugins.spectrum._files import weights_key

_MODELS = {
    "llama-7b": (32, {"q": (4096, 4096), "k": (4096, 4096), "v": (4096, 4096), "o": (4096, 4096)}, (4096, 11008)),
    "llama-8b": (32, {"q": (4096, 4096), "k": (1024, 4096), "v": (1024, 4096), "o": (4096, 4096)}, (4096, 14336)),
    "small": (4, {"q": (256, 256), "k": (256, 256), "v": (256, 256), "o": (256, 256)}, (256, 688)),
}
"""Number of layers, the attention matrices, and the hidden and intermediate sizes."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", choices=_MODELS, default="llama-7b")
    parser.add_argument("--exact", action="store_true", help="measure the exact method as well, on a CPU")
    parser.add_argument("--layers", type=int, default=1)
    options = parser.parse_args()
    num_layers, attention, (hidden, inner) = _MODELS[options.model]
    shapes = {**attention, "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    on_gpu = options.device != "cpu"
    methods = ["gram", "exact"] if on_gpu or options.exact or options.model == "small" else ["gram"]
    where = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    print(f"{options.model}, {num_layers} layers, bfloat16 weights, {where}")
    generator = torch.Generator().manual_seed(0)
    weights = {name: _planted(shape, generator).to(torch.bfloat16).to(options.device) for name, shape in shapes.items()}
    total_s = dict.fromkeys(methods, 0.0)
    for method in methods:
        signal_to_noise(torch.randn(64, 64, device=options.device), method)  # loads the libraries
    largest = 0.0
    for _ in range(options.layers):
        for name, weight in weights.items():
            cells = []
            found = {}
            for method in methods:
                start_s = time.perf_counter()
                found[method] = signal_to_noise(weight, method)
                took_s = time.perf_counter() - start_s
                total_s[method] += took_s
                cells.append(f"{method} {took_s:7.2f} s (SNR {found[method]:.7f})")
            if len(found) == 2:
                largest = max(largest, abs(found["gram"] / found["exact"] - 1))
            print(f"  {name:>5} {tuple(weight.shape)!s:>15}  {'  '.join(cells)}", flush=True)
    start_s = time.perf_counter()
    weights_key(weights, "gram")
    hash_s = time.perf_counter() - start_s
    for method, took_s in total_s.items():
        per_layer_s = took_s / options.layers
        print(
            f"{method}: {per_layer_s:.1f} s per layer, {per_layer_s * num_layers / 60:.1f} min for {num_layers} layers"
        )
    print(f"hash for the cache: {hash_s:.2f} s per layer, {hash_s * num_layers:.0f} s for {num_layers} layers")
    if len(methods) == 2:
        print(f"largest relative difference of the SNR between the methods: {largest:.1e}")


def _planted(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Return noise with a signal of low rank, so that the spectrum resembles that of a trained matrix."""
    rank = 64
    left = torch.randn(shape[0], rank, generator=generator)
    right = torch.randn(rank, shape[1], generator=generator)
    noise = torch.randn(shape, generator=generator)
    return 0.02 * (noise + left @ right * torch.tensor(2.0 / rank**0.5))


if __name__ == "__main__":
    main()
