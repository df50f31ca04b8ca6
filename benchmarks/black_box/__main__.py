"""The cost of the black box on the training thread: ``python -m benchmarks.black_box [--device cuda]``.

A loop of tiny steps with a loader, an optimizer and `run.log` runs with and without it, in turns, in one process. The
difference is what it costs per step; the ratio is for this tiny loop, the worst case. The layer table is measured on a
model of 100 layers, beside one of its steps.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
import tracemalloc

import torch

import tachograph
from tachograph.black_box._layers import find_model, layer_table

NUM_STEPS = 2000
NUM_ROUNDS = 9


class Samples(torch.utils.data.Dataset):
    """Small samples with a mask."""

    def __len__(self) -> int:
        return 8 * NUM_STEPS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.zeros(16), "attention_mask": torch.ones(16, dtype=torch.long)}


def loop_time_s(black_box: bool, device: str) -> float:
    """Return the processor time of this thread per step."""
    model = torch.nn.Linear(16, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=8)
    with tempfile.TemporaryDirectory() as logs:
        options = {"log_dir": logs, "console": False, "system_interval_s": 0, "black_box": black_box, "code": False}
        with tachograph.init("x", **options) as run:
            started_s = time.thread_time()
            for step, batch in enumerate(loader):
                optimizer.zero_grad()
                model(batch["input_ids"].to(device)).sum().backward()
                optimizer.step()
                run.log({"train_loss": 1.0, "lr": 1e-3}, step=step)
            return (time.thread_time() - started_s) / NUM_STEPS


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    write = sys.stdout.write
    for is_on in (False, True):
        loop_time_s(is_on, device)
    pairs = [(loop_time_s(False, device), loop_time_s(True, device)) for _ in range(NUM_ROUNDS)]
    off_s, on_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    cost_s = statistics.median(on - off for off, on in pairs)
    write(f"step without black box  {off_s * 1e6:8.1f} us\n")
    write(f"step with black box     {on_s * 1e6:8.1f} us   ratio {on_s / off_s:.3f}\n")
    write(f"cost per step           {cost_s * 1e6:8.1f} us   budget 5\n")
    measure_hooks()
    measure_memory()
    measure_layers(device)


def measure_hooks() -> None:
    """Print the cost of the hooks alone: the loop above is noisy on a busy machine."""
    from tachograph.black_box._ring import StepRing
    from tachograph.black_box._torch_observer import TorchObserver

    class Listener:
        ring = StepRing()
        wants_boundary = False

        def at_boundary(self) -> None:
            """Do nothing."""

        def on_bad_gradient(self) -> None:
            """Do nothing."""

    class Iterator:
        _sampler_iter = None
        _num_yielded = 0

    observer = TorchObserver(Listener())
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model(torch.zeros(2, 16)).sum().backward()
    before, after = observer._make_before_step(), observer._make_after_step()
    before(optimizer, (), {})
    batch = {"input_ids": torch.zeros(8, 16), "attention_mask": torch.ones(8, 16)}
    next_index = observer._wrap_next_index(lambda iterator: [1, 2, 3])
    next_data = observer._wrap_next_data(lambda iterator: batch)
    iterator = Iterator()

    def hooks() -> None:
        next_index(iterator)
        next_data(iterator)
        before(optimizer, (), {})
        after(optimizer, (), {})

    times = []
    for _ in range(NUM_ROUNDS):
        started_s = time.thread_time()
        for _ in range(10_000):
            hooks()
        times.append((time.thread_time() - started_s) / 10_000)
    observer.close()
    sys.stdout.write(f"hooks of one step       {min(times) * 1e6:8.1f} us   budget 5\n")


def measure_memory() -> None:
    """Print the memory of a full ring with batches of 512 samples."""
    from tachograph.black_box._ring import DeliveredBatch, StepRing

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ring = StepRing()
    for number in range(256):
        indices = [1_000_000 + 512 * number + offset for offset in range(512)]
        tensors = [("x", torch.Size((512, 64)), torch.float32, None)]
        ring.add_batch(DeliveredBatch(1, number, tensors, indices, None))
        ring.add_step(0.0, {"cpu": torch.get_rng_state()} if number % 16 == 0 else None)
    gc.collect()
    sys.stdout.write(
        f"full ring               {(tracemalloc.get_traced_memory()[0] - before) / 1e6:8.1f} MB   budget 8\n"
    )
    tracemalloc.stop()


def measure_layers(device: str) -> None:
    """Print how long the layer table takes beside a step."""
    layers = [torch.nn.Linear(512, 512) for _ in range(100)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(256, 512, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    def time_of(function: object) -> float:
        times = []
        for _ in range(5):
            if device != "cpu":
                torch.cuda.synchronize()
            started_s = time.perf_counter()
            function()  # type: ignore[operator]
            if device != "cpu":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started_s)
        return statistics.median(times)

    step_s = time_of(step)
    table_s = time_of(lambda: layer_table([optimizer], model))
    find_s = time_of(lambda: find_model(list(model.parameters())))
    sys.stdout.write(f"step of 100 layers      {step_s * 1e3:8.1f} ms\n")
    sys.stdout.write(f"layer table             {table_s * 1e3:8.1f} ms   {table_s / step_s:.2f} steps\n")
    sys.stdout.write(f"finding the model       {find_s * 1e3:8.1f} ms\n")


if __name__ == "__main__":
    main()
