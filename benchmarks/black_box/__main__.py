"""The cost of the black box on the training thread: ``python -m benchmarks.black_box [--device cuda]``.

In a loop of tiny steps with a loader and an optimizer, the hooks are on and off in turns, so that both are measured on
the same machine at the same time. The same hooks alone, one after the other, cost a fifth of that. The layer table is
measured on a model of 100 layers, beside one of its steps.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import time
import tracemalloc

import torch

from tachograph.black_box._layers import find_model, layer_table
from tachograph.black_box._ring import DeliveredBatch, StepRing
from tachograph.black_box._torch_observer import TorchObserver

NUM_ROUNDS = 9
NUM_TURNS = 300
STEPS_PER_TURN = 25
WARM_UP = 5


class Samples(torch.utils.data.Dataset):
    """Small samples with a mask."""

    def __len__(self) -> int:
        return 16_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.zeros(16), "attention_mask": torch.ones(16, dtype=torch.long)}


class Listener:
    """Keeps the steps and does nothing else."""

    wants_boundary = False

    def __init__(self) -> None:
        self.ring = StepRing()

    def at_boundary(self) -> None:
        """Do nothing."""

    def on_bad_gradient(self) -> None:
        """Do nothing."""


def measure_loop(device: str) -> None:
    """Print what the hooks cost in a loop of small steps, on and off in turns: the caches are cold there."""
    model = torch.nn.Linear(16, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=8)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    listener = Listener()
    medians_ns: dict[bool, list[float]] = {False: [], True: []}
    for is_on in [False, True] * NUM_TURNS:
        observer = TorchObserver(listener) if is_on else None
        times_ns = []
        for _ in range(STEPS_PER_TURN):
            started_ns = time.thread_time_ns()
            batch = next(batches)
            optimizer.zero_grad()
            model(batch["input_ids"].to(device)).sum().backward()
            optimizer.step()
            times_ns.append(time.thread_time_ns() - started_ns)
        step_ns = statistics.median(times_ns[WARM_UP:])
        medians_ns[is_on].append(step_ns)
        if observer is not None:
            observer.close()
    costs_us = [1e-3 * (on - off) for off, on in zip(*medians_ns.values(), strict=True)]
    low, median, high = statistics.quantiles(costs_us, n=4)
    step_us = 1e-3 * statistics.median(medians_ns[False])
    sys.stdout.write(f"step without black box  {step_us:8.1f} us\n")
    sys.stdout.write(f"cost per step           {median:8.1f} us   quartiles {low:.1f} to {high:.1f}, budget 5\n")


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    measure_loop(device)
    measure_hooks()
    measure_memory()
    measure_layers(device)


def measure_hooks() -> None:
    """Print the cost of the hooks alone, one after the other."""

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
    """Print the memory of a full ring with batches of 64 samples: as many steps and samples as it keeps."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ring = StepRing()
    for number in range(2048):
        indices = [1_000_000 + 64 * number + offset for offset in range(64)]
        tensors = [("x", torch.Size((64, 512)), torch.float32, None)]
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
