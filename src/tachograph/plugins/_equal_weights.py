"""Compares loss and gradients of two trainings at equal weights: one with a plugin, one without.

Two trainings drift apart after the first step, so their losses say little about whether a plugin computes the same.
`EqualWeightsProbe` is a callback that runs the real training and keeps the weights of both equal while it measures:

    held steps at the initial weights ─► free steps ─► held steps at the weights of the reference after its free steps

In a held step, everything runs as usual (data, loss, accumulation, filters, optimizer), and the next step restores the
weights. Gradients are those that the optimizer receives, without clipping. The reference writes weights and gradients
to a folder; the other training loads these weights, and compares its gradients with the files.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph.exceptions import PluginError

__all__ = ["EqualWeightsProbe", "StepDifference", "gradient_difference"]

_UNCLIPPED = 1e30
"""As `max_grad_norm`. Clipping would hide a gradient that is too large as a whole."""
_MIN_SHARE = 1e-3
"""Gradients are compared with the largest of their tensor, or with this share of the largest of all: a gradient that is
zero in theory, such as that of a key's bias, consists of rounding errors."""


class StepDifference(NamedTuple):
    """Loss and gradients of one step in both trainings, at equal weights."""

    step: int
    is_start: bool
    """Whether at the initial weights; else after the free steps."""
    losses: tuple[float, float]
    """The loss of the reference, and of the other training."""
    norms: tuple[float, float]
    """The norms of their gradients."""
    gradient: float | None
    """The largest relative difference between gradients; None if no parameter has a gradient in both."""
    worst: str
    """The parameter with this difference."""

    @property
    def loss(self) -> float:
        """The relative difference between the losses."""
        first, second = self.losses
        if first == second:
            return 0.0
        difference = abs(second - first) / abs(first) if first else math.inf
        return difference if math.isfinite(difference) else math.inf


class EqualWeightsProbe(TrainerCallback):
    """Measures one of two trainings; the reference must be finished before the other one starts.

    Args:
        folder: where the reference writes weights and gradients.
        is_reference: whether this is the reference.
        num_held: the number of held steps at each of both weights.
        num_free: the number of steps in between.

    Attributes:
        differences: the held steps of both trainings; empty in the reference.
        notes: differences other than numbers, such as parameters that only one of them trains.

    Example:
        >>> for is_reference, trainer in ((True, make_trainer()), (False, make_trainer(plugin))):
        ...     probe = EqualWeightsProbe(folder, is_reference=is_reference)
        ...     probe.attach(trainer)
        ...     trainer.train()
        >>> probe.differences[0].loss
    """

    def __init__(self, folder: Path, *, is_reference: bool, num_held: int = 3, num_free: int = 5) -> None:
        self.differences: list[StepDifference] = []
        self.notes: list[str] = []
        self._folder = folder
        self._is_reference = is_reference
        self._num_held, self._num_free = num_held, num_free
        self._step = 0
        self._loss = 0.0
        self._batches = hashlib.sha256()
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._weights: list[torch.Tensor] = []

    def attach(self, trainer: Any) -> None:
        """Add the probe to a trainer, before `train`. Its gradients are no longer clipped."""
        trainer.args.max_grad_norm = _UNCLIPPED
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        inner_step = trainer.training_step

        def training_step(model: Any, inputs: Any, *arguments: Any, **kwargs: Any) -> Any:
            torch.manual_seed(self._step)  # the same dropout in both trainings
            _update_hash(self._batches, inputs)
            loss = inner_step(model, inputs, *arguments, **kwargs)
            self._loss += float(loss)
            return loss

        trainer.training_step = training_step

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make the initial weights equal, and observe the optimizer."""
        optimizer = kwargs["optimizer"]
        optimizer = getattr(optimizer, "optimizer", optimizer)  # of Accelerate's wrapper
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise PluginError(f"gradients of the optimizer {type(optimizer).__name__} cannot be observed")
        self._parameters = {
            name.replace("_orig_mod.", ""): parameter for name, parameter in kwargs["model"].named_parameters()
        }
        if not self._synchronise("start"):
            self.notes.append("the initial weights of the trainings differ; they were made equal")
        optimizer.register_step_pre_hook(lambda *_: self._before_step())
        optimizer.register_step_post_hook(lambda *_: self._after_step())

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the weights before and after a held step; a plugin may have changed them since the optimizer did."""
        if self._is_held(self._step) or self._is_held(self._step - 1):
            with torch.no_grad():
                for parameter, weight in zip(self._trained(), self._weights, strict=True):
                    parameter.copy_(weight)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop after the last held step."""
        if self._step >= 2 * self._num_held + self._num_free:
            control.should_training_stop = True

    def _is_held(self, step: int) -> bool:
        return 0 <= step < self._num_held or step >= self._num_held + self._num_free

    def _before_step(self) -> None:
        """Save the gradients that the optimizer receives, or compare them with those of the reference."""
        if not self._is_held(self._step):
            return
        gradients = {
            name: parameter.grad.detach() for name, parameter in self._parameters.items() if parameter.grad is not None
        }
        path = self._folder / f"step-{self._step}.pt"
        batches = self._batches.hexdigest()
        if self._is_reference:
            saved_gradients = {name: gradient.cpu() for name, gradient in gradients.items()}
            torch.save({"loss": self._loss, "batches": batches, "gradients": saved_gradients}, path)
        elif path.is_file():
            reference = torch.load(path, map_location="cpu", weights_only=True)
            self._compare(reference["loss"], reference["gradients"], gradients)
            if reference["batches"] != batches:
                self._note("the batches of the trainings differ")

    def _compare(self, loss: float, expected: dict[str, torch.Tensor], gradients: dict[str, torch.Tensor]) -> None:
        difference, worst = gradient_difference(expected, gradients)
        for names, which in ((expected.keys() - gradients, "without"), (gradients.keys() - expected, "with")):
            if names:
                self._note(
                    f"{len(names)} of {len(expected | gradients)} parameters get a gradient only {which} the plugin"
                )
        norms = (_norm(expected), _norm(gradients))
        is_start = self._step < self._num_held
        self.differences.append(StepDifference(self._step, is_start, (loss, self._loss), norms, difference, worst))

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _after_step(self) -> None:
        self._step += 1
        self._loss = 0.0
        if self._step == self._num_held + self._num_free:
            self._synchronise("later")

    def _trained(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self._parameters.values() if parameter.requires_grad]

    def _synchronise(self, name: str) -> bool:
        """Save the weights of the reference, or load them; return whether they were equal before."""
        path = self._folder / f"{name}.pt"
        is_equal = True
        if self._is_reference:
            weights = {key: value.detach().cpu() for key, value in self._parameters.items() if value.requires_grad}
            torch.save(weights, path)
        elif path.is_file():
            for key, weight in torch.load(path, map_location="cpu", weights_only=True).items():
                parameter = self._parameters.get(key)
                if parameter is None or parameter.dim() != weight.dim():
                    self._note(f"parameter {key} does not exist with the plugin")
                    continue
                # A plugin may add rows, such as the embedding of a new token.
                part = parameter.detach()[tuple(slice(size) for size in weight.shape)]
                expected = weight[tuple(slice(size) for size in part.shape)].to(part)
                is_equal = is_equal and torch.equal(part, expected)
                part.copy_(expected)
        self._weights = [parameter.detach().clone() for parameter in self._trained()]
        return is_equal


def gradient_difference(
    expected: dict[str, torch.Tensor], gradients: dict[str, torch.Tensor]
) -> tuple[float | None, str]:
    """Return the largest relative difference between gradients, and the name of its parameter.

    A difference is divided by the largest gradient of the tensor, but at least by a thousandth of the largest of all.
    """
    names = [name for name in expected if name in gradients and expected[name].shape == gradients[name].shape]
    scales = {name: float(expected[name].abs().max()) for name in names}
    min_scale = _MIN_SHARE * max(scales.values(), default=0.0)
    worst: tuple[float | None, str] = (None, "")
    for name in names:
        gradient = gradients[name].float()
        distance = float((gradient - expected[name].to(gradient)).abs().max())
        scale = max(scales[name], min_scale)
        difference = distance / scale if scale else (0.0 if distance == 0 else math.inf)
        if not math.isfinite(difference):
            difference = math.inf
        if worst[0] is None or difference > worst[0]:
            worst = difference, name
    return worst


def _norm(tensors: dict[str, torch.Tensor]) -> float:
    return math.sqrt(sum(float(tensor.float().square().sum()) for tensor in tensors.values()))


def _update_hash(digest: Any, inputs: Any) -> None:
    ids = inputs.get("input_ids") if isinstance(inputs, dict) or hasattr(inputs, "get") else None
    if isinstance(ids, torch.Tensor):
        digest.update(repr(tuple(ids.shape)).encode())
        digest.update(ids.detach().cpu().numpy().tobytes())
