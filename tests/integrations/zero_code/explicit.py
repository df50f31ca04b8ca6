"""Scripts that use Tachograph themselves, each in a fork. Under `tacho run` nothing is counted twice.

``python explicit.py [NAME …]``; a run that a script starts has the name of the script.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tachograph as tacho
from tachograph import one_logger

SCRIPTS: dict[str, Callable[[], None]] = {}
NUM_STEPS = 6


def script(function: Callable[[], None]) -> Callable[[], None]:
    SCRIPTS[function.__name__] = function
    return function


def parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return (
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4),
    )


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> float:
    loss = model(batch[0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@script
def own_log() -> None:
    model, optimizer, loader = parts()
    with tacho.init("own_log", console=False):
        for step, batch in enumerate(loader):
            tacho.log({"train_loss": train_step(model, optimizer, batch), "mine": 1.0}, step=step)


@script
def own_spans() -> None:
    model, optimizer, loader = parts()
    held_out = DataLoader(loader.dataset, batch_size=4)
    with tacho.init("own_spans", console=False), tacho.training_loop(train_iterations_start=0):
        for batch in loader:
            with tacho.training_iteration():
                train_step(model, optimizer, batch)
        with tacho.validation_loop(), torch.no_grad():
            for batch in held_out:
                model(batch[0])
        with tacho.checkpoint_save(NUM_STEPS - 1, path="own.pt"):
            torch.save(model.state_dict(), "own.pt")


@script
def own_callbacks() -> None:
    model, optimizer, loader = parts()
    tacho.init("own_callbacks", console=False)
    one_logger.on_train_start(train_iterations_start=0)
    for batch in loader:
        one_logger.on_training_single_iteration_start()
        train_step(model, optimizer, batch)
        one_logger.on_training_single_iteration_end()
    one_logger.on_train_end()


@script
def own_loop_only() -> None:
    model, optimizer, loader = parts()
    with tacho.init("own_loop_only", console=False), tacho.training_loop(train_iterations_start=0):
        for batch in loader:
            train_step(model, optimizer, batch)


@script
def own_watch() -> None:
    model, optimizer, loader = parts()
    tacho.init("own_watch", console=False)
    tacho.watch(model, optimizer)
    for batch in tacho.track(loader):
        train_step(model, optimizer, batch)


@script
def two_runs() -> None:
    """One run after the other, as in a hyperparameter search."""
    for name in ("two_runs", "two_runs_again"):
        model, optimizer, loader = parts()
        with tacho.init(name, console=False):
            for batch in loader:
                train_step(model, optimizer, batch)


@script
def after_its_run() -> None:
    """Training after the end of the run is not recorded, and starts no other run."""
    model, optimizer, loader = parts()
    with tacho.init("after_its_run", console=False):
        for batch in loader:
            train_step(model, optimizer, batch)
    for batch in loader:
        train_step(model, optimizer, batch)


def main() -> None:
    torch.set_num_threads(1)
    gc.freeze()
    for name in sys.argv[1:] or SCRIPTS:
        pid = os.fork()
        if not pid:
            SCRIPTS[name]()
            sys.exit()
        if os.waitpid(pid, 0)[1]:
            sys.exit(f"{name} failed")


if __name__ == "__main__":
    main()
