"""The layer table: statistics of every parameter, of its gradient and of its optimizer state.

Norms and maxima are computed with `_foreach` operations, a few per device and type, and copied to the host in one
piece. Counts of non-finite values and of zeros need a pass per tensor, so they are made only for tensors whose maximum
is not finite, and for a sample of the values. Of a sharded parameter, the local shard is measured.

Runs on the training thread, between two steps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["find_model", "find_models", "find_optimizers", "layer_table", "parameter_names"]

_MAX_PARAMETERS = 20_000
_SAMPLE_SIZE = 4096
_MAX_COUNTED = 512
_MAX_SCANNED_OBJECTS = 3_000_000


def find_model(parameters: Sequence[Any]) -> Any:
    """Return the smallest module of the process that contains all of some parameters, or most of them; None without."""
    return next(iter(find_models(parameters)), None)


def find_models(parameters: Sequence[Any]) -> list[Any]:
    """Return the modules of the process that contain as many of some parameters as any does, the smallest first."""
    import gc

    module_type = sys.modules["torch"].nn.Module
    parameter_ids = {id(parameter) for parameter in parameters}
    models: list[tuple[int, Any]] = []
    most_contained = 1
    for candidate in gc.get_objects()[:_MAX_SCANNED_OBJECTS]:
        # By the class: `isinstance` would ask proxies of other libraries for it, which may load them.
        if not issubclass(type(candidate), module_type):
            continue
        members = list(candidate.parameters())
        num_contained = sum(id(parameter) in parameter_ids for parameter in members)
        if num_contained > most_contained:
            models, most_contained = [], num_contained
        if num_contained == most_contained:
            # A wrapper contains as many parameters as the model and more modules.
            models.append((sum(1 for _ in candidate.modules()), candidate))
    return [model for _, model in sorted(models, key=lambda item: item[0])]


def find_optimizers() -> list[Any]:
    """Return the optimizers of the process, for a loop that has not stepped one yet."""
    import gc

    gc.collect()  # a cell of a notebook that is run again leaves the models of the last time
    optimizer_type = sys.modules["torch"].optim.Optimizer
    return [candidate for candidate in gc.get_objects() if issubclass(type(candidate), optimizer_type)][:8]


def parameter_names(model: Any, parameters: Iterable[Any]) -> list[str]:
    """Return the name of each parameter in a model; a number for one that it does not have."""
    names = {} if model is None else {id(parameter): name for name, parameter in model.named_parameters()}
    return [names.get(id(parameter), f"parameter {number}") for number, parameter in enumerate(parameters)]


def layer_table(optimizers: Iterable[Any], model: Any = None) -> list[dict[str, Any]]:
    """Return a row per parameter of some optimizers.

    Args:
        optimizers: the optimizers.
        model: the module that names the parameters; it is searched for if not given.
    """
    torch = sys.modules["torch"]
    parameters: list[Any] = []
    groups: list[Mapping[str, Any]] = []
    states: list[Any] = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if len(parameters) < _MAX_PARAMETERS:
                    parameters.append(parameter)
                    groups.append(group)
                    state = optimizer.state.get(parameter)
                    states.append(state if isinstance(state, Mapping) else {})
    model = find_model(parameters) if model is None else model
    names = parameter_names(model, parameters)
    with torch.no_grad():
        weights = [_local(parameter) for parameter in parameters]
        gradients = [_local(parameter.grad) for parameter in parameters]
        moments = [_local(state.get("exp_avg_sq")) for state in states]
        means = [_local(state.get("exp_avg")) for state in states]
        columns = _statistics(torch, [weights, gradients, moments, means])
    rows = []
    for number, name in enumerate(names):
        weight, gradient, moment, mean = (column[number] for column in columns)
        row: dict[str, Any] = {"name": name, "shape": [int(size) for size in parameters[number].shape]}
        row |= {"dtype": str(parameters[number].dtype).removeprefix("torch."), "weight": weight}
        if gradient is not None:
            row["gradient"] = gradient
        if moment is not None:
            row["state"] = moment
        if weights[number] is not parameters[number]:
            row["is_shard"] = True
        ratio = _update_ratio(groups[number], weight, gradient, mean, moment)
        if ratio is not None:
            row["update_ratio"] = ratio
        rows.append(row)
    return rows


def _local(tensor: Any) -> Any:
    """Return the local shard of a distributed tensor, and any other tensor itself; None for a sparse one."""
    if tensor is None or not hasattr(tensor, "is_sparse") or tensor.is_sparse or not tensor.is_floating_point():
        return None
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor


def _statistics(torch: Any, columns: list[list[Any]]) -> list[list[dict[str, Any] | None]]:
    tensors = [tensor for column in columns for tensor in column if tensor is not None and tensor.numel()]
    numbers: dict[int, tuple[float, float]] = {}
    if tensors:
        by_kind: dict[tuple[Any, Any], list[Any]] = {}
        for tensor in tensors:
            by_kind.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        for same in by_kind.values():
            both = [*torch._foreach_norm(same, 2), *torch._foreach_norm(same, math.inf)]
            values = torch.stack([value.float() for value in both]).cpu().tolist()  # one copy
            for index, tensor in enumerate(same):
                numbers[id(tensor)] = (values[index], values[len(same) + index])
    num_counted = 0
    result: list[list[dict[str, Any] | None]] = []
    for column in columns:
        cells: list[dict[str, Any] | None] = []
        for tensor in column:
            if tensor is None or id(tensor) not in numbers:
                cells.append(None)
                continue
            norm, absmax = numbers[id(tensor)]
            cell: dict[str, Any] = {"rms": norm / math.sqrt(tensor.numel()), "absmax": absmax}
            if not math.isfinite(absmax):
                cell["non_finite"] = tensor.numel()
                if num_counted < _MAX_COUNTED:
                    num_counted += 1
                    cell["non_finite"] = _count_non_finite(torch, tensor)
            if tensor.device.type == "cpu":
                sample = tensor.detach().reshape(-1)[:_SAMPLE_SIZE] if tensor.is_contiguous() else tensor.detach()
                cell["zeros"] = float((sample == 0).float().mean())
            cells.append(cell)
        result.append(cells)
    return result


def _count_non_finite(torch: Any, tensor: Any) -> int:
    """Count in pieces: a mask of a whole tensor could be hundreds of megabytes."""
    flat = tensor.detach().reshape(-1)
    return sum(int((~torch.isfinite(piece)).sum()) for piece in flat.split(1 << 22))


def _update_ratio(group: Mapping[str, Any], weight: Any, gradient: Any, mean: Any, moment: Any) -> float | None:
    """Return about how large the last update was beside the weights; None if the optimizer is not known."""
    lr = group.get("lr")
    try:
        lr = float(lr) if lr is not None else None
    except (TypeError, ValueError, RuntimeError):
        return None
    if lr is None or weight is None or not weight["rms"]:
        return None
    if mean is not None and moment is not None:
        # The mean of the second moment is at most its rms and at least rms² / absmax.
        spread = math.sqrt(moment["rms"]) if moment["rms"] > 0 else math.nan
        return lr * min(mean["rms"] / spread, 1.0) / float(weight["rms"]) if spread else None
    return None if gradient is None else lr * float(gradient["rms"]) / float(weight["rms"])
