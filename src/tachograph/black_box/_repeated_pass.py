"""The forward pass of a step repeated at once, with the same weights and the same batch, to find where a NaN begins.

It runs between the backward pass and the step of the optimizer, on a structural copy of the model: parameters are
shared and only read, buffers are copied, hooks are left out, and the random generators are restored. Each operation of
PyTorch is checked, and if all outputs are finite, each one of a backward pass from their sum.

Not repeated: models that are compiled, not on the CPU or part of a distributed job, and those whose arguments are not
the tensors of the batch.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from tachograph.black_box._activations import is_compiled
from tachograph.black_box._batch_check import restored_random_state
from tachograph.black_box._operation_trace import trace_operations
from tachograph.black_box._ring import tensors_in

__all__ = ["repeat_pass"]

_MAX_PARAMETERS = 1 << 30
_MAX_ROWS = 8
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def repeat_pass(model: Any, batch: Mapping[str, Any], autocast: tuple[str, Any] | None = None) -> dict[str, Any]:
    """Return the first operation whose result is not finite, and the samples whose outputs are not; empty without.

    Args:
        model: the model, with the weights of the step.
        batch: the tensors of the batch by name, or by position if it is a sequence.
        autocast: the type of device and the type of the step's mixed precision, if it used that.
    """
    torch = sys.modules["torch"]
    arguments = _arguments(model, batch)
    if arguments is None or not _is_repeatable(torch, model):
        return {}
    precision = torch.autocast(*autocast) if autocast is not None else contextlib.nullcontext()
    with contextlib.suppress(Exception), restored_random_state():  # code of the user
        twin = _twin(model, {})
        with trace_operations(twin) as trace, torch.enable_grad():
            with precision:
                outputs = twin(*arguments[0], **arguments[1])
            tensors = [value for _, value in tensors_in(outputs, torch.Tensor) if value.is_floating_point()]
            largest = max((_largest(torch, tensor) for tensor in tensors), default=0.0, key=_nan_as_largest)
            differentiable = [tensor.float().sum() for tensor in tensors if tensor.requires_grad]
            if math.isfinite(largest) and differentiable:
                trace.phase = "backward"
                parameters = [parameter for parameter in twin.parameters() if parameter.requires_grad]
                torch.autograd.grad(sum(differentiable), parameters, allow_unused=True)
        operation = trace.first if math.isfinite(largest) else trace.first or trace.first_infinite
        return {
            "largest_output": largest,
            "operation": None if operation is None else msgspec.to_builtins(operation),
            **_bad_rows(torch, tensors, batch),
        }
    return {}


def _is_repeatable(torch: Any, model: Any) -> bool:
    is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    parameters = list(model.parameters())
    return (
        not is_distributed
        and all(type(p) is torch.nn.Parameter and p.device.type == "cpu" for p in parameters)
        and sum(p.numel() for p in parameters) <= _MAX_PARAMETERS
        and not is_compiled(model)
    )


def _arguments(model: Any, batch: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """Return the tensors of a batch as arguments of a model; None if they are not."""
    with contextlib.suppress(TypeError, ValueError):
        parameters = inspect.signature(model.forward).parameters.values()
        plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        required = [p.name for p in plain if p.default is p.empty]
        if all(name == "" or name.isdigit() for name in batch):
            count = max(len(required), 1)
            return (list(batch.values())[:count], {}) if len(batch) >= count else None
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = {p.name for p in plain}
        keywords = {name: value for name, value in batch.items() if takes_all or name in names}
        if keywords and not takes_all and all(name in keywords for name in required):
            return [], keywords
        if takes_all and all(name in keywords for name in required):
            return [], {name: value for name, value in keywords.items() if name in names} or keywords
        if len(required) == 1:  # a dict of inputs and labels, of which the loop passes the first
            return [next(iter(batch.values()))], {}
    return None


def _twin(module: Any, twins: dict[int, Any]) -> Any:
    """Return a module with the same parameters and a life of its own: buffers are copied, hooks are not."""
    if id(module) in twins:
        return twins[id(module)]
    twin = twins[id(module)] = object.__new__(type(module))
    values = dict(module.__dict__)
    for name in _HOOKS:
        values[name] = type(values[name])()
    for name in list(values):
        if name.startswith(("_forward_hooks_", "_forward_pre_hooks_")):
            values[name] = type(values[name])()
    values["_parameters"] = dict(module._parameters)
    values["_buffers"] = {name: None if value is None else value.clone() for name, value in module._buffers.items()}
    values["_modules"] = {
        name: None if child is None else _twin(child, twins) for name, child in module._modules.items()
    }
    twin.__dict__ = values
    return twin


def _bad_rows(torch: Any, outputs: list[Any], batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the samples of the batch whose outputs are not finite, if other samples have finite ones."""
    num_samples = next((int(tensor.shape[0]) for tensor in batch.values() if tensor.dim()), 0)
    for tensor in outputs:
        if tensor.dim() and tensor.shape[0] == num_samples and tensor.numel():
            largest = torch.linalg.vector_norm(tensor.detach().float().reshape(num_samples, -1), math.inf, dim=1)
            rows = (~torch.isfinite(largest)).nonzero().flatten().tolist()
            return {"bad_rows": rows[:_MAX_ROWS], "num_bad_rows": len(rows), "num_rows": num_samples}
    return {}


def _largest(torch: Any, tensor: Any) -> float:
    return float(torch.linalg.vector_norm(tensor.detach().float(), math.inf)) if tensor.numel() else 0.0


def _nan_as_largest(value: float) -> float:
    return math.inf if math.isnan(value) else value
