"""The cost of the plugin system itself: the events of a step, without plugins and with one whose hooks do nothing.

    python -m benchmarks.plugins.noop [--steps 20000] [--rounds 9]

A training step differs by less than its own noise, so only what the trainer calls around it is timed: the events of a
step, and every 50 steps a log. Both trainers take turns. The difference is given as a share of a step of 10 ms.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from typing import Any

import torch
import transformers
from transformers import TrainerCallback

from tachograph.plugins import BasePlugin, apply

EVENTS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end")
LOG_EVERY = 50
STEP_MS = 10.0


class Silent(TrainerCallback):
    """Overrides every event of a step and does nothing."""

    def on_step_begin(self, args, state, control, **named):
        pass

    def on_pre_optimizer_step(self, args, state, control, **named):
        pass

    def on_optimizer_step(self, args, state, control, **named):
        pass

    def on_step_end(self, args, state, control, **named):
        pass


class SilentPlugin(BasePlugin):
    def add_callbacks_post_trainer(self, cfg, trainer):
        return [Silent()]


def make_trainer(folder: str, with_plugin: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = transformers.TrainingArguments(
            output_dir=folder, report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True
        )
        trainer = transformers.Trainer(model=torch.nn.Linear(1, 1), args=args, train_dataset=[{}])
    trainer.remove_callback(transformers.PrinterCallback)
    if with_plugin:
        apply(trainer, [SilentPlugin])
    return trainer


def step_us(trainer: Any, num_steps: int) -> float:
    handler = trainer.callback_handler
    events = [getattr(handler, event) for event in EVENTS]
    start = time.process_time()
    for step in range(num_steps):
        for event in events:
            event(trainer.args, trainer.state, trainer.control)
        if step % LOG_EVERY == 0:
            trainer.log({"loss": 1.0})
    trainer.state.log_history.clear()
    return (time.process_time() - start) / num_steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bare, plugged = make_trainer(folder, False), make_trainer(folder, True)
        step_us(plugged, 100)
        pairs = [(step_us(bare, options.steps), step_us(plugged, options.steps)) for _ in range(options.rounds)]
    differences = sorted(after - before for before, after in pairs)
    middle = statistics.median(differences)
    print(f"events of a step without plugins: {statistics.median(before for before, _ in pairs):.1f} µs")
    print(f"a silent plugin adds {middle:.1f} µs per step (from {differences[0]:.1f} to {differences[-1]:.1f}),")
    print(f"{middle / STEP_MS / 1e3:.3%} of a step of {STEP_MS:g} ms; the budget is 0.1 %")


if __name__ == "__main__":
    main()
