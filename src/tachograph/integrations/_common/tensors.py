"""Read numbers from tensors without making the training thread or a device wait."""

from __future__ import annotations

import sys
from typing import Any

from tachograph._base.guard import guarded, reraise_from_signal_handler
from tachograph.integrations._common.loop_state import MAX_PARTS
from tachograph.reader import overview
from tachograph.recorder import Run
from tachograph.records import LazyValue, copy_to_host

__all__ = ["gradient_norm", "number_from", "prepare_device", "steps_completed", "sum_losses", "unscaled_loss"]


def unscaled_loss(loss: Any, *, is_scaled: bool = False) -> Any:
    """Return the loss that a backward pass is run on before it was scaled, or None if that is unknown.

    Args:
        loss: the argument of the backward pass.
        is_scaled: whether a loss was scaled in this iteration. Then only a loss that carries its unscaled value counts.
    """
    if isinstance(loss, (list, tuple)) and len(loss) == 1:
        loss = loss[0]
    loss_before_scaling = getattr(loss, "_tachograph_loss", None)
    return loss if loss_before_scaling is None and not is_scaled else loss_before_scaling


def number_from(value: Any) -> Any:
    """Return a scalar as a number, or as a lazy value that is being copied from a device; None for anything else.

    Tensors distributed over several devices are never touched: reading one would be a collective operation.
    """
    if type(value) is float or type(value) is int:
        return value
    torch: Any = sys.modules["torch"]
    if type(value) is not torch.Tensor or value.numel() != 1 or not value.dtype.is_floating_point:
        return None
    if value.device.type == "cpu":
        return value.item()
    if value.device.type != "cuda":
        return None
    try:
        return copy_to_host(value.detach())
    except Exception as error:  # noqa: BLE001 - an error of the device, which the loop will meet itself
        reraise_from_signal_handler(error)
        return None


@guarded("preparing to read values from a device")
def prepare_device(optimizer: Any) -> None:
    """Read a value from the device of an optimizer's parameters.

    The first time allocates a buffer and loads a kernel, which takes 15 ms: not in the first step of the training.
    """
    torch: Any = sys.modules["torch"]
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    parameter = next(parameters, None)
    if isinstance(parameter, torch.Tensor) and parameter.device.type == "cuda":
        number_from(torch.zeros((), device=parameter.device))


def sum_losses(losses: list[Any]) -> Any:
    """Return the sum of the losses whose gradients were accumulated, or None if one of them is unknown."""
    if not losses or len(losses) >= MAX_PARTS or any(loss is None for loss in losses):
        return None
    if len(losses) == 1:
        return losses[0]
    if all(type(loss) is float for loss in losses):
        return sum(losses)

    def compute() -> float:
        return sum(float(loss.compute() if isinstance(loss, LazyValue) else loss) for loss in losses)

    return LazyValue(compute)


def gradient_norm(groups: list[dict[str, Any]]) -> Any:
    """Return the norm of all gradients, or None if there are none or some are distributed over several devices.

    The norm of distributed gradients would be a collective operation.
    """
    torch: Any = sys.modules["torch"]
    gradients = [parameter.grad for group in groups for parameter in group["params"] if parameter.grad is not None]
    if not gradients or any(type(gradient) is not torch.Tensor for gradient in gradients):
        return None
    return torch.nn.utils.get_total_norm(gradients)


def steps_completed(run: Run, optimizer: Any) -> int:
    """Return the number of steps before a run was resumed: as counted by its optimizer, else as recorded."""
    steps = [number_from(state.get("step")) for state in getattr(optimizer, "state", {}).values()]
    step_counts = [int(step) - 1 for step in steps if type(step) in (float, int)]
    if step_counts:
        return max(0, *step_counts)
    last = overview(run.folder).step if run.folder is not None else None
    return 0 if last is None else last + 1
