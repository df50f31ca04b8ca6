"""The slow-down of training by recording: ``make bench-overhead``.

Blocks of bare and of recorded steps alternate in one process, and so does which of them comes first: a machine that
slows down then affects both. A run is started and finished around each recorded block, outside the measured time. The
measured time includes everything that happens while training runs: the writer thread, the system sampler, the CSV
mirror and the diagnostic rules. On a GPU no step waits for the device, as in a real loop; each block ends with a
synchronisation.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import tachograph as tacho
from benchmarks.measure import Spread
from tachograph.integrations._common.integration_run import RunOptions
from tachograph.integrations._common.loop_observer import LoopObserver
from tachograph.integrations._common.torch_patches import TorchPatches

__all__: list[str] = []

_BUDGET = 0.001
_ROUNDS = 10
_STEPS = {"cpu": 300, "cuda": 600}
_SIZES = {"cpu": (512, 192, torch.float32), "cuda": (4096, 9216, torch.bfloat16)}
_TRAINER_BLOCK = 10
_TRAINER_PAIRS = 40


class Loop:
    """A model that takes about ten milliseconds per step."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        width, batch, dtype = _SIZES[device]
        self.device = device
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(6))).to(device, dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(batch, width, device=device, dtype=dtype)

    def batches(self, num_steps: int) -> list[torch.Tensor]:
        return [self.batch] * num_steps

    def train(self, batches: Any) -> None:
        for batch in batches:
            loss = self.model(batch).float().pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        if self.device == "cuda":
            torch.cuda.synchronize()


@contextlib.contextmanager
def bare(loop: Loop) -> Iterator[Callable[[int], None]]:
    yield lambda num_steps: loop.train(loop.batches(num_steps))


@contextlib.contextmanager
def with_watch(loop: Loop) -> Iterator[Callable[[int], None]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        tacho.init("bench", log_dir=folder, console=False),
        tacho.watch(loop.model, loop.optimizer),
    ):
        yield lambda num_steps: loop.train(tacho.track(loop.batches(num_steps)))


@contextlib.contextmanager
def with_tacho_run(loop: Loop) -> Iterator[Callable[[int], None]]:
    with tempfile.TemporaryDirectory() as folder:
        plan = RunOptions(None, "bench", {"log_dir": folder, "console": False})
        observer = LoopObserver(plan, method="inferred", logs_into_any=False)
        patches = TorchPatches(observer)
        patches.backward()
        patches.clipping()
        patches.every_optimizer()
        patches.loss_scaling()
        try:
            yield lambda num_steps: loop.train(loop.batches(num_steps))
        finally:
            patches.undo()
            observer.close()
            tacho.current_run().finish()


METHODS = {"tacho.watch and tacho.track": with_watch, "tacho run, a plain loop": with_tacho_run}


def compare(loop: Any, method: Callable[[Any], Any], num_steps: int) -> tuple[Spread, Spread]:
    """Return the time of a recorded step over that of a bare one, and the latter in milliseconds."""
    ratios: list[float] = []
    steps_ms: list[float] = []
    for number in range(_ROUNDS):
        took_s: dict[bool, float] = {}
        for is_on in (False, True) if number % 2 else (True, False):
            with (method if is_on else bare)(loop) as train:
                train(5)  # the run starts at the first step
                began_s = time.perf_counter()
                train(num_steps)
                took_s[is_on] = time.perf_counter() - began_s
        ratios.append(took_s[True] / took_s[False])
        steps_ms.append(1000 * took_s[False] / num_steps)
    return Spread.of(ratios), Spread.of(steps_ms)


def compare_trainer(device: str) -> tuple[Spread, Spread]:
    """Compare with Hugging Face's `Trainer` within one training, because speed varies more between trainings.

    The callback is active in every other block of steps. Its run stays open all the time, so the ratio covers only the
    training thread.
    """
    import transformers

    from tachograph.integrations.transformers import TachographCallback

    transformers.utils.logging.set_verbosity_error()
    width, layers = (1024, 4) if device == "cuda" else (128, 2)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
    )
    samples = [{"input_ids": row, "labels": row} for row in torch.randint(0, 512, (512, 128))]
    blocks: dict[bool, list[float]] = {False: [], True: []}

    class Switched(TachographCallback):
        """A callback that is active in every other block and records the time of both."""

        is_on = True
        began_s = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % _TRAINER_BLOCK == 0:
                now_s = time.perf_counter()
                if state.global_step:
                    blocks[self.is_on].append((now_s - self.began_s) / _TRAINER_BLOCK)
                self.is_on, self.began_s = not self.is_on, now_s
            if self.is_on:
                super().on_step_begin(args, state, control, **kwargs)

    for name in ("on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_log"):
        setattr(Switched, name, _if_on(getattr(TachographCallback, name)))
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=2 * _TRAINER_PAIRS * _TRAINER_BLOCK + 1,
            per_device_train_batch_size=4,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=device == "cpu",
            log_level="error",
        )
        callback = Switched("bench", log_dir=folder, console=False)
        model = transformers.LlamaForCausalLM(config)
        trainer = transformers.Trainer(model, arguments, train_dataset=samples, callbacks=[callback])
        with open(os.devnull, "w", encoding="utf-8") as quiet, contextlib.redirect_stdout(quiet):
            trainer.train()
        callback.finish()
    ratios = [on / off for off, on in zip(blocks[False], blocks[True], strict=False)]
    return Spread.of(ratios), Spread.of(1000 * block_s for block_s in blocks[False])


def _if_on(method: Callable[..., None]) -> Callable[..., None]:
    def switched(self: Any, *arguments: Any, **named: Any) -> None:
        if self.is_on:
            method(self, *arguments, **named)

    return switched


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.cuda.get_device_name() if device == "cuda" else "one CPU core"
    print(f"Training slow-down on {where}: {_ROUNDS} pairs of blocks of {_STEPS[device]} steps, budget {_BUDGET:.1%}")
    loop = Loop(device)
    loop.train(loop.batches(_STEPS[device]))
    rows = {title: compare(loop, method, _STEPS[device]) for title, method in METHODS.items()}
    rows["no recording (noise floor)"] = compare(loop, bare, _STEPS[device])
    rows["TachographCallback of Trainer"] = compare_trainer(device)
    for title, (ratio, step_ms) in rows.items():
        slow, low, high = (100 * (value - 1) for value in (ratio.median, ratio.low, ratio.high))
        line = f"{title:32}{slow:+8.3f} %   quartiles {low:+.3f} … {high:+.3f} %   step {step_ms.median:.2f} ms"
        print(line + ("" if ratio.median - 1 <= _BUDGET else "   over budget"))


if __name__ == "__main__":
    main()
