"""The slow-down of training by recording: ``make bench-overhead``.

One training runs through all modes: blocks of steps that nothing records alternate with blocks recorded by Tachograph
or logged with TensorBoard or Weights & Biases, in a different order in each round. A block is compared with the mean
of the bare blocks right before and after it, so a machine that slows down affects both. Each block has a lead-in that
is not timed: a GPU that was idle during the switch is faster for a while. The first rounds are warm-up: the governor
finds its sampling in them. *Nothing again* is a bare block treated like any other: it shows how large a
difference has to be to mean anything.

Everything that happens while training runs is included: the writer thread, the system sampler, the CSV mirror and the
diagnostic rules. On a GPU no step waits for the device; each block begins and ends with a synchronisation.

Every round prints a line, and every loop its rows as soon as it is done.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch

import tachograph as tacho
from benchmarks.measure import Spread
from tachograph.integrations._common.integration_run import RunOptions
from tachograph.integrations._common.loop_observer import LoopObserver
from tachograph.integrations._common.torch_patches import TorchPatches
from tachograph.recorder import latest_run

__all__: list[str] = []

NOTHING, AGAIN, TACHO_RUN, ONE_LINE, TENSORBOARD, WANDB = (
    "nothing",
    "nothing again (noise floor)",
    "tacho run",
    "one line of tacho",
    "TensorBoard",
    "W&B, offline",
)
_BLOCK_S = 0.5
_LEAD_IN = 0.2
"""Steps at the start of a block that are not timed, as a share of the timed ones."""

_WARM_UP_ROUNDS = 3
_BUDGETS = {4: 0.01, 10: 0.001}


class Schedule:
    """Yields the batches of all blocks, switches the mode between blocks and times them."""

    def __init__(self, batch: Any, modes: list[str], num_rounds: int, device: str) -> None:
        self.batch = batch
        self.modes = modes
        self.num_rounds = num_rounds
        self.mode = NOTHING
        self.is_done = False
        self.ratios: dict[str, list[float]] = {mode: [] for mode in modes}
        """The duration of a step by mode, relative to the bare blocks around it; one value per round."""
        self.bare_s: list[float] = []
        self.on_switch: Callable[[str], None] = lambda mode: None
        self._is_cuda = device == "cuda"
        self._random = random.Random(0)

    def __iter__(self) -> Iterator[Any]:
        self._start(ONE_LINE)  # the callback has to see the start and the end of training
        start_s = time.perf_counter()
        for _ in range(100):
            yield self.batch
        self._synchronise()
        num_steps = max(20, round(100 * _BLOCK_S / (time.perf_counter() - start_s)))
        for number in range(1 - _WARM_UP_ROUNDS, self.num_rounds + 1):
            ratios: dict[str, float] = {}
            before_s = yield from self._block(NOTHING, num_steps)
            for mode in self._random.sample(self.modes, len(self.modes)):
                took_s = yield from self._block(mode, num_steps)
                after_s = yield from self._block(NOTHING, num_steps)
                ratios[mode] = 2 * took_s / (before_s + after_s)
                before_s = after_s
                if number > 0:
                    self.bare_s.append(after_s)
            if number > 0:
                for mode, ratio in ratios.items():
                    self.ratios[mode].append(ratio)
                parts = ", ".join(f"{mode} {ratios[mode] - 1:+.1%}" for mode in self.modes)
                print(f"  round {number} of {self.num_rounds}, {1000 * before_s:.2f} ms: {parts}", flush=True)
        self._start(ONE_LINE)
        self.is_done = True
        yield self.batch  # for a framework that ends only after a step

    def _block(self, mode: str, num_steps: int) -> Generator[Any, None, float]:
        """Yield the batches of a block; return the duration of a step."""
        self._start(mode)
        for _ in range(round(_LEAD_IN * num_steps)):
            yield self.batch
        self._synchronise()
        start_s = time.perf_counter()
        for _ in range(num_steps):
            yield self.batch
        self._synchronise()
        return (time.perf_counter() - start_s) / num_steps

    def _start(self, mode: str) -> None:
        run = latest_run()
        if run is not None:
            run.flush()
        self.mode = mode
        self.on_switch(mode)
        self._synchronise()

    def _synchronise(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()

    def print_rows(self, title: str, budget: float) -> None:
        step_ms = 1000 * Spread.of(self.bare_s).median
        print(f"{title}, {step_ms:.2f} ms per step, budget {budget:.1%}", flush=True)
        for mode, ratios in self.ratios.items():
            ratio = Spread.of(ratios)
            slow, low, high = (100 * (value - 1) for value in (ratio.median, ratio.low, ratio.high))
            is_ours = mode in (TACHO_RUN, ONE_LINE)
            verdict = "" if not is_ours else "   met" if ratio.median - 1 <= budget else "   missed"
            print(f"  {mode:30}{slow:+7.2f} %   quartiles {low:+.2f} … {high:+.2f} %{verdict}", flush=True)


class OtherTools:
    """Logs loss and learning rate of each step with TensorBoard or Weights & Biases."""

    def __init__(self, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.tensorboard = SummaryWriter(f"{folder}/tensorboard")
        self.wandb: Any = None
        with contextlib.suppress(ImportError):
            import wandb

            with contextlib.redirect_stdout(sys.stderr):
                self.wandb = wandb.init(mode="offline", dir=folder, settings=wandb.Settings(silent=True))

    @property
    def modes(self) -> list[str]:
        return [TENSORBOARD] + [WANDB] * (self.wandb is not None)

    def log(self, mode: str, metrics: dict[str, float], step: int) -> None:
        if mode == TENSORBOARD:
            for name, value in metrics.items():
                self.tensorboard.add_scalar(name, value, step)
        elif mode == WANDB:
            self.wandb.log(metrics)

    def close(self) -> None:
        self.tensorboard.close()
        if self.wandb is not None:
            self.wandb.finish()


def small_model(device: str) -> torch.nn.Module:
    """Return a model whose steps are bound by the host: many small layers."""
    width, layers = (512, 25) if device == "cuda" else (96, 8)
    pairs = ((torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(layers))
    return torch.nn.Sequential(*(part for pair in pairs for part in pair)).to(device)


def small_batch(device: str) -> torch.Tensor:
    return torch.randn(64, 512 if device == "cuda" else 96, device=device)


class Patched:
    """The hooks of `tacho run` in a plain loop; also of `watch` and `track`, which use the same ones."""

    def __init__(self, folder: str, name: str) -> None:
        options = RunOptions(None, name, {"log_dir": folder, "console": False})
        self.observer = LoopObserver(options, method="inferred", logs_into_any=False)
        self._patches = TorchPatches(self.observer)

    def install(self) -> None:
        self._patches.backward()
        self._patches.clipping()
        self._patches.every_optimizer()
        self._patches.loss_scaling()
        self._patches.every_loader(sys.modules["torch.utils.data.dataloader"])

    def remove(self) -> None:
        self._patches.undo()


def plain_loop(device: str, num_rounds: int, *, is_host_bound: bool = True) -> Schedule:
    """A plain loop: 4 ms per step on an H200 bound by the host, or 10 ms bound by the GPU."""
    if is_host_bound:
        model, batch = small_model(device), small_batch(device)
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    else:
        width, size, kind = (4096, 9216, torch.bfloat16) if device == "cuda" else (512, 192, torch.float32)
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(6))).to(device, kind)
        batch = torch.randn(size, width, device=device, dtype=kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        tools = OtherTools(folder)
        schedule = Schedule(batch, [AGAIN, TACHO_RUN, ONE_LINE, *tools.modes], num_rounds, device)
        patched = Patched(folder, "plain")
        batches = iter(schedule)

        def switch(mode: str) -> None:
            patched.remove()
            if mode in (TACHO_RUN, ONE_LINE):
                patched.install()

        schedule.on_switch = switch
        step = 0
        while True:
            try:
                # `track` times the loader; `tacho run` patches the loaders of torch, which this loop does not use.
                get = patched.observer.fetch if schedule.mode == ONE_LINE else _call
                item = get(batches.__next__)
            except StopIteration:
                break
            loss = model(item).float().pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if schedule.mode in (TENSORBOARD, WANDB):
                tools.log(schedule.mode, {"loss": loss.item(), "lr": optimizer.param_groups[0]["lr"]}, step)
            step += 1
        patched.remove()
        patched.observer.close()
        _finish(tools)
    return schedule


def _call(function: Callable[[], Any]) -> Any:
    return function()


def _finish(tools: OtherTools) -> None:
    run = latest_run()
    if run is not None:
        history = tacho.read(run)
        print(f"  recorded at the end: {history.sampling or 'everything'}", flush=True)
        for change in history.latest("event", "sampling_changed"):
            print(f"    every {change['values_every']}: recording took {change['overhead']:.2%} before", flush=True)
        run.finish()
    tools.close()


class _Stream(torch.utils.data.IterableDataset[Any]):
    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def __iter__(self) -> Iterator[Any]:
        return iter(self._schedule)


def lightning_loop(device: str, num_rounds: int) -> Schedule:
    """The same model in Lightning."""
    import lightning

    from tachograph.integrations.lightning import TachographCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = small_model(device)

        def training_step(self, batch: Any) -> torch.Tensor:
            loss: torch.Tensor = self.model(batch).pow(2).mean()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    with tempfile.TemporaryDirectory() as folder:
        tools = OtherTools(folder)
        schedule = Schedule(small_batch(device), [AGAIN, TACHO_RUN, ONE_LINE, *tools.modes], num_rounds, device)
        ours = TachographCallback("lightning", log_dir=folder, console=False)
        patched = Patched(folder, "unused")

        class Others(lightning.Callback):
            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
                if schedule.mode in (TENSORBOARD, WANDB):
                    metrics = {"loss": outputs["loss"].item(), "lr": trainer.optimizers[0].param_groups[0]["lr"]}
                    tools.log(schedule.mode, metrics, number)

        def switch(mode: str) -> None:
            # `tacho run` uses the callback, and has patched torch in case that the script has loops of its own.
            patched.remove()
            if mode == TACHO_RUN:
                patched.install()
            ours._is_inactive = mode not in (TACHO_RUN, ONE_LINE)

        schedule.on_switch = switch
        trainer = lightning.Trainer(
            accelerator="gpu" if device == "cuda" else "cpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Others(), ours],
            default_root_dir=folder,
        )
        trainer.fit(Module(), torch.utils.data.DataLoader(_Stream(schedule), batch_size=None))
        _finish(tools)
    return schedule


def trainer_loop(device: str, num_rounds: int) -> Schedule:
    """A small language model in Hugging Face's `Trainer`, which logs every tenth step."""
    import transformers

    from tachograph.integrations.transformers import TachographCallback

    transformers.utils.logging.set_verbosity_error()
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    row = torch.randint(0, 512, (4, 64))
    with tempfile.TemporaryDirectory() as folder:
        tools = OtherTools(folder)
        batch = {"input_ids": row.to(device), "labels": row.to(device)}
        schedule = Schedule(batch, [AGAIN, TACHO_RUN, ONE_LINE, *tools.modes], num_rounds, device)
        patched = Patched(folder, "unused")

        def is_on() -> bool:
            return schedule.mode in (TACHO_RUN, ONE_LINE)

        class Switched(TachographCallback):
            """A callback that is active in its blocks only."""

        for name in ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_log"):
            setattr(Switched, name, _if_on(getattr(TachographCallback, name), is_on))

        class Others(transformers.TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
                if schedule.mode in (TENSORBOARD, WANDB):
                    known = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
                    tools.log(schedule.mode, known, state.global_step)

        def switch(mode: str) -> None:
            patched.remove()
            if mode == TACHO_RUN:
                patched.install()

        class Trainer(transformers.Trainer):
            def get_train_dataloader(self) -> Any:
                return torch.utils.data.DataLoader(_Stream(schedule), batch_size=None)

        schedule.on_switch = switch
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=100_000_000,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=device == "cpu",
            log_level="error",
        )
        callback = Switched("trainer", log_dir=folder, console=False, completions=False)
        trainer = Trainer(transformers.LlamaForCausalLM(config), arguments, callbacks=[callback, Others()])

        class Stop(transformers.TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
                control.should_training_stop = schedule.is_done

        trainer.add_callback(Stop())
        with open(os.devnull, "w", encoding="utf-8") as quiet, contextlib.redirect_stdout(_OwnLines(sys.stdout, quiet)):
            trainer.train()
        _finish(tools)
    return schedule


class _OwnLines:
    """Passes on our own lines, which are indented, and drops those of the trainer."""

    def __init__(self, ours: Any, others: Any) -> None:
        self._ours = ours
        self._others = others
        self._keeps = False

    def write(self, text: str) -> int:
        if text != "\n":
            self._keeps = text.startswith("  ")
        return int((self._ours if self._keeps else self._others).write(text))

    def flush(self) -> None:
        self._ours.flush()


def _if_on(method: Callable[..., None], is_on: Callable[[], bool]) -> Callable[..., None]:
    def switched(self: Any, *arguments: Any, **named: Any) -> None:
        if is_on():
            method(self, *arguments, **named)

    return switched


LOOPS: dict[str, tuple[str, Callable[[str, int], Schedule], float]] = {
    "plain": ("plain loop, bound by the host", plain_loop, _BUDGETS[4]),
    "gpu": (
        "plain loop, bound by the device",
        lambda device, rounds: plain_loop(device, rounds, is_host_bound=False),
        _BUDGETS[10],
    ),
    "lightning": ("Lightning", lightning_loop, _BUDGETS[4]),
    "trainer": ("Trainer", trainer_loop, _BUDGETS[4]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how much slower training is with recording.")
    parser.add_argument("loops", nargs="*", default=list(LOOPS), help=f"which loops: {', '.join(LOOPS)}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=16)
    options = parser.parse_args()
    if unknown := set(options.loops) - set(LOOPS):
        parser.error(f"unknown loop {', '.join(sorted(unknown))}; choose from {', '.join(LOOPS)}")
    where = torch.cuda.get_device_name() if options.device == "cuda" else "one CPU core"
    print(f"Slow-down of training on {where}: blocks of {_BLOCK_S:g} s, {options.rounds} rounds", flush=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in options.loops:
        title, train, budget = LOOPS[name]
        print(f"{title}:", flush=True)
        train(options.device, options.rounds).print_rows(title, budget)


if __name__ == "__main__":
    main()
