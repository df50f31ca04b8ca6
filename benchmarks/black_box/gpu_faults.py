"""Planted numeric faults on a GPU, and the causes that the black box names.

Call it on a machine with a GPU: ``PYTHONPATH=src python benchmarks/black_box/gpu_faults.py``. It needs PyTorch. Each
case trains a small model in which one thing is wrong. The script prints the verdicts, and exits with 1 if one is not
the expected one. A loop on a GPU goes on before the loss is seen, so all weights may be NaN by then: `bad_weights`.
With float16, a gradient scaler skips such steps: what it hides is no fault.
"""

from __future__ import annotations

import json
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional

import tachograph

WIDTH, NUM_SAMPLES, BAD_STEP = 256, 4096, 40


class Samples(torch.utils.data.Dataset):
    """Random inputs and labels, one of them bad."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._inputs = torch.randn(NUM_SAMPLES, WIDTH, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        inputs, label = self._inputs[index], torch.tensor(index % 16)
        if self._fault == "bad_input" and index == 32 * BAD_STEP + 5:
            inputs = inputs.clone().fill_(float("nan"))
        if self._fault == "ignored_labels" and index >= 32 * BAD_STEP:
            label = torch.tensor(-100)
        return {"inputs": inputs, "labels": label}


class Model(nn.Module):
    """A few layers; the third one overflows in float16 if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(6)])
        self.head = nn.Linear(WIDTH, 16)
        self.scale = 1.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        for number, block in enumerate(self.blocks):
            inputs = functional.gelu(block(inputs * (self.scale if number == 3 else 1.0)))
        return self.head(inputs)


def run_case(fault: str, dtype: torch.dtype, folder: str) -> dict[str, object]:
    """Train with a fault; return the verdict of the first dump."""
    torch.manual_seed(0)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
    loader = torch.utils.data.DataLoader(Samples(fault), batch_size=32)
    name = f"{fault}-{str(dtype).rpartition('.')[2]}"
    with tachograph.init(name, log_dir=folder, console=False, code=False), tachograph.watch(model, optimizer):
        for epoch in range(3):
            for number, batch in enumerate(tachograph.track(loader)):
                if epoch == 0 and number == BAD_STEP:
                    model.scale = 1e6 if fault == "activation_overflow" else 1.0
                    if fault == "learning_rate":
                        optimizer.param_groups[0]["lr"] = 30.0
                    if fault == "bad_update":
                        optimizer.state[model.head.weight]["exp_avg_sq"].fill_(float("nan"))
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=dtype, enabled=dtype is not torch.float32):
                    logits = model(batch["inputs"].cuda())
                    loss = functional.cross_entropy(logits.float(), batch["labels"].cuda())
                    if fault == "loss_derivative" and epoch == 0 and number >= BAD_STEP:
                        loss = loss + torch.sqrt((logits.float() * 0).sum())
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    dumps = tachograph.read(f"{folder}/{name}").dumps
    verdict = next((dump.verdict for dump in dumps if dump.verdict), None)
    result: dict[str, object] = {"case": name, "dumps": [dump.reason for dump in dumps]}
    if verdict is not None:
        result |= {"kind": verdict.kind, "text": verdict.text, "confidence": verdict.confidence}
    return result


def main() -> int:
    """Run all cases; return 1 if a cause is not named."""
    num_wrong = 0
    full, half, brain = torch.float32, torch.float16, torch.bfloat16
    cases: list[tuple[str, torch.dtype, str | None]] = [
        *(("bad_input", dtype, "bad_input") for dtype in (full, brain)),
        ("bad_input", half, None),
        *(("ignored_labels", dtype, "ignored_labels") for dtype in (full, brain, half)),
        ("activation_overflow", half, "activation_overflow"),
        *((fault, dtype, "bad_weights") for fault in ("bad_update", "loss_derivative") for dtype in (full, brain)),
        ("bad_update", half, "bad_weights"),
        ("loss_derivative", half, None),
        *(("learning_rate", dtype, "learning_rate") for dtype in (full, brain)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for fault, dtype, expected_kind in cases:
            result = run_case(fault, dtype, folder)
            result["is_right"] = result.get("kind") == expected_kind
            num_wrong += not result["is_right"]
            print(json.dumps(result), flush=True)
    print(f"{num_wrong} wrong")
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
