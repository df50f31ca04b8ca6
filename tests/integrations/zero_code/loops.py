"""A script without telemetry: all kinds of loops, each in its own process, forked after torch is imported.

``python loops.py FOLDER [NAME …]`` writes a file per loop with its weights, the state of all random generators,
and the losses, learning rates, epochs and checkpoints that a recording must contain.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import hashlib
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
import torch._dynamo  # imported by the first optimizer: here once, otherwise in every fork
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

Expected = dict[str, Any]
LOOPS: dict[str, Callable[[nn.Module, Expected], None]] = {}


def loop(function: Callable[[nn.Module, Expected], None]) -> Callable[[nn.Module, Expected], None]:
    LOOPS[function.__name__] = function
    return function


def data(**options: Any) -> DataLoader[Any]:
    inputs = torch.randn(24, 4)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True, **options)


def model_of(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1))


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


@loop
def plain(model: nn.Module, expected: Expected) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    loader, held_out = data(), data()
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            expected["norms"].append(norm.item())
            expected["lrs"].append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
            expected["losses"].append(loss.item())
        with torch.no_grad():
            for batch in held_out:
                loss_of(model, batch)
    expected |= {"epochs": 2, "validations": 2}


@loop
def workers(model: nn.Module, expected: Expected) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in data(num_workers=2):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected["losses"].append(loss.item())
    expected["epochs"] = 1


@loop
def accumulation(model: nn.Module, expected: Expected) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = 0.0
    for number, batch in enumerate(data()):
        loss = loss_of(model, batch) / 3
        loss.backward()
        total += loss.item()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
            expected["losses"].append(total)
            total = 0.0
    expected["epochs"] = 1


@loop
def grad_scaler(model: nn.Module, expected: Expected) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for number, batch in enumerate(data()):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        if number == 2:
            next(model.parameters()).grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        expected["losses"].append(loss.item())
    expected |= {"epochs": 1, "skipped": [2]}


@loop
def halved_after_scaling(model: nn.Module, expected: Expected) -> None:
    """The loss cannot be derived from the argument of `backward`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for batch in data():
        optimizer.zero_grad()
        (scaler.scale(loss_of(model, batch)) / 2).backward()
        scaler.step(optimizer)
        scaler.update()
    expected |= {"epochs": 1, "losses": None, "num_iterations": 6}


@loop
def adversarial(model: nn.Module, expected: Expected) -> None:
    other = model_of(6)
    optimizers = [torch.optim.Adam(one.parameters(), lr=lr) for one, lr in ((other, 0.02), (model, 0.01))]
    losses: list[list[float]] = [[], []]
    for batch in data():
        for one, optimizer, own in zip((other, model), optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss = loss_of(one, batch)
            loss.backward()
            optimizer.step()
            own.append(loss.item())
    expected |= {"epochs": 1, "losses": None, "losses_by_optimizer": losses, "num_iterations": 6}
    expected["lrs_by_optimizer"] = [0.02, 0.01]


@loop
def critic_steps_more_often(model: nn.Module, expected: Expected) -> None:
    """The critic steps on two losses, and the generator only every third time."""
    other = model_of(6)
    critic, generator = (torch.optim.Adam(one.parameters()) for one in (other, model))
    losses: list[list[float | None]] = [[], []]
    for number, batch in enumerate(data()):
        critic.zero_grad()
        real, fake = loss_of(other, batch), loss_of(other, [batch[0] + 1, batch[1]])
        real.backward()
        fake.backward()
        critic.step()
        losses[0].append(real.item() + fake.item())
        losses[1].append(None)
        if number % 3 == 0:
            generator.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            generator.step()
            losses[1][-1] = loss.item()
    expected |= {"epochs": 1, "losses": None, "losses_by_optimizer": losses, "num_iterations": 6}
    expected["optimizer_names"] = ["critic", "generator"]


@loop
def losses_before_steps(model: nn.Module, expected: Expected) -> None:
    other = model_of(6)
    optimizers = [torch.optim.Adam(one.parameters()) for one in (other, model)]
    losses: list[list[float]] = [[], []]
    for batch in data():
        for one, own in zip((other, model), losses, strict=True):
            one.zero_grad()
            loss = loss_of(one, batch)
            loss.backward()
            own.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
    expected |= {"epochs": 1, "losses": None, "losses_by_optimizer": losses, "num_iterations": 6}


@loop
def two_optimizers_for_one_loss(model: nn.Module, expected: Expected) -> None:
    """As one for matrices and one for the other parameters, here with accumulated gradients."""
    matrices = torch.optim.SGD([one for one in model.parameters() if one.ndim > 1], lr=0.02)
    others = torch.optim.Adam([one for one in model.parameters() if one.ndim < 2], lr=0.01)
    total = 0.0
    for number, batch in enumerate(data()):
        loss = loss_of(model, batch) / 2
        loss.backward()
        total += loss.item()
        if number % 2:
            matrices.step()
            others.step()
            model.zero_grad()
            expected["losses"].append(total)
            total = 0.0
    expected |= {"epochs": 1, "lrs_by_optimizer": [0.02, 0.01]}


@loop
def adversarial_without_loader(model: nn.Module, expected: Expected) -> None:
    other = model_of(6)
    optimizers = [torch.optim.Adam(one.parameters()) for one in (other, model)]
    losses: list[list[float]] = [[], []]
    for _ in range(4):
        batch = (torch.randn(4, 4), torch.zeros(4, 1))
        for one, optimizer, own in zip((other, model), optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss = loss_of(one, batch)
            loss.backward()
            optimizer.step()
            own.append(loss.item())
    expected |= {"losses": None, "losses_by_optimizer": losses, "num_iterations": 4}


@loop
def lbfgs(model: nn.Module, expected: Expected) -> None:
    model.eval()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    batch = next(iter(data()))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    for _ in range(3):
        expected["losses"].append(optimizer.step(closure).item())


@loop
def several_steps_per_batch(model: nn.Module, expected: Expected) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in data():
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            expected["losses"].append(loss.item())
    expected["epochs"] = 1


@loop
def without_loader(model: nn.Module, expected: Expected) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 4)).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        expected["losses"].append(loss.item())


@loop
def validation_without_no_grad(model: nn.Module, expected: Expected) -> None:
    """Gradients are off only around the model, so the loader does not notice."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for batch in data():
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expected["losses"].append(loss.item())
        model.eval()
        for batch in data():
            with torch.no_grad():
                loss_of(model, batch)
        model.train()
    expected |= {"epochs": 2, "validations": 2}


@loop
def recomputed_activations(model: nn.Module, expected: Expected) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in data():
        hidden = checkpoint(model[0], batch[0].requires_grad_(), use_reentrant=True)
        loss = nn.functional.mse_loss(model[1:](hidden), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected["losses"].append(loss.item())
    expected["epochs"] = 1


@loop
def streamed(model: nn.Module, expected: Expected) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            for _ in range(8):
                yield torch.randn(4), torch.zeros(1)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Stream(), batch_size=2):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected["losses"].append(loss.item())
    expected["epochs"] = 1


@loop
def in_a_thread(model: nn.Module, expected: Expected) -> None:
    nn.Linear(2, 1)(torch.randn(1, 2)).sum().backward()  # this thread does not train
    thread = threading.Thread(target=plain, args=(model, expected))
    thread.start()
    thread.join()


@loop
def one_thread_after_the_other(model: nn.Module, expected: Expected) -> None:
    for _ in range(2):
        thread = threading.Thread(target=workers, args=(model, expected))
        thread.start()
        thread.join()
    expected["epochs"] = 2


@loop
def steps_inside_backward(model: nn.Module, expected: Expected) -> None:
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(4):
        loss = model(torch.randn(4, 4)).square().mean()
        loss.backward()
        expected["losses"].append(loss.item())


@loop
def changing_learning_rate_in_place(model: nn.Module, expected: Expected) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.5))
    for batch in data():
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        expected["lrs"].append(optimizer.param_groups[0]["lr"].item())
        optimizer.step()
        optimizer.param_groups[0]["lr"].mul_(0.5)
        expected["losses"].append(loss.item())
    expected["epochs"] = 1


@loop
def retried_after_a_failure(model: nn.Module, expected: Expected) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, batch in enumerate(data()):
        optimizer.zero_grad()
        if number == 1:
            with contextlib.suppress(RuntimeError):
                loss_of(model, batch).backward(torch.ones(7))
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        expected["losses"].append(loss.item())
    expected["epochs"] = 1


@loop
def checkpoints(model: nn.Module, expected: Expected) -> None:
    from safetensors.torch import save_file

    torch.save(model.state_dict(), "before.pt")  # training has not begun
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, batch in enumerate(data()):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected["losses"].append(loss.item())
        if number == 0:
            torch.save(model.state_dict(), "text.pt")
        elif number == 1:
            torch.save(model.state_dict(), f=Path("path.pt"))
        elif number == 2:
            with open("file.pt", "wb") as file:
                torch.save(model.state_dict(), file)
        elif number == 3:
            save_file(model.state_dict(), "weights.safetensors")
    expected |= {"epochs": 1, "saved": {0: "text.pt", 1: "path.pt", 2: "file.pt", 3: "weights.safetensors"}}


@loop
def compiled(model: nn.Module, expected: Expected) -> None:
    graph = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in data():
        loss = loss_of(graph, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected["losses"].append(loss.item())
    expected["epochs"] = 1


@loop
def compiled_optimizer(model: nn.Module, expected: Expected) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    step = torch.compile(optimizer.step, backend="eager")
    for batch in data():
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        step()
        expected["losses"].append(loss.item())
    expected["epochs"] = 1


@loop
def all_compiled(model: nn.Module, expected: Expected) -> None:
    """Only the steps can be observed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @torch.compile(backend="eager")
    def train_step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        for batch in data():
            train_step(batch)
    expected |= {"epochs": 2, "losses": None, "num_iterations": 12}


@loop
def no_training(model: nn.Module, expected: Expected) -> None:
    """Gradients are computed, but no optimizer steps: there is no run."""
    for batch in data():
        inputs = batch[0].requires_grad_()
        model(inputs).sum().backward()
    expected |= {"losses": None, "num_iterations": None}


def state_of(model: nn.Module) -> Expected:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return {
        "weights": digest.hexdigest(),
        "torch": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
        "numpy": hashlib.sha256(str(numpy.random.get_state()).encode()).hexdigest(),
        "random": hashlib.sha256(str(random.getstate()).encode()).hexdigest(),
    }


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    gc.freeze()  # otherwise every fork scans all modules when it exits
    for name in sys.argv[2:] or LOOPS:
        pid = os.fork()
        if not pid:
            torch.manual_seed(0)
            numpy.random.seed(0)
            random.seed(0)
            model = model_of()
            expected: Expected = {"losses": [], "lrs": [], "norms": [], "epochs": 0, "validations": 0, "saved": {}}
            LOOPS[name](model, expected)
            (folder / f"{name}.json").write_text(json.dumps({"state": state_of(model), **expected}))
            atexit._run_exitfuncs()  # what a normal exit runs, without tearing down torch
            os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
