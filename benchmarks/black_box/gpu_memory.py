"""The memory report of a real out-of-memory error on a GPU, for several ways of training.

Call it on a machine with a GPU: ``PYTHONPATH=src python benchmarks/black_box/gpu_memory.py``. It needs PyTorch. For
each case it trains a small transformer until a batch is too large, and prints how the report accounts for the memory,
what the verdict says, and how long the report took. It exits with 1 if less than 95 % of the reserved memory is
accounted for, if the cause is not named, if the known parts differ from the sizes of the tensors by more than 5 %, or
if a report takes over 2 s. With ``--history`` it also measures what recording the allocator's history costs a step.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tachograph
from tachograph.reader import read

VOCABULARY, WIDTH, DEPTH = 32_000, 1024, 12
LIMIT_GIB = 16.0
"""The share of the GPU that the process may use, so that an error comes soon."""


class Block(nn.Module):
    """Attention and MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        qkv = self.qkv(self.norms[0](hidden)).view(batch, length, 3, 16, WIDTH // 16).permute(2, 0, 3, 1, 4)
        attention = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
        hidden = hidden + self.output(attention.transpose(1, 2).reshape(batch, length, WIDTH))
        return hidden + self.mlp(self.norms[1](hidden))


class Transformer(nn.Module):
    """A causal language model."""

    def __init__(self, *, checkpoints: bool = False, lora_rank: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("table", torch.zeros(64, 1024, 256))
        self.checkpoints = checkpoints
        self.adapters: nn.ModuleList | None = None
        if lora_rank:
            self.requires_grad_(False)
            self.adapters = nn.ModuleList(
                [nn.Sequential(nn.Linear(WIDTH, lora_rank), nn.Linear(lora_rank, WIDTH)) for _ in range(DEPTH)]
            )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        for index, block in enumerate(self.blocks):
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.checkpoints else block(hidden)
            if self.adapters is not None:
                hidden = hidden + self.adapters[index](hidden)
        return self.head(hidden)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> torch.Tensor:
    """Make one step; return the loss, with its graph."""
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits.float().view(-1, VOCABULARY), ids.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def run_case(name: str, folder: str, *, leak: str = "", fragment: bool = False, **options: object) -> dict:
    """Train until memory is full; return the report."""
    kept: list[torch.Tensor] = []
    with tachograph.init(name, log_dir=folder, git=False, code=False, console=False) as run:
        model = Transformer(**options).cuda().bfloat16()
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trainable)
        expected = {
            "parameters": sum(parameter.nbytes for parameter in model.parameters()),
            "optimizer": 2 * sum(parameter.nbytes for parameter in trainable),
        }
        time.sleep(2.5)  # the observer is attached by the writer thread, once a second
        length, step = 256, 0
        try:
            while step < 400:
                ids = torch.randint(0, VOCABULARY, (4, length), device="cuda")
                train_step(model, optimizer, ids)
                run.log(length=length, step=step)
                if leak == "tensors":
                    kept += [torch.zeros(32 << 20, device="cuda", dtype=torch.uint8) for _ in range(4)]
                elif leak == "graphs":
                    small = torch.randint(0, VOCABULARY, (4, 64), device="cuda")
                    kept.append(model(small).float().mean())  # the graph stays
                elif fragment:
                    # Three of them share a segment of 20 MiB; one of the three stays, so no segment can be released.
                    blocks = [torch.zeros(6 << 20, device="cuda", dtype=torch.uint8) for _ in range(1500)]
                    kept = blocks[::3]
                    del blocks
                    torch.zeros(5 << 30, device="cuda", dtype=torch.uint8)
                else:
                    length += 256
                step += 1
        except torch.OutOfMemoryError:
            pass
    kept.clear()
    del model, optimizer, trainable
    gc.collect()
    torch.cuda.empty_cache()
    dumps = [dump for dump in read(Path(folder) / name).dumps if dump.reason == "out_of_memory"]
    if not dumps:
        return {"case": name, "problem": "no dump"}
    report = dumps[0]["memory"]
    gib = {use: round(size / (1 << 30), 3) for use, size in report["uses_bytes"].items() if size}
    errors = {
        use: round(abs(report["uses_bytes"][use] - size) / size, 4) if size else 0.0 for use, size in expected.items()
    }
    return {
        "case": name,
        "reserved_gib": round(report["reserved_bytes"] / (1 << 30), 3),
        "uses_gib": gib,
        "accounted_share": report["accounted_share"],
        "relative_errors": errors,
        "outside_gib": round(report.get("outside_bytes", 0) / (1 << 30), 3),
        "num_blocks": report["num_blocks"],
        "num_graph_scalars": report["num_graph_scalars"],
        "took_s": report["took_s"],
        "kind": dumps[0].verdict.kind,
        "verdict": dumps[0].verdict.text,
    }


def measure_history() -> dict[str, float]:
    """Return the ratio of the time of a step with and without recording the allocator's history."""
    model = Transformer().cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, VOCABULARY, (4, 512), device="cuda")
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(12):
        is_recorded = bool(number % 2)
        torch.cuda.memory._record_memory_history("all" if is_recorded else None, max_entries=100_000, stacks="python")
        train_step(model, optimizer, ids)
        torch.cuda.synchronize()
        started_at = time.perf_counter()
        for _ in range(10):
            train_step(model, optimizer, ids)
        torch.cuda.synchronize()
        seconds[is_recorded].append((time.perf_counter() - started_at) / 10)
    torch.cuda.memory._record_memory_history(None)
    with_s, without_s = min(seconds[True]), min(seconds[False])
    return {"step_with_s": with_s, "step_without_s": without_s, "ratio": with_s / without_s}


def main() -> int:
    """Run all cases; return 1 if a report is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--history", action="store_true")
    arguments = parser.parse_args()
    total_gib = torch.cuda.get_device_properties(0).total_memory / (1 << 30)
    torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_GIB / total_gib))
    is_wrong = False
    cases: list[tuple[str, dict, str]] = [
        ("adamw", {}, ""),
        ("checkpointing", {"checkpoints": True}, ""),
        ("lora", {"lora_rank": 16}, ""),
        ("leaked-tensors", {"leak": "tensors"}, "gpu_tensors_kept"),
        ("leaked-graphs", {"leak": "graphs"}, "gpu_graphs_kept"),
        ("fragmented", {"fragment": True}, "gpu_fragmented"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, options, expected_kind in cases:
            result = run_case(name, folder, **options)
            print(json.dumps(result, indent=2), flush=True)
            is_wrong |= "problem" in result or result["accounted_share"] < 0.95 or result["took_s"] > 2.0
            is_wrong |= bool(expected_kind) and result.get("kind") != expected_kind
            is_wrong |= "problem" not in result and max(result["relative_errors"].values()) > 0.05
    if arguments.history:
        print(json.dumps(measure_history()))
    print("wrong" if is_wrong else "right")
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
