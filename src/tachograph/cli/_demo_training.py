"""The training jobs of `tacho demo`: a three-layer network on two spirals, with Adam, in plain numpy.

The jobs differ in their learning rate. With the highest one the training diverges, and diagnostics say so.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tachograph._init import init
from tachograph.diagnostics import RULES
from tachograph.recorder import Run
from tachograph.spans import (
    application,
    backward,
    checkpoint_save,
    data_loading,
    forward,
    model_init,
    optimizer_update,
    set_training_config,
    training_iteration,
    training_loop,
    validation_loop,
)

__all__ = ["HIGH", "LOW", "Schedule", "train"]

Array = npt.NDArray[np.float64]

_BATCH_SIZE = 128
_HIDDEN_SIZE = 64
_STEPS_PER_EPOCH = 100
_LABEL_NOISE = 0.01
_RULES = ("divergence", "not_finite")
"""The demo has one fault. Other rules would report it twice, or judge the machine: a step takes a millisecond."""


class Schedule(NamedTuple):
    """A learning rate that rises to its peak and then falls to zero along a cosine."""

    peak: float = 3e-3
    warmup_share: float = 0.05
    """The share of the steps in which it rises."""

    def at(self, step: int, num_steps: int) -> float:
        """Return the learning rate of a step."""
        warmup = min(1.0, (step + 1) / max(1.0, self.warmup_share * num_steps))
        return self.peak * warmup * 0.5 * (1 + math.cos(math.pi * step / num_steps))


LOW, HIGH = Schedule(5e-4), Schedule(1.0, 0.5)
"""Too low: the loss falls slowly. Too high: it falls at first, then the learning rate is too high and it diverges."""


def train(
    *,
    name: str = "demo",
    log_dir: str = "./logs",
    num_steps: int = 2000,
    log_every: int = 1,
    seed: int = 0,
    schedule: Schedule = Schedule(),  # noqa: B008 - it is immutable
    perf_tag: str = "demo-numpy",
    console: bool = True,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> str:
    """Train the model, record the run and return its folder."""
    config = {
        "model": f"mlp-2-{_HIDDEN_SIZE}-{_HIDDEN_SIZE}-1",
        "optimizer": "adam",
        "learning_rate": schedule.peak,
        "lr_scheduler": "cosine",
        "warmup_steps": round(schedule.warmup_share * num_steps),
        "batch_size": _BATCH_SIZE,
        "max_steps": num_steps,
        "seed": seed,
    }
    random = np.random.default_rng(seed)
    held_out = _spirals(random, 1024)
    with (
        init(
            name,
            config=config,
            log_dir=log_dir,
            log_every=log_every,
            console=console,
            tags=["demo"],
            perf_tag=perf_tag,
            project="demo",
            group="learning rate",
            rules={rule: rule in _RULES for rule in RULES.names()},
            code=False,  # of Tachograph itself
        ) as run,
        application(),
    ):
        with model_init() as span:
            model = _Network(random)
            span.add_attribute("num_params", model.num_params)
        set_training_config(flops_per_sample=6 * model.num_params)
        lr_scale = run.control("lr_scale", 1.0, min=0.1, max=10.0)
        best = math.inf
        with training_loop(train_iterations_start=0):
            for step in range(num_steps):
                # Read the control at every step: a request then takes effect at the next one.
                lr = schedule.at(step, num_steps) * lr_scale.value
                with data_loading():
                    points, labels = _spirals(random, _BATCH_SIZE)
                with training_iteration():
                    loss, grad_norm = model.step(points, labels, lr)
                    values = {"train_loss": loss, "lr": lr, "grad_norm": grad_norm}
                    run.log({**values, **model.weight_norms()}, step=step)
                    on_step(step, loss)
                if step % _STEPS_PER_EPOCH == _STEPS_PER_EPOCH - 1:
                    run.log_epoch((step + 1) // _STEPS_PER_EPOCH, step=step)
                if step % _STEPS_PER_EPOCH == _STEPS_PER_EPOCH - 1 or step == num_steps - 1:
                    with validation_loop():
                        val_loss, accuracy = model.evaluate(*held_out)
                    run.log_validation({"loss": val_loss, "accuracy": accuracy}, step=step)
                    if val_loss < best or step == num_steps - 1:
                        _save(model, run, step, is_best=val_loss < best)
                    best = min(best, val_loss)
                if run.should_checkpoint:
                    _save(model, run, step)
                if run.should_stop:
                    break
    return run.path or ""


def _save(model: _Network, run: Run, step: int, *, is_best: bool = False) -> None:
    with checkpoint_save(step):
        path = model.save(run)
    run.log_checkpoint(path, step=step, is_best=is_best)


def _spirals(random: np.random.Generator, num_points: int) -> tuple[Array, Array]:
    labels = random.integers(0, 2, num_points)
    radius = np.sqrt(random.random(num_points)) * 3 * np.pi
    angle = radius + labels * np.pi
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1) / 5
    labels = np.where(random.random(num_points) < _LABEL_NOISE, 1 - labels, labels)
    return points + random.normal(0, 0.03, points.shape), labels.astype(np.float64)


class _Network:
    """A multilayer perceptron with hand-written gradients."""

    def __init__(self, random: np.random.Generator) -> None:
        sizes = (2, _HIDDEN_SIZE, _HIDDEN_SIZE, 1)
        self.params: list[Array] = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            self.params.append(random.normal(0, math.sqrt(2 / fan_in), (fan_in, fan_out)))
            self.params.append(np.zeros(fan_out))
        self._first_moments = [np.zeros_like(param) for param in self.params]
        self._second_moments = [np.zeros_like(param) for param in self.params]
        self._num_steps = 0

    @property
    def num_params(self) -> int:
        return sum(param.size for param in self.params)

    def weight_norms(self) -> dict[str, float]:
        """Return the norm of the weights of each layer."""
        return {f"weight_norm/layer{layer + 1}": float(np.linalg.norm(self.params[2 * layer])) for layer in range(3)}

    def step(self, points: Array, labels: Array, lr: float) -> tuple[float, float]:
        """Run one Adam step and return the loss and the gradient norm."""
        with forward():
            activations = self._forward(points)
            loss = _cross_entropy(activations[-1], labels)
        with backward():
            gradients = self._backward(activations, labels)
        with optimizer_update():
            self._update(gradients, lr)
        return loss, math.sqrt(sum(float((change * change).sum()) for change in gradients))

    def _backward(self, activations: list[Array], labels: Array) -> list[Array]:
        gradient = (_sigmoid(activations[-1]) - labels[:, None]) / len(labels)
        gradients: list[Array] = []
        for layer in (2, 1, 0):
            gradients[:0] = [activations[layer].T @ gradient, gradient.sum(axis=0)]
            if layer:
                gradient = (gradient @ self.params[2 * layer].T) * (activations[layer] > 0)
        return gradients

    def _update(self, gradients: list[Array], lr: float) -> None:
        # Adam with bias correction; beta1 is 0.9 and beta2 is 0.999.
        self._num_steps += 1
        for index, change in enumerate(gradients):
            self._first_moments[index] += 0.1 * (change - self._first_moments[index])
            self._second_moments[index] += 0.001 * (change * change - self._second_moments[index])
            mean = self._first_moments[index] / (1 - 0.9**self._num_steps)
            spread = np.sqrt(self._second_moments[index] / (1 - 0.999**self._num_steps)) + 1e-8
            self.params[index] -= lr * mean / spread

    def evaluate(self, points: Array, labels: Array) -> tuple[float, float]:
        """Return the loss and the accuracy."""
        logits = self._forward(points)[-1]
        return _cross_entropy(logits, labels), float(((logits[:, 0] > 0) == (labels > 0.5)).mean())

    def save(self, run: Run) -> str:
        """Save the weights next to the journal and return the path."""
        path = os.path.join(run.path or ".", "model.npz")
        arrays: dict[str, Any] = {f"param_{index}": param for index, param in enumerate(self.params)}
        np.savez(path, **arrays)
        return path

    def _forward(self, points: Array) -> list[Array]:
        activations = [points]
        for layer in range(3):
            values = activations[-1] @ self.params[2 * layer] + self.params[2 * layer + 1]
            activations.append(np.maximum(values, 0) if layer < 2 else values)
        return activations


def _sigmoid(values: Array) -> Array:
    # Clipping avoids overflow in exp; the function is saturated at 30 anyway.
    result: Array = 1 / (1 + np.exp(-np.clip(values, -30, 30)))
    return result


def _cross_entropy(logits: Array, labels: Array) -> float:
    # logaddexp(0, x) computes log(1 + exp(x)) without overflow.
    values = logits[:, 0]
    return float(np.mean(np.logaddexp(0, values) - labels * values))
