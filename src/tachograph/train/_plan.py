"""The plan of a training: sizes, steps and memory, from the data and a model without weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tachograph.train._config import TrainConfig
from tachograph.train._data import PreparedData
from tachograph.train._model import compute_dtype, weights_dtype

if TYPE_CHECKING:
    from tachograph.train._arguments import Steps

__all__ = ["TrainPlan", "make_plan"]

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 4}
_OPTIMIZER_STATES = {"sgd": 0.0, "adafactor": 0.0, "rmsprop": 1.0, "adagrad": 1.0, "lion": 1.0}
"""Numbers that an optimizer keeps per parameter; two, unless named here."""


@dataclass
class TrainPlan:
    """The plan of a training.

    Attributes:
        rows: facts, each with its label.
        plugins: the changes that each plugin would make.
        notes: dropped rows, and keys without effect.
    """

    rows: list[tuple[str, str]]
    plugins: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def make_plan(config: TrainConfig, data: PreparedData, steps: Steps, model: Any, trainer: str) -> TrainPlan:
    """Return the plan, without the changes of plugins."""
    num_parameters = sum(value.numel() for value in model.parameters())
    num_trained = sum(value.numel() for value in model.parameters() if value.requires_grad)
    share = f" ({num_trained / num_parameters:.2%})" if num_trained != num_parameters else ""
    rows = [
        ("model", f"{config.base_model or 'built from init_from_config'} ({type(model).__name__})"),
        ("trainer", trainer),
        ("parameters", f"{num_parameters:,}"),
        ("trained parameters", f"{num_trained:,}{share}"),
        ("samples", f"{data.num_samples:,}"),
    ]
    if len(data.train) != data.num_samples:
        rows.append(("packed rows", f"{len(data.train):,}"))
    if data.num_tokens is not None:
        rows.append(("tokens", f"{data.num_tokens:,}, of them {data.num_trained_tokens:,} trained on"))
    if data.eval is not None:
        rows.append(("evaluation rows", f"{len(data.eval):,}"))
    rows += [
        ("rows per step", f"{steps.rows_per_step:,} on {steps.num_devices} device{'s' * (steps.num_devices != 1)}"),
        ("steps", f"{steps.total:,} ({steps.per_epoch:,} per epoch)"),
        ("precision", compute_dtype(config)),
        (
            "memory per process",
            f"{_memory(config, num_parameters, num_trained, steps) / 2**30:.2f} GiB and activations",
        ),
        ("output", config.output_dir),
    ]
    return TrainPlan(rows)


def _memory(config: TrainConfig, num_parameters: int, num_trained: int, steps: Steps) -> float:
    """Return the bytes of weights, gradients and optimizer; activations depend on the model and the batch."""
    size = _BYTES[weights_dtype(config)]
    weight_size = 0.5 if config.adapter == "qlora" or config.load_in_4bit else 1.0 if config.load_in_8bit else size
    states = next((count for name, count in _OPTIMIZER_STATES.items() if config.optimizer.startswith(name)), 2.0)
    state_size = 1 if "8bit" in config.optimizer else size
    needs_reference = config.rl in ("dpo", "ipo", "kto") and not config.adapter
    weights = (num_parameters - num_trained) * weight_size + num_trained * size
    memory = weights * (2 if needs_reference else 1) + num_trained * (size + states * state_size)
    return memory / steps.num_devices if config.fsdp or config.deepspeed else memory
